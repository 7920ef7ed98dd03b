"""A projection of training on many GPUs and machines, from measured parts. Nothing here was measured at that size.

    shoal bench train breakout --gpus 2 --out parts.jsonl     measures the parts; on a CPU: --processes 2 --device cpu
    python benchmarks/scaling.py parts.jsonl                  prints the parts and the projection
    python benchmarks/scaling.py                              the same from results/scaling.jsonl, the table in the docs

The model is weak scaling: every process keeps the envs and the minibatches that it has in the measurement.

    T(N) = C + n L(N) + b / R(N)        efficiency = (steps of a process / T(N)) / (steps per second of one alone)

    C      seconds of an iteration of one process without its exchanges
    n, b   exchanges of an update, and the bytes that a process receives in them. From 3 processes on b does not depend
           on N: each adds up a part of the gradient and receives the others' sums: twice the gradient for each step
    L, R   latency and rate of an exchange. Measured: the latency of N processes is that of the measured n times
           log2 N / log2 n. Assumed: LINKS. In a machine the latency is that of an NCCL all-gather of one process, which
           torch takes 86 us for on an H200 (measured); between machines, and the rates: what networks usually give

A line without shards is projected, too: as if shards took the same path. On a GPU they do not: an update with shards is
plain torch, without fused kernels and CUDA graphs.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results/scaling.jsonl"
LINKS = {  # processes, machines: seconds of latency, bytes per second of a process. Assumptions
    (8, 1): (86e-6, 200e9),
    (64, 8): (150e-6, 25e9),
    (512, 64): (300e-6, 25e9),
}


def iteration_s(compute: float, sent: dict[str, float], latency_s: float, rate: float) -> float:
    """T(N) for one link."""
    return compute + sent["calls"] * latency_s + sent["bytes"] / rate


def compute_s(line: dict[str, Any]) -> float:
    """C: seconds of an iteration of one shard, without exchanges."""
    whole = line["steps"] / line["steps_per_s"]
    own = line["shards"] / line["processes"]  # shards of one process take turns
    return float((whole - line["exchange"]["seconds"]) / own)


def alone_per_s(line: dict[str, Any], lines: list[dict[str, Any]]) -> float:
    """Steps per second of one process without shards, if that was measured; else without exchanges."""
    same = [one for one in lines if (one["env"], one["device"]) == (line["env"], line["device"])]
    alone = [one["steps_per_s"] for one in same if one["processes"] == one["shards"] == 1]
    return float(alone[-1] if alone else own_steps(line) / compute_s(line))


def own_steps(line: dict[str, Any]) -> float:
    """Steps of an iteration that one process (of a projection: with one shard) takes."""
    return float(line["steps"] / line["shards"])


def traffic(line: dict[str, Any], lines: list[dict[str, Any]]) -> dict[str, float] | None:
    """The exchanges of an update: of this line, or of one with the same network and gradient steps."""
    if line["processes"] > 1:
        return dict(line["exchange"])
    same = [one for one in lines if one["processes"] > 1 and one["params"] == line["params"]]
    return dict(same[-1]["exchange"]) if same else None


def show(lines: list[dict[str, Any]]) -> None:
    """Prints the parts, and the projection from them."""
    print("Measured parts\n")
    print("| task | device | processes, shards | iteration | C | exchanges | bytes | L | R |")
    print("|---|---|---|---|---|---|---|---|---|")
    for line in lines:
        sent, whole = line["exchange"], line["steps"] / line["steps_per_s"]
        link = "  |  |  |  |"
        if line["processes"] > 1:
            link = f" {sent['calls']:.0f} | {sent['bytes'] / 1e6:.3g} MB | {1e6 * sent['latency_s']:.0f} us |"
            link += f" {sent['bytes_per_s'] / 1e9:.3g} GB/s |"
        print(
            f"| {line['env']}, {line['params']:,} weights | {line['device']} | {line['processes']}, {line['shards']} | "
            f"{1e3 * whole:.2f} ms | {1e3 * compute_s(line):.2f} ms |{link}"
        )
    print("\nPROJECTION, not a measurement: speed of N processes against N times one\n")
    shown = [f"{processes} on {machines} machine{'s' * (machines > 1)}" for processes, machines in LINKS]
    print(f"| task | C and traffic of | links | {' | '.join(shown)} |")
    print("|---|---|---|" + "---|" * len(LINKS))
    for line in lines:
        sent = traffic(line, lines)
        if sent is None:
            continue
        compute, alone = compute_s(line), alone_per_s(line, lines)
        for kind in ("measured", "assumed"):
            if kind == "measured" and line["processes"] < 2:
                continue
            shares = []
            for (processes, _), (latency_s, rate) in LINKS.items():
                if kind == "measured":
                    latency_s = sent["latency_s"] * math.log2(processes) / math.log2(line["processes"])
                    rate = sent["bytes_per_s"]
                each = own_steps(line) / iteration_s(compute, sent, latency_s, rate)
                shares.append(f"{each / alone:.0%}")
            where = f"{line['device']}, processes {line['processes']}, shards {line['shards']}"
            where += " (as if shards took its path)" if line["shards"] == 1 else ""
            print(f"| {line['env']} | {where} | {kind} | {' | '.join(shares)} |")


def main() -> int:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__)
        return 0
    if not path.is_file():
        raise SystemExit(f"{path} does not exist. Make it: shoal bench train ENV --processes 2 --out {path}")
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    lines = [line for line in lines if line.get("bench") == "train"]
    if not any(line["processes"] > 1 and "latency_s" in line["exchange"] for line in lines):
        raise SystemExit(f"{path} has no measurement of several processes: shoal bench train ENV --gpus 2 --out {path}")
    show(lines)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
