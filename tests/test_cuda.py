"""The GPU backend on a machine without a GPU: every kernel compiles, and asking for it says what is missing.

What needs a GPU is in benchmarks/gpu.py: there, every env gives the bytes of the CPU.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import shoal
from shoal import registry
from shoal.errors import CompileFailed, ConfigError, CudaMissing
from shoal.native import build, cuda, lib
from shoal.train import device_of, options_for
from shoal.vector.cuda import CudaVec

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.parametrize("env", registry.stock_names())
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


def test_params_change_in_the_memory_that_graphs_hold():
    module = lib.load(registry.find("cartpole"))
    vec = SimpleNamespace(native_spec=module.spec, num_envs=4, struct=SimpleNamespace(), _params_tensor=None)
    vec._params, vec._to_device = np.zeros(1, module.params_dtype), lambda array: torch.from_numpy(array.copy())
    CudaVec.set_params(vec, gravity=3.0)
    place = vec.struct.params
    CudaVec.set_params(vec, gravity=4.0)
    assert vec.struct.params == place
    assert vec._params_tensor.numpy().view(module.params_dtype)["gravity"].tolist() == [4.0]
    CudaVec.set_params(vec, gravity=[1.0, 2.0, 3.0, 4.0])
    assert vec._params_tensor.numpy().view(module.params_dtype)["gravity"].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert vec.struct.params_stride == 1


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
