"""Game: an env with its params, its seats and their players, as data for the page. page.py writes it into a file.

    game = of_run(find("last"))            the run's policies in the seats that they learned
    game = of_env("connect4", {}, "1=last")    a person in all seats that are left

A game is JSON: the env's module, its params as C has them, and a network for each player. shoal/web/page/engine.js
reads it. `shoal watch` can send the same object whenever there is a new checkpoint.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shoal.algos.agents.actor import AgentActor
from shoal.algos.roles import Role, find_groups, pick_obs
from shoal.entry import make
from shoal.errors import ConfigError
from shoal.evaluate import held_out
from shoal.player import PolicyPlayer
from shoal.runs import ROOT, Run, choose_checkpoint
from shoal.spec import Array
from shoal.train import env_seed, load_player, seats
from shoal.train.opponents import load_opponents, seat_opponents
from shoal.train.options import Options, options_for, read_env_options
from shoal.train.players import seat_player
from shoal.web import network
from shoal.web.facts import check_native, env_facts, network_facts, plain_options
from shoal.web.instructions import Network, Runner

CHECKED_STEPS = 1000  # of play, in which the page's networks are compared with the policies
TOLERANCE = 1e-3  # of logits, for values up to 1; of larger ones, of the largest
AGREEMENT = 0.999  # of the greedy choices


@dataclasses.dataclass(frozen=True)
class Agreement:
    """How near the page's networks are to the policies, over steps of play."""

    logits: float  # the largest difference, relative to the largest logit where that is above 1
    same: float  # greedy choices that are the same
    rows: int  # observations that were compared
    bits: int  # of the weights

    @property
    def is_good(self) -> bool:
        """Whether the page plays as the policy does."""
        return self.logits <= TOLERANCE and self.same >= AGREEMENT


@dataclasses.dataclass(frozen=True)
class Game:
    """The page's data, and how well its networks agree with the policies (None: no policy plays)."""

    facts: dict[str, Any]
    agreement: Agreement | None = None


def of_run(
    run: Run,
    checkpoint: str = "best",
    *,
    greedy: bool | None = None,
    env: Mapping[str, Any] | None = None,
    opponents: str = "",
    seed: int | None = None,
    bits: str = "auto",
) -> Game:
    """The game of a run: its policies, and its opponents in the other seats."""
    name = str(run.facts.get("env", run.env))
    check_native(name)
    chosen = choose_checkpoint(run, checkpoint, f"--checkpoint {checkpoint}")
    player, kwargs = load_player(run, chosen, greedy, env, opponents)
    is_greedy = options_for(name, run.config).eval.greedy if greedy is None else greedy
    about = {"run": run.id, "step": int(chosen.name), "greedy": is_greedy}
    start = env_seed(int(run.facts.get("seed") or 0)) if seed is None else seed
    return of_player(kwargs, player, held_out(start), bits, about)


def of_env(env: str, params: Mapping[str, Any], opponents: str = "", *, seed: int = 1, root: Path = ROOT) -> Game:
    """The game of an env for a person, who plays all agents that no robot and no run plays."""
    player, kwargs = seat(env, params, opponents, seed, root)
    return of_player(kwargs, player, held_out(seed), "16", {"greedy": False})


def seat(
    env: str, params: Mapping[str, Any], opponents: str, seed: int, root: Path
) -> tuple[PolicyPlayer, dict[str, Any]]:
    """The players of the seats that `opponents` names, and the keyword arguments of `shoal.make` for their env."""
    check_native(env)
    options = dataclasses.replace(Options(), opponents=opponents, env=read_env_options(params))
    seated, options = seat_opponents(env, options, root)
    kwargs = {"env": env, **options.env_options}
    with contextlib.closing(make(env, 1, **{**options.env_options, "backend": "serial"})) as vec:
        seats.check(seated, vec.agents_per_env)
        frozen, groups = load_opponents(seated, vec, options.seed), find_groups(vec)
        agents = vec.agents_per_env
    return seat_player([], [], frozen, seated, agents=agents, greedy=True, seed=seed, groups=groups), kwargs


