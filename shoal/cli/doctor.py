"""`shoal doctor`: whether all that Shoal needs works, what is slow, which extras there are, and the command for each.

To add a check, write a function that yields `Finding`s and add it to CHECKS.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import importlib.util
import json as jsonlib
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shoal.cli.command import Command

# what a finding means for the user, the worst first
STATES = {
    "broken": "needed, and does not work",
    "slow": "works, and could be faster",
    "optional": "not there, and not needed",
    "fine": "works",
}
MARKS = {"broken": ("✗", "bold red"), "slow": ("!", "yellow"), "optional": ("-", "dim"), "fine": ("✓", "green")}
GIVES = {  # what each extra is for
    "atari": "Atari games",
    "crafter": "Crafter, in Python",
    "dm-control": "the DeepMind Control Suite",
    "envpool": "EnvPool's envs",
    "magent": "MAgent2: battles of many agents",
    "minigrid": "MiniGrid and BabyAI, in Python",
    "onnx": "shoal export --onnx",
    "openspiel": "OpenSpiel's board and card games",
    "pettingzoo": "PettingZoo's games of several agents",
    "plot": "shoal plot as PNG (without: HTML)",
    "pyboy": "Game Boy games",
    "ray": "envs and sweeps on a Ray cluster",
    "retro": "games of old consoles (Stable-Retro)",
    "sb3": "Shoal's envs in Stable-Baselines3",
    "sweep": "shoal sweep",
    "tensorboard": "shoal train --log tensorboard",
    "video": "videos as MP4 (without: GIF)",
    "vizdoom": "VizDoom",
    "wandb": "shoal train --log wandb",
    "web": "games in the browser: headers of your own, and all envs of a clone",
}
LITTLE_DISK, LITTLE_SHM = 1 << 30, 64 << 20  # bytes
TOOL_TIMEOUT_S = 10.0
PYPI_CUDA = "pip install torch, or the command of pytorch.org for your driver"


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    name: str
    state: str  # one of STATES
    text: str
    fix: str = ""  # the command or the change that helps


def doctor(*, json: bool = False) -> int:
    """Say whether all that Shoal needs works, what is slow, which extras there are, and what to do.

    The exit code is 1 if something does not work that every user needs: a package, the compiled envs, a folder.
    Nothing is installed, compiled or changed.

    Try:
        shoal doctor
        shoal doctor --json

    Args:
        json: Print JSON: an object with the version and an array of findings for each section.
    """
    import shoal

    found = {title: examine(check) for title, check in CHECKS.items()}
    is_broken = any(finding.state == "broken" for findings in found.values() for finding in findings)
    if json:
        sections = {title: [asdict(finding) for finding in findings] for title, findings in found.items()}
        print(jsonlib.dumps({"version": shoal.__version__, "broken": is_broken, "sections": sections}, indent=2))
    else:
        show(found, shoal.__version__)
    return int(is_broken)


def examine(check: Callable[[], Iterator[Finding]]) -> list[Finding]:
    """What a check finds. A check that raises is a finding too: a doctor must not die of the illness."""
    findings: list[Finding] = []
    try:
        for finding in check():
            findings.append(finding)
    except Exception as error:
        name = check.__name__.removeprefix("_").replace("_", " ")
        findings.append(Finding(name, "broken", f"the check failed: {type(error).__name__}: {error}"))
    return findings


def show(found: dict[str, list[Finding]], version: str) -> None:
    """Prints the findings by section, the extras that are not installed, what to do, and the result."""
    from rich.text import Text

    from shoal.cli.screen import columns, console

    screen = console()
    screen.print(Text.assemble((f"Shoal {version}", "bold cyan"), "\n"))
    extras = [finding for finding in found.get("Extras", ()) if finding.state == "optional" and finding.name in GIVES]
    shown = {title: [one for one in findings if one not in extras] for title, findings in found.items()}
    indent = 2 + max(len(finding.name) for findings in shown.values() for finding in findings)
    for title, findings in shown.items():
        if not findings:
            continue
        screen.print(Text(title, "bold"))
        for finding in findings:
            mark, style = MARKS[finding.state]
            lines = _wrap(finding.text, screen.width - indent - 4) if screen.is_terminal else [finding.text]
            for k, line in enumerate(lines):
                head = Text.assemble((f"  {mark} ", style), f"{finding.name:<{indent}}") if k == 0 else Text()
                screen.print(head.append(line if k == 0 else f"{'':{indent + 4}}{line}"), soft_wrap=True)
        screen.print()
    if extras:
        head = Text("Optional, not installed", "bold").append(
            ": pip install 'shoal[NAME]' for what you want", "not bold"
        )
        screen.print(head, soft_wrap=True)
        screen.print(columns({one.name: GIVES[one.name] for one in extras}, screen.width))
    if advice := _advice(shown):
        screen.print(Text("What to do", "bold"))
        screen.print(columns(advice, screen.width))
    counts = {state: sum(one.state == state for ones in shown.values() for one in ones) for state in STATES}
    screen.print(_conclude(counts, len(extras)), soft_wrap=not screen.is_terminal)


def _wrap(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(width, 20), break_long_words=False, break_on_hyphens=False) or [""]


def _conclude(counts: dict[str, int], extras: int) -> Any:
    """The result in a sentence or two: whether it works comes first."""
    from rich.text import Text

    def some(count: int, what: str) -> str:
        return f"{count} {what}{'' if count == 1 else 's'}"

    broken, slow = counts["broken"], counts["slow"]
    if broken:
        verb = "does" if broken == 1 else "do"
        done = Text.assemble((f"{some(broken, 'thing')} that Shoal needs {verb} not work.", "bold red"))
    else:
        done = Text.assemble(("All that Shoal needs works.", "bold green"))
    if slow:
        done.append(f" {some(slow, 'thing')} could be faster.", "yellow")
    if extras:
        done.append(f" {some(extras, 'optional extra')} {'is' if extras == 1 else 'are'} not installed.", "dim")
    return done


def _advice(found: dict[str, list[Finding]]) -> dict[str, str]:
    """What to do, the worst first."""
    rows = [one for findings in found.values() for one in findings if one.fix and one.state != "fine"]
    rows.sort(key=lambda one: list(STATES).index(one.state))
    return {f"{one.name} ({one.state})": one.fix for one in rows}


# ---- the package ----


def _package() -> Iterator[Finding]:
    import shoal
    from shoal import registry
    from shoal.native import build

    kind = "editable" if _is_editable() else "installed"
    yield Finding("shoal", "fine", f"{shoal.__version__}, {kind}, in {Path(shoal.__file__).parent}")
    where = f"{platform.python_version()} in {sys.prefix}, {platform.system()} {platform.machine()}"
    yield Finding("python", "fine", where)
    missing = _missing_requirements("")
    for name, version in _versions(_requirements("")).items():
        if version is None:
            yield Finding(name, "broken", "not installed, and Shoal needs it", f"pip install {name}")
    if not missing:
        yield Finding("packages", "fine", ", ".join(f"{k} {v}" for k, v in _versions(_requirements("")).items()))
    names = registry.stock_names()
    compiled = [name for name in names if build.find_library(build.Source.env(registry.find(name)), "base")]
    fix = "" if compiled else "install the wheel, or a C compiler: apt-get install gcc"
    has_compiler = _compiler() is not None
    state = "fine" if compiled or has_compiler else "broken"
    rest = "" if len(compiled) == len(names) else "; the others are compiled on first use"
    if rest and not has_compiler:
        state, fix = "broken", "install the wheel, or a C compiler: apt-get install gcc"
        rest = "; the others cannot be compiled"
    yield Finding("stock envs", state, f"{len(compiled)} of {len(names)} are compiled{rest}", fix)


def _is_editable() -> bool:
    try:
        text = importlib.metadata.distribution("shoal").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return True  # on PYTHONPATH
    return bool(text and jsonlib.loads(text).get("dir_info", {}).get("editable"))


@functools.cache
def _requirements(extra: str) -> tuple[str, ...]:
    """The packages of the core install (extra ''), or those that an extra adds."""
    try:
        lines = importlib.metadata.requires("shoal") or []
    except importlib.metadata.PackageNotFoundError:
        return ()
    found = []
    for line in lines:
        name, _, marker = line.partition(";")
        needs = re.search(r"extra\s*==\s*['\"]([\w-]+)['\"]", marker)
        if (needs[1] if needs else "") != extra or not _applies(marker):
            continue
        found.append(re.split(r"[\s<>=!~\[]", name.strip())[0])
    return tuple(dict.fromkeys(found))


def _applies(marker: str) -> bool:
    """Whether the conditions on Python's version and on the system hold. Others count as true."""
    if limit := re.search(r"python_version\s*<\s*['\"](\d+)\.(\d+)['\"]", marker):
        return sys.version_info[:2] < (int(limit[1]), int(limit[2]))
    if system := re.search(r"sys_platform\s*==\s*['\"](\w+)['\"]", marker):
        return sys.platform == system[1]
    return True


