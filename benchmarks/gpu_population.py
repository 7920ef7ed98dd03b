"""Populations on a GPU: what gpu.py's part `population` checks and times.

    exact      members that take turns on one trainer, or start it again, against lone runs: all tensors of a checkpoint
    cartpole   256 trials of 12M steps on one trainer; bar: 20 s
    seeds      `shoal train cartpole --seeds 16` against one seed, as commands; bar: 3 times
    breakout   64 trials of 100M steps; bar: 60 s
    sweep      `shoal sweep cartpole --trials 256 --population 64` as a command, if Optuna is installed; bar: 20 s

Every line is printed as soon as it is known. After LIMIT_S no further case begins.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from gpu_checks import PROBLEMS

from shoal.sweep.pbt import draw
from shoal.sweep.ranges import Range
from shoal.train import options_for, swap
from shoal.train import train as train_run
from shoal.train.sharded import make_trainer

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 150.0
EXACT_S = 60.0  # of exact, before the timings
OTHER = {"learning_rate": 0.003, "gamma": 0.9, "max_grad_norm": 0.2}
OTHER_PPO = {**OTHER, "gae_lambda": 0.5, "clip": 0.1, "entropy_coef": 0.03, "value_coef": 0.7}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "fused": ("breakout", {}, OTHER_PPO),
    "normalizers, truncation, continuous": (
        "pendulum",
        {"env": {"max_steps": 10}, "train": {"normalize_reward": True, "normalize_obs": True}},
        OTHER_PPO,
    ),
    "LSTM": ("memory", {"nn": {"core": "lstm"}}, OTHER_PPO),
    "layered": ("breakout", {"nn": {"hidden": 256, "layers": 3}}, OTHER_PPO),
    "DQN kernels": ("cartpole", {"algo": "dqn", "train": {"precision": "auto"}}, OTHER),
    "PQN kernels": (
        "cartpole",
        {"algo": "pqn", "train": {"horizon": 16, "minibatches": 4}},
        {**OTHER, "q_lambda": 0.3},
    ),
    "plain path, value clip": (
        "cartpole",
        {"train": {"precision": "fp32", "value_clip": 0.2}},
        {**OTHER_PPO, "value_clip": 0.1},
    ),
    "agents, masks": ("forage", {"nn": {"encoder": "mlp"}}, OTHER_PPO),
}
NAMES = ("exact", "cartpole", "seeds", "breakout", "sweep")


def population(names: list[str] | None = None) -> dict[str, Any]:
    """All of it, or the named parts."""
    wanted, began, results = names or list(NAMES), time.perf_counter(), {}
    if "exact" in wanted:
        results["exact"] = exact({}, lambda: time.perf_counter() - began < (LIMIT_S if names else EXACT_S))
    timed = {"cartpole": cartpole, "seeds": seeds, "breakout": breakout, "sweep": sweep}
    for name in (name for name in timed if name in wanted):
        if time.perf_counter() - began > LIMIT_S:
            print(f"population {name}: skipped after {LIMIT_S:.0f} s", flush=True)
            continue
        try:
            results[name] = timed[name]()
        except Exception as error:
            PROBLEMS.append(f"population {name}: {type(error).__name__}: {error}")
            print(f"population {name}: {type(error).__name__}: {error}", flush=True)
        torch.cuda.empty_cache()
    if "exact" in wanted:
        results["exact"] = exact(results["exact"], lambda: time.perf_counter() - began < LIMIT_S)
        for name in CASES.keys() - results["exact"].keys():
            print(f"population exact {name}: skipped after {LIMIT_S:.0f} s", flush=True)
    return results


# ---- exact ----


def exact(known: dict[str, str], has_time: Any) -> dict[str, str]:
    """The cases that are not known yet, while there is time."""
    results = dict(known)
    for name in CASES:
        if name in results or not has_time():
            continue
        began = time.perf_counter()
        try:
            results[name] = compare(name)
        except Exception as error:
            results[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        if results[name] != "same":
            PROBLEMS.append(f"population exact {name}: {results[name]}")
        print(f"population exact {name:40} {results[name]} ({time.perf_counter() - began:.1f} s)", flush=True)
        torch.cuda.empty_cache()
    return results


def member_options(name: str, number: int) -> tuple[str, Any]:
    """The env and options of a member: number 0 has those of the case, others have another seed and other numbers."""
    env, tables, other = CASES[name]
    if tables.get("algo") == "dqn":
        train = {"train_frequency": 8, "gradient_steps": 4, "replay_size": 200_000, "replay_start": 5000}
    else:
        train = {"horizon": 16, "minibatches": 4}
    train |= {"total_steps": 10**7, **tables.get("train", {}), **(other if number else {})}
    own = {**tables, "device": "cuda", "seed": 3 + number, "train": train, "vec": {"num_envs": 512}}
    return env, options_for("", own)


def tensors_of(trainer: Any) -> dict[str, Any]:
    return {f"{name}.{k}": v.cpu().clone() for name, part in trainer.state().items() for k, v in part.items()}


def compare(name: str) -> str:
    """Members 0 and 1 take turns, 2 starts the trainer again; each against a run of its own."""
    pool, snapshots, found = swap.TrainerPool(), {}, {}
    try:
        for number in (0, 1):
            trainer = pool.get(*member_options(name, number))
            iterate(trainer, 2)
            snapshots[number] = swap.take(trainer)
        trainer = pool.get(*member_options(name, 2))
        iterate(trainer, 6)
        found[2] = tensors_of(trainer)
        for number, iterations in ((0, 3), (1, 4), (0, 1)):
            swap.put(trainer, snapshots[number])
            iterate(trainer, iterations)
            snapshots[number], found[number] = swap.take(trainer), tensors_of(trainer)
        if (pool.made, pool.reused) != (1, 2):
            return f"{pool.made} trainers were made, not 1"
    finally:
        pool.clear()
    for number in (1, 2, 0):
        alone = make_trainer(*member_options(name, number))
        with contextlib.closing(alone):
            iterate(alone, 6)
            expected = tensors_of(alone)
        differ = [k for k in expected if not torch.equal(expected[k], found[number][k])]
        if differ:
            return f"member {number} differs in {len(differ)} of {len(expected)}: {differ[:3]}"
    return "same"


def iterate(trainer: Any, count: int) -> None:
    for _ in range(count):
        trainer.iterate()


# ---- times ----


def trials(env: str, count: int, total: str, bar_s: float) -> dict[str, Any]:
    """Ordinary runs with other seeds and numbers, one after the other on one trainer."""
    base = options_for(env, {"device": "cuda", "train": {"total_steps": total}, "eval": {"episodes": 0}})
    rng, pool, began = random.Random(1), swap.TrainerPool(), time.perf_counter()
    rate, gamma = Range("log", base.train.learning_rate / 4, base.train.learning_rate * 2), Range("logit", 0.95, 0.999)
    first_s = trained_s = 0.0
    scores = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            values = {"learning_rate": draw(rate, rng), "gamma": draw(gamma, rng)} if number else {}
            own = dataclasses.replace(base, seed=number + 1, train=dataclasses.replace(base.train, **values))
            run = train_run(env, options=own, runs_folder=folder, run_id=f"{number:04d}", console="off", pool=pool)
            summary = run.summary or {}
            trained_s += summary["wall_s"]
            scores.append(summary.get("latest_return") or float("nan"))
            if number == 0:
                first_s = time.perf_counter() - began
            if number + 1 in (1, 8, 32, 64, 128, count):
                print(f"population {env}: {number + 1} trials in {time.perf_counter() - began:.2f} s", flush=True)
    pool.clear()
    seconds = time.perf_counter() - began
    each_ms = 1e3 * (seconds - first_s) / max(1, count - 1)
    result = {"trials": count, "steps": total, "seconds": seconds, "first_s": first_s, "bar_s": bar_s}
    result |= {"each_ms": each_ms, "trained_ms": 1e3 * trained_s / count, "best": max(scores), "made": pool.made}
    verdict = "met" if seconds <= bar_s else "MISSED"
    print(
        f"population {env}: {count} trials of {total} steps in {seconds:.2f} s, bar {bar_s:.0f} s {verdict}; first "
        f"{first_s:.2f} s, then {each_ms:.1f} ms each, of which {result['trained_ms']:.1f} ms training; trainers made: "
        f"{pool.made}; best return {max(scores):.1f}",
        flush=True,
    )
    return result


def cartpole() -> dict[str, Any]:
    """256 trials of 12M steps."""
    return trials("cartpole", 256, "12M", 20.0)


def breakout() -> dict[str, Any]:
    """64 trials of 100M steps."""
    return trials("breakout", 64, "100M", 60.0)


def command(*words: str) -> float:
    """Seconds of a command; raises with its last lines if it fails."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "shoal", *words], env=env, capture_output=True, text=True, timeout=LIMIT_S
    )
    if done.returncode:
        raise RuntimeError(f"{words[:2]} ended with {done.returncode}: {(done.stdout + done.stderr)[-500:]}")
    return time.perf_counter() - began


