"""PuffeRL: PufferLib's trainer by name, over Shoal's PPO.

    trainer = pufferlib.PuffeRL(env=env, policy=policy, device="cpu", learning_rate=3e-4, num_steps=128)
    for _ in range(100):
        trainer.evaluate()  # collects a rollout
        trainer.train()  # learns from it
        trainer.mean_and_log()

`shoal.train` has run folders, a dashboard, signals and evaluation on held-out seeds besides.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from shoal import checkpoint
from shoal.algos.ppo import PPO
from shoal.algos.rollout import Truncated
from shoal.config import from_dict
from shoal.errors import CheckpointError, ConfigError, did_you_mean
from shoal.puffer import loggers, rows
from shoal.puffer.policies import Adapted
from shoal.runs import write_atomic
from shoal.train import Options, Trainer

__all__ = ["NeptuneLogger", "NoLogger", "PuffeRL", "WandbLogger"]

NeptuneLogger, NoLogger, WandbLogger = loggers.NeptuneLogger, loggers.NoLogger, loggers.WandbLogger

# the guides' and PufferLib 3's names of what Shoal's PPO has
NAMES = {
    "n_epochs": "epochs",
    "update_epochs": "epochs",
    "clip_coef": "clip",
    "ent_coef": "entropy_coef",
    "vf_coef": "value_coef",
    "vf_clip_coef": "value_clip",
    "total_timesteps": "total_steps",
    "prio_alpha": "priority",
    "prio_beta0": "priority_beta",
    "vtrace_rho_clip": "vtrace_rho",
    "vtrace_c_clip": "vtrace_c",
}
# keys of PufferLib 3's config that say nothing to this trainer: it neither loads envs nor saves by itself
UNUSED = (
    "env name project tag use_rnn torch_deterministic cpu_offload data_dir checkpoint_interval max_minibatch_size "
    "compile_mode compile_fullgraph precision min_lr_ratio env_name policy_name rnn_name no_model_upload"
).split()
METADATA_LIMIT = 1 << 19  # bytes
NUM_STEPS = 128
FOREVER = 1 << 60


class PuffeRL:
    """Trains a policy on a vector env. PufferLib 3's `PuffeRL(config, vecenv, policy, logger)` works too.

    Args:
        env: a vector: of `shoal.puffer.make`, `emulate`, `vectorization` or `vector`, of `shoal.make`, of Gymnasium, or
            a VectorEnv of your own; or a name, with num_envs.
        policy: a module (docs/from-pufferlib.md says what it may return), or a class or function that makes one from
            the spaces of one row; default: Shoal's own.
        logger: has `log(metrics, step)`; one that fails is switched off, and training goes on.
        device: `cpu`.
        batch_size: steps of one rollout over all rows, which `train` learns from: rows * num_steps. Give one of both.
        num_steps: steps of every row in a rollout; default: 128, or what batch_size makes it.
        minibatch_size: steps of one update of the weights; default: a quarter of the batch.
        anneal_lr: the learning rate goes to 0 over total_timesteps.
        seed: of weights that are made here, of actions, and of envs that were given no seed.
        num_envs: where env is a name.
        num_workers: where env is a name.
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
            config, vecenv, policy = (
                env,
                (policy if vecenv is None else vecenv),
                (third if third is not None else policy),
            )
        if config is not None:
            self.__init__(vecenv, policy, logger=logger, **_used(config))  # type: ignore[misc]
            return
        refuse_ranks()
        check_device(device)
        table = {"total_steps": FOREVER, "schedule": "linear" if anneal_lr else "constant"}
        num_steps = options.pop("bptt_horizon", num_steps)
        table |= _translated(options)
        if anneal_lr and table["total_steps"] == FOREVER:
            raise ConfigError("anneal_lr=True needs total_timesteps: the step at which the learning rate is 0.")
        self.vecenv = self.env = made(env, num_envs, num_workers)
        try:
            vec, self._env_seed = rows.vec_for(self.env)
            count = int(vec.num_envs) * int(getattr(vec, "agents_per_env", 1))
            horizon, parts = sizes(count, _number(batch_size), _number(num_steps), _number(minibatch_size))
            sizes_of = {"horizon": horizon, "minibatches": parts}
            settings = Options(seed=seed, device="cpu", train=from_dict(PPO, {**table, **sizes_of}, ""))
            self.trainer = Trainer(self.env, settings, vec=vec, policy=None if policy is None else _adapter(policy))
        except BaseException:
            if self.env is not env:
                self.env.close()
            raise
        self.config = {**options, "batch_size": count * horizon, "num_steps": horizon, "seed": seed, "device": "cpu"}
        self.config["total_timesteps"] = table["total_steps"]
        self.policy = self.uncompiled_policy = policy if isinstance(policy, nn.Module) else self._policy()
        self.logger = logger if logger is not None else loggers.NoLogger()
        self._is_logging = True
        self._is_fresh = False  # whether there is a rollout that nobody learned from
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
        """Collects one rollout: batch_size steps. Returns mean_reward, sps and more.

        `mean_reward`, `min_reward`, `max_reward` and `episode_length` are of the episodes that ended in this rollout;
        where none did, of the last that had some (not a number before any has ended). `sps` counts the steps of this
        rollout over all the time since the last one began, learning included.
        """
        trainer = self.trainer
        torch.set_num_threads(trainer.threads)
        start = time.perf_counter()
        if not trainer._started:
            trainer.start(self._env_seed)
        trainer.collect()
        now = time.perf_counter()
        self._is_fresh = True
        trainer.wall_s += now - start
        found = trainer.drain()
        self._interval.append(found)
        if found["episode/n"]:
            for name, theirs in (("mean", ""), ("min", "_min"), ("max", "_max")):
                self._reward[f"{name}_reward"] = found[f"episode/return{theirs}"]
            self._reward["episode_length"] = found["episode/length"]
        steps = trainer.steps_per_iteration
        since = now - (self._began if trainer.iteration else start)
        self._began = start
        own = {
            name.partition("/")[2]: value
            for name, value in found.items()
            if name.startswith("episode/") and not name.startswith(("episode/return", "episode/length", "episode/n"))
        }
        self.stats = {
            **own,
            **self._reward,
            "episodes": found["episode/n"],
            "sps": steps / max(since, 1e-9),
            "collect_sps": steps / max(now - start, 1e-9),
            "agent_steps": trainer.step,
        }
        return self.stats

    def train(self) -> dict[str, float]:
        """Learns from the last rollout, once; collects one first where there is no new one. Returns the losses."""
        if not self._is_fresh:
            self.evaluate()
        trainer = self.trainer
        torch.set_num_threads(trainer.threads)
        start = time.perf_counter()
        trainer.learn()
        trainer.wall_s += time.perf_counter() - start
        self._is_fresh = False
        found = trainer.drain()
        self._interval.append(found)
        self.losses = {
            "policy_loss": found["loss/policy"],
            "value_loss": found["loss/value"],
            "entropy": found["entropy"],
            "approx_kl": found["kl"],
            "clipfrac": found["clip_fraction"],
            "explained_variance": found["explained_variance"],
            "grad_norm": found["grad_norm"],
            "learning_rate": found["learning_rate"],
        }
        return self.losses

    def mean_and_log(self) -> dict[str, float]:
        """Gives the means since the last call to the logger, and returns them."""
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
            print(f"warning: {what}. It is switched off; training goes on.", file=sys.stderr, flush=True)

    def print_dashboard(self, *args: Any, **kwargs: Any) -> None:
        """One line of where it stands. (`shoal train` has the dashboard.)"""
        reward, sps = self._reward["mean_reward"], self.stats.get("sps", 0.0)
        print(f"step {self.global_step:,}  reward {reward:.4g}  sps {sps:,.0f}", flush=True)

    # ---- where it stands ----

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
        """Whether load_checkpoint went on to the bit: native envs do; others start their episodes anew."""
        return bool(self.trainer.exact)

    @property
    def learning_rate(self) -> float:
        """Of the next update (before the schedule, with anneal_lr). It can be set."""
        return float(self.trainer.options.train.learning_rate)

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        trainer = self.trainer
        train = from_dict(PPO, {"learning_rate": float(value)}, "PuffeRL", trainer.options.train)
        trainer.options = dataclasses.replace(trainer.options, train=train)
        for learner in trainer.learners:
            learner.config = train

    @torch.no_grad()
    def get_action(self, obs: Any, deterministic: bool = False) -> Any:
        """Actions for a batch of observations, as the env's step takes them. A recurrent policy has forgotten all."""
        player = self.trainer.player(deterministic)
        player.reset(len(obs) if not isinstance(obs, (dict, tuple)) else len(next(iter(_leaves(obs)))))
        return player.act(obs, {})

    # ---- saving and going on ----

    def save_checkpoint(self, path: str | Path | None = None, metadata: Mapping[str, Any] | None = None) -> str:
        """Writes a folder from which load_checkpoint goes on to the bit. No pickle: metadata is what JSON can hold.

        Whatever was at the path stays until the new one is whole.
        """
        trainer = self.trainer
        folder = Path(path) if path is not None else Path("checkpoints") / f"{self.global_step:012d}"
        try:
            text = json.dumps(dict(metadata or {}))
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"metadata: {error}. It is written as JSON: give numbers, text, lists and dicts."
            ) from None
        if len(text) > METADATA_LIMIT:
            raise ConfigError(f"metadata takes {len(text):,} bytes; {METADATA_LIMIT:,} are allowed.")
        if folder.is_file():
            raise CheckpointError(
                f"{folder} is a file, and checkpoints are folders. Choose another path, or remove it."
            )
        files = trainer.state()
        files["state"] |= self._unlearned()
        facts = {**trainer.counters(), "metadata": json.loads(text), "learning_rate": self.learning_rate}
        facts |= {"is_fresh": self._is_fresh, "reward": {k: v for k, v in self._reward.items() if v == v}}
        saved = checkpoint.save(folder, trainer.step, files, facts, keep=0)
        write_atomic(folder / "latest.json", json.dumps({"checkpoint": saved.name}).encode())
        for old in folder.glob("[0-9]" * 12):
            if old.name != saved.name:
                shutil.rmtree(old, ignore_errors=True)
        return str(folder)

    def load_checkpoint(self, path: str | Path) -> dict[str, Any]:
        """Goes on from a checkpoint: weights, optimizer, random streams, envs, counters. Returns its metadata."""
        trainer = self.trainer
        files, meta = checkpoint.load(_found(Path(path)))
        trainer.restore(files, meta)
        if "learning_rate" in meta:
            self.learning_rate = float(meta["learning_rate"])
        self._is_fresh = bool(meta.get("is_fresh", False))
        if self._is_fresh:
            self._relearn(files["state"])
        self._reward |= {k: float(v) for k, v in meta.get("reward", {}).items()}
        self._interval.clear()
        self._logged_step, self._logged = trainer.step, time.perf_counter()
        if not trainer.exact:
            warnings.warn(
                f"{type(self.env).__name__}: its envs cannot give their state, so they start new episodes; weights, "
                "optimizer and random streams go on as they were.",
                stacklevel=2,
            )
        found: dict[str, Any] = meta.get("metadata", {})
        return found

    def _unlearned(self) -> dict[str, Tensor]:
        """The rollout that train has not seen yet, where there is one."""
        kept: dict[str, Tensor] = {}
        for k, learner in enumerate(self.trainer.learners if self._is_fresh else ()):
            kept |= {f"{k}.rollout.{i}": part for i, part in enumerate(learner.rollout.tensors())}
            for i, cut in enumerate(learner.rollout.truncated):
                parts = [torch.tensor(cut.t), cut.rows, *cut.obs, *cut.state]
                kept |= {f"{k}.cut.{i:06d}.{j:03d}": part for j, part in enumerate(parts)}
        return kept

    def _relearn(self, state: Mapping[str, Tensor]) -> None:
        for k, learner in enumerate(self.trainer.learners):
            rollout = learner.rollout
            for i, part in enumerate(rollout.tensors()):
                part.copy_(state[f"{k}.rollout.{i}"])
            cuts: dict[str, list[Tensor]] = {}
            for name in sorted(name for name in state if name.startswith(f"{k}.cut.")):
                cuts.setdefault(name.split(".")[2], []).append(state[name])
            leaves = len(rollout.obs)
            rollout.truncated[:] = [
                Truncated(int(parts[0]), parts[1], parts[2 : 2 + leaves], tuple(parts[2 + leaves :]))
                for parts in cuts.values()
            ]

    def close(self) -> str | None:
        """Ends the envs and the logger."""
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


