"""The league of a run: seats the learners and their opponents, and does what `League` decides between iterations.

before an iteration    sets the probabilities of opponents
in an iteration        opponents act; games end, and with them opponents change (league/games.py)
after an iteration     every `--league.every` iterations results reach the league; then snapshots and resets
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from shoal.algos.actor import Actor
from shoal.algos.agents.actor import AgentActor
from shoal.algos.collect import Seat
from shoal.algos.learner import Learner
from shoal.algos.ops import RunningMoments
from shoal.algos.rollout import Rollout
from shoal.errors import CheckpointError, ConfigError
from shoal.league.bank import Bank
from shoal.league.games import Games
from shoal.league.league import BRAIN, NAMED, AddSnapshot, League, ResetExploiter, read_state
from shoal.league.members import Members, Robots
from shoal.league.seating import Seating, check_agents
from shoal.nn.qnet import QNet
from shoal.seeds import stream_seed
from shoal.train import league_members
from shoal.train.opponents import agent_actor
from shoal.train.options import Options
from shoal.train.players import make_actor, under
from shoal.vector.base import VecEnv


def find_seating(vec: VecEnv, options: Options) -> Seating | None:
    """Who plays which rows in a league; None without one. Raises if the env is not fit for self-play."""
    if league_members.is_self_play(options):
        check_agents(vec)
    if not league_members.is_league(options):
        return None
    return Seating(vec, options.nn.groups, 1 + options.league.exploiters)


class LeaguePlay:
    """The bank, the games and the league of a trainer.

    Args:
        seating: who plays which rows.
        vec: the envs.
        options: of the run, resolved.
        learners: the main one, then exploiters.
        mask_size: entries of an action mask; 0: none.
        device: of the learners.
        policy: the custom policy of the run, from which exploiters start anew.
    """

    def __init__(
        self,
        seating: Seating,
        vec: VecEnv,
        options: Options,
        learners: Sequence[Learner],
        mask_size: int,
        device: torch.device,
        policy: Any = None,
    ) -> None:
        self.seating, self.options, self.learners, self.device = seating, options, list(learners), device
        self.policy = policy
        self._new_optimizer = [{name: x.clone() for name, x in one.optimizer.state.items()} for one in learners[1:]]
        named = self.named = league_members.kinds(options.league.members, vec.native_spec)
        self.league = League(
            options.league,
            sides=len(seating.sides),
            total_steps=options.train.total_steps,
            named=named,
            is_rated=options.league.on,
        )
        self.games = Games(seating, seed=options.seed, margin=options.league.margin, device=device)
        main = self.learners[0].actor
        self.bank = Bank(main, options.league.pool, device)
        self.bank.put(0, main)
        runs: dict[int, Actor] = {}
        robots: dict[int, str] = {}
        for member, (name, (_, kind)) in enumerate(zip(options.league.members, named), 1):
            if kind == "robot":
                robots[member] = name
                continue
            if kind == "python":
                runs[member] = self._seat_agent(name, member, mask_size)
                continue
            actor, is_alike = league_members.load_run(name, seating.role, options)
            if is_alike:
                self.bank.put(member, actor)
            else:
                actor.to(device)
                actor.head.to(device)
                runs[member] = actor
        self.robots = Robots(vec, self.games, robots) if robots else None
        if not robots:
            league_members.check_seats(vec)
        self.stream = torch.Generator(device).manual_seed(stream_seed(options.seed, "league", "actions"))
        self.members = self._make_members(vec, runs, mask_size)
        self._set_probs()
        self.games.draw()
        self.begin_games()

    def _seat_agent(self, name: str, member: int, mask_size: int) -> AgentActor:
        """A Python agent. It acts for all rows that opponents play, and its actions are used where it plays."""
        actor = agent_actor(name, self.seating.role, self.options.seed, member, league_members.FLAG)
        actor.to(self.device)
        actor.seat(self.seating.others.num_rows(self.seating.num_envs, self.seating.agents), mask_size)
        return actor

    @property
    def is_capturable(self) -> bool:
        """Whether a CUDA graph can hold the acting of all members."""
        return all(actor.is_capturable for actor in self.members.runs.values() if isinstance(actor, AgentActor))

    def _make_members(self, vec: VecEnv, runs: Mapping[int, Actor], mask_size: int) -> Any:
        main, horizon = self.learners[0].actor, self.options.train.horizon
        rows = self.seating.others.num_rows(vec.num_envs, vec.agents_per_env)
        if vec.is_on_gpu:
            if isinstance(main.policy, QNet):
                raise ConfigError(
                    f"--algo {self.options.algo} is not supported in a league on a GPU. Use --device cpu, or --algo "
                    "ppo."
                )
            from shoal.algos.fast.members import make_members

            return make_members(self, vec, runs, horizon)
        if self.device.type != "cpu":
            raise ConfigError(
                "a league is not supported on a GPU with envs on the CPU. Use --device cpu, or a native env with "
                "--vec.backend cuda."
            )
        rollout = Rollout(main, horizon, rows, segment=horizon, has_dead_rows=True, mask_size=mask_size)
        rollout.needs_last_value = False
        rollout.head = self.bank.actor(0).head  # draws noise without exploration
        members = Members(main, self.bank, self.games, rollout, runs=runs, robots=self.robots)
        self.seat = Seat(main, self.seating.others, rollout, self.stream, learns=False, members=members)
        return members

    # ---- iterations ----

    def begin_games(self) -> None:
        """All envs begin a game: called before they are reset."""
        self.games.begin_all()
        if self.robots is not None:
            self.robots.set_next()
        self.members.forget_all()

    def before_iteration(self) -> None:
        """Sets who may play the games that begin in the next iteration."""
        self._set_probs()

    def _set_probs(self) -> None:
        for learner in range(len(self.learners)):
            self.games.set_probs(self.league.probs(learner), learner)

    def after_iteration(self, step: int, iteration: int) -> None:
        """Tells the league the results, and does what it decides."""
        if iteration % self.options.league.every == 0 or self.league.is_due(step):
            self.league.observe(self.games.drain(), self.games.playing())
        for action in self.league.after_iteration(step):
            if isinstance(action, AddSnapshot):
                self.bank.put(action.member, self.learners[action.learner].actor)
                self.members.refresh(action.member)
            elif isinstance(action, ResetExploiter):
                self._reset(action.learner, action.count)

    def _reset(self, number: int, count: int) -> None:
        """Gives an exploiter new weights, a new optimizer and new moments, in place: graphs hold their addresses."""
        learner = self.learners[number]
        options, role = self.options, self.seating.own[number]
        seed = stream_seed(options.seed, "exploiter", number, count)
        fresh = make_actor(role, options, number, self.policy, agents=self.seating.agents, seed=seed).state_dict()
        for name, value in learner.actor.state_dict().items():
            value.copy_(fresh[name])
        for name, value in learner.optimizer.state.items():
            value.copy_(self._new_optimizer[number - 1][name])
        if learner.reward_moments is not None:
            for name, value in RunningMoments().state_dict().items():
                learner.reward_moments.state_dict()[name].copy_(value)

    def metrics(self) -> dict[str, float]:
        """Numbers of the league for the log."""
        return self.league.metrics()

    # ---- checkpoints ----

    def state_tensors(self) -> dict[str, Tensor]:
        """The tensors of a checkpoint that do not depend on the number of envs."""
        tensors = {f"league.bank.{name}": value for name, value in self.bank.tensors().items()}
        return tensors | {"league.counts": self.games.counts}

    def row_tensors(self) -> dict[str, Tensor]:
        """Those with an entry for each env or row."""
        games = {name: value for name, value in self.games.tensors().items() if name != "counts"}
        tensors = games | self.members.row_tensors()
        return {f"league.{name}": value for name, value in tensors.items()}

    def streams(self) -> dict[str, torch.Generator]:
        """The random streams."""
        return {"league.stream.members": self.games.stream, "league.stream.actions": self.stream}

    def memory(self) -> dict[str, Tensor]:
        """What Python agents remember, by its names in a checkpoint."""
        own = {f"league.agent{member}.": actor for member, actor in self._agents()}
        return {prefix + name: value for prefix, actor in own.items() for name, value in actor.memory().items()}

    def _agents(self) -> list[tuple[int, AgentActor]]:
        return [(member, actor) for member, actor in self.members.runs.items() if isinstance(actor, AgentActor)]

    def decisions(self) -> dict[str, Tensor]:
        """The state of the league itself, as one tensor of a checkpoint."""
        return self.league.state()

    def check(self, state: Mapping[str, Tensor]) -> None:
        """Raises if a checkpoint has no league, or one of another size."""
        if BRAIN not in state:
            raise CheckpointError("the checkpoint has no league. Resume without --league, or start a new run.")
        saved = len(state["league.bank.float32"])
        if saved != self.bank.members:
            raise CheckpointError(
                f"the checkpoint's league has a pool of {saved}, this run one of {self.bank.members}. Resume with "
                f"--league.pool {saved}."
            )

    def restore(self, state: Mapping[str, Tensor], same_rows: bool) -> None:
        """Restores the league's decisions, and with the same rows what agents remember. The trainer does the rest."""
        for member, actor in self._agents() if same_rows else ():
            actor.restore(under(state, f"league.agent{member}."))
        facts = read_state(state)
        players = {int(member): facts["players"][number] for member, number in facts["members"].items()}
        named = [(players[member]["name"], players[member]["kind"]) for member in sorted(players)]
        saved = [(name, kind) for name, kind in named if kind in NAMED]
        if saved != self.named:
            theirs, ours = (" ".join(name for name, _ in names) or "none" for names in (saved, self.named))
            raise CheckpointError(
                f"the checkpoint's league has the named members {theirs}; this run has {ours}. Resume with the "
                "--league.members of the run."
            )
        self.league.load_state(state)
        for member in range(self.bank.members):
            self.members.refresh(member)
