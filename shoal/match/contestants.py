"""Who plays a match: robots of the env, runs, Python agents such as random. All are found before a game."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from shoal import registry
from shoal.algos import agents
from shoal.algos.actor import Actor
from shoal.algos.roles import Role
from shoal.entry import check_params, place_of_env
from shoal.errors import ConfigError, UnknownEnv, did_you_mean
from shoal.native import lib
from shoal.nn.qnet import QHead
from shoal.player import PolicyPlayer
from shoal.runs import Run
from shoal.seeds import stream_seed
from shoal.spec import EnvSpec, Layout
from shoal.train import env_params, params, seats
from shoal.train.init import find_source
from shoal.train.named import check_env_is_named
from shoal.train.opponents import agent_actor
from shoal.train.options import options_for
from shoal.train.players import load_player

RANDOM = "random"  # an agent that plays any env: uniform over the allowed actions


@dataclass
class Contestant:
    """One player of a match."""

    name: str
    kind: Literal["robot", "run", "agent"]
    word: Any  # what the user gave; of a robot, the value of the env's param
    seed: int = 0  # of the match
    run: Run | None = None
    checkpoint: Path | None = None
    player: PolicyPlayer | None = None  # of a run
    _actors: dict[Any, Any] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        """Plain values for JSON."""
        if self.run is None or self.checkpoint is None:
            return {"kind": self.kind}
        return {"kind": self.kind, "run": str(self.run.folder), "checkpoint": self.checkpoint.name}

    def actor(self, seat: int, role: Role) -> Actor:
        """The actor that plays a seat. Other spaces than the seat's raise."""
        if self.player is None:
            key: Any = (repr(role.observation_space), repr(role.action_space))
            if key not in self._actors:
                # two players of one kind have streams of their own: they would choose the same actions
                seed = stream_seed(self.seed, "player", self.name)
                self._actors[key] = agent_actor(self.word, role, seed, seat, "player")
            return self._actors[key]  # type: ignore[no-any-return]
        player = self.player
        played = list(player.judged or range(player.agents))
        source = seat if seat in played else played[0]  # a run that learned one seat plays any other the same way
        number = next(n for n, own in enumerate(player.roles) if own.agents is None or source in own.agents)
        own = player.roles[number]
        place = source if own.agents is None else own.agents.index(source)
        actor = player.actors[number]
        key = number, place if actor.networks > 1 else 0
        if key not in self._actors:
            chosen = actor.of_agent(place)
            if isinstance(chosen.head, QHead):
                chosen.head.epsilon.zero_()  # no exploration
            self._actors[key] = chosen
        self._check(self._actors[key], seat, role)
        return self._actors[key]  # type: ignore[no-any-return]

    def _check(self, actor: Actor, seat: int, role: Role) -> None:
        is_same_form = _form(actor.space) == _form(role.observation_space)
        if not is_same_form or actor.head.space != role.action_space:
            raise ConfigError(
                f"{self.name} observes {actor.space} and acts in {actor.head.space}; agent {seat} of this env observes "
                f"{role.observation_space} and acts in {role.action_space}. Match runs that were trained with the same "
                "params and wrappers."
            )


def _form(space: Any) -> list[Any]:
    """What a network sees of a space: the paths, shapes and types of its parts. Bounds may differ."""
    return [(leaf.path, leaf.shape, leaf.dtype) for leaf in Layout(space).leaves]


# ---- finding them ----


@dataclass(frozen=True)
class Field:
    """The players of a match, and the env that they play on."""

    env: str
    options: dict[str, Any]  # keyword arguments of `shoal.make`
    contestants: list[Contestant]
    margin: float  # difference of returns up to which a game is a draw
    notes: list[str]

    @property
    def spec(self) -> EnvSpec | None:
        """Of a native env."""
        return _spec(self.env)


def _spec(env: str) -> EnvSpec | None:
    return lib.load(registry.find(env)).spec if registry.is_native(env) else None


def find_all(
    words: Sequence[Any],
    env: str,
    given: Mapping[str, Any],
    *,
    greedy: bool,
    margin: float | None,
    root: Path,
    seed: int = 0,
) -> Field:
    """The players that the words name. An unknown robot or run raises, and so do runs of different envs or shapes."""
    texts = [_text(word) for word in words]
    chosen_env = place_of_env(env).name if env else _env_of_runs(texts, root)
    check_params(chosen_env, given)
    spec = _spec(chosen_env)
    known = robots_of(spec)
    labels = _labels(texts)
    found: list[Contestant] = []
    options: dict[str, Any] | None = None
    notes: list[str] = []
    for word, text, label in zip(words, texts, labels):
        if text in known:
            found.append(Contestant(label, "robot", text))
            continue
        if _is_agent(word):
            found.append(Contestant(label, "agent", word, seed))
            continue
        run, path = _find_run(text, root, chosen_env, spec)
        trained = check_env_is_named(run)
        if trained != chosen_env:
            other = next((c.name for c in found if c.run is not None), f"--env {env}")
            raise ConfigError(
                f"{text} is a run of {trained}, but {other} is of {chosen_env}. A match is played on one env: name "
                f"runs of {chosen_env}."
            )
        player, kwargs = load_player(run, path, greedy=greedy, env=given or None)
        found.append(Contestant(label, "run", text, seed, run, path, player))
        own = {name: value for name, value in kwargs.items() if name != "env"}
        if options is None:
            options, first = own, label
        elif changed := params.changes(chosen_env, _without_robots(options), _without_robots(own)):
            listed = ", ".join(f"{c.name} {c.evaluation} (here: {c.training})" for c in changed[:4])
            notes.append(f"{label} was trained with other params than {first}, whose params are played: {listed}.")
    if options is None:
        options = _options_without_runs(chosen_env, given)
    chosen_margin = _margin(chosen_env, found) if margin is None else margin
    return Field(chosen_env, _without_robots(options), found, chosen_margin, notes)


