"""Compiles an env header for a GPU with NVRTC, at run time, without the CUDA toolkit.

NVRTC is called through `cuda-bindings`, which PyTorch's Linux wheels install. As on the CPU there is no FMA
contraction, no fast-math and no libm: a GPU gives the same bytes as a CPU. The cache keeps compiled code by source,
flags, architecture and version of NVRTC. Kernels are launched on torch's current stream, so that CUDA graphs capture
them.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from shoal.errors import CompileFailed, CudaMissing
from shoal.native import build
from shoal.native.lib import Batch

FLAGS = ("--std=c++17", "--fmad=false", "--prec-div=true", "--prec-sqrt=true", "--ftz=false", "-default-device")
KERNELS = ("reset", "step", "take_i32", "take_i64", "take_f32", "save", "load", "drain")
FINISH, TEAM, FINISHED = "finish", 128, 16  # of envs with ENV_HAS_FINISH; its threads and envs of a block (device.h)
# kernels with wrappers, params drawn per episode or other autoreset modes than same_step are larger: their own build
EXTRAS = ("-DSHOAL_EXTRAS=1",)
SHARED_BYTES = 48 << 10  # shared memory that a block has by default
FEW, MAX_SPREAD = 128, 3  # envs of a processor that are few (measured with 16,384 on an H200); at most 8 threads an env
_compiling = threading.Lock()


def gpu_backend_available() -> bool:
    """Whether backend='cuda' works on this machine: torch has a GPU, and cuda-bindings and NVRTC load."""
    return not gpu_backend_missing()


def gpu_backend_missing() -> str:
    """Why backend='cuda' does not work on this machine, in a sentence; empty if it does."""
    try:
        require_gpu()
        nvrtc()
    except CudaMissing as error:
        return str(error)
    return ""


def nvrtc() -> Any:
    """The bindings of NVRTC. Raises CudaMissing if they cannot be loaded."""
    try:
        from cuda.bindings import driver  # noqa: F401, kernels are launched through it
        from cuda.bindings import nvrtc as bindings
    except ImportError:
        raise CudaMissing(
            "backend='cuda' needs cuda-bindings, which is not installed. Install it: pip install cuda-bindings"
        ) from None
    try:
        succeed(bindings.nvrtcVersion())
    except (RuntimeError, OSError) as error:
        raise CudaMissing(f"NVRTC cannot be loaded: {error}. Install it: pip install nvidia-cuda-nvrtc") from None
    return bindings


def require_gpu() -> None:
    """Raises CudaMissing if kernels cannot run: no CUDA build of torch, no driver, or no GPU."""
    try:
        import torch
    except ImportError as error:
        raise CudaMissing(f"backend='cuda' needs torch: {error}. Install it: pip install torch") from None
    if torch.version.cuda is None:
        raise CudaMissing(
            f"torch {torch.__version__} is built for CPUs only. Install a CUDA build of torch, "
            "or use the threads backend."
        )
    if not torch.cuda.is_available():
        raise CudaMissing(
            "no usable GPU: torch finds no NVIDIA driver or no device. nvidia-smi shows why. "
            "Use the threads backend, or --device cpu."
        )


def succeed(result: Any) -> Any:
    """The values that a call of the bindings returned. Raises if it failed."""
    code, *values = result
    if int(code) != 0:
        raise RuntimeError(f"{getattr(code, 'name', code)}")
    return values[0] if len(values) == 1 else values


def cubin(source: build.Source, arch: str, extra: tuple[str, ...] = ()) -> bytes:
    """The kernels of an env for an architecture such as sm_90, from the cache or compiled now."""
    bindings = nvrtc()
    version = succeed(bindings.nvrtcVersion())
    sha = hashlib.sha256(repr((source.name, source.consts, FLAGS, extra, arch, version)).encode())
    for file in source.files():
        sha.update(file.name.encode() + b"\0" + file.read_bytes())
    path = build.cache_dir() / f"{source.name}-{arch}-{sha.hexdigest()[:16]}.cubin"
    with _compiling:  # a second caller reads the file that the first one wrote
        if path.is_file():
            return path.read_bytes()
        code = _compile(bindings, source, arch, extra)
        with contextlib.suppress(OSError):  # a cache that cannot be written: it is compiled again next time
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f".{path.name}.{os.getpid()}")
            temporary.write_bytes(code)
            temporary.replace(path)
    return code


def _compile(bindings: Any, source: build.Source, arch: str, extra: tuple[str, ...]) -> bytes:
    text = (build.CORE / "module.c").read_bytes()
    program = succeed(bindings.nvrtcCreateProgram(text, b"module.cu", 0, [], []))
    flags = [f"--gpu-architecture={arch}", *FLAGS, f"-I{build.NATIVE}", f"-I{build.CORE}", *source.defines(), *extra]
    words = [flag.encode() for flag in flags]
    try:
        code = bindings.nvrtcCompileProgram(program, len(words), words)[0]
        if int(code) != 0:
            log = b" " * succeed(bindings.nvrtcGetProgramLogSize(program))
            bindings.nvrtcGetProgramLog(program, log)
            message = log.decode(errors="replace").rstrip("\0 \n")
            raise CompileFailed(f"{source.header} does not compile for {arch}:\n{build.explain(message, source)}")
        out: bytes = b" " * succeed(bindings.nvrtcGetCUBINSize(program))
        succeed(bindings.nvrtcGetCUBIN(program, out))
        return out
    finally:
        bindings.nvrtcDestroyProgram(program)


class Shape(NamedTuple):
    """How the step kernel is launched: threads of a block, threads of an env as a power of two, and bytes of shared
    memory for the observations of the block's envs (0: they are not staged).
    """

    block: int
    spread: int
    stage_bytes: int


def step_shape(num_envs: int, row_bytes: int, room: int, processors: int, spreads: bool = True) -> Shape:
    """The launch of `num_envs` envs on a GPU of so many processors, with `room` bytes of shared memory for a block.

    With few envs, each has as many threads as let a block of 128 stage the observations of its envs; with many, of 32.
    `spreads`: not so for envs that stage nothing.
    """
    threads = 128 if num_envs <= processors * FEW else 32
    fits = (spread for spread in range(MAX_SPREAD) if (threads >> spread) * row_bytes <= room)
    spread = next(fits, MAX_SPREAD) if spreads else 0
    for block in (128, 64, 32):
        if (stage_bytes := (block >> spread) * row_bytes) <= room:
            return Shape(block, spread, stage_bytes)
    return Shape(32, 0, 0)


class Kernels:
    """The kernels of one env on one GPU."""

    def __init__(
        self, header: Path, consts: Mapping[str, int] | None, device: int, row_bytes: int, extras: bool = False
    ) -> None:
        import torch
        from cuda.bindings import driver

        self._driver, self._torch, self.device = driver, torch, device
        major, minor = torch.cuda.get_device_capability(device)
        torch.cuda.init()
        with torch.cuda.device(device):
            torch.zeros(1, device="cuda")  # creates the primary context and makes it current
            code = cubin(build.Source.env(header, consts), f"sm_{major}{minor}", EXTRAS if extras else ())
            self._module = succeed(driver.cuModuleLoadData(code))
            self._functions = {
                name: succeed(driver.cuModuleGetFunction(self._module, f"shoal_{name}_kernel".encode()))
                for name in KERNELS
            }
            code, finish = driver.cuModuleGetFunction(self._module, b"shoal_finish_kernel")
            if int(code) == 0:
                self._functions[FINISH] = finish
            self._stages = int(driver.cuModuleGetGlobal(self._module, b"shoal_stages_nothing")[0]) != 0
            shared = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
            used = succeed(driver.cuFuncGetAttribute(shared, self._functions["step"]))
        self._row_bytes, self._room = row_bytes, SHARED_BYTES - used
        self._processors = torch.cuda.get_device_properties(device).multi_processor_count
        self.finishes = FINISH in self._functions

    def launch_finish(self, num_envs: int, batch: Batch) -> None:
        """Finishes the episodes that the last step has begun, in envs whose env_reset leaves something to do."""
        self.launch(FINISH, -(-num_envs // FINISHED) * TEAM, batch, block=TEAM)

    def step_shape(self, num_envs: int) -> Shape:
        """How the step kernel is launched for so many envs."""
        return step_shape(num_envs, self._row_bytes, self._room, self._processors, self._stages)

    def launch(self, name: str, count: int, batch: Batch, *arguments: Any, block: int = 128, shared: int = 0) -> None:
        """Starts a kernel with `count` threads on torch's current stream and returns at once."""
        values = [batch, *arguments]
        pointers = (ctypes.c_void_p * len(values))(*[ctypes.addressof(value) for value in values])
        stream = self._torch.cuda.current_stream(self.device).cuda_stream
        grid = -(-count // block)
        code = self._driver.cuLaunchKernel(
            self._functions[name], grid, 1, 1, block, 1, 1, shared, stream, ctypes.addressof(pointers), 0
        )[0]
        if int(code) != 0:
            raise RuntimeError(f"the {name} kernel could not be launched: {getattr(code, 'name', code)}")


@functools.cache
def load(
    header: Path, consts: tuple[tuple[str, int], ...], device: int, row_bytes: int, extras: bool = False
) -> Kernels:
    """The kernels of an env on a GPU, loaded once. `extras`: with wrappers, drawn params, all autoreset modes."""
    return Kernels(header, dict(consts), device, row_bytes, extras)
