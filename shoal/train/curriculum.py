"""Curriculum: phases of a run that change env params, opponents and rewards when a condition is met.

    run = train("midrange", curriculum="midrange")
    run = train("cartpole", curriculum=[Phase(env={"gravity": 5.0}, until={"return": 100}), Phase()])

`phases.py` reads the phases. Here are their checks against the env, the seats of opponents that change, and the
callback that goes from phase to phase. A change of native params or of an opponent takes effect in a row when its next
game starts, and only games that started in a phase count for its condition.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal import runs
from shoal.algos.agents.actor import AgentActor
from shoal.algos.agents.network import NetworkAgent, frozen_copy
from shoal.algos.collect import Seat
from shoal.algos.rewards import make_reward
from shoal.algos.roles import Role, assign_roles
from shoal.distributions import Distribution
from shoal.errors import CheckpointError, ConfigError, did_you_mean
from shoal.schedules import Schedule
from shoal.train import env_params, phases, seats
from shoal.train.callbacks.base import Callback, Context
from shoal.train.games import GameTally, LatestGames
from shoal.train.opponents import agent_actor, load_opponents, named_seats, resolve_player
from shoal.train.options import Options
from shoal.train.param_changes import get_env_param, set_env_params
from shoal.train.phases import Phase
from shoal.vector.base import VecEnv

SELF = "self"  # a frozen copy of the learner
WHOLE_SIDES = ("self", "pool")  # of --opponents: they choose the players of all seats
COPIES = 2  # of the learner in a seat: one may still play games while the other is taken anew


# ---- before the trainer is made ----


def prepare(env: Any, options: Options, root: Path = runs.ROOT) -> Options:
    """The options of a run with a curriculum: phases and players by names that any folder finds, one group of envs.

    Without `--opponents`, evaluations play against the last player of each seat that is not `self`.
    """
    if not options.curriculum:
        return options
    spec = env_params.spec_of(env, options.env)
    found = [_resolved(phase, spec, root) for phase in phases.read(options.curriculum)]
    if flag := _chooses_all(options):
        if there := next((phase for phase in found if phase.opponents), None):
            raise ConfigError(
                f"phase '{there.name}': opponents {there.opponents}, but {flag} chooses all players. Leave out one of "
                "them."
            )
        return dataclasses.replace(options, curriculum=phases.write(found))
    names = named_seats(env, options) if seats.has_names(options.opponents) else None
    goal = seats.parse(options.opponents, names)
    named: dict[int, list[str]] = {}
    for phase in found:
        for seat, who in seats.parse(phase.opponents).items():
            if goal and seat not in goal:
                raise ConfigError(
                    f"phase '{phase.name}': opponents {seat}={who}, but in --opponents {options.opponents} the learner "
                    f"plays agent {seat}. The learner's seats are the same in all phases: name {seat} in --opponents."
                )
            named.setdefault(seat, []).append(who)
    for seat, players in named.items():
        others = [who for who in players if who != SELF]
        if seat not in goal and not others:
            raise ConfigError(
                f"agent {seat} has no opponent but {SELF}, which an evaluation cannot load. Name one for evaluations: "
                f"--opponents {seat}=random."
            )
        goal.setdefault(seat, others[-1] if others else "")
    options = dataclasses.replace(options, curriculum=phases.write(found), opponents=seats.write(goal))
    if not _acting(found, goal, spec):
        return options
    if options.vec.num_groups > 1:
        raise ConfigError(
            f"--vec.num-groups {options.vec.num_groups}: the opponents of the curriculum act for all rows at once. "
            "Leave it out."
        )
    return dataclasses.replace(options, vec=dataclasses.replace(options.vec, num_groups=1, overlap=False))


def _chooses_all(options: Options) -> str:
    """The flag that chooses the players of all seats; empty if there is none."""
    word = options.opponents.strip(", ")
    if word in WHOLE_SIDES:
        return f"--opponents {word}"
    return "--league" if getattr(getattr(options, "league", None), "on", False) else ""


def _resolved(phase: Phase, spec: Any, root: Path) -> Phase:
    """A phase whose players are found from any folder."""
    try:
        players = seats.parse(phase.opponents)
        if spec is not None:
            seats.check(players, spec.agents)
        found = {seat: who if who == SELF else resolve_player(who, seat, spec, root) for seat, who in players.items()}
    except ConfigError as error:
        raise ConfigError(f"phase '{phase.name}': {error}") from None
    return dataclasses.replace(phase, opponents=seats.write(found))


def _acting(found: Sequence[Phase], goal: Mapping[int, str], spec: Any) -> list[int]:
    """The seats whose player is not a robot of the env in some phase."""
    players = [(seat, who) for phase in found for seat, who in seats.parse(phase.opponents).items()]
    players += list(goal.items()) if players else []
    return sorted({seat for seat, who in players if who not in seats.scripts(spec, seat)})


def changing_seats(options: Options, vec: VecEnv) -> list[tuple[AgentActor, Role]] | None:
    """An actor for each seat whose player the curriculum changes, which idles until a phase begins.

    None: the opponents stay, or the env's robots play all of them.
    """
    found = phases.read(options.curriculum)
    if not any(phase.opponents for phase in found):
        return None
    goal = seats.parse(options.opponents)
    if missing := [seat for phase in found for seat in seats.parse(phase.opponents) if seat not in goal]:
        raise ConfigError(
            f"the phases of options.curriculum name opponents for agent {missing[0]}, and options.opponents does not. "
            "train() and start() run a curriculum; a Trainer alone does not."
        )
    acting = _acting(found, goal, vec.native_spec)
    if not acting:
        return None
    roles, changing = assign_roles(vec, "shared"), []
    for seat in acting:
        shared = next(role for role in roles if role.agents is None or seat in role.agents)
        role = seats.only(shared, [seat])
        actor = agent_actor("idle", role, options.seed, seat)
        actor.has_memory = True  # every row has its own player
        changing.append((actor, role))
    return changing


# ---- in training ----


class Curriculum(Callback):
    """Goes from phase to phase. `phases` are what `phases.read` reads."""

    def __init__(self, given: Any) -> None:
        self.phases = phases.read(given)
        self.number = -1  # of the phase, from 0; -1: none has begun
        self.began = self.copied = 0  # the steps at which it began, and at which the learner was copied
        self.latest = LatestGames(1)
        self.is_settling = False  # whether games of the phase before are still played
        self.lineup: dict[str, list[str]] = {}  # by agent: the players that hold its seat, oldest first
        self.base: dict[str, Any] = {}  # env params that some phase names, with the values of the run's options
        self.base_rewards: list[dict[str, float]] = []  # the same for attributes of the rewards
        self.made_rewards: list[Any] = []  # the run's own
        self._trainer: Any = None

    @property
    def phase(self) -> Phase:
        """The present phase."""
        return self.phases[max(0, self.number)]

    # ---- checks ----

    def check(self, trainer: Any) -> None:
        """Every phase fits the env, the opponents and the reward."""
        self._trainer = trainer
        if surplus := trainer.options.vec.surplus_envs:
            raise ConfigError(
                f"a curriculum changes all envs; --vec.surplus-envs {surplus} keeps some in a step. Use 0."
            )
        for phase in self.phases:
            try:
                self._check_env(phase, trainer)
                self._check_opponents(phase, trainer)
                self._check_reward(phase, trainer)
            except ConfigError as error:
                raise ConfigError(f"phase '{phase.name}': {error}") from None
        self.made_rewards = [shaper.reward for shaper in trainer.shaping.shapers]
        named = {key for phase in self.phases if isinstance(phase.reward, Mapping) for key in phase.reward}
        self.base_rewards = [{key: float(getattr(reward, key)) for key in named} for reward in self.made_rewards]

    def _check_env(self, phase: Phase, trainer: Any) -> None:
        spec, given = trainer.vec.native_spec, trainer.options.env
        for name, value in phase.env.items():
            flag = f"env.{name} = {value!r}"
            if isinstance(env_params.parse(value), Schedule) or isinstance(given.get(name), Schedule):
                raise ConfigError(f"{flag}: a schedule and a phase cannot both change {name}. Give a number.")
            if name.startswith("robot_") and name.removeprefix("robot_").isdigit():
                seat = name.removeprefix("robot_")
                raise ConfigError(f'{flag}: name opponents as opponents = "{seat}={value}".')
            if spec is None:
                self.base.setdefault(name, get_env_param(trainer.vec, name))
                continue
            if name in spec.const_names:
                raise ConfigError(f"{flag}: {name} is fixed when {spec.name} is compiled. Give it as --env.{name}.")
            params = {param.name: param for param in spec.params}
            if name not in params:
                spec.split({name: 0})  # raises, with a suggestion
            if name == "max_steps" and trainer.vec.is_on_gpu:
                raise ConfigError(f"{flag}: the time limit is fixed on a GPU. Leave it out.")
            params[name].check_any(spec.name, value, 1)
            self.base.setdefault(name, _base(spec, given, params[name]))

    def _check_opponents(self, phase: Phase, trainer: Any) -> None:
        vec, frozen = trainer.vec, _changing(trainer)
        players = seats.parse(phase.opponents)
        if phase.refresh and SELF not in players.values():
            raise ConfigError(f'refresh = {phase.refresh} is for opponents = "1={SELF}", which it does not have.')
        for seat, who in players.items():
            if who in seats.scripts(vec.native_spec, seat):
                continue
            if seat not in frozen:
                raise ConfigError(f"opponents {seat}={who}: the trainer has no seat for it. Use train() or start().")
            place = frozen[seat]
            if who == SELF:
                _learner_for(trainer, place.role, seat)
                continue
            masks = place.rollout.masks
            # seats a second one, so that its mistakes show now
            twin = _actor(who, seat, vec, place.role, trainer.options.seed)
            if isinstance(twin, AgentActor):
                twin.to(trainer.device)
                twin.seat(place.rollout.rows, 0 if masks is None else masks.shape[-1])

    @staticmethod
    def _check_reward(phase: Phase, trainer: Any) -> None:
        if isinstance(phase.reward, str):
            for shaper in trainer.shaping.shapers if phase.reward else ():
                shaper.check(make_reward(phase.reward), f"reward {phase.reward}")
            return
        if phase.reward and not trainer.shaping.shapers:
            raise ConfigError(
                f"reward.{next(iter(phase.reward))} is an attribute of a reward of your own, and the run has none. "
                "Give --reward mine:Reward, or change params of the env."
            )
        for key in phase.reward:
            for shaper in trainer.shaping.shapers:
                value = getattr(shaper.reward, key, None)
                known = [name for name in vars(shaper.reward) if not name.startswith("_")]
                if value is None:
                    raise ConfigError(f"{shaper.shown} has no attribute '{key}'.{did_you_mean(key, known)}")
                try:
                    float(value)
                except (TypeError, ValueError):
                    raise ConfigError(f"{shaper.shown}: '{key}' is {type(value).__name__}, not a number.") from None

    # ---- events ----

    def on_start(self, context: Context) -> None:
        """Begins the first phase, unless the run is resumed in a later one."""
        if self.number < 0:
            self._enter(context, 0, "")

    def on_episodes(self, context: Context) -> None:
        """Adds the games that ended, and goes on to the next phase if enough of them are good."""
        games = _games(context.trainer)
        self.latest.add(*games.drain())
        if self.is_settling and games.are_all_new():
            self.is_settling = False
            context._session.forget_returns()
        self._drop_players(context.trainer)
        until: Any = self.phase.until
        if not until.needs_games or not self.latest.is_full:
            return
        rate, mean = self.latest.win_rate, self.latest.mean_return
        if (until.win_rate is None or rate >= until.win_rate) and (
            until.mean_return is None or mean >= until.mean_return
        ):
            wins = "" if until.win_rate is None else f"win rate {rate:.3g}, "
            self._next(context, f"{wins}return {mean:.4g} over {self.latest.games:,} games")

    def on_iteration(self, context: Context) -> None:
        """Goes on after the most steps of a phase; copies the learner anew; logs the phase."""
        until: Any = self.phase.until
        # only after a read of the metrics: capturing graphs anew clears those that are not read
        if until.steps and context.step - self.began >= until.steps and context._session.is_read:
            self._next(context, f"{context.step - self.began:,} steps")
        refresh = int(self.phase.refresh)
        if refresh and context.step - self.copied >= refresh and self._copy_again(context.trainer):
            self.copied = context.step
        context.log("curriculum/phase", self.number + 1)
        context.log("curriculum/phases", len(self.phases))
        if self.latest.games:
            context.log("curriculum/win_rate", self.latest.win_rate)
            context.log("curriculum/return", self.latest.mean_return)

    def _next(self, context: Context, reason: str) -> None:
        if self.number + 1 < len(self.phases):
            self._enter(context, self.number + 1, f" after {reason}")
        elif not context._session.stop_reason:
            context.stop(f"curriculum: phase '{self.phase.name}', the last, ended after {reason}.")

    def _enter(self, context: Context, number: int, reason: str) -> None:
        """Begins a phase."""
        trainer, phase = context.trainer, self.phases[number]
        self.number, self.began, self.copied = number, context.step, context.step
        is_native = trainer.vec.native_spec is not None
        if values := {**self.base, **phase.env}:
            context.set_env_params(**{name: _drawn(value) if is_native else value for name, value in values.items()})
        self._set_robots(trainer)
        self._seat_players(trainer, at_once=context.step == 0)
        self._set_reward(trainer)
        until: Any = phase.until
        self.latest = LatestGames(until.games)
        _games(trainer).restart(until.margin, all_new=context.step == 0)
        trainer.forget_graphs()
        self.is_settling = context.step > 0
        if self.is_settling:
            context._session.forget_returns()
        context.note(f"curriculum: phase {number + 1} of {len(self.phases)}, {phase.name}{reason}")

    # ---- opponents ----

    def _players(self, trainer: Any) -> dict[int, str]:
        """Who plays each seat in the present phase: those that it does not name have the run's opponents."""
        return {**trainer.opponents, **seats.parse(self.phase.opponents)}

    def _set_robots(self, trainer: Any) -> None:
        """Lets the env's robots play their seats of the phase, from the next game on.

        Not by the context: evaluations and videos have the robots of the run's options.
        """
        if not any(phase.opponents for phase in self.phases):
            return
        robots = {}
        for seat, who in self._players(trainer).items():
            if known := seats.scripts(trainer.vec.native_spec, seat):
                robots[f"robot_{seat}"] = _drawn(who if who in known else "learner")
        if robots:
            set_env_params(trainer.vec, robots)

    def _seat_players(self, trainer: Any, *, at_once: bool) -> None:
        """Gives the seats to the players of the phase. A player that stays keeps its memory."""
        players = self._players(trainer)
        for agent, seat in _changing(trainer).items():
            who, before = _kind(players[agent], agent, trainer.vec), self.lineup.get(str(agent), [])
            if before and before[-1] == who and who != SELF:
                continue
            self.lineup[str(agent)] = ([] if at_once else before or ["idle"]) + _entries(who)
            seat.actor.change(self._make(who, agent, seat, trainer), at_once=at_once)

    def _make(self, who: str, agent: int, seat: Seat, trainer: Any) -> list[Any]:
        """The agents of a player: two copies for a frozen learner, otherwise one."""
        if who == SELF:
            learner = _learner_for(trainer, seat.role, agent)
            return [frozen_copy(learner, seat.stream) for _ in range(COPIES)]
        actor = _actor(who, agent, trainer.vec, seat.role, trainer.options.seed)
        return actor.held if isinstance(actor, AgentActor) else [NetworkAgent(actor, seat.stream)]

    def _drop_players(self, trainer: Any) -> None:
        """Removes the players of earlier phases that play no game any more."""
        for agent, seat in _changing(trainer).items():
            own = len(_entries(self.lineup[str(agent)][-1]))
            if len(seat.actor.held) > own and (numbers := seat.actor.unused(own)):
                seat.actor.drop(numbers)
                self.lineup[str(agent)] = [
                    who for number, who in enumerate(self.lineup[str(agent)]) if number not in numbers
                ]
                trainer.forget_graphs()

    def _copy_again(self, trainer: Any) -> bool:
        """Copies the learner into the older copy. False if that one still plays games."""
        own = {agent: seat for agent, seat in _changing(trainer).items() if self.lineup[str(agent)][-1] == SELF}
        places = {}
        for agent, seat in own.items():
            count, now = len(seat.actor.held), int(seat.actor.current)
            places[agent] = next(number for number in range(count - COPIES, count) if number != now)
            if bool((seat.actor.which == places[agent]).any()):
                return False
        for agent, seat in own.items():
            seat.actor.held[places[agent]].copy_weights(_learner_for(trainer, seat.role, agent))
            seat.actor.current.fill_(places[agent])
        return True

    # ---- rewards ----

    def _set_reward(self, trainer: Any) -> None:
        named = any(isinstance(phase.reward, str) and phase.reward for phase in self.phases)
        for number, shaper in enumerate(trainer.shaping.shapers):
            if named:
                name = self.phase.reward if isinstance(self.phase.reward, str) else ""
                shaper.replace(make_reward(name) if name else self.made_rewards[number])
            if shaper.reward is not self.made_rewards[number]:
                continue
            values = {**self.base_rewards[number]}
            values |= self.phase.reward if isinstance(self.phase.reward, Mapping) else {}
            for key, value in values.items():
                attribute = getattr(shaper.reward, key)
                if hasattr(attribute, "fill_"):
                    attribute.fill_(value)  # a tensor stays where a CUDA graph reads it
                else:
                    setattr(shaper.reward, key, value)

    # ---- checkpoints ----

    def state_dict(self) -> Mapping[str, Any]:
        """The phase, its games, and who holds the seats. Their memory is in the trainer's state."""
        return {
            "phase": self.number,
            "name": self.phase.name if self.number >= 0 else "",
            "began": self.began,
            "copied": self.copied,
            "games": [list(interval) for interval in self.latest.intervals],
            "is_settling": self.is_settling,
            "lineup": self.lineup,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues in a phase: its players take their seats before their memory is restored."""
        self.number, self.began, self.copied = int(state["phase"]), int(state["began"]), int(state["copied"])
        if self.number < 0:
            return
        if self.number >= len(self.phases) or self.phase.name != state["name"]:
            raise CheckpointError(
                f"the checkpoint is in phase {self.number + 1}, '{state['name']}', which this curriculum does not "
                "have. Resume with the phases of the run."
            )
        until: Any = self.phase.until
        self.latest, self.is_settling = LatestGames(until.games, state["games"]), bool(state["is_settling"])
        self.lineup = {agent: list(players) for agent, players in state["lineup"].items()}
        for agent, seat in _changing(self._trainer).items():
            players = self.lineup[str(agent)]
            seat.actor.change([self._make(who, agent, seat, self._trainer)[0] for who in players], at_once=True)
            seat.actor.current.fill_(len(players) - len(_entries(players[-1])))
        self._set_robots(self._trainer)
        self._set_reward(self._trainer)


def _games(trainer: Any) -> GameTally:
    games = trainer.shaping.games
    assert isinstance(games, GameTally)  # the trainer has one if its options have phases
    return games


def _entries(who: str) -> list[str]:
    """A player's entries in a lineup: one for each agent that `_make` makes."""
    return [who] * (COPIES if who == SELF else 1)


def _kind(who: str, agent: int, vec: VecEnv) -> str:
    """A player of a seat; `idle` in place of a robot, whose actions the env chooses itself."""
    return "idle" if who in seats.scripts(vec.native_spec, agent) else who


def _actor(who: str, agent: int, vec: VecEnv, role: Role, seed: int) -> Any:
    """The actor of a player: an agent, or the policy of a run."""
    if who == "idle":
        return agent_actor("idle", role, seed, agent)
    ((actor, _),) = load_opponents({agent: who}, vec, seed)
    return actor


def _changing(trainer: Any) -> dict[int, Seat]:
    """The seats that change hands, by their agent; empty if no phase names opponents."""
    return {} if trainer.goal is None else {(seat.role.agents or (0,))[0]: seat for seat in trainer.frozen}


def _learner_for(trainer: Any, role: Role, agent: int) -> Any:
    """The policy of a learner that can play a seat."""
    for actor, own in zip(trainer.actors, trainer.roles):
        if (own.observation_space, own.action_space) == (role.observation_space, role.action_space):
            return actor.of_agent(0)
    raise ConfigError(f"opponents {agent}={SELF}: no learner observes and acts as agent {agent} does. Name another.")


def _base(spec: Any, given: Mapping[str, Any], param: Any) -> Any:
    """The value of a native param by the run's options."""
    value = spec.expand(dict(given)).get(param.name)
    if value is not None:
        return value
    return int(param.default) if param.kind == "int" else float(f"{param.default:.7g}")


def _drawn(value: Any) -> Any:
    """A value that a row takes when its next game starts: a draw of one."""
    parsed = env_params.parse(value)
    return parsed if isinstance(parsed, Distribution) else Distribution("choice", (value,))
