"""`shoal.load`: from a run's folder to a policy that acts. The env is not needed: the folder holds the spaces.

shoal/acting.py is the policy, shoal/train/policy_file.py the file of its spaces and roles.
"""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import torch

from shoal import checkpoint as checkpoints
from shoal import names
from shoal import runs as run_folders
from shoal.acting import Policy, Team
from shoal.algos.actor import Actor
from shoal.errors import ConfigError, did_you_mean
from shoal.nn.qnet import QHead
from shoal.runs import Run
from shoal.seeds import stream_seed
from shoal.train import policy_file
from shoal.train.options import Options, options_for
from shoal.train.players import load_actor, make_actor
from shoal.train.policy_file import PolicyFile


def load(
    run: Any = "last",
    checkpoint: str | int | Path = "best",
    *,
    policy: Any = None,
    device: Any = "cpu",
    seed: int | None = None,
    runs: str | Path = run_folders.ROOT,
) -> Policy | Team:
    """The policy of a run: see `shoal.load`."""
    trained, at = _find(run, checkpoint, Path(runs))
    options = _options(trained)
    about = policy_file.read(trained) or policy_file.from_env(trained, options)
    given = _custom_policy(trained, about, options, policy)
    files, meta = checkpoints.load(at, ("weights",))
    first_seed = stream_seed(int(trained.facts.get("seed") or 0), "acting") if seed is None else seed
    policies: dict[str, Policy] = {}
    groups: dict[str, Policy] = {}
    all_agents = len(about.agents)
    for number, role in enumerate(about.roles):
        try:
            actor = make_actor(role, options, number, _own(given), agents=all_agents)
        except ConfigError as error:
            if given is not None or not _names_policy(options):
                raise
            raise ConfigError(f"{error} Or pass the class: shoal.load({str(trained.folder)!r}, policy=...)") from None
        load_actor(actor, files["weights"], number)
        if isinstance(actor.head, QHead):
            actor.head.epsilon.fill_(_final_epsilon(options.train))
        names = tuple(about.agents[k] for k in (range(all_agents) if role.agents is None else role.agents))
        # a Q-learner may have a network for each agent in one module
        parts = [(names, actor)] if actor.networks == 1 else [((n,), actor.of_agent(k)) for k, n in enumerate(names)]
        for played, part in parts:
            made = _policy(part, played, about.mask_sizes[number], first_seed + len(policies), int(meta["step"]))
            policies |= dict.fromkeys(played, made)
            if about.names[number] not in ("", *about.agents):
                groups[about.names[number]] = made
    ordered = {name: policies[name] for name in about.agents if name in policies}
    made_policies = {id(made): made for made in ordered.values()}
    if len(made_policies) > 1:
        return Team(about.agents, ordered, groups).to(device)
    only = next(iter(made_policies.values()))
    only.name = next(iter(groups), "")
    return only.to(device)


def _policy(actor: Actor, agents: tuple[str, ...], mask_size: int | None, seed: int, step: int) -> Policy:
    actor.requires_grad_(False)
    return Policy(actor, agents, mask_size=mask_size, seed=seed % 2**63, step=step)


def _final_epsilon(train: Any) -> float:
    """The probability of a random action at the end of a Q-learner's training; its option may be a schedule."""
    value = vars(train).get("epsilon") or vars(train).get("epsilon_end", 0.0)
    return float(value.at(1.0) if hasattr(value, "at") else value)


# ---- the run and its checkpoint ----


def _find(run: Any, which: str | int | Path, root: Path) -> tuple[Run, Path]:
    """The run and the folder of its checkpoint. `run` may also be the folder of a checkpoint."""
    if not isinstance(run, (Run, str, Path)):
        raise ConfigError(f"run={run!r} is not a run. Give its folder, its id, the name of its env, 'last' or a Run.")
    if not isinstance(run, Run):
        folder = Path(run)
        if (folder / "meta.json").is_file() and (folder.parent.parent / "run.json").is_file():
            return Run(folder.parent.parent), folder
        run = run_folders.find(run, root)
    return run, choose_checkpoint(run, which)