def of_player(
    kwargs: Mapping[str, Any],
    player: PolicyPlayer,
    seed: int,
    bits: str = "auto",
    about: Mapping[str, Any] | None = None,
    steps: int = CHECKED_STEPS,
) -> Game:
    """The game of any player.

    Args:
        kwargs: those of `shoal.make` for its env.
        player: the actors and their roles.
        seed: of the first episode.
        bits: of a weight: 16, 32, or auto, the fewest with which the page plays as the policies do.
        about: where it comes from: run, step, greedy.
        steps: of play, in which the page's networks are compared with the policies.
    """
    about = dict(about or {})
    for actor in player.actors:
        if isinstance(actor, AgentActor):
            raise ConfigError(f"{actor.shown} is a Python agent, which a page cannot run. Seat a robot or a run.")
    with contextlib.closing(make(**{**kwargs, "num_envs": 1, "backend": "serial"})) as vec:
        facts = env_facts(vec)
        agreement: Agreement | None = None
        if player.actors and about.get("run"):
            for kind in (16, 32) if bits == "auto" else (int(bits),):
                nets = _networks(player, kind)
                agreement = compare(vec, player, nets, seed, kind, steps)
                if agreement.is_good:
                    break
            if agreement is not None and bits == "auto" and not agreement.is_good:
                raise ConfigError(
                    f"the page's network differs from the policy: logits by {agreement.logits:.2g}, greedy choices in "
                    f"{1 - agreement.same:.2%} of {agreement.rows:,} observations. Nothing was written."
                )
        else:
            nets = _networks(player, 16)
    facts |= {"players": player_facts(player, nets), "seed": seed, "env_name": kwargs["env"], **about}
    facts["options"] = plain_options(kwargs)
    return Game(facts, agreement)


# ---- the players ----


def _networks(player: PolicyPlayer, bits: int) -> list[list[Network]]:
    """For each actor its networks: one, or one for each agent of its role."""
    nets = []
    for actor in player.actors:
        nets.append([network.translate(actor, bits=bits, agent=k) for k in range(actor.networks)])
    return nets


def player_facts(player: PolicyPlayer, nets: list[list[Network]]) -> list[dict[str, Any]]:
    """Every network with the agents that it plays."""
    judged = range(player.agents) if player.judged is None else player.judged
    facts = []
    for actor, role, own, greedy in zip(player.actors, player.roles, nets, player.greedy):
        agents = _agents(role, player.agents)
        for k, net in enumerate(own):
            played = agents if len(own) == 1 else [agents[k]]
            learned = all(agent in judged for agent in played)
            facts.append(
                {
                    "agents": played,
                    "greedy": greedy,
                    "is_opponent": not learned,
                    "network": network_facts(net),
                    "head": network.head_facts(actor),
                }
            )
    return facts


def _agents(role: Role, count: int) -> list[int]:
    return list(range(count)) if role.agents is None else list(role.agents)


def compare(
    vec: Any, player: PolicyPlayer, nets: list[list[Network]], seed: int, bits: int, steps: int = CHECKED_STEPS
) -> Agreement:
    """Plays greedily with the policies, and compares their logits with those of the networks in C at every step."""
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)  # for a row or two, threads cost more than they give
        return _compare(vec, player, nets, seed, bits, steps)
    finally:
        torch.set_num_threads(threads)


def _compare(vec: Any, player: PolicyPlayer, nets: list[list[Network]], seed: int, bits: int, steps: int) -> Agreement:
    greedy, player.greedy = player.greedy, [True] * len(player.actors)
    runners = [[Runner(net) for net in own] for own in nets]
    agents = [_agents(role, player.agents) for role in player.roles]
    memories = [np.zeros((len(own), net[0].state_size), np.float32) for own, net in zip(agents, nets)]
    worst, same, rows = 0.0, 0, 0
    obs, infos = vec.reset(seed=seed)
    player.reset(vec.num_rows)
    for _ in range(max(1, steps // vec.agents_per_env)):
        alive = np.asarray(infos.get("alive", True), bool)
        for actor, role, state, run, memory in zip(player.actors, player.roles, player.states, runners, memories):
            seen = np.ascontiguousarray(pick_obs(obs, role, actor.layout, player.agents)[0])
            with torch.inference_mode(), actor.evaluation_mode():
                expected, _, _ = actor.step(torch.from_numpy(seen), state)
            found = [run[k % len(run)](row, memory[k])[0] for k, row in enumerate(seen)]
            difference, equal = _differences(actor, expected, np.stack(found), player._mask(actor, role, infos))
            worst, same, rows = max(worst, difference), same + equal, rows + len(seen)
        obs, _, terminated, truncated, infos = vec.step(player.act(obs, infos))
        cleared = terminated | truncated | ~alive | ~np.asarray(infos.get("alive", True), bool)
        player.observe(cleared)
        for own, memory in zip(agents, memories):
            memory[cleared[own]] = 0.0
    player.greedy = greedy
    return Agreement(worst, same / max(1, rows), rows, bits)


def _differences(actor: Any, expected: Any, found: Array, mask: Any) -> tuple[float, int]:
    """The largest difference of logits, relative to those above 1, and the rows with the same greedy choices."""
    scale = expected.abs().amax(1).clamp(min=1.0)
    logits = torch.from_numpy(found)
    worst = float(((logits - expected).abs().amax(1) / scale).max())
    choices = [part.actions for part in actor.head.parts if part.count]
    if mask is not None:
        expected, logits = actor.head.mask(expected, mask), actor.head.mask(logits, mask)
    both = [actor.head.greedy(part) for part in (expected, logits)]
    equal = torch.ones(len(logits), dtype=torch.bool)
    for column in choices:
        equal &= (both[0][:, column] == both[1][:, column]).all(1)
    return worst, int(equal.sum())
