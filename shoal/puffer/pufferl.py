"""PuffeRL: PufferLib's trainer, over Shoal's PPO; and PufferLib 3's load_config, load_env, load_policy and train.

    trainer = pufferlib.PuffeRL(env=env, policy=policy, device="cpu", learning_rate=3e-4, num_steps=128)
    for _ in range(100):
        trainer.evaluate()  # collects a rollout
        trainer.train()  # learns from it
        trainer.mean_and_log()

`shoal.train` also has run folders, a dashboard, signals and evaluation on held-out seeds.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from shoal import checkpoint
from shoal.algos.ppo import PPO
from shoal.config import from_dict
from shoal.puffer import loggers, rows, saving
from shoal.puffer import options as given_options
from shoal.puffer.config import load_config, load_env, load_policy
from shoal.puffer.exceptions import APIUsageError, missing_names
from shoal.puffer.policies import Adapted
from shoal.seeds import stream_seed
from shoal.spec import map_leaves
from shoal.train import Options, Trainer

__all__ = [
    "NeptuneLogger",
    "NoLogger",
    "PuffeRL",
    "WandbLogger",
    "load_config",
    "load_env",
    "load_policy",
    "sweep",
    "train",
]

NeptuneLogger, NoLogger, WandbLogger = loggers.NeptuneLogger, loggers.NoLogger, loggers.WandbLogger

METADATA_LIMIT = 1 << 19  # bytes
FOREVER = 1 << 60
ACTION_STREAM = "get_action.generator"  # in the state of a checkpoint


class PuffeRL:
    """Trains a policy on a vector env. PufferLib 3's `PuffeRL(config, vecenv, policy, logger)` works too.

    Args:
        env: a vector env of `shoal.puffer.make`, `emulate`, `vectorization` or `vector`, of `shoal.make` or of
            Gymnasium, or your own VectorEnv; or a name, with num_envs.
        policy: a module (docs/from-pufferlib.md lists what it may return), or a class or function that makes one from
            the spaces of one row; default: Shoal's policy.
        logger: an object with `log(metrics, step)`. One that fails is switched off with a warning; training continues.
        device: `cpu`.
        batch_size: steps of one rollout over all rows: rows * num_steps. Give one of the two.
        num_steps: steps per row of a rollout; default: 128, or batch_size / rows. With PufferLib 3's `bptt_horizon` in
            its place, batch_size may be a multiple of rows * bptt_horizon: several segments of every row.
        minibatch_size: steps of one minibatch; default: a quarter of the batch.
        anneal_lr: the learning rate decays to 0 over total_timesteps.
        seed: of actions, of new weights, and of envs without a seed.
        num_envs: if env is a name.
        num_workers: if env is a name.
        **options: learning_rate, n_epochs, gamma, gae_lambda, clip_coef, ent_coef, vf_coef, vf_clip_coef,
            max_grad_norm, compile, total_timesteps, and every other option of `shoal train --train.*`.
    """

    def __init__(
        self,
        env: Any = None,
        policy: Any = None,
        third: Any = None,
        logger: Any = None,
        *,
        device: str = "cpu",
        batch_size: int | str | None = None,
        num_steps: int | str | None = None,
        minibatch_size: int | str | None = None,
        anneal_lr: bool = False,
        seed: int = 1,
        num_envs: int | None = None,
        num_workers: int | None = None,
        config: Mapping[str, Any] | None = None,
        vecenv: Any = None,
        **options: Any,
    ) -> None:
        if isinstance(env, Mapping):  # PufferLib 3: PuffeRL(config, vecenv, policy, logger)
            config = env
            if vecenv is None:
                vecenv, policy = policy, third
            elif third is not None:
                policy = third
        if config is not None:
            self.__init__(vecenv, policy, logger=logger, **given_options.used(config))  # type: ignore[misc]
            return
        given_options.refuse_ranks()
        given_options.check_device(device)
        table = {"total_steps": FOREVER, "schedule": "linear" if anneal_lr else "constant"}
        num_steps = options.pop("horizon", num_steps)
        bptt_horizon = options.pop("bptt_horizon", None)
        minibatches = options.pop("minibatches", None)
        table |= given_options.translated(options)
        if anneal_lr and table["total_steps"] == FOREVER:
            raise APIUsageError("anneal_lr=True needs total_timesteps: the step at which the learning rate is 0.")
        self.vecenv = self.env = made(env, num_envs, num_workers)
        try:
            vec, self._env_seed = rows.vec_for(self.env)
            count = int(vec.num_envs) * int(getattr(vec, "agents_per_env", 1))
            given = (batch_size, num_steps, minibatch_size, minibatches, bptt_horizon)
            horizon, parts, segment = given_options.sizes(count, *map(given_options.number, given))
            sizes_of = {"horizon": horizon, "minibatches": parts} | ({"segment": segment} if segment else {})
            settings = Options(seed=seed, device="cpu", train=from_dict(PPO, {**table, **sizes_of}, ""))
            adapter = None if policy is None else _adapter(policy)
            self.trainer = Trainer(self.env, settings, vec=vec, policy=adapter, first_seed=self._env_seed)
        except BaseException:
            if self.env is not env:
                self.env.close()
            raise
        self.config = {**options, "batch_size": count * horizon, "num_steps": horizon, "seed": seed, "device": "cpu"}
        self.config["total_timesteps"] = table["total_steps"]
        self.policy = self.uncompiled_policy = policy if isinstance(policy, nn.Module) else self._policy()
        self.logger = logger if logger is not None else loggers.NoLogger()
        self._is_logging = True
        self._has_episodes = False  # whether the envs were reset
        self._is_fresh = False  # whether the last rollout has not been learned from
        self._starts: list[tuple[Tensor, Tensor]] = []  # first observations of the next rollout, after load_checkpoint
        self._action_stream = torch.Generator().manual_seed(stream_seed(seed, "get_action"))
        self._interval: list[dict[str, float]] = []
        self._reward = dict.fromkeys(("mean_reward", "min_reward", "max_reward", "episode_length"), math.nan)
        self._began = self._logged = time.perf_counter()
        self._logged_step = 0
        self.stats: dict[str, float] = {}
        self.losses: dict[str, float] = {}

    def _policy(self) -> Any:
        policy = self.trainer.actors[0].policy
        return policy.policy if isinstance(policy, Adapted) else policy

    # ---- the loop ----

    def evaluate(self) -> dict[str, float]:
        """Collects one rollout of batch_size steps. Returns mean_reward, sps and other statistics.

        `mean_reward`, `min_reward`, `max_reward` and `episode_length` are those of the episodes that ended in this
        rollout; if none did, those of the last rollout that had some. They are NaN until an episode has ended. `sps` is
        steps per second since the start of the last rollout, including learning.
        """
        trainer = self.trainer
        torch.set_num_threads(trainer.threads)
        start = time.perf_counter()
        if not self._has_episodes:
            trainer.start(self._env_seed)
            self._has_episodes = True
        self._start_episodes()
        trainer.collect()
        now = time.perf_counter()
        self._is_fresh = True
        trainer.wall_s += now - start
        record = trainer.drain()
        self._interval.append(record)
        if record["episode/n"]:
            for name, suffix in (("mean", ""), ("min", "_min"), ("max", "_max")):
                self._reward[f"{name}_reward"] = record[f"episode/return{suffix}"]
            self._reward["episode_length"] = record["episode/length"]
        steps = trainer.steps_per_iteration
        since = now - (self._began if trainer.iteration else start)
        self._began = start
        own = {
            name.partition("/")[2]: value
            for name, value in record.items()
            if name.startswith("episode/") and not name.startswith(("episode/return", "episode/length", "episode/n"))
        }
        self.stats = {
            **own,
            **self._reward,
            "episodes": record["episode/n"],
            "sps": steps / max(since, 1e-9),
            "collect_sps": steps / max(now - start, 1e-9),
            "agent_steps": trainer.step,
        }
        return self.stats

    def train(self) -> dict[str, float]:
        """Learns from the last rollout, once; collects a rollout first if there is no new one. Returns the losses."""
        if not self._is_fresh:
            self.evaluate()
        trainer = self.trainer
        torch.set_num_threads(trainer.threads)
        start = time.perf_counter()
        trainer.learn()
        trainer.wall_s += time.perf_counter() - start
        self._is_fresh = False
        self._start_episodes()
        record = trainer.drain()
        self._interval.append(record)
        self.losses = {
            "policy_loss": record["loss/policy"],
            "value_loss": record["loss/value"],
            "entropy": record["entropy"],
            "approx_kl": record["kl"],
            "clipfrac": record["clip_fraction"],
            "explained_variance": record["explained_variance"],
            "grad_norm": record["grad_norm"],
            "learning_rate": record["learning_rate"],
        }
        return self.losses

    def mean_and_log(self) -> dict[str, float]:
        """Logs the means since the last call, and returns them."""
        now, trainer = time.perf_counter(), self.trainer
        parts, self._interval = self._interval, []
        if not parts:
            return {}
        record = merged(parts)
        record["sps"] = (trainer.step - self._logged_step) / max(now - self._logged, 1e-9)
        record["time/total"] = now - self._logged
        self._logged, self._logged_step = now, trainer.step
        self._log(record)
        return record

    def _log(self, record: dict[str, float]) -> None:
        if not self._is_logging or loggers.rank() != 0:
            return
        try:
            self.logger.log(record, self.trainer.step)
        except Exception as error:
            self._is_logging = False
            what = f"{type(self.logger).__name__} failed: {type(error).__name__}: {error}"
            print(f"warning: {what}. It is switched off; training continues.", file=sys.stderr, flush=True)

    def print_dashboard(self, *args: Any, **kwargs: Any) -> None:
        """Prints step, reward and speed on one line. (`shoal train` has the dashboard.)"""
        reward, sps = self._reward["mean_reward"], self.stats.get("sps", 0.0)
        print(f"step {self.global_step:,}  reward {reward:.4g}  sps {sps:,.0f}", flush=True)

    # ---- progress ----

    @property
    def global_step(self) -> int:
        """Steps so far, over all rows."""
        return int(self.trainer.step)

    @property
    def epoch(self) -> int:
        """Iterations so far."""
        return int(self.trainer.iteration)

    @property
    def total_epochs(self) -> int:
        """Iterations until total_timesteps are done."""
        return int(-(-self.trainer.options.train.total_steps // self.trainer.steps_per_iteration))

    @property
    def exact(self) -> bool:
        """Whether load_checkpoint resumed exactly: native envs do; Python envs start new episodes."""
        return bool(self.trainer.exact)

    @property
    def learning_rate(self) -> float:
        """Of the next update; with anneal_lr, before the schedule. It can be set."""
        return float(self.trainer.options.train.learning_rate)

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        trainer = self.trainer
        train = from_dict(PPO, {"learning_rate": float(value)}, "PuffeRL", trainer.options.train)
        trainer.options = dataclasses.replace(trainer.options, train=train)
        for learner in trainer.learners:
            learner.config = train

    @torch.no_grad()
    def get_action(
        self,
        obs: Any,
        deterministic: bool = False,
        mask: Any = None,
        infos: Mapping[str, Any] | None = None,
    ) -> Any:
        """Actions for a batch of observations, in the form that the env's `step` takes.

        All calls draw from one random stream, seeded by the trainer's seed. A recurrent policy starts every call with
        its initial state.

        Args:
            obs: (rows, ...), in the structure of the observation space.
            deterministic: the most probable action, not a random one.
            mask: (rows, choices), 0 or false for actions that are not allowed.
            infos: of the env's last step; its `action_mask` is used if there is no `mask`.
        """
        player = self.trainer.player(deterministic)
        player.generator = self._action_stream
        num_rows = self._num_rows(obs)
        player.reset(num_rows)
        given = mask if mask is not None else (infos or {}).get("action_mask")
        return player.act(obs, {} if given is None else {"action_mask": self._checked_mask(given, num_rows)})

    def _num_rows(self, obs: Any) -> int:
        lengths: list[int] = []
        map_leaves(lambda leaf: lengths.append(len(leaf)), obs)
        agents: Any = getattr(self.trainer.vec, "agent_spaces", None)
        is_by_agent = agents is not None and not agents.alike
        return lengths[0] * (len(agents.agents) if is_by_agent else 1)

    def _checked_mask(self, mask: Any, num_rows: int) -> Any:
        choices = self.trainer.actors[0].head.choices
        if not choices:
            raise APIUsageError(f"{self.trainer.actors[0].head} have no choices to mask. Leave out mask.")
        array = np.asarray(mask)
        if array.shape != (num_rows, choices):
            raise APIUsageError(
                f"mask has shape {array.shape}, expected {(num_rows, choices)}, a flag for each choice."
            )
        return array.astype(np.int8)

    # ---- checkpoints ----

    def save_checkpoint(self, path: str | Path | None = None, metadata: Mapping[str, Any] | None = None) -> str:
        """Writes a folder from which load_checkpoint resumes exactly.

        An older checkpoint at the path is removed once the new one is complete. Nothing else in the folder is touched.

        Args:
            path: the folder; default: `checkpoints/<step>`.
            metadata: numbers, text, lists and dicts, written as JSON.
        """
        trainer = self.trainer
        folder = Path(path) if path is not None else Path("checkpoints") / f"{self.global_step:012d}"
        try:
            text = json.dumps(dict(metadata or {}))
        except (TypeError, ValueError) as error:
            raise APIUsageError(
                f"metadata: {error}. It is written as JSON. Use numbers, text, lists and dicts."
            ) from None
        if len(text) > METADATA_LIMIT:
            raise APIUsageError(f"metadata has {len(text):,} bytes; the limit is {METADATA_LIMIT:,}.")
        files = trainer.state()
        files["state"][ACTION_STREAM] = self._action_stream.get_state()
        if self._is_fresh:
            files["state"] |= saving.unlearned(trainer.learners)
        facts = {**trainer.counters(), "metadata": json.loads(text), "learning_rate": self.learning_rate}
        facts |= {"is_fresh": self._is_fresh, "reward": {k: v for k, v in self._reward.items() if v == v}}
        saving.save(folder, trainer.step, files, facts)
        return str(folder)

    def load_checkpoint(self, path: str | Path) -> dict[str, Any]:
        """Resumes from a checkpoint: weights, optimizer, random streams, envs, counters. Returns its metadata."""
        trainer = self.trainer
        files, meta = checkpoint.load(saving.find(Path(path)))
        trainer.restore(files, meta)
        self._has_episodes = True
        if "learning_rate" in meta:
            self.learning_rate = float(meta["learning_rate"])
        if ACTION_STREAM in files["state"]:
            self._action_stream.set_state(files["state"][ACTION_STREAM])
        starts = [] if trainer.exact else saving.episode_starts(trainer.learners)
        self._is_fresh = bool(meta.get("is_fresh")) and saving.restore_unlearned(trainer.learners, files["state"])
        self._starts = starts if self._is_fresh else []
        self._reward |= {k: float(v) for k, v in meta.get("reward", {}).items()}
        self._interval.clear()
        self._logged_step, self._logged = trainer.step, time.perf_counter()
        if not trainer.exact:
            warnings.warn(
                f"{type(self.env).__name__}: the state of its envs cannot be saved, so they start new episodes. "
                "Weights, optimizer and random streams resume.",
                stacklevel=2,
            )
        metadata: dict[str, Any] = meta.get("metadata", {})
        return metadata

    def _start_episodes(self) -> None:
        """After load_checkpoint: makes the next rollout start with the new episodes of the envs."""
        saving.copy_back(self._starts)
        self._starts = []

    def close(self) -> str | None:
        """Closes the envs and the logger."""
        self.trainer.close()
        try:
            if hasattr(self.logger, "close"):
                self.logger.close()
        except Exception as error:
            print(f"warning: {type(self.logger).__name__} failed: {error}", file=sys.stderr, flush=True)
        return None

    def __enter__(self) -> PuffeRL:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# ---- envs, policies and records ----


def made(env: Any, num_envs: int | None, num_workers: int | None) -> Any:
    """The given vector env, or a new one from a name, class or function."""
    if isinstance(env, str) or (callable(env) and not hasattr(env, "num_envs")):
        from shoal.puffer import emulate, make

        if num_envs is None:
            called = repr(env) if isinstance(env, str) else getattr(env, "__name__", type(env).__name__)
            raise APIUsageError(f"PuffeRL(env={called}) needs num_envs. Or pass a vector env.")
        workers: dict[str, Any] = {} if num_workers is None else {"num_workers": num_workers}
        return make(env, num_envs, **workers) if isinstance(env, str) else emulate(env, num_envs, **workers)
    existing = getattr(env, "num_workers", num_workers)
    if num_workers not in (None, existing):
        warnings.warn(
            f"num_workers={num_workers} is ignored: env already has {existing} workers. Pass it to make.", stacklevel=3
        )
    return env


def _adapter(policy: Any) -> Callable[..., nn.Module]:
    if not callable(policy):
        raise APIUsageError(f"policy is a {type(policy).__name__}. Pass a torch module, or a function that makes one.")

    def make(observation_space: Any, action_space: Any) -> nn.Module:
        module = policy if isinstance(policy, nn.Module) else policy(observation_space, action_space)
        if not isinstance(module, nn.Module):
            raise APIUsageError(f"policy made a {type(module).__name__}, not a torch module.")
        return Adapted(module, observation_space, action_space)

    return make


def merged(parts: list[dict[str, float]]) -> dict[str, float]:
    """Merges records: statistics are weighted by episodes, seconds summed, losses averaged."""
    out = {key: parts[-1][key] for key in ("iteration", "step", "wall_s")}
    episodes = sum(part.get("episode/n", 0) for part in parts)
    out["episode/n"] = episodes
    for key in dict.fromkeys(key for part in parts for key in part if key not in out):
        records = [part for part in parts if key in part]
        values = [record[key] for record in records]
        if key.startswith("time/"):
            out[key] = sum(values)
        elif key.endswith("_min"):
            out[key] = min(values)
        elif key.endswith("_max"):
            out[key] = max(values)
        elif key.startswith("episode/"):
            out[key] = sum(record[key] * record["episode/n"] for record in records) / max(1, episodes)
        else:
            out[key] = sum(values) / len(values)
    return out


# ---- PufferLib 3's functions ----


def train(
    env_name: str, args: Mapping[str, Any] | None = None, vecenv: Any = None, policy: Any = None, logger: Any = None
) -> list[dict[str, float]]:
    """Trains for `args["train"]["total_timesteps"]` steps. Returns the logged records, one per rollout.

    Args:
        env_name: a name that load_config knows.
        args: of load_config; default: load_config(env_name).
        vecenv: default: load_env(env_name, args).
        policy: default: load_policy(args, vecenv).
        logger: default: W&B if `args["wandb"]`, otherwise none.
    """
    args = load_config(env_name) if args is None else args
    if logger is None and args.get("neptune"):
        logger = NeptuneLogger()
    elif logger is None and args.get("wandb"):
        logger = WandbLogger(project=args.get("wandb_project") or "shoal", name=args.get("tag"), config=dict(args))
    own_env = vecenv is None
    vecenv = load_env(env_name, args) if own_env else vecenv
    try:
        policy = load_policy(args, vecenv, env_name) if policy is None else policy
        trainer = PuffeRL({**args["train"], "env": env_name}, vecenv, policy, logger)
    except BaseException:
        if own_env:
            vecenv.close()
        raise
    records = []
    with trainer:
        while trainer.global_step < args["train"]["total_timesteps"]:
            trainer.evaluate()
            trainer.train()
            records.append(trainer.mean_and_log())
    return records


def sweep(args: Mapping[str, Any] | None = None, env_name: str | None = None, **settings: Any) -> Any:
    """Searches for the best options by `args["sweep"]`, as 'shoal sweep' does. Returns the `shoal.sweep.Sweep`.

    Args:
        args: of load_config; default: load_config(env_name), which reads INI files and the flags of this process.
        env_name: default: `args["env_name"]`.
        **settings: of `shoal.sweep.sweep`: workers, runs_folder, console, finals.
    """
    from shoal.puffer.sweep import run_sweep

    args = load_config(env_name or "default") if args is None else args
    return run_sweep(args, env_name or args.get("env_name"), settings)


__getattr__ = missing_names(
    __name__,
    __all__,
    {
        "autotune": "Use shoal.autotune, or 'shoal tune ENV'.",
        "eval": "Use 'shoal eval RUN', or PuffeRL.get_action in your own loop.",
        "export": "Use PuffeRL.save_checkpoint: weights.safetensors has the weights by name.",
        "main": "Use the 'shoal' command.",
        "profile": "Use 'shoal profile ENV'.",
    },
)
