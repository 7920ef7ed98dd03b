"""The checks that every env header must pass, run by `shoal check` and by the tests. Each explains its failures.

A check is a function of the subject. It returns a note for the reader, raises Failure with what is wrong and how to fix
it, or raises Skip with the reason why it cannot run on this machine.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from shoal import registry
from shoal.errors import CompileFailed, ShoalError
from shoal.native import build, lib, simd
from shoal.native.lib import Module
from shoal.spec import Array
from shoal.vector.native import NativeVec
from shoal.vector.play import play
from shoal.vector.serial import SerialVec
from shoal.vector.threads import ThreadsVec


class Failure(Exception):
    """The env fails a check: the fact and the next move."""


class Warn(Exception):
    """The env passes, but could be better: the fact and the next move."""


class Skip(Exception):
    """The check cannot run on this machine: the reason."""


@dataclass(frozen=True)
class Outcome:
    """The result of one check."""

    name: str
    status: str  # passed, warned, failed or skipped
    text: str


@dataclass
class Subject:
    """The header to check, and how thoroughly."""

    header: Path
    steps: int = 2000
    workdir: Path = field(default_factory=Path)
    params: dict[str, Any] = field(default_factory=dict)
    consts: dict[str, int] = field(default_factory=dict)

    @property
    def source(self) -> build.Source:
        """What its libraries are compiled from."""
        return build.Source.env(self.header, self.consts)

    @cached_property
    def module(self) -> Module:
        """The env, compiled for this machine."""
        return lib.load(self.header, self.consts)

    def vec(self, num_envs: int = 64, module: Module | None = None) -> NativeVec:
        """Envs, reset with seed 0."""
        vec = SerialVec(module or self.module, num_envs, params=self.params)
        vec.reset(seed=0)
        return vec

    def compile(self, language: str, *extra: str, file: str = "module.c", out: str = "out.o") -> Path:
        """Compiles the env in a language. CompileFailed has the compiler's message, with lines of the header."""
        compiler = build.find_compiler(("c++", "g++", "clang++")) if language == "c++17" else build.find_compiler()
        target = self.workdir / out
        source = self.source
        common = [f"-I{build.NATIVE}", *source.defines(), str(build.CORE / file), "-o", str(target)]
        common += [] if "-c" in extra else ["-lm"]
        build.run_compiler([*compiler, *build.LANGUAGES[language], *extra, *common], source)
        return target


def check_c11(subject: Subject) -> str:
    """compiles as C11 without a warning"""
    _compile_strictly(subject, "c11", out=C11_OBJECT)
    return "gcc -Wall -Wextra -Wpedantic -Werror"


def check_cpp17(subject: Subject) -> str:
    """compiles as C++17 without a warning"""
    if not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        raise Skip("no C++ compiler on this machine")
    _compile_strictly(subject, "c++17", "-O0", out="c++17.o")  # warnings that need optimization: the C11 build has them
    return "CUDA needs the header to be C++ as well"


C11_OBJECT = "c11.o"


def _compile_strictly(subject: Subject, language: str, *flags: str, out: str) -> None:
    try:
        subject.compile(language, "-c", *build.warnings(), "-Werror", *build.flags(), *flags, out=out)
    except CompileFailed as error:
        with contextlib.suppress(CompileFailed):
            _ = subject.module  # raises if what the header declares is wrong: too few bounds are a warning in core/
        raise Failure(str(error)) from None


def check_cuda(subject: Subject) -> str:
    """compiles as CUDA C++"""
    nvcc = shutil.which("nvcc")
    if not nvcc:
        raise Skip("no nvcc on this machine; the C++17 build is the closest check")
    out = subject.workdir / "out.cubin"
    flags = ["-x", "cu", "-std=c++17", "-arch=sm_90", "-cubin", "--fmad=false", "-Werror", "all-warnings"]
    command = [
        nvcc,
        *flags,
        f"-I{build.NATIVE}",
        *(define.replace(",", "\\,") for define in subject.source.defines()),  # nvcc splits at plain commas
        str(build.CORE / "module.c"),
        "-o",
        str(out),
    ]
    try:
        build.run_compiler(command, subject.source)
    except CompileFailed as error:
        advice = ""
        if host := re.search(r"calling a __host__ function(?:\(\"(\w+))?", str(error)):
            advice = "\nFunctions of libc or of the host cannot be called on a GPU."
            if host[1] and re.search(rf"\b{host[1]}\([^;{{}}]*\)\s*{{", subject.header.read_text(errors="replace")):
                advice = f"\nA GPU calls only functions that are marked ENV_FN. Mark {host[1]}."
        if "undefined in device code" in str(error):
            advice = (
                "\nA GPU does not have this table or function. Declare tables with ENV_DATA, functions with ENV_FN."
            )
        raise Failure(f"{error}{advice}") from None
    return f"sm_90, {out.stat().st_size // 1024} KiB"


