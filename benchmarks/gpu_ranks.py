"""Several processes against one, bit for bit: the part `ranks` of gpu.py.

    python benchmarks/gpu.py ranks                              on a GPU
    python benchmarks/gpu.py "ranks:PPO;DQN"                    only these cases
    python benchmarks/gpu_ranks.py [CASE ...] [--device cpu]    without its other parts; on a CPU: gloo in place of NCCL

Every case is the same short run in one process, under torchrun, and in two processes that share the device. All of
them run at the same time. A run that fails says so at once, with the end of its error output. Where tensors differ, the
first checkpoint that differs is compared: which tensors, how many of their numbers, and by how much.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from gpu_checks import PROBLEMS, checkpoints_of
from safetensors.torch import load

from shoal.runs import all_runs

ROOT = Path(__file__).resolve().parent.parent
CASES: dict[str, list[str]] = {
    "PPO": ["cartpole", "--nn.hidden", "64", "--train.normalize-obs", "True"],
    "PPO, LSTM": ["breakout", "--nn.core", "lstm", "--train.segment", "16"],
    "PPO, wide network": ["breakout", "--nn.hidden", "256"],
    "PPO, envs on the CPU": ["breakout", "--vec.backend", "threads"],
    "DQN": ["cartpole", "--algo", "dqn", "--train.batch-size", "128", "--train.replay-size", "200k"],
    "PQN": ["cartpole", "--algo", "pqn"],
}
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
ONE, TWO = ["--train.shards", "1"], ["--train.shards", "2"]
# by what is printed: the launcher, the further words, and the run that it must equal
RUNS: dict[str, tuple[list[str], list[str], str]] = {
    "1 shard": ([], ONE, ""),
    "2 shards": ([], TWO, ""),
    "2 shards again": ([], TWO, "2 shards"),
    "torchrun, 1 shard": (TORCHRUN, ONE, "1 shard"),
    "torchrun, 2 shards": (TORCHRUN, TWO, "2 shards"),  # on a GPU: NCCL
    "2 processes, 2 shards": ([], [*TWO, "--processes", "2"], "2 shards"),
}
LISTED = 4  # tensors that differ, in a message
TIMEOUT_S = 280


@dataclass
class Outcome:
    """What a run left: its checkpoints, or why there are none."""

    error: str = ""
    files: dict[str, bytes] = field(default_factory=dict)  # by checkpoint and file


def ranks(names: list[str] | None = None, device: str = "cuda") -> dict[str, Any]:
    """Compares runs in processes that torchrun or Shoal started with the same runs in one process."""
    results: dict[str, Any] = {}
    for name in names or CASES:
        with ThreadPoolExecutor(len(RUNS)) as pool:
            started = {
                what: pool.submit(run, launcher, [*CASES[name], *words], device)
                for what, (launcher, words, _) in RUNS.items()
            }
        outcomes = {what: future.result() for what, future in started.items()}
        for what, outcome in outcomes.items():
            if outcome.error:
                PROBLEMS.append(f"ranks {name}: {what} failed")
                print(f"ranks {name}: {what} FAILED: {outcome.error}", flush=True)
        found = {
            what: compare(outcomes[what], outcomes[expected]) for what, (_, _, expected) in RUNS.items() if expected
        }
        results[name] = found
        PROBLEMS.extend(f"ranks {name}: {what} {word}" for what, word in found.items() if word != "same")
        print(f"ranks {name:22} {'; '.join(f'{what}: {word}' for what, word in found.items())}", flush=True)
    return results


def run(launcher: list[str], words: list[str], device: str) -> Outcome:
    """A short run of `shoal train`."""
    common = ["--device", device, "--vec.num-envs", "512", "--train.total-steps", "100k", "--eval.episodes", "0"]
    common += ["--save.every-s", "0", "--save.every", "40k", "--save.keep", "100", "--console", "off"]
    if "--algo" not in words:
        common += ["--train.horizon", "16", "--train.minibatches", "4"]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, *launcher, "-m", "shoal", "train", *words, *common, "--runs", folder]
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return Outcome(f"'{' '.join(command[1:])}' did not end within {TIMEOUT_S} s")
        if done.returncode:
            return Outcome(f"'{' '.join(command[1:])}' ended with {done.returncode}: {done.stderr[-3000:]}")
        (made,) = all_runs(folder)
        return Outcome(files=checkpoints_of(made))


def compare(ours: Outcome, theirs: Outcome) -> str:
    """`same`, or how the checkpoints of two runs differ."""
    if ours.error or theirs.error:
        return "not compared: a run failed"
    if ours.files.keys() != theirs.files.keys():
        return f"differs: it has the files {sorted(ours.files)}, expected {sorted(theirs.files)}"
    for name in sorted(ours.files):
        if ours.files[name] != theirs.files[name]:
            return f"differs from {name} on: {differences(load(ours.files[name]), load(theirs.files[name]))}"
    return "same" if ours.files else "not compared: the runs saved nothing"


def differences(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    """Which tensors differ, how many of their numbers, and by how much."""
    if ours.keys() != theirs.keys():
        return f"tensors {sorted(ours.keys() ^ theirs.keys())} are in one of them only"
    wrong = []
    for name in sorted(ours):
        a, b = ours[name], theirs[name]
        if a.shape != b.shape or a.dtype != b.dtype:
            wrong.append(f"{name} {tuple(a.shape)} {a.dtype} instead of {tuple(b.shape)} {b.dtype}")
        elif not torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8)):
            apart = (a.double() - b.double()).abs()
            wrong.append(f"{name}: {int((apart > 0).sum())} of {a.numel()} by up to {float(apart.max()):.3g}")
    if not wrong:
        return "the bytes of the file, no tensor"
    rest = f" and {len(wrong) - LISTED} more" if len(wrong) > LISTED else ""
    return f"{len(wrong)} of {len(ours)} tensors: {', '.join(wrong[:LISTED])}{rest}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"default: all of {'; '.join(CASES)}")
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    given = parser.parse_args()
    if unknown := [name for name in given.cases if name not in CASES]:
        parser.error(f"no such case: {', '.join(unknown)}. Known: {'; '.join(CASES)}.")
    ranks(given.cases, given.device)
    for problem in PROBLEMS:
        print(f"PROBLEM: {problem}")
    return 1 if PROBLEMS else 0


if __name__ == "__main__":
    raise SystemExit(main())
