"""The GPU backend on a machine without a GPU: every kernel compiles, and asking for it says what is missing.

What needs a GPU is in benchmarks/gpu.py: there, every env gives the bytes of the CPU.
"""

from __future__ import annotations

import shutil
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import shoal
from shoal import registry
from shoal.errors import CompileFailed, ConfigError, CudaMissing
from shoal.native import build, cuda, lib
from shoal.native.lib import Batch
from shoal.train import device_of, options_for
from tests.fake_gpu import ThreadKernels, make_cuda_vec_on_host

from .checks import ALL, with_slow

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))


QUICK = ("breakout", "forage", "maze")  # columns, several agents with masks, images


@pytest.mark.parametrize("env", with_slow(ALL, QUICK))
def test_every_kernel_compiles_without_a_toolkit(env):
    pytest.importorskip("cuda.bindings")
    code = cuda.cubin(build.Source.env(registry.find(env)), "sm_90")
    assert code[:4] == b"\x7fELF"
    for name in cuda.KERNELS:
        assert f"shoal_{name}_kernel".encode() in code


def test_a_cubin_is_compiled_once(monkeypatch):
    pytest.importorskip("cuda.bindings")
    source = build.Source.env(registry.find("squared"))
    first = cuda.cubin(source, "sm_90")
    monkeypatch.setattr(cuda, "_compile", lambda *_: pytest.fail("compiled again"))
    assert cuda.cubin(source, "sm_90") == first


def test_a_header_that_does_not_compile_is_told_by_its_own_lines(tmp_path):
    pytest.importorskip("cuda.bindings")
    text = registry.find("squared").read_text().replace("s->x = ", "s->nowhere = ", 1)
    path = tmp_path / "broken.h"
    path.write_text(text)
    with pytest.raises(CompileFailed, match="nowhere"):
        cuda.cubin(build.Source.env(path), "sm_90")


# registers, images copied from State, columns, several agents with masks, a State that a whole block finishes
CASES = {
    "breakout": (120, 0),
    "maze": (40, 2),
    "cartpole": (40, 1),
    "forage": (30, 0),
    "craftax_classic": (24, 1),
}


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
@pytest.mark.parametrize("env", with_slow(ALL, CASES))
@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_kernels_give_the_bytes_of_the_cpu(tmp_path, monkeypatch, env, autoreset):
    """The kernels with a CPU's threads, whose envs begin episodes at different steps."""
    header, count = registry.find(env), 40  # two blocks of 32, one not full
    params = {"max_steps": [3 + k % 11 for k in range(count)]}
    if env == "craftax_classic":
        params["always_diamond"] = [k % 2 for k in range(count)]
    cpu = shoal.make(env, count, backend="serial", autoreset=autoreset, **params)
    spec = cpu.native_spec
    row_bytes = int(np.prod(spec.obs_shape)) * spec.obs_dtype.itemsize * spec.agents
    steps, spread = CASES.get(env, (30, next(k for k in range(6) if (32 >> k) * row_bytes <= cuda.SHARED_BYTES)))
    kernels = ThreadKernels(header, tmp_path / "kernels", 32, row_bytes, autoreset != "same_step", spread)
    gpu = make_cuda_vec_on_host(monkeypatch, lib.load(header), count, kernels, params=params, autoreset=autoreset)
    assert np.array_equal(gpu.reset(seed=4)[0].numpy(), cpu.reset(seed=4)[0])
    arrays = cpu.memory.arrays
    for step in range(steps):
        cpu.module.sample(cpu._address, step + 1, 0, count)
        actions = arrays["actions"].copy()
        gpu.actions.copy_(torch.from_numpy(actions))
        gpu.launch_step()
        cpu.step(actions)
        done = arrays["done"].astype(bool)
        for name in ("obs", "rewards", "terminated", "truncated", "done", "alive", "masks", "tick", "returns", "sums"):
            assert gpu.tensors[name].numpy().tobytes() == arrays[name].tobytes(), (step, name)
        for name in ("final_obs", "final_return", "final_length"):
            assert np.array_equal(gpu.tensors[name].numpy()[done], arrays[name][done]), (step, name)
    assert cpu.snapshot() == gpu.snapshot()
    gpu.restore(cpu.snapshot())
    assert cpu.snapshot() == gpu.snapshot()