ALLOWED_SYMBOLS = {"memcpy", "memset", "memmove", "memcmp", "_GLOBAL_OFFSET_TABLE_", "__stack_chk_fail"}
INSTEAD = {
    "rand": "rng_u32(rng), rng_int(rng, n) or rng_uniform(rng, lo, hi)",
    "random": "rng_u32(rng)",
    "srand": "nothing: the library seeds each env's rng",
    "malloc": "a fixed array in State, sized by ENV_CONSTS",
    "calloc": "a fixed array in State, sized by ENV_CONSTS",
    "time": "nothing: an env must not depend on the clock",
    "printf": "ENV_STATS for numbers, env_draw for pictures",
    "puts": "ENV_STATS for numbers, env_draw for pictures",
    **{
        f"{name}{suffix}": f"m_{name}" for name in "sin cos tan atan2 exp log pow floor".split() for suffix in ("", "f")
    },
    **{f"{name}{suffix}": "m_sqrt" for name in ("sqrt",) for suffix in ("", "f")},
}


def check_symbols(subject: Subject) -> str:
    """calls nothing from libc, has no global variables, marks functions ENV_FN"""
    nm = shutil.which("nm")
    if not nm:
        raise Skip("no nm on this machine (install binutils)")
    target = subject.workdir / C11_OBJECT  # from check_c11; compiled here if that check did not run
    if not target.exists():
        subject.compile("c11", "-c", "-w", *build.flags(), out=C11_OBJECT)
    text = subprocess.run([nm, str(target)], capture_output=True, text=True, check=True).stdout
    rows = [line.split()[-2:] for line in text.splitlines()]
    for kind, name in rows:
        if kind == "U" and name not in ALLOWED_SYMBOLS:
            where = _first_use(subject.header, name) or f"{subject.header.name} "
            use = INSTEAD.get(name, "core/math.h, core/env.h, or your own code")
            raise Failure(
                f"{where}calls {name}() from the C library: it differs between machines, is not thread-safe, "
                f"or does not exist on a GPU. Use {use}."
            )
    for kind, name in rows:
        if kind == "T" and (where := _first_use(subject.header, name)):
            raise Failure(f"{where}defines the function {name} without ENV_FN: a GPU cannot call it. Mark it ENV_FN.")
    for kind, name in rows:
        variable = name.split(".")[0]  # a static local is name.0
        if kind in "bBdDC" and (where := _first_use(subject.header, variable)):
            raise Failure(
                f"{where}keeps the global variable '{variable}', which all envs and threads share. "
                "Put it in State, or make it const."
            )
    return "uses only what core/ defines"


def _first_use(header: Path, word: str) -> str:
    for number, line in enumerate(header.read_text(errors="replace").splitlines(), 1):
        if re.search(rf"\b{re.escape(word)}\b", line.split("//")[0]):
            return f"{header.name}:{number} "
    return ""


