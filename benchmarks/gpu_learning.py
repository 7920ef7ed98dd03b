"""The parts of gpu.py that train to a score: `learning`, `q_learning` and `vacuum`."""

from __future__ import annotations

import sys
import time
from typing import Any

import torch

import shoal
from shoal.train import Trainer, options_for
from shoal.train.recent import LatestReturns

BREAKOUT = 0.95 * 864  # of all points
CORE = {"segment": 16}
CASES: dict[str, tuple[str, float, dict[str, Any]]] = {
    "cartpole": ("cartpole", 475.0, {}),
    "breakout": ("breakout", BREAKOUT, {}),
    "breakout MinGRU": ("breakout", BREAKOUT, {"nn": {"core": "mingru"}, "train": CORE}),
    "breakout LSTM": ("breakout", BREAKOUT, {"nn": {"core": "lstm"}, "train": CORE}),
    "pendulum": ("pendulum", -200.0, {}),
    "forage": ("forage", 0.5, {}),
    "maze": ("maze", 0.6, {}),
}


def run_to(env: str, goal: float, tables: dict[str, Any], seed: int) -> dict[str, Any]:
    """Trains to the end. Returns when the mean return of recent episodes first reached the goal, and final figures.

    The clock starts after the graphs are captured. Episodes are those of training, with sampled actions. A mean is over
    the newest episodes, at least as many as there are envs: long episodes that start together end together. `last` is
    the mean over the last tenth of the run.
    """
    began = time.perf_counter()
    trainer = Trainer(env, options_for(env, {"device": "cuda", "seed": seed}, tables))
    trainer.start()
    trainer.capture()
    torch.cuda.synchronize()
    warm_up, began, looked = time.perf_counter() - began, time.perf_counter(), time.perf_counter()
    results: dict[str, Any] = {
        "seed": seed,
        "warm_up_s": warm_up,
        "goal": goal,
        "reached_s": None,
        "best": float("-inf"),
    }
    newest, last = LatestReturns(trainer.vec.num_envs), LatestReturns(sys.maxsize)
    total_steps = trainer.options.train.total_steps
    while not trainer.is_done:
        trainer.iterate()
        now = time.perf_counter()
        if now - looked < 0.01 and not trainer.is_done:
            continue
        looked, record = now, trainer.drain()
        newest.add_record(record)
        if trainer.step > 0.9 * total_steps:
            last.add_record(record)
        if newest.is_full:
            results["best"] = max(results["best"], newest.mean)
            if newest.mean >= goal and results["reached_s"] is None:
                results |= {"reached_s": now - began, "reached_steps": trainer.step}
    seconds = time.perf_counter() - began
    trainer.close()
    return results | {
        "last": last.mean,
        "steps": trainer.step,
        "seconds": seconds,
        "steps_per_s": trainer.step / seconds,
    }


def four_robots(num_envs: int, batch: int, steps: int) -> dict[str, Any]:
    """Options with which all robots of vacuum learn, with one sampled transition for each collected one."""
    train: dict[str, Any] = {"total_steps": steps, "train_frequency": 4, "gradient_steps": 8, "batch_size": batch}
    assert num_envs * 4 * 4 == 8 * batch
    train |= {"gamma": 0.98, "reward_scale": 0.05, "n_step": 2, "target_tau": 0.005, "schedule": "linear"}
    train |= {"replay_size": 400 * num_envs, "replay_start": 50_000, "epsilon_end": 0.01, "precision": "tf32"}
    return {"algo": "dqn", "vec": {"num_envs": num_envs}, "nn": {"hidden": 128}, "train": train}


WIDE_PQN: dict[str, Any] = {"algo": "pqn", "nn": {"hidden": 512, "layers": 3}}
Q_CASES: dict[str, tuple[str, float, dict[str, Any]]] = {
    "DQN cartpole": ("cartpole", 475.0, {"algo": "dqn"}),
    "PQN cartpole": ("cartpole", 475.0, {"algo": "pqn"}),
    "PQN breakout": ("breakout", BREAKOUT, {"algo": "pqn"}),
    # how fast: the kernels of large networks, and the plain path
    "PQN breakout 3x512": ("breakout", BREAKOUT, {**WIDE_PQN, "train": {"total_steps": 20_000_000}}),
    "PQN breakout 3x512 in torch": (
        "breakout",
        BREAKOUT,
        {**WIDE_PQN, "train": {"total_steps": 20_000_000, "precision": "tf32"}},
    ),
    "DQN vacuum x4096": ("vacuum", 2000.0, four_robots(4096, 8192, 80_000_000)),
    "DQN vacuum x16384": ("vacuum", 2000.0, four_robots(16384, 32768, 240_000_000)),
}


def learning(names: list[str] | None = None) -> dict[str, Any]:
    """PPO: seconds to the score, three seeds each."""
    return time_to_score(CASES, names)


def q_learning(names: list[str] | None = None) -> dict[str, Any]:
    """DQN and PQN: as `learning`."""
    return time_to_score(Q_CASES, names)