@pytest.mark.parametrize(
    ("num_envs", "row_bytes", "room", "shape"),
    [
        (1 << 20, 145, 49152, (128, 0, 18560)),
        (1 << 20, 500, 49152, (64, 0, 32000)),
        (1 << 20, 1345, 49152, (32, 0, 43040)),
        (1 << 20, 1345, 38240, (32, 1, 21520)),
        (1 << 20, 20000, 49152, (32, 0, 0)),
        (16384, 145, 49152, (128, 0, 18560)),
        (16384, 472, 49152, (128, 1, 30208)),
        (16384, 1345, 49152, (128, 2, 43040)),
        (16384, 4000, 49152, (64, 3, 32000)),
    ],
)
def test_observations_are_staged_where_they_fit_beside_a_kernels_own_memory(num_envs, row_bytes, room, shape):
    """With 132 processors. Few envs with large observations have more threads each."""
    assert cuda.step_shape(num_envs, row_bytes, room, 132) == shape


def test_an_env_whose_observation_is_copied_has_one_thread():
    assert cuda.step_shape(16384, 675, 49152, 132, spreads=False) == (64, 0, 43200)


@pytest.mark.parametrize("first", [3.0, [1.0, 2.0, 3.0, 4.0]], ids=["one for all", "one for each env"])
def test_a_captured_step_follows_params_that_change_later(monkeypatch, first):
    """A CUDA graph holds the addresses of its capture: a step from there has the new gravity, as on the CPU."""
    vec = make_cuda_vec_on_host(monkeypatch, lib.load(registry.find("cartpole")), 4, params={"gravity": first})
    twin = shoal.make("cartpole", 4, backend="serial", gravity=first)
    assert vec.reset(seed=7)[0].tolist() == twin.reset(seed=7)[0].tolist()
    captured, _memory = Batch.from_buffer_copy(vec.struct), vec._params_tensor  # no other tensor gets its address
    for gravity in (40.0, [1.0, 90.0, 5.0, 9.8] if isinstance(first, list) else 0.5):
        vec.set_params(gravity=gravity)
        twin.set_params(gravity=gravity)
        for _ in range(5):
            vec.actions[:] = 1
            vec.kernels.launch("step", 4, captured)
            assert vec.tensors["obs"].tolist() == twin.step(np.ones(4, np.int64))[0].tolist()
    assert vec.get_params()["gravity"].tolist() == twin.get_params()["gravity"].tolist()


@no_gpu
def test_asking_for_a_gpu_says_what_is_missing():
    with pytest.raises(CudaMissing, match="built for CPUs only|no usable GPU"):
        shoal.make("cartpole", 4, backend="cuda")
    with pytest.raises(CudaMissing, match=r"threads backend|--device cpu"):
        device_of(options_for("cartpole", {"device": "cuda"}))
    assert device_of(options_for("cartpole", {"device": "auto"})) == "cpu"


def test_without_the_bindings_the_install_line_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(CudaMissing, match="pip install cuda-bindings"):
        cuda.nvrtc()


@pytest.fixture
def torch_with_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


def test_the_gpu_backend_needs_the_bindings_and_nvrtc(torch_with_a_gpu, monkeypatch):
    """`--device auto` asks this first: a GPU alone is not enough."""
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    assert not cuda.gpu_backend_available()
    assert "pip install cuda-bindings" in cuda.gpu_backend_missing()

    def fail():
        raise RuntimeError("libnvrtc.so.13: cannot open shared object file")

    broken = SimpleNamespace(nvrtcVersion=fail)
    monkeypatch.setitem(sys.modules, "cuda", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "cuda.bindings", SimpleNamespace(nvrtc=broken, driver=None))
    assert not cuda.gpu_backend_available()
    assert "NVRTC cannot be loaded: libnvrtc.so.13" in cuda.gpu_backend_missing()


def test_the_gpu_backend_is_available_with_all_of_them(torch_with_a_gpu):
    pytest.importorskip("cuda.bindings")
    assert cuda.gpu_backend_available()
    assert cuda.gpu_backend_missing() == ""


@no_gpu
def test_without_a_gpu_the_backend_says_why():
    assert not cuda.gpu_backend_available()
    assert "built for CPUs only" in cuda.gpu_backend_missing() or "no usable GPU" in cuda.gpu_backend_missing()


def test_without_torch_the_backend_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "needs torch" in cuda.gpu_backend_missing()


def test_python_envs_have_no_cuda_backend():
    with pytest.raises(ConfigError, match="cuda"):
        shoal.make("gymnasium:CartPole-v1", 2, backend="cuda")