def _versions(names: tuple[str, ...]) -> dict[str, str | None]:
    return {name: _version(name) for name in names}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _missing_requirements(extra: str) -> list[str]:
    return [name for name, version in _versions(_requirements(extra)).items() if version is None]


# ---- compilers ----


def _compiler() -> list[str] | None:
    from shoal.errors import CompilerMissing
    from shoal.native import build

    try:
        return build.find_compiler()
    except CompilerMissing:
        return None


def _compilers() -> Iterator[Finding]:
    from shoal import registry
    from shoal.native import build
    from shoal.web import build as web

    command = _compiler()
    if command is None:
        text = "none found: stock envs need none, your own headers and changed consts do"
        yield Finding("C compiler", "optional", text, "apt-get install gcc, or set CC")
    else:
        kind = "clang" if build.is_clang(command[0]) else "gcc"
        yield Finding("C compiler", "fine", f"{' '.join(command)}: {_first_line([*command, '--version'])}")
        if kind == "clang":
            text = "gcc vectorizes more env loops, and only gcc says which line prevents it"
            yield Finding("clang", "slow", text, "apt-get install gcc, then CC=gcc")
    names = registry.stock_names()
    modules = [name for name in names if web.find_module(build.Source.env(registry.find(name)))]
    zig = web.find_zig()
    text = f"{len(modules)} of {len(names)} stock envs are compiled for the browser"
    if zig is not None:
        yield Finding("WebAssembly", "fine", f"zig ({' '.join(zig[-2:])}); {text}")
    elif len(modules) == len(names):
        yield Finding("WebAssembly", "fine", f"{text}; own headers need zig: {web.INSTALL}")
    else:
        yield Finding("WebAssembly", "optional", f"{text}, and zig is not installed", web.INSTALL)
    if flags := os.environ.get("SHOAL_CFLAGS"):
        is_slow = bool(re.search(r"-O[01g]?(\s|$)|-fsanitize", flags))
        yield Finding(
            "SHOAL_CFLAGS", "slow" if is_slow else "fine", f"{flags}: for your own headers", "unset SHOAL_CFLAGS"
        )


