"""Where the time of a training iteration goes, and how far it is from the machine's limits: `shoal bench train`.

On a GPU the parts are timed separately with device events: a horizon of env steps, the rollout, the preparation of the
update, the update. The limits are measured on the same device: the bandwidth of a large copy, and the throughput of a
large matrix product in the precision of training.
"""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from shoal.cores import available_threads
from shoal.nn.qnet import Dense
from shoal.train import Options, Trainer, make_trainer
from shoal.train.graphs import capture
from shoal.train.ranks import join
from shoal.train.ranks.timing import fit
from shoal.train.sharded import ShardedTrainer


def profile(env: Any, options: Options, seconds: float = 3.0) -> dict[str, Any]:
    """Trains for some seconds and returns the measurements. Writes no files. With several processes: on rank 0."""
    began, world = time.perf_counter(), join()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    trainer = make_trainer(env, options, world=world)
    try:
        trainer.iterate()
        warm_up = time.perf_counter() - began
        rates, split, exchange = _iterations(trainer, seconds)
        if trainer.on_gpu and trainer.shards is None:
            split = _device_split(trainer) or split
        if trainer.on_gpu and trainer.shards is not None:
            trainer.shards.exchange.synchronizes = True  # or the seconds are those of the host alone
            exchange = _iterations(trainer, seconds / 5)[2]
        if isinstance(trainer, ShardedTrainer) and (times := trainer.time_exchanges()):
            latency_s, rate = fit(times)
            exchange |= {"latency_s": latency_s, "bytes_per_s": rate}
            exchange["alone_s"] = exchange["calls"] * latency_s + exchange["bytes"] / rate
        facts = _facts(trainer, split)
        return {
            **facts,
            "steps_per_s": sorted(rates)[len(rates) // 2],
            "steps_per_s_all": rates,
            "warm_up_s": warm_up,
            "split_s": split,
            "launches": _launches(trainer) if trainer.on_gpu else None,
            "processes": 1 if world is None else world.size,
            "shards": trainer.num_shards,
            "exchange": exchange,
        }
    finally:
        trainer.close()
        if world is not None and not trainer.is_broken:
            world.send("end", "")


def _iterations(trainer: Trainer, seconds: float) -> tuple[list[float], dict[str, float], dict[str, float]]:
    """Steps per second of five runs, and of an iteration: the seconds by activity, by the host's clock, and what
    processes exchange (calls, bytes that a process receives, seconds; none if there is one process).
    """
    trainer.drain()
    rates: list[float] = []
    totals: dict[str, float] = {}
    count = 0
    for _ in range(5):
        began, first = time.perf_counter(), trainer.step
        while time.perf_counter() - began < seconds / 5 or trainer.step == first:
            trainer.iterate()
            count += 1
        trainer.wait()
        rates.append((trainer.step - first) / (time.perf_counter() - began))
        for name, value in trainer.drain().items():
            if name.startswith(("time/", "ranks/")):
                totals[name] = totals.get(name, 0.0) + value
    exchange = {"calls": "ranks/exchanges", "bytes": "ranks/exchange_bytes", "seconds": "ranks/exchange_s"}
    names = {"env": "env", "inference": "policy", "copy": "copy", "learn": "update"}
    split = {shown: totals.get(f"time/{name}", 0.0) / count for name, shown in names.items()}
    return rates, split, {shown: totals.get(name, 0.0) / count for shown, name in exchange.items()}


def _device_split(trainer: Trainer) -> dict[str, float] | None:
    """Seconds of an iteration's parts on the GPU, each timed separately; None without a captured rollout."""
    graphs, learners = trainer.graphs, trainer.learners
    vec: Any = trainer.vec
    if graphs is None or graphs.collect is None:
        return None
    rollout, collector = learners[0].rollout, trainer.collector

    def steps() -> None:
        for t in range(rollout.horizon):
            vec.launch_step(**({"obs": rollout.obs[0][t]} if collector.plays_all else {}))

    env, collect = device_seconds(_captured(steps)), device_seconds(graphs.collect)
    update = sum(device_seconds(graph) for graph in graphs.updates)
    split, prepare = {"env": env, "policy": collect - env}, trainer.algorithm.prepare
    if prepare is None:
        return split | {"update": update}
    prepared = device_seconds(_captured(lambda: [prepare(learner) for learner in learners]))
    return split | {"advantages": prepared, "update": update - prepared}


def _captured(function: Callable[[], Any]) -> Callable[[], None]:
    function()
    torch.cuda.synchronize()
    return capture(function, [])


def device_seconds(call: Callable[[], Any], repeats: int = 5) -> float:
    """The median seconds of a call on the GPU."""
    return sorted(device_times(call, repeats))[repeats // 2]


def device_times(call: Callable[[], Any], repeats: int = 5) -> list[float]:
    """Seconds of each of `repeats` calls on the GPU after a first one, by device events."""
    call()
    seconds: list[float] = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        seconds.append(start.elapsed_time(end) / 1e3)
    return seconds


def _launches(trainer: Trainer) -> int:
    """Kernels and copies that one iteration launches."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    with record(activities=[ProfilerActivity.CUDA]) as recorded:
        trainer.iterate()
        torch.cuda.synchronize()
    return sum(event.count for event in recorded.key_averages() if event.device_type == torch.autograd.DeviceType.CUDA)


def _facts(trainer: Trainer, split: dict[str, float]) -> dict[str, Any]:
    options, actor = trainer.options, trainer.actors[0]
    steps, train, networks = trainer.steps_per_iteration, options.train, actor.networks
    macs = macs_per_row(actor.policy, actor.blank(networks))
    cost = trainer.algorithm.cost
    learned, passes = (0.0, 0.0) if cost is None else cost(train, networks, steps)
    processes = 1 if trainer.shards is None else trainer.num_shards // len(trainer.shards.exchange.own)
    flops = 2.0 * macs * (steps + passes * learned) / processes  # of one process
    # the rollout writes each number once, and the update reads it once for each pass
    rollouts = sum(learner.rollout.nbytes for learner in trainer.learners) * trainer.num_shards / processes
    moved = rollouts * (1 + learned / steps)
    peak = (  # read before the limits are measured, which needs gigabytes
        torch.cuda.max_memory_allocated()
        if trainer.on_gpu
        else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    )
    bandwidth, products = limits(trainer.device, is_half(trainer))
    floor = max(moved / bandwidth, flops / products)
    return {
        "env": str(trainer.env),
        "algo": options.algo,
        "device": torch.cuda.get_device_name() if trainer.on_gpu else "cpu",
        "backend": trainer.vec.backend,
        "num_envs": trainer.num_envs,
        "steps": steps,
        "params": trainer.num_params,
        "fused": trainer.learners[0].fused is not None,
        "flops": flops,
        "bytes": moved,
        "bandwidth": bandwidth,
        "flops_per_s": products,
        "floor_s": floor,
        "bound": "memory" if moved / bandwidth > flops / products else "arithmetic",
        "peak_bytes": int(peak),
    }


def macs_per_row(policy: Any, obs: Any) -> int:
    """Multiply-accumulates of one row's inference: each matrix once, each convolution kernel once per output pixel."""
    convolutions: dict[int, int] = {}

    def count(module: Any, inputs: Any, output: Any) -> None:
        convolutions[id(module.weight)] = module.weight.numel() * output.shape[-1] * output.shape[-2]

    modules = [m for m in policy.modules() if isinstance(m, nn.Conv2d)]
    hooks = [m.register_forward_hook(count) for m in modules]
    with torch.no_grad():
        state = policy.initial_state(1) if hasattr(policy, "initial_state") else ()
        policy(obs, state) if state else policy(obs)
    for hook in hooks:
        hook.remove()
    by_agent = {id(m.weight): m.weight[0].numel() for m in policy.modules() if isinstance(m, Dense)}
    known = convolutions | by_agent  # by id, because biases of Dense layers have as many axes as weights
    return sum(known.get(id(p), p.numel() if p.ndim == 2 else 0) for p in policy.parameters())


def is_half(trainer: Trainer) -> bool:
    """Whether matrix products are bfloat16: with `--train.precision bf16` on a GPU, and in the fused kernels."""
    return trainer.learners[0].fused is not None or (trainer.on_gpu and trainer.options.train.precision == "bf16")


def limits(device: torch.device, half: bool) -> tuple[float, float]:
    """Bytes per second of a large copy, and operations per second of a large matrix product."""
    on_gpu = device.type == "cuda"
    dtype = torch.bfloat16 if half else torch.float32
    large, side = (1 << 28, 8192) if on_gpu else (1 << 24, 1024)
    source, target = (torch.ones(large, dtype=torch.float32, device=device) for _ in range(2))
    a, b = (torch.ones((side, side), dtype=dtype, device=device) for _ in range(2))
    out = torch.empty_like(a)
    if on_gpu:
        copy, product = device_seconds(lambda: target.copy_(source)), device_seconds(lambda: torch.mm(a, b, out=out))
    else:
        copy, product = _host_seconds(lambda: target.copy_(source)), _host_seconds(lambda: torch.mm(a, b, out=out))
    return 2.0 * 4 * large / copy, 2.0 * side**3 / product


def _host_seconds(call: Callable[[], Any], repeats: int = 5) -> float:
    """The median seconds of a call, with one torch thread or with one for each core: whichever is faster."""
    threads, best = torch.get_num_threads(), math.inf
    try:
        for count in {1, available_threads()}:
            torch.set_num_threads(count)
            call()
            seconds = []
            for _ in range(repeats):
                began = time.perf_counter()
                call()
                seconds.append(time.perf_counter() - began)
            best = min(best, sorted(seconds)[repeats // 2])
    finally:
        torch.set_num_threads(threads)
    return best
