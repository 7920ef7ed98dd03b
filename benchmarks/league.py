"""A league with 32 members: its speed against plain self-play, and that its members play what their weights say.

    python benchmarks/league.py [--device cuda] [--envs connect4 midrange] [--iterations 50] [PART ...]

    speed      agent steps per second of plain self-play and of the league, interleaved; the ratio of both
    members    the actions of all members at once, against each member's own network on its own rows
    exact      the same seed gives the same bits, and so does a run that was stopped and resumed

Exits with 1 if `members` or `exact` find a difference.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any

import torch

from shoal.train import Trainer, options_for

MEMBERS = 32
PARTS = ("speed", "members", "exact")


def make(env: str, args: Any, *, is_league: bool, **tables: Any) -> Trainer:
    """A trainer of plain self-play, or of a league whose pool is full of copies of the learner with noise."""
    layer: dict[str, Any] = {"device": args.device, "eval": {"episodes": 0}, **tables}
    if args.num_envs:
        layer["vec"] = {"num_envs": args.num_envs}
    layer |= {"league": {"on": True, "pool": MEMBERS}} if is_league else {"opponents": "self"}
    trainer = Trainer(env, options_for(env, layer))
    if is_league:
        fill(trainer)
    return trainer


def fill(trainer: Trainer) -> None:
    """Fills the pool, and keeps it as it is."""
    play = trainer.league
    assert play is not None
    torch.manual_seed(0)
    for member in range(1, MEMBERS):
        play.bank.put(member, trainer.actors[0])
        play.bank.weights[member] += 0.05 * torch.randn_like(play.bank.weights[member])
        play.members.refresh(member)
    brain: Any = play.league
    brain.probs = lambda learner=0: [0.5] + [0.5 / (MEMBERS - 1)] * (MEMBERS - 1) + [0.0] * (64 - MEMBERS)
    brain.observe = lambda counts, playing=None: None
    brain.is_due, brain.after_iteration = lambda step: False, lambda step: []


def speed(env: str, args: Any) -> bool:
    """Times iterations of both, in turns."""
    plain, league = make(env, args, is_league=False), make(env, args, is_league=True)
    rates: dict[str, list[float]] = {"plain": [], "league": []}
    for trainer in (plain, league):
        for _ in range(3):
            trainer.iterate()
    for _ in range(5):
        for name, trainer in (("plain", plain), ("league", league)):
            trainer.wait()
            before = time.perf_counter()
            for _ in range(args.iterations):
                trainer.iterate()
            trainer.wait()
            steps = args.iterations * trainer.options.train.horizon * trainer.vec.num_envs * trainer.agents
            rates[name].append(steps / (time.perf_counter() - before))
    one, two = (statistics.median(rates[name]) for name in ("plain", "league"))
    print(
        f"{env}: plain self-play {one / 1e6:.2f}M agent steps/s, league of {MEMBERS} {two / 1e6:.2f}M: {two / one:.2f}x"
    )
    print(f"{env}: of the learner's own steps, {two / trainer.agents / one:.2f}x")
    plain.close()
    league.close()
    return True


def members(env: str, args: Any) -> bool:
    """Compares actions: matrix products of other precision may change a few that are nearly ties."""
    trainer = make(env, args, is_league=True)
    for _ in range(3):
        trainer.iterate()
    play: Any = trainer.league
    acting, games = play.members, play.games
    if trainer.device.type == "cpu":
        print(f"{env}: members act by their own networks on a CPU")
        return True
    actions = torch.zeros_like(trainer.collector.env_actions)
    acting.order.needs_members = True
    with torch.no_grad():
        acting.act(0, actions)
    obs, masks, got = acting._obs(), acting._masks(), actions[acting.rows]
    equal = torch.zeros(len(acting.rows), dtype=torch.bool, device=trainer.device)
    for member in games.member.unique().tolist():
        rows = (acting.order.member == member).nonzero().squeeze(1)
        decision = play.bank.actor(member).act(  # its parameters have no gradient
            obs[rows],
            tuple(part[rows] for part in acting.state),
            mask=None if masks is None else masks[rows],
            noise=acting.noise[0][rows],
        )
        wanted = acting.head.to_device(decision.actions).view(len(rows), *actions.shape[1:])
        equal[rows] = (wanted == got[rows]).view(len(rows), -1).all(1)
    share = float(equal.float().mean())
    kind, count = type(acting).__name__, len(games.member.unique())
    print(f"{env}: {kind}, {count} members, {len(equal):,} rows: {share:.2%} of the actions are equal")
    trainer.close()
    return share > 0.98 or acting.head.has_box


def exact(env: str, args: Any) -> bool:
    """Eight iterations at once, again, and with a stop after four."""
    tables = {"league": {"on": True, "pool": 6, "every": 2, "snapshot": 1}}
    layer: dict[str, Any] = {"device": args.device, "vec": {"num_envs": 512}, **tables}

    def run(trainer: Trainer, iterations: int) -> dict[str, dict[str, Any]]:
        for _ in range(iterations):
            trainer.iterate()
        trainer.wait()
        return {file: {k: v.clone() for k, v in part.items()} for file, part in trainer.state().items()}

    def same(one: Any, two: Any) -> bool:
        return all(torch.equal(value, two[file][key]) for file in one for key, value in one[file].items())

    first, second, half, rest = (Trainer(env, options_for(env, layer)) for _ in range(4))
    whole, again, stopped = run(first, 8), run(second, 8), run(half, 4)
    rest.restore(stopped, {**half.counters(), "step": half.step})
    resumed = run(rest, 4)
    repeats, resumes = same(whole, again), same(whole, resumed)
    print(f"{env}: repeats to the bit: {repeats}; resumes to the bit: {resumes}")
    for trainer in (first, second, half, rest):
        trainer.close()
    return repeats and resumes


def main() -> int:
    """Runs the parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--envs", nargs="+", default=["connect4", "midrange"])
    parser.add_argument("--num-envs", type=int, default=0, help="0: those of the env's tuned values")
    parser.add_argument("--iterations", type=int, default=50)
    args = parser.parse_args()
    unknown = set(args.parts) - set(PARTS)
    if unknown:
        parser.error(f"no part {', '.join(unknown)}. There are {', '.join(PARTS)}.")
    calls = {"speed": speed, "members": members, "exact": exact}
    results = [calls[part](env, args) for part in args.parts or PARTS for env in args.envs]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