def seeds() -> dict[str, Any]:
    """One seed and 16 seeds of cartpole, each as a command with its whole start. The second of two lone runs counts."""
    with tempfile.TemporaryDirectory() as folder:
        common = ("train", "cartpole", "--device", "cuda", "--console", "off", "--runs", folder)
        alone = min(command(*common, "--seed", str(number)) for number in (1, 2))
        print(f"population seeds: one seed {alone:.2f} s", flush=True)
        sixteen = command(*common, "--seeds", "16")
    ratio = sixteen / alone
    verdict = "met" if ratio <= 3.0 else "MISSED"
    print(f"population seeds: 16 seeds {sixteen:.2f} s, {ratio:.2f} times one seed, bar 3 {verdict}", flush=True)
    return {"one_s": alone, "sixteen_s": sixteen, "ratio": ratio}


def sweep() -> dict[str, Any]:
    """The command, with its sampler and the journal."""
    if importlib.util.find_spec("optuna") is None:
        print("population sweep: skipped, Optuna is not installed", flush=True)
        return {}
    results = {}
    for workers in (1, 3):
        with tempfile.TemporaryDirectory() as folder:
            words = f"--trials 256 --population 64 --workers {workers} --finals 0 --early-stop 0 --sampler random"
            words += f" --device cuda --train.total-steps 12M --console off --runs {folder}"
            seconds = command("sweep", "cartpole", *words.split())
        results[f"{workers} workers"] = seconds
        verdict = "met" if seconds <= 20.0 else "MISSED"
        print(f"population sweep: 256 trials, {workers} workers: {seconds:.2f} s, bar 20 s {verdict}", flush=True)
    return results