# ---- what is checked before any work ----


def made(env: Any, num_envs: int | None, num_workers: int | None) -> Any:
    """The env as it is, or a vector of what a name, class or function makes."""
    if isinstance(env, str) or (callable(env) and not hasattr(env, "num_envs")):
        from shoal.puffer import emulate, make

        if num_envs is None:
            called = repr(env) if isinstance(env, str) else getattr(env, "__name__", type(env).__name__)
            raise ConfigError(f"PuffeRL(env={called}) needs num_envs, or give it a vector env.")
        many: dict[str, Any] = {} if num_workers is None else {"num_workers": num_workers}
        return make(env, num_envs, **many) if isinstance(env, str) else emulate(env, num_envs, **many)
    has = getattr(env, "num_workers", num_workers)
    if num_workers not in (None, has):
        told = f"num_workers={num_workers} comes too late: env has {has} already. Give it to make."
        warnings.warn(told, stacklevel=3)
    return env


def sizes(rows_: int, batch_size: int | None, num_steps: int | None, minibatch_size: int | None) -> tuple[int, int]:
    """(steps of every row, minibatches) from what was given."""
    if batch_size is not None and num_steps is not None and batch_size != rows_ * num_steps:
        fit = batch_size // rows_
        raise ConfigError(
            f"batch_size={batch_size} is not num_steps={num_steps} of {rows_} rows, {rows_ * num_steps}. "
            + (f"Leave out num_steps for rollouts of {fit} steps, or " if fit and batch_size % rows_ == 0 else "")
            + f"leave out batch_size for {rows_ * num_steps}. (minibatch_size divides a batch.)"
        )
    if num_steps is None and batch_size is not None:
        if batch_size < rows_ or batch_size % rows_:
            near = max(1, round(batch_size / rows_)) * rows_
            raise ConfigError(f"batch_size={batch_size} is no multiple of the {rows_} rows of env. Try {near}.")
        num_steps = batch_size // rows_
    num_steps = NUM_STEPS if num_steps is None else num_steps
    if num_steps < 1:
        raise ConfigError(f"num_steps={num_steps} must be at least 1.")
    batch = rows_ * num_steps
    if minibatch_size is None:
        return num_steps, min(4, batch)
    if not 1 <= minibatch_size <= batch or batch % minibatch_size:
        count = max(1, round(batch / max(1, minibatch_size)))
        near = next(k for k in (*range(count, 0, -1), 1) if batch % k == 0)
        raise ConfigError(f"minibatch_size={minibatch_size} does not divide the batch of {batch}. Try {batch // near}.")
    return num_steps, batch // minibatch_size