def choose_checkpoint(run: Run, which: str | int | Path) -> Path:
    """The folder of the checkpoint that `best`, `last`, a step or a path names."""
    found = run.checkpoints()
    if not found:
        raise ConfigError(
            f"{run.folder} has no checkpoint. Training saves one every --save.every-s seconds and at the end."
        )
    if which in ("best", "last"):
        return (run.best if which == "best" else run.last) or found[-1]
    if isinstance(which, Path) or "/" in str(which):
        folder = Path(str(which))
        if not (folder / "meta.json").is_file():
            raise ConfigError(f"checkpoint {which} is not the folder of a checkpoint. Give best, last or a step.")
        return folder
    steps = {run_folders.checkpoint_step(path): path for path in found}
    digits = str(which).replace("_", "").replace(",", "")
    if isinstance(which, bool) or not digits.isdecimal():
        raise ConfigError(
            f"checkpoint {which!r} must be best, last or a step.{did_you_mean(str(which), ['best', 'last'])}"
        )
    if int(digits) not in steps:
        known = [step for step in steps if step is not None]
        near = min(known, key=lambda step: abs(step - int(digits)))
        raise ConfigError(
            f"{run.folder} has no checkpoint of step {digits}. The nearest is {near}; there are {len(known)}, from "
            f"{known[0]} to {known[-1]}."
        )
    return steps[int(digits)]


def _options(run: Run) -> Options:
    """The run's own options, with which no env is looked at, and without torch.compile."""
    if not (run.folder / "config.toml").is_file():
        raise ConfigError(f"{run.folder} has no config.toml, which says what its network is. Copy the whole folder.")
    options = options_for("", run.config)
    if getattr(options.train, "compile", False):
        options = dataclasses.replace(options, train=dataclasses.replace(options.train, compile=False))
    return options


# ---- custom policies ----


def _custom_policy(run: Run, about: PolicyFile, options: Options, policy: Any) -> Any:
    """What makes the run's network: None for `--nn.*`, or the caller's policy, or the class that the run names."""
    name = run.facts.get("custom_policy")
    has_named = _names_policy(options)
    if policy is not None:
        if not callable(policy):
            raise ConfigError(f"policy={policy!r} is no policy. Give an nn.Module, or a function of the two spaces.")
        if not name and not has_named:
            raise ConfigError(f"{run.id} was trained with Shoal's own network. Leave out policy={_shown(policy)}.")
        if isinstance(policy, torch.nn.Module) and len(about.roles) > 1:
            raise ConfigError(
                f"policy is one module, but {run.id} has {len(about.roles)} policies. Give the class or function that "
                "makes one."
            )
        return policy
    if not name or has_named:
        return None
    reason = "which a run folder does not hold"
    if about.policy:
        try:
            return names.find(about.policy)
        except ConfigError as error:
            cause = error.__cause__ or error  # what the import itself raised
            reason = f"and {about.policy} cannot be imported here ({type(cause).__name__}: {cause})"
    raise ConfigError(
        f"{run.id} was trained with a custom policy ({name}), {reason}. Pass the class, the function or a module: "
        f"shoal.load({str(run.folder)!r}, policy={name})."
    )


def _names_policy(options: Options) -> bool:
    """Whether `--nn.policy` names the policy: then `make_actor` finds it."""
    return bool(vars(options.nn).get("policy"))


def _own(policy: Any) -> Any:
    """The policy to load weights into: a copy of a module, so that the caller's keeps its weights."""
    return copy.deepcopy(policy) if isinstance(policy, torch.nn.Module) else policy


def _shown(policy: Any) -> str:
    return getattr(policy, "__name__", type(policy).__name__)
