"""free_bytes: the least of what the system and the container allow; of a GPU what its driver says."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from shoal import memory


@pytest.fixture
def container(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    monkeypatch.setattr(memory, "_of_the_system", lambda: 1000)

    def limit(most, used):
        (tmp_path / "memory.max").write_text(f"{most}\n")
        (tmp_path / "memory.current").write_text(f"{used}\n")

    return limit


def test_the_least_counts(container):
    assert memory.free_bytes() == 1000
    container("max", 5)
    assert memory.free_bytes() == 1000
    container(700, 100)
    assert memory.free_bytes() == 600
    container(700, 900)
    assert memory.free_bytes() == 0


def test_without_numbers_it_is_what_is_installed(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    monkeypatch.setattr(memory, "_of_the_system", lambda: None)
    assert memory.free_bytes() > 1 << 20


def test_of_a_gpu_its_driver_is_asked(monkeypatch):
    torch = SimpleNamespace(cuda=SimpleNamespace(mem_get_info=lambda device: (42, 100)))
    monkeypatch.setitem(__import__("sys").modules, "torch", torch)
    assert memory.free_bytes("cuda:0") == 42
