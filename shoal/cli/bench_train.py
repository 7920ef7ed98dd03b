"""`shoal bench train`: how fast an env trains on this machine, and what keeps it from being faster.

The measuring itself is in shoal/profile.py.
"""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Any

from shoal.cli.command import Command
from shoal.errors import ConfigError


def bench_train(args: list[str]) -> int:
    """Measure how fast an env trains on this machine, and what keeps it from being faster.

    Takes every option of `shoal train`, and --seconds N (default 3), --json, --out FILE. Trains for that long without
    writing anything, then times an iteration's parts: the envs, the policy's part of the rollout, the sums over time,
    the update. The floor is what the device needs at least, for the bytes and the products of an iteration.

    Try:
        shoal bench train breakout
        shoal bench train breakout --device cuda
        shoal bench train cartpole --vec.num-envs 65536 --json
    """
    from shoal.cli.screen import console
    from shoal.cli.train import parse
    from shoal.measure import describe_machine
    from shoal.profile import profile

    rest, own = _take(args, {"--seconds": "3", "--out": ""}, ["--json"])
    request = parse(rest)
    seconds, out = _seconds(own["--seconds"]), Path(own["--out"]) if own["--out"] else None
    if out and (out.is_dir() or not out.parent.is_dir()):
        raise ConfigError(f"--out {out} cannot be written. Choose a file in a folder that exists.")
    screen = console(stderr=bool(own["--json"]))
    with screen.status(f"training {request.env} for {seconds:g} s"):
        found = profile(request.env, request.options, seconds)
    line = jsonlib.dumps({"bench": "train", "machine": describe_machine(), **found})
    if own["--json"]:
        print(line)
    else:
        show(screen, found)
    if out:
        with out.open("a") as file:
            file.write(line + "\n")
    return 0


def _take(args: list[str], values: dict[str, str], flags: list[str]) -> tuple[list[str], dict[str, Any]]:
    """The words that are not ours, and ours."""
    rest, found, words = [], {**values, **dict.fromkeys(flags, False)}, iter(args)
    for word in words:
        name, _, value = word.partition("=")
        if name in values:
            found[name] = value or next(words, "")
        elif word in flags:
            found[word] = True
        else:
            rest.append(word)
    return rest, found


def _seconds(word: str) -> float:
    try:
        seconds = float(word)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds <= 3600.0:
        raise ConfigError(f"--seconds {word!r} must be a number, more than 0 and at most 3600.")
    return seconds


def show(screen: Any, found: dict[str, Any]) -> None:
    """What was measured, for a person."""
    from rich.table import Table

    from shoal.cli.screen import suggest

    rates = found["steps_per_s_all"]
    screen.print(
        f"{found['env']} on {found['device']}: {_short(found['steps_per_s'])} steps/s end to end "
        f"({_short(min(rates))} .. {_short(max(rates))}), {found['num_envs']:,} envs, {found['backend']} backend",
        style="bold",
    )
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for name, side in (("part of an iteration", "left"), ("ms", "right"), ("share", "right")):
        table.add_column(name, justify=side)  # type: ignore[arg-type]
    total = found["steps"] / found["steps_per_s"]
    parts = {**found["split_s"], "other": max(0.0, total - sum(found["split_s"].values()))}
    for name, seconds in parts.items():
        table.add_row(name, f"{1e3 * seconds:,.3f}", f"{seconds / total:.0%}")
    table.add_row("all", f"{1e3 * total:,.3f}", "", style="bold")
    screen.print(table)
    screen.print(
        f"Floor {1e3 * found['floor_s']:.3f} ms by {found['bound']}: {found['bytes'] / 1e9:.3g} GB at "
        f"{found['bandwidth'] / 1e9:,.0f} GB/s, {found['flops'] / 1e12:.3g} TFLOP at "
        f"{found['flops_per_s'] / 1e12:,.3g} TFLOP/s (measured here). "
        f"This run takes {total / found['floor_s']:.1f} times as long."
    )
    kernels = "" if found["launches"] is None else f"{found['launches']:,} launches per iteration, "
    path = "fused kernels" if found["fused"] else "plain kernels"
    where = path if found["launches"] is not None else "CPU"
    screen.print(
        f"{found['steps']:,} steps per iteration, {kernels}{where}; {found['params']:,} weights; "
        f"warm-up {found['warm_up_s']:.2f} s; peak memory {found['peak_bytes'] / 1e6:,.0f} MB."
    )
    train = f"shoal train {found['env']}" + (f" --algo {found['algo']}" if found["algo"] != "ppo" else "")
    suggest(screen, {train: "train it", f"shoal bench env {found['env']}": "the envs alone"})


def _short(rate: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if rate >= size:
            return f"{rate / size:.3g}{unit}"
    return f"{rate:.3g}"


COMMAND = Command(bench_train, order=70, examples={}, parses_words=True)
