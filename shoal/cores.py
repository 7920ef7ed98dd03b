"""How many cores this process may use: CPU affinity, CPU quotas of cgroups (containers), and OMP_NUM_THREADS."""

from __future__ import annotations

import math
import os
import platform
import subprocess
import sys
from functools import lru_cache
from pathlib import Path, PurePosixPath

PROCESS = Path("/proc/self")


def available_cores(process: Path = PROCESS) -> int:
    """The number of cores that this process and its children may use together.

    A quota of 1.5 cores counts as 2: with 1, half a core would be idle.
    """
    quota = cpu_quota(process)
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


def available_threads(process: Path = PROCESS) -> int:
    """The number of threads that should compute at once in this process: one per core, at most OMP_NUM_THREADS.

    OMP_NUM_THREADS=1 is how users keep each of several processes to one core. It does not limit the number of worker
    processes: those who set it often do so because they start many.
    """
    cores, limit = available_cores(process), omp_limit()
    return cores if limit is None else min(cores, limit)


def omp_limit() -> int | None:
    """The value of OMP_NUM_THREADS; None if it is not set or not a positive number. `4,2` (nested levels) is 4."""
    text = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(text) if text.isascii() and text.isdigit() and int(text) > 0 else None


def let_openmp_sleep() -> None:
    """Makes waiting threads of OpenMP, which torch uses, sleep instead of spin, unless the user has chosen.

    A thread that spins takes a core from the thread that it waits for, if other processes or env threads use the cores:
    training was then up to fifty times slower (docs/LOG.md). OpenMP reads the variable when torch is imported.
    """
    if "torch" not in sys.modules and "GOMP_SPINCOUNT" not in os.environ:
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def idle_cores(loadavg: Path = Path("/proc/loadavg")) -> int:
    """The number of cores of the machine without a runnable task, at this moment; the caller's core counts as idle.

    On a system without /proc all cores count as idle. The load average is not used: it lags by a minute, so a run that
    follows another would find the machine busy.
    """
    cores = os.cpu_count() or 1
    try:
        runnable = int(loadavg.read_text().split()[3].split("/")[0])
    except (OSError, IndexError, ValueError):
        return cores
    return max(0, cores - max(0, runnable - 1))


@lru_cache(maxsize=1)
def cpu_model() -> str:
    """The name of the CPU."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.lower().startswith(("model name", "hardware", "cpu model")):
                return " ".join(line.partition(":")[2].split())
    if platform.system() == "Darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip() or "unknown"
    return platform.processor() or "unknown"


# ---- cgroups ----


def cpu_quota(process: Path = PROCESS) -> float | None:
    """The cores' worth of CPU time that the process's cgroups allow; None without a quota.

    `process` is a folder with the files `mountinfo` and `cgroup` of proc(5). Groups are nested, and each may have a
    quota: the smallest counts.
    """
    try:
        mounts = (process / "mountinfo").read_text().splitlines()
        groups = (process / "cgroup").read_text().splitlines()
    except OSError:
        return None
    quotas = [
        quota
        for mount_point, mount_root, controllers in _cgroup_mounts(mounts)
        for group in _groups_of(groups, controllers)
        for folder in _nested(mount_point, mount_root, group)
        for quota in [_quota_of(folder)]
        if quota is not None
    ]
    return min(quotas, default=None)


def _cgroup_mounts(lines: list[str]) -> list[tuple[Path, PurePosixPath, str]]:
    """(mount point, the group mounted there, version): version "2", or "cpu" for the CPU controller of version 1."""
    mounts = []
    for line in lines:
        left, dash, right = line.partition(" - ")
        fields, kinds = left.split(), right.split()
        if not dash or len(fields) < 5 or len(kinds) < 3:
            continue
        is_cpu = kinds[0] == "cgroup" and "cpu" in kinds[2].split(",")
        if is_cpu or kinds[0] == "cgroup2":
            mount_point = Path(fields[4].replace("\\040", " "))
            mounts.append((mount_point, PurePosixPath(fields[3]), "cpu" if is_cpu else "2"))
    return mounts


def _groups_of(lines: list[str], version: str) -> list[PurePosixPath]:
    """The process's group in the hierarchy of a mount."""
    groups = []
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if (version == "2" and number == "0" and not controllers) or version in controllers.split(","):
            groups.append(PurePosixPath(path or "/"))
    return groups


def _nested(mount_point: Path, mount_root: PurePosixPath, group: PurePosixPath) -> list[Path]:
    """The folders of a group and of the groups around it, as far as they are mounted."""
    try:
        relative = group.relative_to(mount_root)
    except ValueError:  # the process's group is not below the mounted one: a container without a cgroup namespace
        relative = PurePosixPath()
    if ".." in relative.parts:  # a group outside of the cgroup namespace
        relative = PurePosixPath()
    return [mount_point / part for part in (relative, *relative.parents)]


def _quota_of(folder: Path) -> float | None:
    """The quota of one group, in cores."""
    for quota_file, period_file in (("cpu.max", None), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        try:
            words = (folder / quota_file).read_text().split()
            if period_file:
                words += (folder / period_file).read_text().split()
            quota, period = int(words[0]), int(words[1])  # `max`: no quota
        except (OSError, ValueError, IndexError):
            continue
        if quota > 0 and period > 0:
            return quota / period
    return None
