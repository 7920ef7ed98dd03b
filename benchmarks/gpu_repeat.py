"""Do runs repeat while other processes use the GPU? If not, which tensor differs first, and which kernel is it?

    python benchmarks/gpu_repeat.py hashes maze --iterations 40 --out a.json     hashes of all tensors by iteration
    python benchmarks/gpu_repeat.py compare a.json b.json ...                    where the first difference is
    python benchmarks/gpu_repeat.py kernels maze --seconds 20                    launches every kernel several times
    python benchmarks/gpu_repeat.py speed maze --iterations 60                   milliseconds of an iteration

`hashes` trains an env with the options of its TOML file. Start it several times at once, and alone. `kernels` trains
without graphs and launches each Triton kernel again with the same inputs: outputs that differ name the kernel.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shoal.algos.fast import base, fused, fused_core, layer_stack, layered, layered_muon
from shoal.nn.launch import launch
from shoal.train import Trainer, options_for

REPEATS = 4  # launches of a kernel that are compared with the first


def hash_of(tensor: Tensor) -> Tensor:
    """A hash of a tensor's bytes that does not depend on the order of sums: they are sums of integers."""
    flat = tensor.detach().contiguous().flatten().view(torch.uint8)
    flat = torch.nn.functional.pad(flat, (0, -len(flat) % 4)).view(torch.int32)
    total = torch.zeros((), dtype=torch.int64, device=flat.device)
    for first in range(0, len(flat), 1 << 26):
        part = flat[first : first + (1 << 26)].to(torch.int64)
        factors = torch.arange(first, first + len(part), device=flat.device) * 0x9E3779B1 % 0x7FFFFFFF
        total += (part * (factors | 1)).sum()
    return total


def rollout_hashes(rollout: Any) -> dict[str, Tensor]:
    """Of everything that is collected, in the order in which it comes about."""
    found = {"noise": hash_of(rollout.noise)}
    for t in range(rollout.horizon):
        parts = {"obs": rollout.obs[0], "logits": rollout.logits, "values": rollout.values, "actions": rollout.actions}
        parts |= {"rewards": rollout.rewards, "dones": rollout.dones}
        found |= {f"{name}[{t}]": hash_of(part[t]) for name, part in parts.items()}
    return found | {"values[last]": hash_of(rollout.values[-1]), "obs[last]": hash_of(rollout.obs[0][-1])}


def kernel_tensors(fast: Any) -> dict[str, Tensor]:
    """The memory of the kernels, in the order in which they write it."""
    found: dict[str, Tensor] = {}
    for k, layer in enumerate(getattr(fast, "matrices", ())):
        found |= {f"layer{k}.out": layer.out, f"layer{k}.d_out": layer.d_out}
    for name in ("images", "partial", "squares", "sums", "norms", "x", "next_x", "square", "polynomial", "narrow"):
        if isinstance(getattr(fast, name, None), Tensor):
            found[name] = getattr(fast, name)
    return found


def update_hashes(trainer: Trainer) -> dict[str, Tensor]:
    """Of everything that an update changes: first what its last minibatch wrote."""
    learner = trainer.learners[0]
    found = {} if learner.fused is None else kernel_tensors(learner.fused)
    found |= {"gradient": learner.weights.grad, "weights": learner.weights}
    found |= {f"optimizer.{name}": part for name, part in learner.optimizer.state.items()}
    return {name: hash_of(part) for name, part in found.items() if part.numel()}


def make_trainer(args: argparse.Namespace) -> Trainer:
    """A trainer with the options of the env's TOML file, for a GPU."""
    own: dict[str, Any] = {"vec": {"num_envs": args.envs}} if args.envs else {}
    return Trainer(args.env, options_for(args.env, {"device": "cuda", "seed": 1}, own))


def hashes(args: argparse.Namespace) -> int:
    """Trains and writes hashes of every iteration."""
    trainer = make_trainer(args)
    rows: list[dict[str, int]] = []
    began = time.perf_counter()
    for k in range(args.iterations):
        if k == 0:
            trainer.start()
            trainer.capture()
            began = time.perf_counter()
        trainer.collect()
        is_full = k % args.every == 0
        row = rollout_hashes(trainer.learners[0].rollout) if is_full else {}
        trainer.learn()
        row |= update_hashes(trainer) if is_full else {"weights": hash_of(trainer.learners[0].weights)}
        rows.append(dict(zip(row, torch.stack(list(row.values())).tolist())))
    seconds = time.perf_counter() - began
    Path(args.out).write_text(json.dumps(rows))
    print(
        f"{args.env}: {args.iterations} iterations in {seconds:.1f} s, weights {rows[-1]['weights'] % (1 << 64):016x}",
        flush=True,
    )
    return 0