def refuse_ranks() -> None:
    """Raises under torchrun with several processes: each would train a policy of its own."""
    count = int(os.environ.get("WORLD_SIZE", "1") or 1)
    if count > 1:
        raise ConfigError(
            f"WORLD_SIZE={count}: training over several processes or GPUs is not there yet, and {count} processes "
            "would train alone beside each other. Run one, without torchrun: python train.py."
        )


def check_device(device: Any) -> None:
    """Raises for a device that cannot train."""
    kind = str(device).partition(":")[0]
    if kind in ("cpu", "auto"):
        return
    if kind == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError(f"device='{device}': torch finds no GPU on this machine. Use device='cpu'.")
        raise ConfigError(
            f"device='{device}': PuffeRL does not train on a GPU yet. Use 'shoal train --device cuda', or 'cpu'."
        )
    raise ConfigError(f"device={device!r}.{did_you_mean(kind, ('cpu', 'cuda'))} Use device='cpu'.")


def _used(config: Mapping[str, Any]) -> dict[str, Any]:
    """PufferLib 3's config without what says nothing here."""
    if config.get("precision", "float32") != "float32":
        raise ConfigError(f"precision={config['precision']!r}: training is in float32. Leave it out.")
    return {key: value for key, value in config.items() if key not in UNUSED}


