"""Prebuilding: kernels are compiled side by side, and an env while torch is imported."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
import torch

from shoal import registry
from shoal.algos import ops
from shoal.cli import train as cli
from shoal.native import build, lib, prebuild
from shoal.nn import launch as launching
from shoal.nn.launch import compile_ahead, launch
from tests.training import make_trainer


class Kernel:
    """As Triton's: started by kernel[grid](...), compiled by kernel.warmup(...), whose result is loaded by [grid]."""

    def __init__(self, together: threading.Barrier | None = None) -> None:
        self.together, self.started, self.compiled, self.loaded = together, [], [], []

    def __getitem__(self, grid):
        return lambda *args, **options: self.started.append((grid, args, options))

    def warmup(self, *args, grid, **options):
        if self.together is not None:
            self.together.wait(10)  # times out unless the others are compiled at the same time
        self.compiled.append((args, options))
        return Compiled(self)


class Compiled:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def __getitem__(self, grid):
        self.kernel.loaded.append(grid)


def test_kernels_are_compiled_side_by_side_and_none_is_started():
    together = threading.Barrier(3)
    kernels = [Kernel(together) for _ in range(3)]
    compile_ahead(lambda: [launch(kernel, (4,), 5, SIZE=8) for kernel in kernels])
    for kernel in kernels:
        assert (kernel.started, kernel.compiled, len(kernel.loaded)) == ([], [((5,), {"SIZE": 8})], 1)
    launch(kernels[0], (4,), 5, SIZE=8)
    assert kernels[0].started == [((4,), (5,), {"SIZE": 8})]


def test_a_kernel_is_compiled_once_for_each_kind_of_arguments():
    kernel, memory = Kernel(), torch.zeros(64)

    def work():
        for count in (32, 48, 1, 33, 35):
            launch(kernel, (1,), memory, count)
        launch(kernel, (1,), memory[1:], 32)
        launch(kernel, (1,), memory.int(), 32)
        launch(kernel, (1,), None, 32)
        launch(kernel, (1,), memory, 32, SIZE=2)

    compile_ahead(work)
    assert [args[1] for args, _ in kernel.compiled] == [32, 1, 33, 32, 32, 32, 32]
    assert len(kernel.loaded) == 7


def test_nothing_is_worked_out_from_memory_that_no_kernel_has_filled(monkeypatch):
    """Priorities by advantages that are nan would end a GPU's run: multinomial refuses them."""
    trainer = make_trainer("cartpole", vec={"num_envs": 8}, train={"priority": 0.5, "normalize_reward": True})
    trainer.start()
    kernels = SimpleNamespace(advantages=Kernel(), running_returns=Kernel())
    monkeypatch.setattr(ops, "_is_for_c", lambda *parts: False)
    monkeypatch.setattr(ops, "_is_for_triton", lambda *parts: True)
    monkeypatch.setattr(ops, "_triton", lambda: kernels)
    torch.use_deterministic_algorithms(True)  # fills what is not written with nan
    try:
        compile_ahead(lambda: trainer.algorithm.update(trainer.learners[0]))
    finally:
        torch.use_deterministic_algorithms(False)
        trainer.close()
    assert kernels.advantages.compiled
    assert kernels.running_returns.compiled
    assert bool(torch.isfinite(trainer.learners[0].weights).all())


def test_a_failure_leaves_launches_as_they_were():
    def fails():
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        compile_ahead(fails)
    assert launching._planned is None

    class Broken(Kernel):
        def warmup(self, *args, **options):
            raise RuntimeError("Failed to find C compiler")

    with pytest.raises(RuntimeError, match="C compiler"):
        compile_ahead(lambda: launch(Broken(), (1,)))
    assert launching._planned is None


def test_of_two_threads_one_compiles(tmp_path, monkeypatch):
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(build, "PREBUILT", tmp_path / "none")
    source, count = build.Source.env(registry.find("squared")), []

    def slow(source, variant, folder):
        count.append(1)
        time.sleep(0.2)
        path = folder / source.file_name(variant, build.user_flags(source))
        path.write_bytes(b"")
        return path

    monkeypatch.setattr(build, "build", slow)
    threads = [threading.Thread(target=build.library, args=(source, "base")) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(count) == 1


def test_prebuilding_builds_the_library_and_raises_nothing(tmp_path, monkeypatch):
    pytest.importorskip("cuda.bindings")
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    header = tmp_path / "mine.h"
    header.write_text(registry.find("squared").read_text())
    for thread in prebuild.start(header):
        thread.join()
    assert list((tmp_path / "cache").glob("mine-*.so"))
    header.write_text("not C")
    threads = prebuild.start(header)
    assert len(threads) == 2
    for thread in threads:
        thread.join()


def test_a_command_that_ends_early_leaves_no_compiler_and_no_half_of_a_library(tmp_path):
    pytest.importorskip("cuda.bindings")
    (tmp_path / "mine.h").write_text(registry.find("squared").read_text())
    code = "import pathlib, sys; from shoal.native import prebuild; prebuild.start(pathlib.Path(sys.argv[1]))"
    env = {**os.environ, "SHOAL_CACHE_DIR": str(tmp_path / "cache")}
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "mine.h")], env=env, check=True)
    names = [path.name for path in (tmp_path / "cache").iterdir()]
    assert not [name for name in names if name.startswith(".")]
    assert [name for name in names if name.startswith("mine-")]


@pytest.mark.parametrize(
    ("words", "begins"),
    [
        (["squared"], True),
        (["squared", "--device", "cuda"], True),
        (["squared", "--device=cpu"], False),
        (["puffer_squared"], True),
        (["squared", "--train.device", "cpu"], False),
        (["squared", "--config", "cpu.toml"], False),
        (["squared", "--config", "cpu.toml", "--device", "cuda"], True),
        (["squared", "--config", "none.toml"], False),
        (["squared", "--help"], False),
        (["--resume", "last"], False),
        (["gymnasium:CartPole-v1"], False),
        (["sqared"], False),
        ([], False),
    ],
)
def test_the_command_prebuilds_native_envs_that_a_gpu_may_step(words, begins, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cpu.toml").write_text('device = "cpu"')
    seen = []
    monkeypatch.setattr(prebuild, "start", seen.append)
    cli.prebuild(words)
    assert seen == ([registry.find("squared")] if begins else [])


def test_a_spec_needs_no_optimized_build(tmp_path, monkeypatch):
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    header = tmp_path / "mine.h"
    header.write_text(registry.find("squared").read_text())
    spec = lib.spec_of(header)
    (quick,) = (path for path in (tmp_path / "cache").glob("mine-*.so"))
    assert lib.spec_of(header) is spec
    assert build.find_library(build.Source.env(header), lib.best_variant()) is None  # a run compiles it with -O3
    assert repr(lib.load(header).spec) == repr(spec)
    assert quick.is_file()
