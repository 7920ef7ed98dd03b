"""Envs on the CPU that look like envs on a GPU: what the device's collector and graphs are tested with, without one."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from shoal.native import build, cuda
from shoal.native.lib import Batch, Module
from shoal.vector.base import VecEnv
from shoal.vector.cuda import CudaVec


class GpuLikeVec(VecEnv):
    """A native vector env of the CPU with the tensors and kernel launches of one on a GPU."""

    backend = "cuda"
    is_on_gpu = True
    can_snapshot = True

    def __init__(self, vec: Any) -> None:
        self.vec, self.struct = vec, SimpleNamespace()
        self.tensors = {name: torch.from_numpy(array) for name, array in vec.memory.arrays.items()}
        self.actions = self.tensors["actions"]
        for name in ("num_envs", "num_rows", "agents_per_env", "native_spec", "mask_size", "metadata", "drain_stats"):
            setattr(self, name, getattr(vec, name))
        for name in ("single_observation_space", "single_action_space", "snapshot", "close", "get_params"):
            setattr(self, name, getattr(vec, name))

    @property
    def agent_spaces(self):
        return self.vec.agent_spaces

    @property
    def agent_stats(self):
        return self.vec.agent_stats

    @property
    def time_limit(self):
        return self.vec.time_limit

    def give_params(self, names):
        return {name: torch.from_numpy(array) for name, array in self.vec.give_params(names).items()}

    def current_infos(self):
        return {"alive": self.tensors["alive"], "action_mask": self.tensors["masks"]}

    def reset(self, *, seed=None, options=None):
        self.vec.reset(seed=seed)
        return self.tensors["obs"], self.current_infos()

    def restore(self, blob, env_ids=None):
        self.vec.restore(blob)
        return self.tensors["obs"]

    def launch_step(self, **places):
        actions = places.pop("actions", self.actions).numpy().reshape(self.vec.action_space.shape)
        self.vec.step(actions.astype(self.vec.action_space.dtype))
        final, truncated = places.pop("final_obs", None), self.tensors["truncated"]
        if final is not None:
            final[truncated] = self.tensors["final_obs"][truncated]
        for name, tensor in places.items():
            tensor.copy_(self.tensors[name].view(tensor.shape))

    def _unused(self, *args, **kwargs):
        raise NotImplementedError

    step = async_reset = send = recv = _unused


class HostKernels:
    """The kernels of an env, by the C functions of the CPU's module."""

    finishes = False

    def __init__(self, module: Module) -> None:
        self.module = module

    def step_shape(self, num_envs: int) -> cuda.Shape:
        return cuda.Shape(32, 0, 0)

    def launch(self, name: str, count: int, batch: Batch, *arguments: Any, **sizes: Any) -> None:
        if name in ("save", "load"):
            ids, number, records = arguments
            getattr(self.module, name)(ctypes.addressof(batch), ids, number, records)
            return
        assert name in ("reset", "step"), name
        getattr(self.module, name)(ctypes.addressof(batch), 0, batch.num_envs)


class ThreadKernels:
    """The CUDA kernels of an env, each thread of a block as one of the CPU's: tests/cuda_on_cpu.cpp."""

    def __init__(
        self, header: Path, folder: Path, block: int, row_bytes: int, extras: bool = False, spread: int = 0
    ) -> None:
        core = folder / "core"
        shutil.copytree(build.CORE, core)
        device = (core / "device.h").read_text()
        (core / "device.h").write_text(
            device.replace("extern __shared__", "extern")
        )  # memory of a block is static here
        source, library = Path(__file__).with_name("cuda_on_cpu.cpp"), folder / "kernels.so"
        flags = ["-std=c++17", "-O1", "-fPIC", "-shared", "-ffp-contract=off", "-w", "-pthread"]
        flags += [f'-DENV_HEADER="{header}"', f"-I{core}", f"-I{build.NATIVE}", *(cuda.EXTRAS if extras else ())]
        subprocess.run(["g++", *flags, str(source), "-o", str(library)], check=True)
        self.block, self.row_bytes, self.spread = block, row_bytes, spread
        self.library = ctypes.CDLL(str(library))
        self.finishes = "ENV_HAS_FINISH" in header.read_text()

    launch_finish = cuda.Kernels.launch_finish

    def step_shape(self, num_envs: int) -> cuda.Shape:
        return cuda.Shape(self.block, self.spread, (self.block >> self.spread) * self.row_bytes)

    def launch(self, name: str, count: int, batch: Batch, *arguments: Any, **sizes: Any) -> None:
        ids, _, records = arguments if name in ("save", "load") else (None, None, None)
        staged, spread = (number.value for number in arguments) if name == "step" else (0, 0)
        block = cuda.TEAM if name == cuda.FINISH else self.block
        launch = self.library.launch
        launch(name.encode(), ctypes.byref(batch), ctypes.c_int64(count), ids, records, block, staged, spread)


class CudaVecOnHost(CudaVec):
    """The `cuda` backend with the CPU's memory and functions. `make_cuda_vec_on_host` makes one."""

    def _zeros(self, shape: Any, dtype: Any) -> Any:
        self.device = torch.device("cpu")
        return super()._zeros(shape, dtype)

    def _to_device(self, array: Any) -> Any:
        return super()._to_device(array).clone()  # a GPU's memory is never the host's


def make_cuda_vec_on_host(
    monkeypatch: Any, module: Module, num_envs: int, kernels: Any = None, **options: Any
) -> CudaVec:
    monkeypatch.setattr(cuda, "require_gpu", lambda: None)
    monkeypatch.setattr(cuda, "load", lambda *arguments: kernels or HostKernels(module))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 30, 1 << 30))
    return CudaVecOnHost(module, num_envs, **options)


def use_fake_graphs(monkeypatch: Any) -> None:
    """Graphs that are none: what is captured runs when it is replayed, and nothing waits for a GPU."""
    monkeypatch.setattr("shoal.train.graphs.capture", lambda function, generators: function)
    monkeypatch.setattr("shoal.train.graphs.warm_up", lambda function: [function() for _ in range(2)])
    monkeypatch.setattr("shoal.train.graphs.has_triton", lambda: False)
    monkeypatch.setattr("shoal.algos.collect.device.has_triton", lambda: False)
    monkeypatch.setattr("shoal.algos.fast.native_ppo", lambda learner: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr("shoal.train.trainer.Pace", lambda: SimpleNamespace(step=lambda: None))
