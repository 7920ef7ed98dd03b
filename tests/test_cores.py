"""How many cores a process may use: its affinity, quotas of its cgroups, OMP_NUM_THREADS; and where that counts."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import shoal
from shoal import cores, tune
from shoal.cores import available_cores, available_threads, cpu_quota, idle_cores
from shoal.vector import threads

MANY = set(range(64))


@pytest.fixture
def many_cores(monkeypatch):
    """A machine with 64 cores and no limit on threads."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: MANY, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: len(MANY))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


@pytest.fixture
def unlimited(many_cores, monkeypatch):
    """The same, whatever the quota of the machine that runs the tests."""
    monkeypatch.setattr(cores, "cpu_quota", lambda process: None)


class Cgroups:
    """A fake /proc/self and the folders of cgroups that it names."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.process = folder, folder / "proc"
        self.process.mkdir()
        self.mounts, self.groups = ["22 1 0:20 / /proc rw,nosuid - proc proc rw", "a line of another kind"], list[str]()

    def mount(self, kind: str, root: str = "/", options: str = "rw") -> Path:
        """Mounts a hierarchy, with spaces in its path. Returns its folder."""
        point = self.folder / f"{kind} {options.replace(',', '+')}"
        point.mkdir()
        shown = str(point).replace(" ", "\\040")
        self.mounts.append(f"30 22 0:26 {root} {shown} rw,relatime shared:4 - {kind} cgroup {options}")
        return point

    def write(self) -> Path:
        """Writes the files of the process. Returns their folder."""
        (self.process / "mountinfo").write_text("\n".join(self.mounts) + "\n")
        (self.process / "cgroup").write_text("\n".join(self.groups) + "\n")
        return self.process


@pytest.fixture
def cgroups(tmp_path, many_cores) -> Cgroups:
    return Cgroups(tmp_path)


def limit_v2(folder: Path, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cpu.max").write_text(text + "\n")


def limit_v1(folder: Path, quota: int, period: int = 100_000) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    (folder / "cpu.cfs_period_us").write_text(f"{period}\n")


# ---- quotas ----


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("200000 100000", 2), ("150000 100000", 2), ("210000 100000", 3), ("5000 100000", 1), ("max 100000", 64)],
)
def test_a_quota_of_cgroup_v2_rounds_up_to_whole_cores(cgroups, text, wanted):
    point = cgroups.mount("cgroup2")
    cgroups.groups = ["0::/"]
    limit_v2(point, text)
    assert available_cores(cgroups.write()) == wanted


@pytest.mark.parametrize(("quota", "period", "wanted"), [(400_000, 100_000, 4), (75_000, 50_000, 2), (-1, 100_000, 64)])
def test_a_quota_of_cgroup_v1(cgroups, quota, period, wanted):
    cgroups.mount("cgroup", options="rw,memory")
    point = cgroups.mount("cgroup", options="rw,cpu,cpuacct")
    cgroups.groups = ["5:memory:/a", "3:cpu,cpuacct:/a", "0::/"]
    limit_v1(point / "a", quota, period)
    assert available_cores(cgroups.write()) == wanted


@pytest.mark.parametrize(("outer", "inner", "wanted"), [(300, 800, 3), (800, 300, 3), (None, 500, 5), (200, None, 2)])
def test_the_smallest_quota_of_nested_groups_counts(cgroups, outer, inner, wanted):
    point = cgroups.mount("cgroup2")
    cgroups.groups = ["0::/user.slice/job"]
    for folder, quota in (point / "user.slice", outer), (point / "user.slice" / "job", inner):
        limit_v2(folder, f"{'max' if quota is None else quota * 1000} 100000")
    limit_v2(point / "other", "100000 100000")  # another process's
    assert available_cores(cgroups.write()) == wanted


def test_a_container_sees_its_group_as_the_root_of_the_mount(cgroups):
    """Without a cgroup namespace the process's group is named from the host's root, and the mount shows a part."""
    point = cgroups.mount("cgroup", root="/docker/abc", options="rw,cpu")
    cgroups.groups = ["1:cpu:/docker/abc/worker"]
    limit_v1(point, 300_000)
    limit_v1(point / "worker", 200_000)
    assert available_cores(cgroups.write()) == 2
    cgroups.groups = ["1:cpu:/somewhere/else"]
    assert available_cores(cgroups.write()) == 3
    cgroups.groups = ["1:cpu:/docker/abc/../.."]
    assert available_cores(cgroups.write()) == 3


def test_files_that_are_missing_or_broken_are_no_quota(cgroups, tmp_path):
    point = cgroups.mount("cgroup2")
    assert cpu_quota(tmp_path / "absent") is None
    cgroups.groups = ["0::/", "nonsense"]
    for text in ("", "max", "a b", "0 100000", "100000 0"):
        limit_v2(point, text)
        assert cpu_quota(cgroups.write()) is None
    assert available_cores(cgroups.write()) == 64


def test_affinity_and_quota_together(cgroups, monkeypatch):
    point = cgroups.mount("cgroup2")
    cgroups.groups = ["0::/"]
    limit_v2(point, "400000 100000")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5}, raising=False)
    assert available_cores(cgroups.write()) == 2
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: MANY, raising=False)
    assert available_cores(cgroups.write()) == 4


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux")
def test_affinity_of_this_process():
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert available_cores() == available_threads() == 1
    finally:
        os.sched_setaffinity(0, allowed)


# ---- OMP_NUM_THREADS ----


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("3", 3), ("1", 1), (" 8 ", 8), ("4,2,1", 4), ("500", 64), ("", 64), ("0", 64), ("-2", 64), ("many", 64)],
)
def test_omp_num_threads_limits_threads_and_not_processes(unlimited, monkeypatch, text, wanted):
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    assert available_threads() == wanted
    assert available_cores() == 64


def test_env_threads_respect_omp_num_threads(unlimited, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert stepped_by("squared") == ("threads", 3)
    assert stepped_by("squared", num_threads=2) == ("threads", 2)
    assert max(c.get("num_threads", 0) for c in tune._candidates(4096, True)) == 3
    assert max(c.get("num_workers", 0) for c in tune._candidates(4096, False)) == 128
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert stepped_by("squared") == ("serial", 1)


def stepped_by(env: str, **options: int) -> tuple[str, int]:
    with contextlib.closing(shoal.make(env, 4096, **options)) as envs:
        return envs.backend, envs.parallelism


def test_the_old_name_still_works():
    assert threads.available_cores is available_cores


# ---- OpenMP's threads ----

AT_IMPORT_OF_TORCH = """
import importlib.abc, os, sys