def compare(args: argparse.Namespace) -> int:
    """Prints the first difference of each file from the first one."""
    first, *others = [json.loads(Path(name).read_text()) for name in args.files if Path(name).exists()]
    differ = 0
    for name, other in zip(args.files[1:], others):
        for k, (row, theirs) in enumerate(zip(first, other)):
            names = [key for key, value in row.items() if theirs[key] != value]
            if names:
                differ += 1
                print(f"  {Path(name).name}: iteration {k}: {len(names)} of {len(row)} differ: {names[:6]}")
                break
        else:
            print(f"  {Path(name).name}: same, {len(first)} iterations")
    return int(differ > 0)


class Repeater:
    """Launches kernels several times with the same inputs and compares their outputs."""

    def __init__(self) -> None:
        self.outputs: dict[str, set[int]] = {}  # by kernel: the arguments that it writes
        self.launches, self.repeats = Counter[str](), Counter[str]()
        self.found: dict[str, list[str]] = {}

    def launch(self, kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
        """In place of `launch` of nn/launch.py."""
        name = kernel.fn.__name__
        tensors = {k: x.detach() for k, x in enumerate(args) if isinstance(x, Tensor)}
        self.launches[name] += 1
        known = self.outputs.setdefault(name, set())
        watched = tensors if self.launches[name] <= 40 else {k: tensors[k] for k in sorted(known) if k in tensors}
        before = {k: x.clone() for k, x in watched.items()}
        launch(kernel, grid, *args, **options)
        changed = {k: x.clone() for k, x in watched.items() if not same(x, before[k])}
        known.update(changed)
        for _ in range(REPEATS):
            for k in changed:
                tensors[k].copy_(before[k])
            launch(kernel, grid, *args, **options)
            self.repeats[name] += 1
            for k, expected in changed.items():
                if not same(tensors[k], expected):
                    self._report(name, k, tensors[k], expected, grid)

    def _report(self, name: str, argument: int, got: Tensor, expected: Tensor, grid: Any) -> None:
        wrong = torch.nonzero((got != expected).flatten())[:, 0]
        apart = (got.double() - expected.double()).abs()
        where = wrong[:4].tolist()
        words = f"argument {argument} {tuple(got.shape)}, grid {grid}: {len(wrong)} differ by up to {apart.max():.3g}"
        words += f", largest {expected.double().abs().max():.3g}; at {where} .. {int(wrong[-1]) if len(wrong) else -1}"
        self.found.setdefault(name, []).append(words)
        if len(self.found[name]) <= 3:
            print(f"  DIFFERS {name}: {words}", flush=True)


def same(a: Tensor, b: Tensor) -> bool:
    """Whether all bytes are equal, nan or not."""
    return bool(torch.equal(*(x.contiguous().flatten().view(torch.uint8) for x in (a, b))))


def patched(launcher: Any) -> Iterator[str]:
    """Puts a launcher in place of that of the kernels' modules."""
    for module in (base, fused, fused_core, layer_stack, layered, layered_muon):
        if hasattr(module, "launch"):
            module.launch = launcher  # type: ignore[attr-defined]
            yield module.__name__


def kernels(args: argparse.Namespace) -> int:
    """Trains without graphs for some seconds, launching each kernel several times."""
    trainer, repeater = make_trainer(args), Repeater()
    list(patched(repeater.launch))
    trainer._is_captured = True  # no graphs
    trainer.start()
    began, iterations = time.perf_counter(), 0
    while time.perf_counter() - began < args.seconds and iterations < args.iterations:
        trainer.iterate()
        iterations += 1
    count = sum(repeater.repeats.values())
    found = {name: len(words) for name, words in repeater.found.items()}
    print(f"{args.env}: {iterations} iterations, {count} repeated launches, different: {found or 'none'}", flush=True)
    return int(bool(found))


def speed(args: argparse.Namespace) -> int:
    """Prints milliseconds of an iteration, of collecting alone, and agent steps per second."""
    trainer = make_trainer(args)
    for _ in range(5):
        trainer.iterate()
    times = []
    for part in (trainer.iterate, trainer.collect):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(args.iterations):
            part()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - began) / args.iterations)
    rate = trainer.steps_per_iteration / times[0] / 1e6
    print(
        f"{args.env}: {times[0] * 1e3:.2f} ms, {times[1] * 1e3:.2f} of it collecting, {rate:.1f} M steps/s", flush=True
    )
    return 0


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for function in (hashes, kernels, speed):
        command = commands.add_parser(function.__name__)
        command.set_defaults(function=function)
        command.add_argument("env")
        command.add_argument("--iterations", type=int, default=40)
        command.add_argument("--envs", type=int, default=0)
        command.add_argument("--every", type=int, default=1, help="iterations between hashes of all tensors")
        command.add_argument("--seconds", type=float, default=20.0)
        command.add_argument("--out", default="hashes.json")
    command = commands.add_parser("compare")
    command.set_defaults(function=compare)
    command.add_argument("files", nargs="+")
    args = parser.parse_args()
    return int(args.function(args))


if __name__ == "__main__":
    sys.exit(main())