def check_sanitizers(subject: Subject) -> str:
    """random play is clean under ASan and UBSan"""
    steps = max(200, subject.steps // 2)
    try:
        done = _run_fuzz(subject, str(steps), halt_on_error=True)
    except subprocess.TimeoutExpired:
        raise Failure(
            "random play did not end within 60 s: a loop of the env does not end for some state or param "
            "(the check also tries 0, negative and large params)."
        ) from None
    if "env_check refuses" in done.stderr:
        raise Failure("env_check refuses a state that env_step reached: the env's snapshots could not be restored.")
    if done.returncode or "ok" not in done.stdout:
        raise Failure(_explain_sanitizer(done.stderr, subject.header, done.returncode))
    return f"{5 * steps:,} steps of 1 to 130 envs, with odd params too"


def check_forged(subject: Subject) -> str:
    """a forged snapshot is refused, or does no harm"""
    steps = max(50, subject.steps // 20)
    advice = (
        "A snapshot with changed bytes causes it. Define ENV_HAS_CHECK, and an env_check that returns 1 if every "
        "index in State is in its range (docs/add-an-env.md)."
    )
    try:
        done = _run_fuzz(subject, "forge", str(steps), halt_on_error=False)
    except subprocess.TimeoutExpired:
        raise Failure(f"a loop of the env does not end. {advice}") from None
    if done.returncode or "ok" not in done.stdout:
        raise Failure(f"{_explain_sanitizer(done.stderr, subject.header, done.returncode)} {advice}")
    return f"{193 * steps:,} snapshots with changed bytes"


def _run_fuzz(subject: Subject, *arguments: str, halt_on_error: bool) -> subprocess.CompletedProcess[str]:
    """Runs core/fuzz.c. It stops at an invalid memory access; with halt_on_error at any undefined behaviour."""
    # -Og and the debug info of lines only: -O1 -g compiles for up to ten times as long, to play for a second
    sanitizers = "-fsanitize=address,undefined,float-cast-overflow"  # `undefined` leaves out the last
    flags = ["-Og", "-g1", "-w", sanitizers, "-fno-sanitize-recover=bounds", "-ffp-contract=off"]
    program = subject.workdir / "fuzz"
    try:
        if not program.exists():
            subject.compile("c11", *flags, file="fuzz.c", out="fuzz")
    except CompileFailed as error:
        if "asan" in str(error) or "sanitize" in str(error):
            raise Skip("this compiler has no sanitizer runtime") from None
        raise Failure(str(error)) from None
    options = f"print_stacktrace={int(halt_on_error)}:halt_on_error={int(halt_on_error)}"
    env = {**os.environ, "UBSAN_OPTIONS": options, "ASAN_OPTIONS": "detect_leaks=0"}
    spec = subject.module.spec
    numbers = {p.name: p.check(spec.name, subject.params[p.name], 1) for p in spec.params if p.name in subject.params}
    command = [str(program), *arguments, *(f"{name}={value}" for name, value in numbers.items())]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=env)


def _explain_sanitizer(report: str, header: Path, code: int) -> str:
    fact = re.search(r"(runtime error: .+|ERROR: AddressSanitizer: [^(\n]+)", report)
    places = re.findall(rf"(\w+) [^\n]*{re.escape(header.name)}:(\d+)", report)
    direct = re.search(rf"{re.escape(header.name)}:(\d+)[:\d]*: runtime error", report)
    line = direct[1] if direct else places[0][1] if places else ""
    where = f"{header.name}:{line}" if line else header.name
    what = fact[1] if fact else f"the program ended with code {code}"
    return f"{where}: {what.strip()}. Out-of-range indices and overflows give different results on other machines."


def check_determinism(subject: Subject) -> str:
    """the same seed gives the same bytes"""
    first, second = (play(subject.vec(), subject.steps) for _ in range(2))
    if (first != second).any():
        raise Failure(
            f"two runs from seed 0 differ in env {int((first != second).argmax())}. Something depends on more than "
            "`rng`: libc's rand, a clock, a global variable, or memory that was never set."
        )
    return f"64 envs, {subject.steps:,} steps"


def check_initialised(subject: Subject) -> str:
    """env_reset sets everything that the env reads"""
    runs = []
    for byte in (0x00, 0xA5, 0xFF):
        vec = subject.vec()
        vec.memory.struct.poison = byte
        vec.memory.arrays["obs"].view(np.uint8)[:] = byte
        vec.reset(seed=0)
        obs = vec.memory.arrays["obs"]
        trace: list[Array] = [obs.copy()]

        def watch(step: int, byte: int = byte, obs: Array = obs, trace: list[Array] = trace) -> None:
            if step < 32:
                trace.append(obs.copy())
            obs.view(np.uint8)[:] = byte

        runs.append((play(vec, min(500, subject.steps), watch=watch), trace))
    (clean, clean_trace), *others = runs
    for digests, trace in others:
        if (digests == clean).all():
            continue
        for step, (a, b) in enumerate(zip(clean_trace, trace)):
            differs = a.view(np.uint8).reshape(len(a), -1) != b.view(np.uint8).reshape(len(b), -1)
            if differs.any():
                element = int(differs.any(0).argmax()) // a.itemsize
                when = "right after reset" if step == 0 else f"after step {step}"
                raise Failure(
                    f"{when}, element {element} of the observation depends on what was in memory before env_reset. "
                    "Set every field of State in env_reset, and every element of obs in env_observe."
                )
        raise Failure(
            "rewards or episode ends depend on what was in memory before env_reset. Set every field of State there."
        )
    return "State filled with 0x00, 0xA5 and 0xFF before reset: no difference"


def check_spaces(subject: Subject) -> str:
    """observations stay within their bounds, all numbers are finite"""
    vec, spec = subject.vec(), subject.module.spec
    arrays = vec.memory.arrays
    space = spec.observation_space

    def check(obs: Array, what: str) -> None:
        if obs.dtype == np.float32 and not np.isfinite(obs).all():
            at = tuple(np.argwhere(~np.isfinite(obs))[0].tolist())
            raise Failure(f"{what} of row {at[0]}, element {list(at[1:])} is {obs[at]}. Look for 0/0, log or sqrt.")
        wrong = (obs < space.low) | (obs > space.high)
        if wrong.any():
            at = tuple(np.argwhere(wrong)[0].tolist())
            low, high = space.low[at[1:]], space.high[at[1:]]
            raise Failure(
                f"{what} of row {at[0]}, element {list(at[1:])} is {obs[at]:g}, outside [{low:g}, {high:g}]. "
                "Fix env_observe, or ENV_OBS_LOW and ENV_OBS_HIGH."
            )

    def watch(step: int) -> None:
        check(arrays["obs"], f"after step {step + 1}, obs")
        if arrays["done"].any():
            check(arrays["final_obs"][arrays["done"]], f"after step {step + 1}, final_obs")
        if not np.isfinite(arrays["rewards"]).all():
            row = int((~np.isfinite(arrays["rewards"])).argmax())
            raise Failure(f"after step {step + 1}, the reward of row {row} is {arrays['rewards'][row]}.")
        if not np.isfinite(arrays["final_stats"]).all():
            stat = spec.stats[int(np.argwhere(~np.isfinite(arrays["final_stats"]))[0][0])].name
            raise Failure(f"after step {step + 1}, the statistic '{stat}' is not finite.")
        if spec.mask_size:
            _check_masks(arrays["masks"], spec.action_dims, step)

    check(arrays["obs"], "after reset, obs")
    play(vec, subject.steps, watch=watch)
    bounded = np.isfinite(space.low).all() and np.isfinite(space.high).all()
    return "" if bounded else "some bounds are infinite; finite ENV_OBS_LOW and ENV_OBS_HIGH help policies and readers"


def _check_masks(masks: Array, dims: tuple[int, ...], step: int) -> None:
    if masks.min() < 0 or masks.max() > 1:
        raise Failure(f"after step {step + 1}, an action mask holds {masks.max()}. Set every element to 0 or 1.")
    start = 0
    for choice, size in enumerate(dims):
        allowed = masks[:, start : start + size].any(1)
        if not allowed.all():
            row = int((~allowed).argmax())
            raise Failure(f"after step {step + 1}, the mask of row {row} allows nothing for choice {choice}.")
        start += size


def check_batch_size(subject: Subject) -> str:
    """an env does not depend on the number of envs"""
    reference = play(subject.vec(257), subject.steps // 4)
    for count in (1, 7, 64, 256):
        digests = play(subject.vec(count), subject.steps // 4)
        if (digests != reference[:count]).any():
            env = int((digests != reference[:count]).argmax())
            raise Failure(f"env {env} of {count} differs from env {env} of 257. Do envs share something?")
    return "1, 7, 64, 256 and 257 envs"


def check_threads(subject: Subject) -> str:
    """threads give the same bytes as serial"""
    reference = play(subject.vec(300), subject.steps // 4)
    for threads in (2, 3):
        vec = ThreadsVec(subject.module, 300, num_threads=threads, params=subject.params)
        vec.reset(seed=0)
        digests = play(vec, subject.steps // 4)
        vec.close()
        if (digests != reference).any():
            raise Failure(f"{threads} threads give other bytes than one. Do envs share something?")
    return "2 and 3 threads"


def check_layouts(subject: Subject) -> str:
    """all builds give the same bytes"""
    reference = play(subject.vec(), subject.steps // 4)
    scalar = subject.compile("c11", *build.flags(), "-w", "-shared", "-DSHOAL_SCALAR", out="scalar.so")
    others = {"one env at a time": Module(subject.source, scalar)}
    best = lib.best_variant()
    variants = [name for name in build.variants() if name != best]
    others |= {name: lib.load(subject.header, subject.consts, variant=name) for name in variants}
    for name, module in others.items():
        if (play(subject.vec(module=module), subject.steps // 4) != reference).any():
            raise Failure(
                f"the build '{name}' gives other bytes than '{best}'. Usual causes: floating-point code that depends "
                "on the compiler, or memory that was never set."
            )
    return f"{best}, {', '.join(others)}"


def check_simd(subject: Subject) -> str:
    """the loops over envs are vectorized"""
    report = simd.report(subject.source, lib.best_variant())
    if report.is_simd is False:
        raise Warn(report.text)
    if report.is_simd is None:
        raise Skip(report.text)
    return report.text


def check_snapshot(subject: Subject) -> str:
    """a restored snapshot continues exactly"""
    steps = subject.steps // 4
    vec = subject.vec()
    play(vec, steps)
    blob = vec.snapshot()
    expected = play(vec, steps, start=steps)
    other = subject.vec()
    other.reset(seed=99)
    play(other, 10)
    other.restore(blob)
    if (play(other, steps, start=steps) != expected).any():
        raise Failure("play after restoring a snapshot differs from uninterrupted play. Is there state outside State?")
    return f"{subject.module.record_bytes} bytes per env"


def check_episodes(subject: Subject) -> str:
    """episodes end"""
    vec = subject.vec()
    play(vec, subject.steps)
    stats = vec.drain_stats()
    limit = subject.module.spec.max_steps
    if not stats["episodes"] and limit > subject.steps:
        return f"none within {subject.steps:,} random steps; the time limit is {limit:,}"
    if not stats["episodes"]:
        raise Failure(
            f"no episode of 64 envs ended within {subject.steps:,} random steps. Set out->terminated, or give a time "
            "limit with ENV_MAX_STEPS."
        )
    return f"mean length {stats['length']['mean']:.1f}, mean return {stats['return']['mean']:.3g} under random play"


def check_draw(subject: Subject) -> str:
    """env_draw draws a picture"""
    if not subject.module.spec.has_draw:
        raise Skip("ENV_NO_DRAW: the env cannot be rendered")
    vec = subject.vec()
    play(vec, 20)
    drawn = vec.draw(0)
    left, top, right, bottom = drawn["view"]
    if not np.isfinite([left, top, right, bottom]).all() or left == right or top == bottom:
        raise Failure(f"draw_view got {drawn['view']}, which is empty. Call it first, with the edges of the world.")
    if len(drawn["items"]) == 0 or np.ptp(vec.frame(0).reshape(-1, 3), axis=0).max() == 0:
        raise Failure("env_draw draws nothing visible. Draw within the edges given to draw_view.")
    return f"{len(drawn['items'])} shapes"


CHECKS: list[Callable[[Subject], str]] = [
    check_c11,
    check_cpp17,
    check_cuda,
    check_symbols,
    check_sanitizers,
    check_determinism,
    check_initialised,
    check_spaces,
    check_batch_size,
    check_threads,
    check_layouts,
    check_simd,
    check_snapshot,
    check_forged,
    check_episodes,
    check_draw,
]
# after these fail, the rest would not compile, could crash this process, or would repeat the message
FATAL = (check_c11, check_sanitizers, check_determinism)


def run_checks(name: str | Path, steps: int = 2000, preset: str | None = None) -> Iterator[Outcome]:
    """Runs every check on an env, in order, and yields the results. Stops after a FATAL failure.

    `preset`: checks the env with the values of that preset.
    """
    header = registry.find(name)
    params, consts = lib.load(header).spec.split({"preset": preset}) if preset else ({}, {})
    with tempfile.TemporaryDirectory(prefix="shoal-check-") as folder:
        subject = Subject(header, steps, Path(folder), params, consts)
        for check in CHECKS:
            title = (check.__doc__ or check.__name__).strip()
            try:
                yield Outcome(title, "passed", check(subject))
            except Warn as warning:
                yield Outcome(title, "warned", str(warning))
            except Skip as skip:
                yield Outcome(title, "skipped", str(skip))
            except (Failure, ShoalError) as failure:
                yield Outcome(title, "failed", str(failure))
                if check in FATAL or isinstance(failure, ShoalError):
                    return