def _first_line(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=TOOL_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not answer ({error})"
    return next(iter((done.stdout or done.stderr).splitlines()), "no answer").strip()


# ---- the machine ----


def _cpu() -> Iterator[Finding]:
    from shoal import cores, memory
    from shoal.native import build, lib

    allowed, quota = cores.available_cores(), cores.cpu_quota()
    yield Finding("CPU", "fine", f"{cores.cpu_model()}: {os.cpu_count()} cores, {allowed} of them for this process")
    # which instructions the CPU has is asked of the core library: not where that would have to be compiled now
    if platform.machine() in ("x86_64", "AMD64") and build.find_library(build.CORE_SOURCE, "base"):
        variant = lib.best_variant(build.PPO_SOURCE)
        best = {"avx512": "AVX-512", "avx2": "AVX2"}.get(variant, "none")
        chosen = os.environ.get("SHOAL_SIMD")
        state = "slow" if variant == "base" or chosen else "fine"
        fix = "unset SHOAL_SIMD" if chosen else "run on a CPU with AVX2 (2013 or newer)"
        limited = f", limited by SHOAL_SIMD={chosen}" if chosen else ""
        yield Finding("SIMD", state, f"PPO in C uses {best}{limited}", fix if state == "slow" else "")
    if quota is not None:
        is_small = quota < (os.cpu_count() or 1)
        text = f"the container may use {quota:g} of {os.cpu_count()} cores"
        fix = "give the container more CPU time: docker run --cpus N"
        yield Finding("CPU quota", "slow" if is_small else "fine", text, fix if is_small else "")
    limit = cores.omp_limit()
    if limit is not None and limit < allowed:
        text = f"{limit}: torch and env threads use {limit} of {allowed} cores"
        yield Finding("OMP_NUM_THREADS", "slow", text, "unset OMP_NUM_THREADS")
    idle = cores.idle_cores()
    if idle == 0:
        text = "other processes use all cores at this moment: runs take turns with them"
        yield Finding("load", "slow", text, "end other work, or wait for it: top")
    if free := memory.free_bytes():
        state = "slow" if free < LITTLE_DISK else "fine"
        yield Finding("memory", state, f"{free / 1e9:.1f} GB free", "use fewer envs" if state == "slow" else "")
    shm = Path("/dev/shm")
    if shm.is_dir():
        size = shutil.disk_usage(shm).free
        state = "slow" if size < LITTLE_SHM else "fine"
        fix = "Python envs in worker processes need it: docker run --shm-size 1g" if state == "slow" else ""
        yield Finding("shared memory", state, f"{size / 1e9:.1f} GB free in /dev/shm", fix)


def _gpu() -> Iterator[Finding]:
    if importlib.util.find_spec("torch") is None:
        yield Finding("torch", "broken", "not installed, and training needs it", "pip install torch")
        return
    import torch

    from shoal.native import cuda

    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only"
    yield Finding("torch", "fine", f"{torch.__version__}, built for {built}")
    driver = _driver()
    if driver is None:
        yield Finding("GPU", "optional", "no NVIDIA driver found: everything runs on the CPU")
        return
    if torch.version.cuda is None:
        yield Finding("GPU", "slow", f"{driver}; this torch cannot use it", PYPI_CUDA)
        return
    if not torch.cuda.is_available():
        text = f"{driver}; torch finds no usable GPU: the driver may be too old for CUDA {torch.version.cuda}"
        yield Finding("GPU", "slow", text, "nvidia-smi shows the driver; update it, or install a torch for it")
        return
    for k in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(k)
        free, whole = torch.cuda.mem_get_info(k)
        kind = f"sm_{facts.major}{facts.minor}, {free / 1e9:.0f} of {whole / 1e9:.0f} GB free"
        is_full = free < whole / 10
        fix = "another process holds its memory: nvidia-smi" if is_full else ""
        yield Finding(f"GPU {k}", "slow" if is_full else "fine", f"{facts.name}, {kind}; {driver}", fix)
    why = cuda.gpu_backend_missing()
    fix = "pip install cuda-bindings nvidia-cuda-nvrtc"
    yield Finding("envs on the GPU", "slow" if why else "fine", why or "NVRTC compiles them", fix if why else "")
    if importlib.util.find_spec("triton") is not None:
        yield Finding("Triton", "fine", f"{_version('triton') or _version('pytorch-triton') or ''}: fused kernels")
    else:
        text = "not installed: networks run as plain torch operations, several times slower"
        yield Finding("Triton", "slow", text, "pip install triton")


def _driver() -> str | None:
    """The driver's version; None without one."""
    with contextlib.suppress(OSError, IndexError):
        line = Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
        found = re.search(r"\b(\d{3}\.[\d.]+)\b", line)
        return f"driver {found[1]}" if found else "driver of unknown version"
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    text = _first_line([tool, "--query-gpu=driver_version", "--format=csv,noheader"])
    return f"driver {text}" if re.fullmatch(r"[\d.]+", text) else None


# ---- folders ----


def _folders() -> Iterator[Finding]:
    from shoal import environments
    from shoal.native import build

    chosen = {"cache": build.cache_dir(), "runs": Path("runs").resolve(), "frameworks": environments.data_folder()}
    fixes = {
        "cache": "set SHOAL_CACHE_DIR to a folder that you may write to",
        "runs": "change to a folder that you may write to, or use --runs FOLDER",
        "frameworks": "set SHOAL_DATA_DIR to a folder that you may write to",
    }
    for name, folder in chosen.items():
        nearest = next(parent for parent in (folder, *folder.parents) if parent.exists())
        if not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
            state = "optional" if name == "frameworks" else "broken"
            yield Finding(name, state, f"{folder} cannot be written", fixes[name])
            continue
        free = shutil.disk_usage(nearest).free
        text = f"{folder}, {free / 1e9:.1f} GB free on its disk"
        if name == "cache" and folder.is_dir():
            size = sum(file.stat().st_size for file in folder.glob("*") if file.is_file())
            text += f"; {size / 1e6:.0f} MB of compiled envs (it may be deleted)"
        is_full = free < LITTLE_DISK
        yield Finding(name, "slow" if is_full else "fine", text, "shoal runs prune" if is_full else "")
    if not _scripts_are_found():
        text = f"{sysconfig.get_path('scripts')} is not on PATH: 'shoal' is not found, 'python -m shoal' is"
        yield Finding("command", "optional", text, f"export PATH={sysconfig.get_path('scripts')}:$PATH")


def _scripts_are_found() -> bool:
    return shutil.which("shoal") is not None


# ---- extras ----


def _extras() -> Iterator[Finding]:
    try:
        names = importlib.metadata.metadata("shoal").get_all("Provides-Extra") or []
    except importlib.metadata.PackageNotFoundError:
        text = "Shoal is not installed (it was found on PYTHONPATH), so its extras are not known"
        yield Finding("extras", "optional", text, "pip install -e .")
        return
    for extra in sorted(set(names) - {"dev", "bench", "docs"}):
        lacking = _missing_requirements(extra)
        if lacking:
            text = f"{GIVES.get(extra, extra)}; needs {', '.join(lacking)}"
            yield Finding(extra, "optional", text, f"pip install 'shoal[{extra}]'")
        else:
            versions = _versions(_requirements(extra))
            yield Finding(extra, "fine", ", ".join(f"{name} {version}" for name, version in versions.items()))


CHECKS: dict[str, Callable[[], Iterator[Finding]]] = {
    "Package": _package,
    "Compilers": _compilers,
    "CPU": _cpu,
    "GPU": _gpu,
    "Folders": _folders,
    "Extras": _extras,
}
COMMAND = Command(
    doctor,
    order=95,
    examples={"shoal doctor": "whether all that Shoal needs works, what is slow, what is optional"},
)
