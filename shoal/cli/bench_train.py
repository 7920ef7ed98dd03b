"""`shoal bench train`: measures how fast an env trains on this machine, and what limits the speed.

shoal/bench/training.py does the measuring.
"""

from __future__ import annotations

import inspect
import json as jsonlib
from pathlib import Path
from typing import Any

from shoal.cli.command import Command
from shoal.errors import ConfigError


def bench_train(args: list[str]) -> int:
    """Measure how fast an env trains on this machine, and what limits the speed.

    Trains for some seconds without writing a run, then times the parts of an iteration: the envs, the policy in the
    rollout, the advantages, the update. The floor is the shortest time in which the device can move the bytes and do
    the arithmetic of an iteration. With several processes it also times what they exchange: bytes and seconds of an
    update, and an exchange alone (docs/distributed.md has a model of larger machines from them).

    Try:
        shoal bench train breakout
        shoal bench train breakout --device cuda
        shoal bench train cartpole --vec.num-envs 65536 --json
        shoal bench train breakout --gpus 4
        shoal bench train cartpole --processes 2 --device cpu

    Options of this command, besides those of 'shoal train' below:
        --seconds N   seconds of training to measure (default: 3)
        --json        print one line of JSON instead of the table
        --out FILE    append that line to this file
    """
    from shoal.bench.training import profile
    from shoal.cli import rank_flags
    from shoal.cli.screen import console
    from shoal.cli.train import parse
    from shoal.measure import describe_machine

    if (follower := rank_flags.join(args)) is not None:
        return follower
    rest, own = _take(args, {"--seconds": "3", "--out": ""}, ["--json"])
    request = parse(rest, "bench train", inspect.getdoc(bench_train))
    seconds, out = _seconds(own["--seconds"]), Path(own["--out"]) if own["--out"] else None
    if out and (out.is_dir() or not out.parent.is_dir()):
        raise ConfigError(f"--out {out} cannot be written. Choose a file in an existing folder.")
    if (code := rank_flags.launch(args, request, ("bench", "train"))) is not None:
        return code
    screen = console(stderr=bool(own["--json"]))
    with screen.status(f"training {request.env} for {seconds:g} s"):
        measured = profile(request.env, request.options, seconds)
    line = jsonlib.dumps({"bench": "train", "machine": describe_machine(), **measured})
    if own["--json"]:
        print(line)
    else:
        show(screen, measured)
    if out:
        with out.open("a") as file:
            file.write(line + "\n")
    return 0


def _take(args: list[str], values: dict[str, str], flags: list[str]) -> tuple[list[str], dict[str, Any]]:
    """The words of `shoal train`, and the options of this command."""
    rest, own, words = [], {**values, **dict.fromkeys(flags, False)}, iter(args)
    for word in words:
        name, _, value = word.partition("=")
        if name in values:
            own[name] = value or next(words, "")
        elif word in flags:
            own[word] = True
        else:
            rest.append(word)
    return rest, own


def _seconds(word: str) -> float:
    try:
        seconds = float(word)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds <= 3600.0:
        raise ConfigError(f"--seconds {word!r} must be a number, more than 0 and at most 3600.")
    return seconds


def show(screen: Any, measured: dict[str, Any]) -> None:
    """Prints the measurement as a table."""
    from rich.table import Table

    from shoal.cli.screen import suggest

    rates = measured["steps_per_s_all"]
    screen.print(
        f"{measured['env']} on {measured['device']}: {_short(measured['steps_per_s'])} steps/s end to end "
        f"({_short(min(rates))} .. {_short(max(rates))}), {measured['num_envs']:,} envs, {measured['backend']} backend",
        style="bold",
    )
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for name, side in (("part of an iteration", "left"), ("ms", "right"), ("share", "right")):
        table.add_column(name, justify=side)  # type: ignore[arg-type]
    total = measured["steps"] / measured["steps_per_s"]
    parts = {**measured["split_s"], "other": max(0.0, total - sum(measured["split_s"].values()))}
    for name, seconds in parts.items():
        table.add_row(name, f"{1e3 * seconds:,.3f}", f"{seconds / total:.0%}")
    table.add_row("all", f"{1e3 * total:,.3f}", "", style="bold")
    screen.print(table)
    screen.print(
        f"Floor {1e3 * measured['floor_s']:.3f} ms by {measured['bound']}: {measured['bytes'] / 1e9:.3g} GB at "
        f"{measured['bandwidth'] / 1e9:,.0f} GB/s, {measured['flops'] / 1e12:.3g} TFLOP at "
        f"{measured['flops_per_s'] / 1e12:,.3g} TFLOP/s (measured here). "
        f"This run takes {total / measured['floor_s']:.1f} times as long."
    )
    if (processes := measured["processes"]) > 1:
        sent = measured["exchange"]
        screen.print(
            f"{processes} processes, {measured['shards']} shards: an update has {sent['calls']:,.0f} exchanges; "
            f"in them a process receives {sent['bytes'] / 1e6:,.3g} MB and waits for {1e3 * sent['seconds']:,.2f} ms "
            f"({sent['seconds'] / total:.0%} of an iteration)."
        )
        screen.print(
            f"An exchange alone takes {1e6 * sent['latency_s']:,.0f} us and moves {sent['bytes_per_s'] / 1e9:,.3g} "
            f"GB/s: those of an update take {1e3 * sent['alone_s']:,.2f} ms. The rest waits for the slowest process."
        )
    kernels = "" if measured["launches"] is None else f"{measured['launches']:,} launches per iteration, "
    path = "fused kernels" if measured["fused"] else "plain kernels"
    where = path if measured["launches"] is not None else "CPU"
    screen.print(
        f"{measured['steps']:,} steps per iteration, {kernels}{where}; {measured['params']:,} weights; "
        f"warm-up {measured['warm_up_s']:.2f} s; peak memory {measured['peak_bytes'] / 1e6:,.0f} MB."
    )
    train = f"shoal train {measured['env']}" + (f" --algo {measured['algo']}" if measured["algo"] != "ppo" else "")
    suggest(screen, {train: "train it", f"shoal bench env {measured['env']}": "the envs alone"})


def _short(rate: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if rate >= size:
            return f"{rate / size:.3g}{unit}"
    return f"{rate:.3g}"


COMMAND = Command(bench_train, order=70, examples={}, parses_words=True)
