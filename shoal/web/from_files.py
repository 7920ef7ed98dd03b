"""The game of a run from its files alone, without torch: config.toml, policy.json and the weights of a checkpoint.

    facts = game(run, run.last, policy_json)      the same as web/game.py's, without the 2 s of importing torch

It knows Shoal's own networks and algorithms, and the robots of an env as opponents. For everything else it raises
NotPlain: web/game.py builds the policy itself, with all plugins.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal import distributions, registry, schedules, space_json
from shoal.checkpoint_files import read_arrays
from shoal.entry import make
from shoal.errors import CompileFailed, CompilerMissing, ShoalError
from shoal.evaluate import held_out
from shoal.native import lib
from shoal.nn.action_parts import ActionParts
from shoal.nn.looks import is_numeric, look_of
from shoal.runs import Run
from shoal.schedules import Schedule
from shoal.seeds import env_seed
from shoal.web.facts import env_facts, network_facts, plain_options
from shoal.web.instructions import Design, QDesign, head_facts, write

Q_ALGORITHMS = ("dqn", "pqn")
EPSILON = 0.05  # of a Q-network that has not been trained here (nn/qnet.py)
WORDS = ("", "self", "pool")  # opponents without seats


class NotPlain(ShoalError):
    """A run that is not made of Shoal's own parts, or files that are not complete."""


def game(run: Run, checkpoint: Path, described: Mapping[str, Any]) -> dict[str, Any]:
    """The data of a page for a checkpoint of a run, as `web.game.of_player` has it. `described`: its policy.json."""
    try:
        return _game(run, checkpoint, described)
    except (CompilerMissing, CompileFailed):  # of the env: torch would not help
        raise
    except (ShoalError, KeyError, TypeError, ValueError, AttributeError, IndexError, OSError) as error:
        raise NotPlain(f"{type(error).__name__}: {error}") from None


def _game(run: Run, checkpoint: Path, described: Mapping[str, Any]) -> dict[str, Any]:
    tables, facts = run.config, run.facts
    if facts.get("custom_policy") or facts.get("unsaved_env_options") or not facts.get("env_is_a_name", True):
        raise NotPlain("the folder does not hold the policy or the env")
    name = str(facts["env"])
    env = _env_options(name, tables)
    about: dict[str, Any] = {"run": run.id, "step": int(checkpoint.name), "greedy": bool(tables["eval"]["greedy"])}
    seed = facts.get("seed")
    with contextlib.closing(make(name, 1, **{**env, "backend": "serial"})) as vec:
        weights = read_arrays(checkpoint)
        players = []
        for number, role in enumerate(described["roles"]):
            own = {key.partition(".")[2]: value for key, value in weights.items() if key.startswith(f"{number}.")}
            players += _players(role, vec, tables, own, about["greedy"])
        if not players:
            raise NotPlain("no policy")
        page = env_facts(vec)
    page |= {"players": players, "seed": held_out(env_seed(seed if isinstance(seed, int) else 0)), "env_name": name}
    return {**page, **about, "options": plain_options(env)}


def _env_options(name: str, tables: dict[str, Any]) -> dict[str, Any]:
    """The options of `shoal.make`, with the last values of schedules. Raises for opponents that are no robots."""
    env = {key: _parsed(value) for key, value in tables.get("env", {}).items()}
    scheduled = {key: value for key, value in env.items() if isinstance(value, Schedule)}
    if scheduled:
        kinds = {param.name: param.kind for param in lib.load(registry.find(name)).spec.params}
        env |= {key: value.number(1.0, kinds[key]) for key, value in scheduled.items()}
    text = str(tables["opponents"]).strip()
    for part in filter(None, text.split(",") if text not in WORDS else ()):
        seat, _, who = (word.strip() for word in part.partition("="))
        if env.get(f"robot_{seat}") != who:
            raise NotPlain("an opponent that is no robot")
    if tables["nn"]["policy"] or tables["vec"]["python"]:
        raise NotPlain("a policy or an interpreter of its own")
    return {**env, **({"wrap": tables["wrap"]} if tables["wrap"] else {})}


def _parsed(value: Any) -> Any:
    """A param of config.toml: schedules and distributions are texts there."""
    if isinstance(value, str) and schedules.is_call(value):
        return schedules.parse(value) or distributions.parse(value) or value
    return value


def _players(
    role: dict[str, Any], vec: Any, tables: dict[str, Any], weights: dict[str, Any], greedy: bool
) -> list[dict[str, Any]]:
    """The networks of a role, each with the agents that it plays."""
    agents = list(range(vec.agents_per_env)) if role["agents"] is None else [int(agent) for agent in role["agents"]]
    observation_space, action_space = _spaces(vec, agents[0])
    if [space_json.to_json(space) for space in (observation_space, action_space)] != [
        role[f"{kind}_space"] for kind in ("observation", "action")
    ]:
        raise NotPlain("the env has other spaces than the policy")
    nn, algo = tables["nn"], tables["algo"]
    if algo == "ppo":
        parts = ActionParts(action_space, std=nn["std"], squash=nn["squash"])
        head, q = head_facts(parts), None
    elif algo in Q_ALGORITHMS:
        parts = ActionParts(action_space)
        parts.num_noise = parts.choices + 1  # as QHead
        head, q = head_facts(parts, EPSILON), _q_design(tables["train"], parts.choices, len(agents))
    else:
        raise NotPlain("an algorithm of its own")
    normalized = bool(tables["train"]["normalize_obs"]) and is_numeric(observation_space)
    if normalized != ("moments.0.mean" in weights):
        raise NotPlain("moments of observations")
    design = Design(
        inputs=_size(observation_space),
        look=look_of(observation_space, nn["encoder"], normalized=normalized),
        activation=nn["activation"],
        num_logits=parts.num_params if q is None else parts.choices,
        core="none" if q is not None else nn["core"],
        q=q,
    )
    networks = 1 if q is None else q.networks
    return [
        {
            "agents": agents if networks == 1 else [agents[k]],
            "greedy": greedy,
            "is_opponent": False,
            "network": network_facts(write(design, weights, agent=k)),
            "head": head,
        }
        for k in range(networks)
    ]


def _q_design(train: dict[str, Any], choices: int, agents: int) -> QDesign:
    kind = train.get("distribution", "none")
    atoms = int(train["num_atoms"]) if kind != "none" else 1
    return QDesign(choices, bool(train["dueling"]), kind, atoms, agents if train["policy"] == "per-agent" else 1)


def _spaces(vec: Any, agent: int) -> tuple[Any, Any]:
    """What an agent observes and does."""
    spec, spaces = vec.native_spec, vec.agent_spaces
    if spec.own_sizes:
        own: tuple[Any, Any] = spec.spaces_of(agent)
        return own
    return spaces.observation_spaces[agent], spaces.action_spaces[agent]


def _size(space: Any) -> int:
    """The elements of an observation of numbers."""
    size = 1
    for side in space.shape:
        size *= int(side)
    return size