def _text(word: Any) -> str:
    """What a player is called."""
    if isinstance(word, Run):
        return str(word.folder)
    return str(word) if isinstance(word, (str, Path)) else getattr(word, "__name__", type(word).__name__)


def _is_agent(word: Any) -> bool:
    """Whether a player is a Python agent: a class or an object, `mine:Agent`, or the name of a registered one."""
    if isinstance(word, str):
        return agents.is_agent(word) and not (Path(word) / "run.json").is_file()
    return not isinstance(word, (Path, Run))


def robots_of(spec: EnvSpec | None) -> tuple[str, ...]:
    """The scripted robots that can play at least one seat of an env."""
    seats_of = [seats.scripts(spec, seat) for seat in range(spec.agents if spec is not None else 0)]
    return tuple(dict.fromkeys(word for words in seats_of for word in words))


def check_robot(name: str, spec: EnvSpec | None, count: int) -> None:
    """Raises if a robot cannot play every seat."""
    missing = [seat for seat in range(count) if name not in seats.scripts(spec, seat)]
    if missing:
        raise ConfigError(
            f"robot '{name}' cannot play agent {missing[0]}, which has no param robot_{missing[0]} with it. A match "
            "is played in all seats."
        )


def _options_without_runs(env: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The env options of a match without runs: the env's tuned ones, overridden by those that are given."""
    options = options_for(env, {"env": dict(given)})
    return dataclasses.replace(options, env=env_params.evaluated(env, options.env)).env_options


def _without_robots(options: Mapping[str, Any]) -> dict[str, Any]:
    """Env options without the robots of training: the match seats its own."""
    return {name: value for name, value in options.items() if not re.fullmatch(r"robot_\d+", name)}


def _env_of_runs(texts: Sequence[str], root: Path) -> str:
    """The env of the first word that is a run."""
    reasons = []
    for text in texts:
        try:
            return str(check_env_is_named(find_source(text, root)[0]))
        except ConfigError as error:
            reasons.append(str(error).removeprefix(f"--init {text}: "))
    raise ConfigError(
        f"no run is among {', '.join(texts)}. Name the env for a match of robots: --env vacuum. As a run: {reasons[0]}"
    )


def _find_run(text: str, root: Path, env: str, spec: EnvSpec | None) -> tuple[Run, Path]:
    """The run and the checkpoint that a word names.

    Without a checkpoint it is the best one of a run that learned against opponents, else the last one: where a policy
    plays all sides, some win what others lose, and its highest return says nothing.
    """
    try:
        run, path = find_source(text, root)
        is_chosen = "@" in text or path.resolve() == Path(text).resolve()
        has_opponents = "=" in str(run.config.get("opponents", ""))
        return run, path if is_chosen or has_opponents else run.last or path
    except ConfigError as error:
        known = robots_of(spec)
        listed = f"The robots of {env}: {', '.join(known)}." if known else f"{env} has no scripted robots."
        reason = str(error).removeprefix(f"--init {text}: ")
        own = "An agent of your own has the form mine:Agent."
        raise ConfigError(f"'{text}':{did_you_mean(text, known)} {listed} As a run: {reason} {own}") from None


def _labels(texts: Sequence[str]) -> list[str]:
    """Short names of the players, all different."""
    labels: list[str] = []
    for text in texts:
        path = Path(text)
        if (path / "meta.json").is_file():
            short = f"{path.parent.parent.name}@{int(path.name) if path.name.isdigit() else path.name}"
        elif (path / "run.json").is_file():
            short = path.name
        else:
            short = text
        label, number = short, 2
        while label in labels:
            label, number = f"{short} ({number})", number + 1
        labels.append(label)
    return labels


def _margin(env: str, found: Sequence[Contestant]) -> float:
    """The margin of draws: that of the first run's league, or the env's own."""
    configs = [c.run.config for c in found if c.run is not None]
    with contextlib.suppress(ConfigError, UnknownEnv):
        options = options_for(env, *configs[:1])
        return float(getattr(getattr(options, "league", None), "margin", 0.0))
    return 0.0
