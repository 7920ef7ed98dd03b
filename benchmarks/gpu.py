"""All checks and timings that need a GPU. They need only torch, numpy, cuda-bindings and gcc.

    python benchmarks/gpu.py [PART ...]          default: all parts

`envs:vacuum,maze`, `parity:vacuum` and `learning:cartpole` run a part for these envs or cases only. The parts are in
gpu_learning.py, gpu_checks.py (kernels and repetition), gpu_ranks.py, gpu_population.py, gpu_times.py (host, startup
and profiles) and gpu_envs.py (envs and parity).

    learning   seconds of training to the full score, 3 seeds each, and steps per second
    q_learning the same for DQN and PQN
    vacuum     DQN as robot 0 against scripted robots, compared with each scripted robot as robot 0
    kernels    the fused kernels compared with the plain path, from the same rollouts
    odd_settings the same for unusual numbers of envs, minibatches, layers, units, agents, masks and observations
    exact      the same seed gives the same weights, and so does a run that was stopped and resumed
    curriculum the same for a run whose opponents change: a robot, a Python agent, a frozen copy of the learner
    ranks      one process with NCCL against none, and two processes that share the GPU against one, bit for bit
    population members of one trainer against lone runs, bit for bit; 256 cartpoles, 64 breakouts, 16 seeds against one
               (`population:exact`, `population:cartpole` ... run one of these)
    host       envs on CPU threads with the learner on the GPU, and how busy both are
    startup    seconds from the shell command to the end of the first update, and to 95 % of breakout's points, with a
               cold and with a warm cache
    profiles   where an iteration's time goes (what `shoal bench train` prints)
    envs       steps per second of the envs alone
    parity     every env on the GPU compared with the CPU, byte for byte

Each part appends a line to benchmarks/results/gpu.jsonl when it is done. The command exits with 1 if kernels,
odd_settings, exact, curriculum, ranks, population or parity find a difference.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gpu_checks import EXACT, KERNELS, ODD, PROBLEMS, curriculum, exact, kernels, odd_settings
from gpu_envs import envs, parity
from gpu_learning import CASES, Q_CASES, learning, q_learning, vacuum
from gpu_population import NAMES as POPULATIONS
from gpu_population import population
from gpu_ranks import CASES as RANKS
from gpu_ranks import ranks
from gpu_times import host, profiles, startup

from shoal import registry
from shoal.errors import CudaMissing
from shoal.measure import describe_machine
from shoal.native.cuda import require_gpu
from shoal.runs import commit

RESULTS = Path(__file__).parent / "results/gpu.jsonl"

PARTS: dict[str, Callable[..., dict[str, Any]]] = {
    "learning": learning,
    "q_learning": q_learning,
    "vacuum": vacuum,
    "kernels": kernels,
    "odd_settings": odd_settings,
    "exact": exact,
    "curriculum": curriculum,
    "ranks": ranks,
    "population": population,
    "host": host,
    "startup": startup,
    "profiles": profiles,
    "envs": envs,
    "parity": parity,
}


def chosen(part: str, names: str) -> list[str]:
    """The envs or cases after a part's colon: one, or several between commas or semicolons (names may have commas)."""
    if names in known_names(part):
        return [names]
    return names.split(";" if ";" in names else ",") if names else []


def known_names(part: str) -> list[str]:
    """What may follow a part's colon."""
    cases: dict[str, Any] = {"learning": CASES, "q_learning": Q_CASES, "kernels": KERNELS, "odd_settings": ODD}
    cases |= {"exact": EXACT, "ranks": RANKS, "population": POPULATIONS}
    cases |= dict.fromkeys(("envs", "parity"), registry.stock_names())
    return list(cases.get(part, ()))


def check_words(words: list[str]) -> None:
    """Exits if a part, or an env or case of it, does not exist."""
    for word in words:
        part, _, names = word.partition(":")
        if part not in PARTS:
            raise SystemExit(f"{part}: no such part. Known: {', '.join(PARTS)}.")
        for name in chosen(part, names):
            if name not in known_names(part):
                known = "; ".join(known_names(part)) or "this part takes none"
                raise SystemExit(f"{part} has no '{name}'. Known: {known}.")


def main() -> int:
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__)
        return 0
    words = sys.argv[1:] or list(PARTS)
    check_words(words)
    try:
        require_gpu()
    except CudaMissing as error:
        raise SystemExit(f"{error}") from None
    facts = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "machine": describe_machine(),
        "commit": commit(),
    }
    for word in words:
        name, _, names = word.partition(":")
        began = time.perf_counter()
        results = PARTS[name](chosen(name, names)) if names else PARTS[name]()
        entry = {"time": time.strftime("%Y-%m-%d %H:%M"), **facts, name: results}
        with RESULTS.open("a") as file:
            file.write(json.dumps(entry) + "\n")
        print(f"{word}: {time.perf_counter() - began:.0f} s", flush=True)
    for problem in PROBLEMS:
        print(f"PROBLEM: {problem}")
    return 1 if PROBLEMS else 0


if __name__ == "__main__":
    raise SystemExit(main())