def time_to_score(
    cases: dict[str, tuple[str, float, dict[str, Any]]], names: list[str] | None = None
) -> dict[str, Any]:
    """Three seeds each."""
    results: dict[str, Any] = {}
    for name in names or cases:
        env, goal, tables = cases[name]
        results[name] = [run_to(env, goal, tables, seed) for seed in (1, 2, 3)]
        for run in results[name]:
            when = (
                "not met" if run["reached_s"] is None else f"after {run['reached_s']:.2f} s, {run['reached_steps']:,}"
            )
            print(
                f"learning {name:18} seed {run['seed']}  {run['steps_per_s'] / 1e6:6.1f} M/s  {goal:.0f} {when}  "
                f"best {run['best']:.1f} last {run['last']:.1f}  {run['seconds']:.2f} s, "
                f"warm-up {run['warm_up_s']:.2f} s",
                flush=True,
            )
        torch.cuda.empty_cache()
    return results


ROBOTS = ("stay", "random", "safe-random", "seek", "flee", "opportunistic", "hunt")
VACUUM: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
    "classic-1v3, opportunistic": ("classic-1v3", ("opportunistic",) * 3, {}),
    "classic-1v3, seek": ("classic-1v3", ("seek",) * 3, {}),
    "classic-1v3, safe-random": ("classic-1v3", ("safe-random",) * 3, {"total_steps": 40_000_000}),
    "duel-stun, seek": ("duel-stun", ("seek",), {"reward_scale": 1.0, "n_step": 5, "layer_norm": True}),
}
GAMES = 65_536  # episodes that a robot is evaluated on


def vacuum() -> dict[str, Any]:
    """DQN as robot 0 against scripted robots, five seeds, compared with every scripted robot as robot 0."""
    results: dict[str, Any] = {}
    for name, (preset, others, train) in VACUUM.items():
        row: dict[str, Any] = {"scripted": {}, "learned": {}}
        for robot in ROBOTS:
            row["scripted"][robot] = judge_scripted(preset, others, robot)
        best = max(row["scripted"], key=lambda robot: row["scripted"][robot]["return"])
        print(f"vacuum {name}: scripted {best} {row['scripted'][best]}", flush=True)
        opponents = ",".join(f"{k}={who}" for k, who in enumerate(others, 1))
        tables = {"algo": "dqn", "opponents": opponents, "env": {"preset": preset}, "train": train}
        for seed in (1, 2, 3, 4, 5):
            trainer = Trainer("vacuum", options_for("vacuum", {"device": "cuda", "seed": seed, "algo": "dqn"}, tables))
            trainer.iterate()
            began = time.perf_counter()
            while not trainer.is_done:
                trainer.iterate()
            facts = {"seconds": time.perf_counter() - began, "steps": trainer.step}
            row["learned"][seed] = {**judge(trainer), **facts}
            print(f"vacuum {name}: seed {seed} {row['learned'][seed]}", flush=True)
            trainer.close()
        results[name] = row
    return results


def judge(trainer: Any) -> dict[str, float]:
    """Evaluates the learned robot 0 with its best actions on held-out episodes."""
    trainer.learners[0].head.epsilon.zero_()
    trainer.drain()
    trainer.start(seed=(1 << 30) + (1 << 29))
    for part in trainer._own_returns:
        part.zero_()
    total = games = 0.0
    kills = ended = 0.0
    while games < GAMES:
        for _ in range(200):
            trainer.collect()
        stats = trainer.collector.vec.drain_stats()
        kills += stats["episodes"] * stats.get("kills_0", {"mean": 0.0})["mean"]
        ended += stats["episodes"]
        count, mean, *_ = trainer._ended.drain()
        total, games = total + count * mean, games + count
    return {"return": total / games, "kills_0": kills / ended, "games": games}


def judge_scripted(preset: str, others: tuple[str, ...], robot: str) -> dict[str, float]:
    """The same for a scripted robot 0: one episode in each of GAMES envs."""
    seats: dict[str, Any] = {f"robot_{k}": who for k, who in enumerate((robot, *others))}
    vec: Any = shoal.make("vacuum", GAMES, backend="cuda", seed=(1 << 30) + (1 << 29), preset=preset, **seats)
    vec.reset()
    agents = vec.agents_per_env
    total = torch.zeros(GAMES, dtype=torch.float64, device="cuda")
    plays = torch.ones(GAMES, dtype=torch.bool, device="cuda")
    vec.actions.zero_()
    while bool(plays.any()):
        for _ in range(20):
            vec.launch_step()
            total += torch.where(plays, vec.tensors["rewards"].view(GAMES, agents)[:, 0], 0.0)
            plays &= ~vec.tensors["done"].view(GAMES, agents)[:, 0]
    seen = vec.drain_stats()
    vec.close()
    return {"return": float(total.mean()), "kills_0": seen.get("kills_0", {"mean": 0.0})["mean"], "games": GAMES}