class Watch(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "torch":
            print(os.environ.get("OMP_WAIT_POLICY"))
            os._exit(0)

sys.meta_path.insert(0, Watch())
"""
USES_OF_TORCH = {
    "import": "import shoal.train",
    "command": "from shoal.cli.main import main; main(['train', 'cartpole', '--help'])",
}


@pytest.mark.parametrize("use", USES_OF_TORCH)
@pytest.mark.parametrize(("chosen", "wanted"), [(None, "passive"), ("active", "active")])
def test_torchs_threads_sleep_while_they_wait(use, chosen, wanted):
    """The variable must be set before torch is imported; a user's choice is not changed."""
    environ = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    environ |= {"OMP_WAIT_POLICY": chosen} if chosen else {}
    command = [sys.executable, "-c", AT_IMPORT_OF_TORCH + USES_OF_TORCH[use]]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [wanted], done.stderr


def test_the_environment_is_not_changed_too_late(monkeypatch):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setitem(sys.modules, "torch", object())
    cores.let_openmp_sleep()
    assert "OMP_WAIT_POLICY" not in os.environ
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setenv("GOMP_SPINCOUNT", "100")
    cores.let_openmp_sleep()
    assert "OMP_WAIT_POLICY" not in os.environ


# ---- the machine ----


@pytest.mark.parametrize(
    ("runnable", "wanted"), [("1/300", 64), ("2/300", 63), ("65/900", 0), ("200/900", 0), ("x", 64)]
)
def test_idle_cores(many_cores, tmp_path, runnable, wanted):
    """The reader itself is runnable, and does not count."""
    file = tmp_path / "loadavg"
    file.write_text(f"9.00 8.00 7.00 {runnable} 4242\n")
    assert idle_cores(file) == wanted
    assert idle_cores(tmp_path / "absent") == 64


def test_the_cpu_has_a_name():
    assert cores.cpu_model() == cores.cpu_model() != ""
