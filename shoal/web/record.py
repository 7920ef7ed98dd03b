"""The record of a session of `shoal play`: the actions of every episode. `shoal eval FILE` plays them again and scores.

    {"format": "shoal-record 1", "env": "pong", "options": {}, "agents": ["agent_0"], "person": 0, "seats": ["you"],
     "episodes": [{"seed": "7", "params": {}, "actions": [[0], [1], …], "returns": [3.0], "length": 412}, …]}

`seed` null: the random stream of the episode before continues. `params`: those that a seat's robot changed. An env
gives the same bytes everywhere, so that the actions are the whole episode; returns that differ are an error.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shoal.entry import make
from shoal.errors import ConfigError, ShoalError
from shoal.evaluate import AgentScore, Evaluation, Score

FORMAT = "shoal-record 1"
PERSON = "person"


@dataclass(frozen=True)
class Record:
    """A session."""

    path: Path
    env: str
    options: dict[str, Any]
    agents: tuple[str, ...]
    person: int  # the agent that a person played; -1: none
    seats: tuple[str, ...]
    episodes: tuple[dict[str, Any], ...]


def is_record(text: str) -> bool:
    """Whether an argument names a record, and not a run."""
    return text.endswith(".json") and Path(text).is_file()


def read(path: str | Path) -> Record:
    """The record in a file."""
    path = Path(path)
    try:
        data = json.loads(path.read_text())
        if data["format"] != FORMAT:
            raise ConfigError(f"{path} has the format {data['format']!r}, and this version of Shoal reads {FORMAT!r}.")
        return from_json(data, path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, ConfigError):
            raise
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{path} is no record of a session ({reason}). 'shoal play ENV' writes one.") from None


def from_json(data: Any, path: Path) -> Record:
    """A record from what JSON holds. Values of wrong types raise."""
    episodes = tuple(data["episodes"])
    for episode in episodes:
        np.asarray(episode["actions"], np.float64)
        if episode["seed"] is not None:
            int(episode["seed"])
        if not isinstance(episode.get("params", {}), dict):
            raise TypeError("params must be an object")
    if not isinstance(data["options"], dict) or not isinstance(data["env"], str):
        raise TypeError("env must be a name, and options an object")
    agents, seats = tuple(map(str, data["agents"])), tuple(map(str, data["seats"]))
    return Record(path, data["env"], dict(data["options"]), agents, int(data["person"]), seats, episodes)


def check(text: str) -> dict[str, Any]:
    """A record that a page sent, as JSON. ConfigError if it is none."""
    try:
        data = json.loads(text)
        if data["format"] != FORMAT:
            raise ConfigError(f"the format is {data['format']!r}")
        from_json(data, Path("record"))
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"not a record: {error}") from None
    checked: dict[str, Any] = data
    return checked


def replay(record: Record) -> tuple[Evaluation, int]:
    """The score of the episodes that ended, and the number of those that did not."""
    returns: list[Any] = []
    lengths: list[int] = []
    stats: list[dict[str, float]] = []
    unfinished = 0
    try:
        vec: Any = make(record.env, 1, **{**record.options, "backend": "serial", "autoreset": "disabled"})
    except ShoalError as error:
        raise ConfigError(f"{record.path}: the env of the record cannot be made: {error}") from None
    with contextlib.closing(vec):
        if tuple(map(str, vec.agent_spaces.agents)) != record.agents:
            agents = ", ".join(map(str, vec.agent_spaces.agents))
            raise ConfigError(f"{record.path} has the agents {', '.join(record.agents)}; {record.env} has {agents}.")
        for number, episode in enumerate(record.episodes):
            _set_params(vec, episode.get("params", {}))
            vec.reset(seed=None if episode["seed"] is None else int(episode["seed"]))
            played, ended = _play(vec, episode["actions"], f"{record.path}: episode {number}")
            if not ended:
                unfinished += 1
                continue
            said = episode.get("returns")
            if said is not None and not np.allclose(said, played, rtol=1e-6, atol=1e-6):
                raise ConfigError(
                    f"{record.path}: episode {number} returned {said} when it was played, and {played.tolist()} now. "
                    f"The env {record.env} has changed, or the file has."
                )
            returns.append(played)
            lengths.append(len(episode["actions"]))
            names = [stat.name for stat in vec.native_spec.stats]
            stats.append(dict(zip(names, vec.memory.arrays["final_stats"][:, 0].tolist())))
    if not returns:
        raise ConfigError(f"{record.path} has no episode that ended. Play one to its end.")
    return _score(record, np.array(returns), lengths, stats), unfinished


def _set_params(vec: Any, params: dict[str, Any]) -> None:
    known = {param.name: param for param in vec.native_spec.params}
    for name, value in params.items():
        if name not in known:
            raise ConfigError(f"the record sets {name}, which is no param of the env.")
        choices = known[name].choices
        vec.set_params(**{name: choices[int(value)] if choices else value})


def _play(vec: Any, actions: Any, where: str) -> tuple[Any, bool]:
    """Steps with the actions of one episode: the returns, and whether it ended."""
    memory, spec = vec.memory.arrays, vec.native_spec
    rows = np.asarray(actions, np.float32 if spec.has_float_actions else np.int32)
    width = vec.num_rows * vec.module.action_size
    if rows.ndim != 2 or rows.shape[1] != width:
        raise ConfigError(f"{where} has actions of shape {rows.shape}, expected (steps, {width}).")
    shape = memory["actions"].shape
    for step, row in enumerate(rows):
        if vec.ended[0]:
            raise ConfigError(f"{where} goes on for {len(rows) - step} steps after its end.")
        batch: Any = row.reshape(shape)
        if spec.action_kind == "mix":
            floats = spec.action_dims[0]
            choices = batch[:, floats:].astype(np.int64)
            batch = (batch[:, :floats], choices if choices.shape[1] > 1 else choices[:, 0])
        vec.step(batch)
    ended = len(rows) > 0 and bool(vec.ended[0])
    return memory["final_return"].astype(np.float64).copy(), ended


def _score(record: Record, returns: Any, lengths: list[int], stats: list[dict[str, float]]) -> Evaluation:
    judged = returns[:, record.person] if record.person >= 0 else returns.mean(1)
    by_agent = {
        name: AgentScore(tuple(returns[:, k].tolist()), tuple(map(float, lengths)))
        for k, name in enumerate(record.agents)
        if len(record.agents) > 1
    }
    columns = {name: tuple(row[name] for row in stats) for name in stats[0]}
    score = Score(tuple(judged.tolist()), tuple(lengths), columns, agents=by_agent)
    mode = PERSON if record.person >= 0 else "played"
    return Evaluation({mode: score}, mode)