def _number(value: Any) -> int | None:
    """A size; PufferLib 3's `auto` is None."""
    if value is None or value == "auto":
        return None
    if isinstance(value, bool) or int(value) != value:
        raise ConfigError(f"{value!r} is not a number of steps.")
    return int(value)


def _translated(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options by Shoal's names. An unknown one raises, with a suggestion."""
    known = {field.name for field in dataclasses.fields(PPO)}
    table: dict[str, Any] = {}
    for name, value in options.items():
        ours = NAMES.get(name, name)
        if ours not in known:
            choices = sorted(
                {*known, *NAMES, "batch_size", "num_steps", "minibatch_size", "anneal_lr", "seed", "device"}
            )
            raise ConfigError(f"PuffeRL has no option '{name}'.{did_you_mean(name, choices)}")
        is_count = isinstance(value, float) and value == int(value) and ours in ("total_steps", "epochs")
        table[ours] = int(value) if is_count else value
    return table


def _adapter(policy: Any) -> Callable[..., nn.Module]:
    if not callable(policy):
        raise ConfigError(f"policy is a {type(policy).__name__}: give a torch module, or a function that makes one.")

    def make(observation_space: Any, action_space: Any) -> nn.Module:
        module = policy if isinstance(policy, nn.Module) else policy(observation_space, action_space)
        if not isinstance(module, nn.Module):
            raise ConfigError(f"policy made a {type(module).__name__}, not a torch module.")
        return Adapted(module, observation_space, action_space)

    return make


def merged(parts: list[dict[str, float]]) -> dict[str, float]:
    """Records of several calls as one: episodes weighted by their number, seconds summed, losses averaged."""
    out = {key: parts[-1][key] for key in ("iteration", "step", "wall_s")}
    episodes = sum(part.get("episode/n", 0) for part in parts)
    out["episode/n"] = episodes
    for key in dict.fromkeys(key for part in parts for key in part if key not in out):
        having = [part for part in parts if key in part]
        values = [part[key] for part in having]
        if key.startswith("time/"):
            out[key] = sum(values)
        elif key.endswith("_min"):
            out[key] = min(values)
        elif key.endswith("_max"):
            out[key] = max(values)
        elif key.startswith("episode/"):
            out[key] = sum(part[key] * part["episode/n"] for part in having) / max(1, episodes)
        else:
            out[key] = sum(values) / len(values)
    return out


def _found(path: Path) -> Path:
    """The checkpoint that a path means: what save_checkpoint wrote, a folder of checkpoints, or a checkpoint itself."""
    if (path / "meta.json").is_file() or not path.is_dir():
        return path
    whole = sorted(path.glob("[0-9]" * 12))
    try:
        latest = path / str(json.loads((path / "latest.json").read_text())["checkpoint"])
    except (OSError, ValueError, KeyError, TypeError):
        latest = whole[-1] if whole else path
    return latest if latest in whole else whole[-1] if whole else path


def _leaves(value: Any) -> list[Any]:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else None
    return [value] if parts is None else [leaf for part in parts for leaf in _leaves(part)]
