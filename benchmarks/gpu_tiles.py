"""The part of gpu.py that compares tiles of wide layers: `tiles`.

For each candidate of shoal/algos/fast/tiles.py, in turns: the groups of launches of a minibatch alone, each as a CUDA
graph over eight minibatches, and iterations as a whole. Then the best of each group together, against today's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from gpu_checks import PROBLEMS, _cosine
from gpu_launches import graph_times
from torch import nn

from shoal.algos.fast.layered import Layered
from shoal.algos.fast.tiles import CANDIDATES, Tiles
from shoal.algos.optimizers.muon import Muon
from shoal.algos.ppo import make_batch, segment_order
from shoal.bench.training import device_times
from shoal.train import Trainer, options_for
from shoal.train.graphs import Graphs, capture, copy_of_state, put_back, warm_up

MAKE = Layered
CASES = ("craftax_classic",)
MINIBATCHES, ROUNDS = 8, 5  # of a graph; in turns
REPEATS = 50  # of a gradient, whose bits must be the same
STEPS = 10**9  # that a run is projected to
EPOCHS = 4  # of that run, with minibatches of the same size


def tiles(names: Sequence[str] | None = None) -> dict[str, Any]:
    """Times of all candidates, and whether their gradients agree."""
    return {name: compare_tiles(Trainer(name, options_for(name, {"device": "cuda"}))) for name in names or CASES}


class Side:
    """A candidate, which takes the trainer over when it is its turn."""

    def __init__(self, trainer: Trainer, tiles: Tiles) -> None:
        self.trainer, self.tiles = trainer, tiles
        self.graphs: Graphs | None = None
        self.kernels = MAKE(trainer.learners[0], tiles=tiles)
        self.groups: dict[str, Callable[[], Any]] = {}
        self.seconds: dict[str, list[float]] = {}

    def begin(self) -> None:
        """Lets these kernels act and learn."""
        self.trainer.learners[0].fused = self.kernels
        self.trainer.collector.fused = [self.kernels]
        self.trainer.graphs = self.graphs
        self.kernels.begin()

    def capture(self) -> float:
        """Compiles everything and captures the graphs of an iteration; returns the seconds."""
        began = time.perf_counter()
        self.begin()
        self.trainer.capture()
        self.graphs = self.trainer.graphs
        return time.perf_counter() - began

    def capture_groups(self, batch: Any, order: torch.Tensor) -> None:
        """A graph for each group of launches."""
        kernels = self.kernels
        for name, run in groups(kernels, batch, order).items():

            def several(run: Callable[[int], Any] = run) -> None:
                for k in range(MINIBATCHES):
                    run(k % len(kernels.counts))

            warm_up(several)
            self.groups[name] = capture(several, [])

    def time_groups(self) -> None:
        for name, call in self.groups.items():
            times = device_times(call, 10)
            self.seconds.setdefault(name, []).append(median(times) / MINIBATCHES)

    def microseconds(self) -> dict[str, float]:
        return {name: 1e6 * median(times) for name, times in self.seconds.items()}


def groups(kernels: Layered, batch: Any, order: torch.Tensor) -> dict[str, Callable[[int], Any]]:
    """The launches of a minibatch in groups, by its number; and a step of acting."""
    obs, counts = batch.obs[0], kernels.counts

    def own(k: int) -> torch.Tensor:
        return order[kernels.starts[k] :]

    found: dict[str, Callable[[int], Any]] = {
        "act": lambda k: kernels.act(0),
        "forward": lambda k: kernels._forward(obs, own(k), counts[k]),
        "loss": lambda k: kernels._loss(batch, own(k), counts[k], kernels.stats[k]),
        "backward": lambda k: kernels._backward(counts[k]),
        "gradients": lambda k: kernels._weight_grads(obs, own(k), counts[k]),
        "reduce": lambda k: kernels._reduce(counts[k]),
        "muon": lambda k: kernels._update_matrices(),
        "adam": lambda k: kernels._update_others(),
    }
    if not isinstance(kernels.learner.optimizer, Muon):
        del found["muon"]
    return found


def flops_of(kernels: Layered) -> dict[str, float]:
    """Operations of the products of each group, without padding, and without the saving by symmetry."""
    policy, rows = kernels.learner.actor.policy, kernels.counts[0]
    layers = [m for m in policy.modules() if isinstance(m, nn.Linear)]
    body = [m.weight.numel() for m in policy.body.layers.layers]
    heads = sum(m.weight.numel() for m in layers) - sum(body)
    found = {
        "act": 2.0 * kernels.learner.rollout.rows * (sum(body) + heads),
        "forward": 2.0 * rows * sum(body),
        "loss": 4.0 * rows * heads,
        "backward": 2.0 * rows * sum(body[1:]),
        "gradients": 2.0 * rows * (sum(body) + heads),
    }
    optimizer = kernels.learner.optimizer
    if isinstance(optimizer, Muon):
        sides = [sorted((height, width)) for _, height, width in optimizer.matrices]
        found["muon"] = optimizer.steps * sum(4.0 * a * a * b + 2.0 * a**3 for a, b in sides)
    return found


def muon_floor(kernels: Layered, flops: float, limits: dict[str, float]) -> float:
    """Seconds of Muon: its launches, its products, and what the first and the last launch move: 14 bytes a number each
    (gradient, momentum twice, x; weight twice, its place, its copy). The steps between stay in the L2 cache.
    """
    optimizer = kernels.learner.optimizer
    numbers, launches = sum(height * width for _, height, width in optimizer.matrices), 1 + 3 * optimizer.steps
    return float(launches * limits["launch"] + flops / limits["flops"] + 28 * numbers / limits["bytes"])


def ceilings() -> dict[str, float]:
    """What the card does here: operations and bytes a second, of a large product and copy; seconds of a launch."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in "ab")
    out = torch.empty_like(a)
    product = median(device_times(lambda: torch.mm(a, b, out=out), 10))
    source = torch.zeros(1 << 30, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    copied = median(device_times(lambda: target.copy_(source), 10))
    small = torch.zeros(16, device="cuda")

    def launches() -> None:
        for _ in range(200):
            small.add_(1.0)

    warm_up(launches)
    launch = median(device_times(capture(launches, []), 10)) / 200
    return {"flops": 2.0 * 8192**3 / product, "bytes": 2.0 * (1 << 30) / copied, "launch": launch}


def compare_tiles(trainer: Trainer, candidates: dict[str, Tiles] = CANDIDATES) -> dict[str, Any]:
    """Prints a table, and returns its figures."""
    trainer.start()
    learner = trainer.learners[0]
    if not isinstance(learner.fused, Layered):
        raise SystemExit(f"tiles: {trainer.options.env or 'this env'} has no wide layers that kernels cover.")
    sides = {name: Side(trainer, tiles) for name, tiles in candidates.items()}
    for name, side in list(sides.items()):
        try:
            print(f"tiles, {name}: compiled and captured in {side.capture():.1f} s", flush=True)
        except Exception as error:  # one that this card or compiler refuses leaves the others
            PROBLEMS.append(f"tiles {name}: {type(error).__name__}: {error}"[:1000])
            del sides[name]
    today = next(iter(sides.values()))
    today.begin()
    for _ in range(2):
        trainer.iterate()
    rows: dict[str, dict[str, Any]] = {name: {} for name in sides}
    limits = ceilings()
    print(
        f"tiles: a large product does {limits['flops'] / 1e12:.0f} TFLOP/s, a copy {limits['bytes'] / 1e12:.2f} TB/s, "
        f"a launch takes {1e6 * limits['launch']:.2f} us"
    )
    saved, rate = copy_of_state(trainer), learner.optimizer.rate.clone()
    batch, order = make_batch(learner), segment_order(learner)
    check_gradients(sides, rows, batch, order)
    learner.optimizer.rate.zero_()  # weights stay as they are
    for side in sides.values():
        side.begin()
        side.kernels._begin_epoch(batch, order)
        side.capture_groups(batch, order)
    for _ in range(ROUNDS):
        for side in sides.values():
            side.time_groups()
    put_back(trainer, saved)
    learner.optimizer.rate.copy_(rate)
    best = best_of(sides)
    sides["the best of each"] = Side(trainer, best)
    rows["the best of each"] = {}
    sides["the best of each"].capture()
    time_iterations(sides, rows)
    flops = flops_of(today.kernels)
    show(sides, rows, flops, limits)
    print(f"the best of each: {best}", flush=True)
    trainer.close()
    return {"ceilings": limits, "flops": flops, "best": repr(best), "candidates": rows}


def check_gradients(sides: dict[str, Side], rows: dict[str, Any], batch: Any, order: torch.Tensor) -> None:
    """The gradient of a minibatch and the step that follows, against those of today's tiles; whether they repeat."""
    learner = next(iter(sides.values())).trainer.learners[0]
    weights, state = learner.weights.detach().clone(), {k: x.clone() for k, x in learner.optimizer.state.items()}
    wanted: list[torch.Tensor] = []
    for name, side in sides.items():
        side.begin()
        kernels, found = side.kernels, list[torch.Tensor]()
        kernels._begin_epoch(batch, order)
        for _ in range(REPEATS):
            learner.weights.data.copy_(weights)
            for key, value in state.items():
                learner.optimizer.state[key].copy_(value)
            kernels.begin()
            kernels._gradient(batch, order, 0, kernels.counts[0], kernels.stats[0])
            gradient = learner.weights.grad.clone()
            kernels._optimize()
            found.append(torch.cat([gradient.flatten(), (learner.weights.detach() - weights).flatten()]))
        both = found[0].chunk(2)
        wanted = wanted or [x.clone() for x in both]
        norm = float(both[0].norm() / wanted[0].norm())
        row = {
            "gradient": _cosine(both[0], wanted[0]),
            "norm": norm,
            "step": _cosine(both[1], wanted[1]),
            "repeats": all(torch.equal(found[0], other) for other in found[1:]),
        }
        rows[name] |= row
        if row["gradient"] < 0.9995 or abs(norm - 1) > 0.005 or row["step"] < 0.98 or not row["repeats"]:
            PROBLEMS.append(f"tiles {name}: {row}")
    learner.weights.data.copy_(weights)
    for key, value in state.items():
        learner.optimizer.state[key].copy_(value)


def best_of(sides: dict[str, Side]) -> Tiles:
    """The fastest of each group together. Those of cuBLAS are not in it: they are all or nothing."""
    ours = {name: side for name, side in sides.items() if not side.tiles.cublas}

    def fastest(*names: str) -> Tiles:
        return min(ours.values(), key=lambda side: sum(side.microseconds().get(name, 0.0) for name in names)).tiles

    forward, gradients, muon = fastest("forward"), fastest("gradients", "reduce"), fastest("muon")
    return replace(
        gradients,
        forward=forward.forward,
        backward=fastest("backward").backward,
        expand=forward.expand or gradients.expand,
        muon=muon.muon,
        overlap=muon.overlap,
    )


def time_iterations(sides: dict[str, Side], rows: dict[str, Any]) -> None:
    """Milliseconds of iterations, in turns."""
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for _ in range(3):
        for name, side in sides.items():
            side.begin()
            seen[name].append(graph_times(side.trainer, 5))
    for name, times in seen.items():
        rows[name]["iteration_ms"] = {key: median(each[key] for each in times) for key in times[0]}
        rows[name]["spread_ms"] = [min(each["all"] for each in times), max(each["all"] for each in times)]


def show(sides: dict[str, Side], rows: dict[str, Any], flops: dict[str, float], limits: dict[str, float]) -> None:
    """Prints microseconds, TFLOP/s and the floor's share of each group, iterations, and what a run would take."""
    for name, side in sides.items():
        row = rows[name]
        row["tiles"], row["us"] = repr(side.tiles), side.microseconds()
        parts = []
        for group, us in row["us"].items():
            rate = ""
            if group in flops:
                floor = 1e6 * flops[group] / limits["flops"]
                if group == "muon":
                    floor = 1e6 * muon_floor(side.kernels, flops[group], limits)
                rate = f" ({flops[group] / us / 1e6:.0f} TFLOP/s, {floor / us:.0%})"
            parts.append(f"{group} {us:.1f}{rate}")
        whole = row["iteration_ms"]
        said = f"an iteration {whole['all']:.2f} ms ({row['spread_ms'][0]:.2f} to {row['spread_ms'][1]:.2f})"
        if "update" in whole:
            config, kernels = side.trainer.learners[0].config, side.kernels
            minibatch = whole["update"] / (config.epochs * config.minibatches) / kernels.counts[0]
            rollout = side.trainer.learners[0].rollout
            steps = rollout.horizon * rollout.rows
            seconds = (whole["rollout"] + EPOCHS * steps * minibatch) / 1e3 * STEPS / steps
            row["projected_s"] = seconds
            said += f", rollout {whole['rollout']:.2f}; {STEPS:,} steps with {EPOCHS} epochs: {seconds:.0f} s"
        print(f"tiles, {name}: {said}", flush=True)
        if parts:
            agrees = f"cosine {row['gradient']:.5f} of gradients, {row['step']:.4f} of steps"
            print(f"  us of a minibatch: {', '.join(parts)}", flush=True)
            print(f"  {agrees}, the norm {row['norm']:.4f} of today's, repeats: {row['repeats']}", flush=True)
