"""Training: collect -> update -> log -> checkpoint -> evaluate, in a run's folder, until the steps are done.

    from shoal.train import train

    run = train("cartpole", seed=1, train={"total_steps": "500k"})
    print(run.summary["eval"])

`Trainer` is the loop's body, for loops of your own: `trainer.iterate()` is one iteration. Two runs with the same seed
write the same weights, and a run that is stopped and resumed writes the weights of one that was not, to the bit, where
the env can give its state (all native envs can).
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import math
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

import shoal
from shoal import checkpoint, config, evaluate, registry, runs, seats
from shoal.algos import ops
from shoal.algos.actor import Actor, Role, cast, mask_size, seeded
from shoal.algos.algorithms import ALGORITHMS
from shoal.algos.device import Bridge, DeviceCollector, Graph, Pace, Tally, copy_into, warm_up
from shoal.algos.ppo import PPO
from shoal.algos.rollout import Collector, Rollout, Seat, Stepped
from shoal.config import opt
from shoal.entry import make
from shoal.errors import CheckpointError, CompilerMissing, ConfigError, ShoalError, TrainingError
from shoal.log import Loggers, RunFacts, open_all
from shoal.log import check as check_loggers
from shoal.native import lib
from shoal.native.cuda import require_gpu
from shoal.nn.encoders import Encoder
from shoal.nn.launch import compile_ahead, has_triton
from shoal.nn.policy import Net
from shoal.nn.qnet import QHead
from shoal.player import PolicyPlayer
from shoal.runs import Run
from shoal.vector.base import VecEnv
from shoal.vector.cuda import CudaVec
from shoal.vector.native import NativeVec
from shoal.vector.threads import available_cores

LOG_EVERY_S = 0.25  # at first; later every 1/200 of the time so far, so that a log never grows large
SMALL_WORK = 1 << 18  # rows of a minibatch times width: below, a second torch thread costs more than it gives

SMALLER = {  # options by which a run takes less memory, of whatever algorithm
    "num_envs": "fewer --vec.num-envs",
    "horizon": "a shorter --train.horizon",
    "minibatches": "more --train.minibatches",
    "replay_size": "a smaller --train.replay-size",
    "batch_size": "a smaller --train.batch-size",
}


@dataclass(frozen=True)
class Vec:
    """How the envs are stepped: the options of `--vec.*`."""

    num_envs: int = opt(0, "games at a time; 0: 1024 native ones, or 4 Python ones for each core", low=0, is_count=True)
    backend: Literal["auto", "serial", "threads", "process", "cuda"] = opt(
        "auto", "threads for native envs (cuda on a GPU), process for Python ones"
    )
    num_groups: int = opt(0, "native: groups that step in turns; 0: 2 where it pays", low=0, high=64)
    num_threads: int = opt(0, "native: threads that step; 0: every core", low=0, high=1024)
    num_workers: int = opt(0, "Python: worker processes; 0: every core", low=0, high=4096)
    overlap: bool = opt(True, "Python: half of the workers step while the policy works for the others")
    surplus_envs: int = opt(
        0, "Python: envs that a rollout does not wait for; their steps are of an older policy: --train.vtrace", low=0
    )
    torch_threads: int = opt(0, "threads of the policy; 0: every core, or one where the batches are small", low=0)
    timeout_s: float = opt(60.0, "Python: an env that takes longer to answer is reported", low=0.0)
    on_crash: Literal["raise", "restart"] = opt("raise", "Python: what happens when a worker dies")


@dataclass(frozen=True)
class Eval:
    """How the policy is judged: the options of `--eval.*`."""

    episodes: int = opt(100, "held-out episodes at the end; 0: none", low=0, high=1_000_000)
    every: int = opt(0, "steps between evaluations on the way; 0: only at the end", low=0, is_count=True)
    greedy: bool = opt(True, "take the likeliest action, not one drawn from the distribution")


@dataclass(frozen=True)
class Save:
    """When checkpoints are written: the options of `--save.*`."""

    every_s: float = opt(60.0, "seconds between checkpoints; 0: none by time", low=0.0)
    every: int = opt(0, "steps between checkpoints; 0: none by steps", low=0, is_count=True)
    keep: int = opt(2, "how many of the newest are kept, besides the best", low=1, high=1000)


@dataclass(frozen=True)
class Options:
    """Everything about a run. The fields are the tables of a TOML file."""

    algo: Literal["ppo", "dqn", "pqn"] = opt("ppo", "the algorithm")
    seed: int = opt(1, "of weights, actions and envs; the same seed gives the same run", low=0, high=2**31 - 1)
    device: Literal["auto", "cpu", "cuda"] = opt("auto", "where the policy lives, and native envs; auto: a GPU if any")
    opponents: str = opt("", "who plays the agents that do not learn: 1=seek,2=RUN; scripted robots and runs")
    train: Any = field(default_factory=PPO)  # the options of the algorithm
    vec: Vec = field(default_factory=Vec)
    nn: Net = field(default_factory=Net)
    eval: Eval = field(default_factory=Eval)
    save: Save = field(default_factory=Save)
    env: dict[str, Any] = field(default_factory=dict)


TABLES: dict[str, Any] = {"train": PPO, "vec": Vec, "nn": Net, "eval": Eval, "save": Save}
PLAIN = ("algo", "seed", "device", "opponents")
ALGORITHM_NAMES = tuple(ALGORITHMS)


def tuned(env: str) -> dict[str, Any]:
    """The tables of the env's own TOML file; empty where it has none. `score` is what they reached."""
    prefix, _, name = env.rpartition(":")
    path = registry.STOCK / (f"{prefix}/{name}.toml" if prefix else f"{env}.toml")
    if env.endswith(".h"):
        path = Path(env).with_suffix(".toml")
    if "/" in name and not env.endswith(".h"):
        return {}
    return config.read_toml(path) if path.is_file() else {}


def is_native(env: Any) -> bool:
    """Whether an env is a header, by name or by path."""
    return isinstance(env, (str, Path)) and (":" not in str(env) or str(env).endswith(".h"))


def merge(options: Options, tables: Mapping[str, Any], where: str, has_presets: bool = False) -> Options:
    """The options with what the tables say put over them. Unknown keys and wrong types raise.

    With another algorithm `train` starts anew: each has options of its own. A preset of a native env is
    a whole set of values: what lower layers said of the env's is gone.
    """
    if "algo" in tables:
        before, options = options.algo, config.from_dict(Options, {"algo": tables["algo"]}, where, options)
        if options.algo != before:
            options = dataclasses.replace(options, train=ALGORITHMS[options.algo].options())
    for name, value in tables.items():
        if name in ("score", "run", "cuda", "algo", *ALGORITHMS):
            continue
        if name in PLAIN:
            options = config.from_dict(Options, {name: value}, where, options)
        elif name == "env" and isinstance(value, Mapping):
            below = {} if has_presets and "preset" in value else options.env
            options = dataclasses.replace(options, env={**below, **dict(value)})
        elif name in TABLES and isinstance(value, Mapping):
            below = getattr(options, name)
            part = config.from_dict(type(below), value, name, below)
            options = dataclasses.replace(options, **{name: part})
        else:
            known = [*TABLES, "env", *PLAIN]
            if name in known:
                raise ConfigError(f"{where}: '{name}' is a table of options, not {value!r}.")
            raise ConfigError(f"{where}: '{name}'.{shoal.errors.did_you_mean(name, known)} Known: {', '.join(known)}.")
    return options


def options_for(env: Any, *layers: Mapping[str, Any]) -> Options:
    """Defaults, then the env's tuned values, then the layers, each over the one before.

    A table `cuda`, of the tuned values or of a file, has tables of its own for runs on a GPU: batches are larger there.
    The tuned values of another algorithm than the file's own are in a table of its name: `[dqn.train]`.
    """
    own = tuned(env) if isinstance(env, str) else {}
    algo = next((layer["algo"] for layer in reversed(layers) if "algo" in layer), own.get("algo", "ppo"))
    if algo != own.get("algo", "ppo") and algo in ALGORITHMS:
        common = {name: value for name, value in own.items() if name not in ("train", "cuda", "score")}
        own = {**common, **own.get(algo, {}), "algo": algo}
    options = merge(Options(), own, f"{env}.toml")
    asked = next((layer["device"] for layer in reversed(layers) if "device" in layer), options.device)
    on_gpu = asked == "cuda" or (asked == "auto" and torch.cuda.is_available())
    if on_gpu:
        options = merge(options, own.get("cuda", {}), f"{env}.toml [cuda]")
    for layer in layers:
        options = merge(options, layer, "options", is_native(env))
        if on_gpu:
            options = merge(options, layer.get("cuda", {}), "options [cuda]", is_native(env))
    return options


# ---- the loop's body ----


def env_seed(seed: int) -> int:
    """Where the env seeds of a run begin: runs with different seeds share no env's stream (up to 2^20 envs)."""
    return (seed << 20) % (1 << 30)


def make_vec(env: Any, options: Options) -> VecEnv:
    """The envs that a run steps."""
    vec = options.vec
    cores = available_cores()
    common: dict[str, Any] = dict(options.env)
    if vec.backend != "auto":
        common["backend"] = vec.backend
    if is_native(env):
        if vec.surplus_envs:
            raise ConfigError("--vec.surplus-envs is for Python envs in processes; native envs are never late.")
        count = vec.num_envs or 1024
        if vec.backend == "cuda" or (vec.backend == "auto" and device_of(options) == "cuda"):
            for name in ("num_groups", "num_threads"):
                if given := getattr(vec, name):
                    flag = f"--vec.{name.replace('_', '-')} {given}"
                    raise ConfigError(f"{flag} is for envs that the CPU steps. Drop it, or use --vec.backend threads.")
            return make(env, count, **{**common, "backend": "cuda"})
        backend = vec.backend if vec.backend != "auto" else "threads" if count >= 1024 else "serial"
        groups = vec.num_groups or (2 if backend == "threads" and count >= 1024 else 1)
        common |= {"backend": backend, "num_groups": groups}
        if backend == "threads":
            common["num_threads"] = vec.num_threads or cores
        return make(env, count, **common)
    count = vec.num_envs or 4 * cores
    if vec.backend == "serial" or (vec.backend == "auto" and count == 1):
        common["backend"] = "serial"
        return make(env, count, **common)
    workers = vec.num_workers or max(w for w in range(1, min(cores, count) + 1) if count % w == 0)
    common |= {"backend": "process", "num_workers": workers, "timeout_s": vec.timeout_s, "on_crash": vec.on_crash}
    if vec.surplus_envs:
        check_surplus(vec.surplus_envs, count, workers)
        common |= {"batch_size": count // workers, "zero_copy": True}
    elif vec.overlap and workers % 2 == 0:
        common |= {"batch_size": count // 2, "zero_copy": True}
    return make(env, count, **common)


def keep_freed_memory() -> None:
    """Tells the C library to keep freed memory for reuse, not to hand every large tensor back to the system.

    Else each activation of each minibatch is fresh memory whose pages fault in one by one, which takes longer than
    computing it. (glibc only; 32 MB is the largest threshold that it takes.)
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mmap_threshold, trim_threshold = -3, -1  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD of malloc.h
        mallopt(mmap_threshold, 32 << 20)
        mallopt(trim_threshold, 1 << 30)


def device_of(options: Options) -> str:
    """cpu or cuda."""
    if options.device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if options.device == "cuda":
        require_gpu()
    return options.device


@contextlib.contextmanager
def told_of_the_gpu(options: Options) -> Iterator[None]:
    """Says what a user can do about a GPU that is too small, or a machine on which Triton cannot build."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        given = {"num_envs": options.vec.num_envs or 1024, **config.to_dict(options.train)}
        sizes = {name: given[name] for name in SMALLER if given.get(name)}
        told, tried = ", ".join(f"{name}={size}" for name, size in sizes.items()), [SMALLER[name] for name in sizes]
        raise ConfigError(
            f"the GPU's memory does not hold this run ({told}): {str(error).partition('. ')[0]}. "
            f"Try {', '.join(tried[:-1])} or {tried[-1]}."
        ) from None
    except (RuntimeError, subprocess.CalledProcessError) as error:
        if not isinstance(error, subprocess.CalledProcessError):
            is_triton = str(error).startswith("Failed to find C compiler")
        else:  # gcc's: its words name Triton's folders
            is_triton = "triton" in str(error.cmd)
        if not is_triton:
            raise
        raise CompilerMissing(
            "Triton needs gcc (or clang, or CC) and Python's headers (python3-dev) to start kernels, and could not "
            "build with them. Install them, uninstall triton to train without its kernels, or use --device cpu."
        ) from error


def check_surplus(surplus: int, num_envs: int, workers: int) -> None:
    """Surplus envs are whole workers, and not all of them."""
    each = num_envs // workers
    if surplus % each or surplus >= num_envs:
        options = [str(each * k) for k in range(1, min(workers, 5))]
        raise ConfigError(
            f"--vec.surplus-envs {surplus} does not fit {workers} workers of {each} envs. Try {' or '.join(options)}."
            if options
            else f"--vec.surplus-envs {surplus} needs several workers; there is {workers}. Use --vec.num-workers."
        )


class EndedGames:
    """Count, sum, least and most of the returns of games that ended, where they were played: nothing waits."""

    def __init__(self, device: torch.device) -> None:
        self.totals = torch.zeros(2, dtype=torch.float64, device=device)
        self.ends = torch.zeros(2, device=device)
        self.clear()

    def clear(self) -> None:
        """None has ended."""
        self.totals.zero_()
        self.ends[0], self.ends[1] = torch.inf, -torch.inf

    def add(self, returns: Tensor, ended: Tensor) -> None:
        """Those of (steps, rows) that ended count."""
        some = torch.where(ended, returns, 0.0).sum(dtype=torch.float64)
        self.totals += torch.stack([ended.sum().to(torch.float64), some])
        self.ends[0] = torch.minimum(self.ends[0], torch.where(ended, returns, torch.inf).min())
        self.ends[1] = torch.maximum(self.ends[1], torch.where(ended, returns, -torch.inf).max())

    def drain(self) -> tuple[int, float, float, float]:
        """(count, mean, least, most) since the last call."""
        (count, total), (low, high) = self.totals.tolist(), self.ends.tolist()
        self.clear()
        return int(count), total / max(count, 1.0), low, high


class Trainer:
    """Envs, actors and learners of one run, and where it stands. `iterate` is one iteration."""

    def __init__(
        self,
        env: Any,
        options: Options,
        *,
        vec: Any = None,
        policy: nn.Module | Callable[..., nn.Module] | None = None,
    ) -> None:
        keep_freed_memory()
        self.opponents, options = seat_opponents(env, options)
        self.env, self.options = env, options
        self.vec: Any = make_vec(env, options) if vec is None else vec
        try:
            with told_of_the_gpu(options):
                self._build(policy)
        except BaseException:
            if vec is None:
                self.vec.close()
            raise
        self.step = self.iteration = 0
        self.wall_s = 0.0
        self.exact = True  # whether a resume so far was to the bit
        self._sums: dict[str, Any] = {}
        self._updates = 0
        self._learn_s = 0.0
        self._started = False
        self._graphs: tuple[Graph | None, list[Graph]] | None = None  # of collecting, and of every learner's update
        self._tallies = [Tally(self.device) for _ in self.learners]  # of the graphs' metrics
        self._pace = Pace()

    def _build(self, policy: Any) -> None:
        options, vec = self.options, self.vec
        self.agents = int(getattr(vec, "agents_per_env", 1))
        seats.check(self.opponents, self.agents)
        frozen = load_opponents(self.opponents, vec)
        self.num_rows = int(vec.num_envs) * (self.agents - len(self.opponents))
        options = self.options = dataclasses.replace(options, train=options.train.resolve(self.num_rows))
        self.roles = seats.without(cast(vec, options.nn.policies), self.opponents, self.agents)
        self.on_gpu = isinstance(vec, CudaVec) or device_of(options) == "cuda"
        self.device = vec.device if isinstance(vec, CudaVec) else torch.device(device_of(options))
        if self.on_gpu:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # or cuBLAS may sum in another order next time
            torch.backends.cudnn.deterministic = True
            torch.backends.cuda.matmul.allow_tf32 = options.train.precision != "fp32"
            torch.backends.cudnn.allow_tf32 = options.train.precision != "fp32"
            if kl := getattr(options.train, "target_kl", 0.0):
                raise ConfigError(
                    f"--train.target-kl {kl} looks at the policy between epochs, which a graph on a GPU cannot. "
                    "Use 0, or --device cpu."
                )
        self.algorithm = ALGORITHMS[options.algo]
        if options.vec.surplus_envs and options.algo != "ppo":
            raise ConfigError(
                f"--vec.surplus-envs is for --algo ppo: {options.algo} learns from whole rollouts. Use 0."
            )
        self.actors = [
            make_actor(role, options, k, policy, self.device, self.agents) for k, role in enumerate(self.roles)
        ]
        may_skip = not isinstance(vec, VecEnv) and Stepped(vec).may_skip
        self.learners = [
            self.algorithm.learner(
                options.train,
                actor,
                int(vec.num_envs) * role.count(self.agents),
                seed=options.seed + (k << 40),
                mask_size=mask_size(vec, actor.head),
                has_dead_rows=self.agents > 1 or may_skip or getattr(vec, "has_dead_rows", False),
                device=self.device,
            )
            for k, (actor, role) in enumerate(zip(self.actors, self.roles))
        ]
        taken = [Seat(a, r, x.rollout) for a, r, x in zip(self.actors, self.roles, self.learners)]
        self.frozen = [self._seat_frozen(actor, role) for actor, role in frozen]
        self._own = [torch.zeros_like(learner.rollout.rewards[0]) for learner in self.learners if self.opponents]
        self._ended = EndedGames(self.device)
        self.collector = self._make_collector([*taken, *self.frozen])
        self.threads = options.vec.torch_threads or self._torch_threads()
        # sums over threads and groups are in another order: what repeats a run to the bit is written down with it
        chosen: dict[str, Any] = {"torch_threads": self.threads, "num_envs": int(vec.num_envs)}
        groups = getattr(vec, "_groups", None)
        chosen |= {"num_groups": len(groups)} if isinstance(groups, list) else {}
        self.options = dataclasses.replace(options, vec=dataclasses.replace(options.vec, **chosen))

    def _seat_frozen(self, actor: Actor, role: Role) -> Seat:
        """A seat for an actor that learns nothing, with a random stream of its own."""
        horizon, rows = self.options.train.horizon, int(self.vec.num_envs) * role.count(self.agents)
        actor.to(self.device)
        actor.head.to(self.device)
        more: dict[str, Any] = {"mask_size": mask_size(self.vec, actor.head), "device": self.device}
        rollout = Rollout(actor, horizon, rows, segment=horizon, has_dead_rows=True, **more)  # none is learned from
        rollout.wants_last_value = False
        seed = self.options.seed + (sum(1 << k for k in role.agents or ()) << 44)
        return Seat(actor, role, rollout, torch.Generator(self.device).manual_seed(seed % (1 << 63)))

    def _make_collector(self, seats: list[Seat]) -> Any:
        vec, surplus = self.vec, self.options.vec.surplus_envs
        if not self.on_gpu:
            return Collector(vec, seats, surplus)
        if surplus:
            raise ConfigError(f"--vec.surplus-envs {surplus} is for --device cpu yet. Use 0 with a GPU.")
        fused = [learner.fused for learner in self.learners]
        return DeviceCollector(vec, seats, fused) if isinstance(vec, CudaVec) else Bridge(vec, seats, fused[0])

    def _torch_threads(self) -> int:
        rows = self.options.train.minibatch(self.num_rows)
        encoders = [m.features for actor in self.actors for m in actor.modules() if isinstance(m, Encoder)]
        width = max(self.options.nn.hidden, *encoders, 1)  # an image's features are many
        return available_cores() if rows * width >= SMALL_WORK else 1

    @property
    def num_params(self) -> int:
        """Weights that are trained."""
        return sum(p.numel() for actor in self.actors for p in actor.policy.parameters())

    @property
    def steps_per_iteration(self) -> int:
        """Transitions of one rollout, over all rows that it waits for."""
        horizon: int = self.options.train.horizon
        return horizon * (self.num_rows - self.options.vec.surplus_envs * self.agents)

    @property
    def is_done(self) -> bool:
        """Whether all steps are done, or all games that were asked for."""
        games = getattr(self.options.train, "num_episodes", 0)
        has_played = bool(games) and float(self.learners[0].games) >= games
        return has_played or bool(self.step >= self.options.train.total_steps)

    def start(self, seed: Any = None) -> None:
        """Resets the envs for a new run, by the run's seed or by one of their own."""
        self.collector.start(env_seed(self.options.seed) if seed is None else seed)
        self._started = True

    def iterate(self) -> None:
        """Collects one rollout and learns from it."""
        before = time.perf_counter()
        torch.set_num_threads(self.threads)
        if not self._started:
            self.start()
        with told_of_the_gpu(self.options):
            if self.on_gpu and self._graphs is None:
                self._capture()
                before = time.perf_counter()  # compiling and capturing is no training
            self.collect()
            self.learn()
            if self._graphs is not None and self._graphs[0] is not None:
                self._pace.step()
            elif self.on_gpu:
                torch.cuda.synchronize()
        self.wall_s += time.perf_counter() - before

    def wait(self) -> None:
        """Until the GPU has done all that it was asked for. That is training, too."""
        before = time.perf_counter()
        if self.on_gpu:
            with told_of_the_gpu(self.options):
                torch.cuda.synchronize()
        self.wall_s += time.perf_counter() - before

    def _capture(self) -> None:
        """Makes graphs of what stays on the GPU, and puts everything back to where it was before.

        Collecting does where the envs are there too, and learning unless the sizes of what is cut off are not known.
        """
        steps_there = isinstance(self.vec, CudaVec)
        if not steps_there and self.learners[0].rollout.cuts is None:
            self._graphs = None, []
            return
        kept = self._keep()
        streams = list(self._streams().values())
        collect = partial(self._collect, streams)
        updates = [partial(self._update, *both) for both in zip(self.learners, self._tallies)]

        def everything() -> None:
            if steps_there:
                collect()
            for update in updates:
                update()

        if has_triton():
            compile_ahead(everything)
        warm_up(everything)
        graph = Graph(collect, streams) if steps_there else None
        self._graphs = graph, [Graph(update, [x.generator]) for update, x in zip(updates, self.learners)]
        self._rewind(kept)

    def _keep(self) -> dict[str, dict[str, Tensor]]:
        """A copy of the state. A replay is copied to the host: the GPU need not have room for a second one."""
        return {
            name: {k: value.to("cpu" if ".replay." in k else value.device, copy=True) for k, value in part.items()}
            for name, part in self.state().items()
        }

    def _rewind(self, files: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Puts a state back into the very tensors that graphs hold."""
        for name, tensors in self._tensors().items():
            copy_into(tensors, files[name])
        for name, stream in self._streams().items():
            stream.set_state(files["state"][name])
        self._ended.clear()
        for tally in self._tallies:
            tally.drain()
        if isinstance(self.vec, CudaVec):
            self._resume_envs(files["state"])
            self.vec.drain_stats()

    def collect(self) -> None:
        """Fills the rollouts."""
        graph = self._graphs[0] if self._graphs is not None else None
        if graph is not None:
            graph()
        else:
            self._collect(list(self._streams().values()))
        self.step += self.steps_per_iteration

    def _collect(self, streams: list[torch.Generator]) -> None:
        self.collector.collect(streams)
        for learner, carry in zip(self.learners, self._own):
            # against opponents, returns are the learners' own; the env's are means over everyone
            rollout = learner.rollout
            sums = ops.running_returns(rollout.rewards, rollout.dones, 1.0, carry)
            ended = rollout.dones if rollout.alive is None else rollout.dones & rollout.alive[:-1]
            self._ended.add(sums, ended)

    def learn(self) -> None:
        """One update of every policy on its rollout."""
        before = time.perf_counter()
        done = (self.step - self.steps_per_iteration) / self.options.train.total_steps
        found: dict[str, Any] = {}
        graphs = self._graphs[1] if self._graphs is not None else []
        for k, learner in enumerate(self.learners):
            rate = learner.set_learning_rate(done)
            if graphs:
                graphs[k]()
                metrics = {}
            else:
                metrics = self.algorithm.update(learner)
            if len(self.learners) == 1:
                found = dict(metrics)
            else:
                for name, value in metrics.items():
                    found[name] = found.get(name, 0.0) + value / len(self.learners)
            found["learning_rate"] = rate
        if not self.on_gpu:  # there, once per log: looking means waiting
            self._refuse_nonsense(found)
        for name, value in found.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
        self._updates += 1
        self.iteration += 1
        self._learn_s += time.perf_counter() - before

    def _update(self, learner: Any, tally: Tally) -> None:
        tally.add(self.algorithm.update(learner))

    def drain(self) -> dict[str, float]:
        """The numbers since the last call: losses, episodes, seconds by kind."""
        self.wait()
        record: dict[str, float] = {"iteration": self.iteration, "step": self.step, "wall_s": self.wall_s}
        for tally in self._tallies if self._updates else ():
            for name, value in tally.drain().items():
                self._sums[name] = self._sums.get(name, 0.0) + value / len(self.learners)
        means = {name: float(value) / self._updates for name, value in self._sums.items()}
        if self.on_gpu:
            self._refuse_nonsense(means)
        record |= means
        self._sums.clear()
        self._updates = 0
        stats = self._own_returns(self.collector.vec.drain_stats())
        record["episode/n"] = stats.pop("episodes", 0)
        for name, numbers in stats.items():
            record |= {f"episode/{name}": numbers["mean"]}
            record |= {f"episode/{name}_min": numbers["min"], f"episode/{name}_max": numbers["max"]}
        for name, seconds in self.collector.times.drain().items():
            record[f"time/{name}"] = seconds
        record["time/learn"], self._learn_s = self._learn_s, 0.0
        return record

    def _own_returns(self, stats: dict[str, Any]) -> dict[str, Any]:
        """What drain_stats gave, with the learners' own episodes and returns where others play too."""
        if not self.opponents:
            return stats
        stats.pop("return", None)
        count, mean, low, high = self._ended.drain()
        if count:
            stats["return"] = {"mean": mean, "min": low, "max": high}
        return stats | {"episodes": count}

    def close(self) -> None:
        """Ends the envs."""
        self.vec.close()

    # ---- saving and going on ----

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Everything that going on to the bit needs, as the files of a checkpoint."""
        files = self._tensors()
        files["state"] |= {name: stream.get_state() for name, stream in self._streams().items()}
        if isinstance(self.vec, (NativeVec, CudaVec)) and self._started:
            files["state"]["envs"] = checkpoint.from_bytes(self.vec.snapshot())
        return files

    def _tensors(self) -> dict[str, dict[str, Tensor]]:
        """What learning and playing change, where it lies."""
        weights: dict[str, Tensor] = {}
        state: dict[str, Tensor] = {}
        for k, (actor, learner) in enumerate(zip(self.actors, self.learners)):
            weights |= {f"{k}.{name}": value for name, value in actor.state_dict().items()}
            state |= {f"{k}.{name}": value for name, value in learner.kept().items()}
            if learner.reward_norm is not None:
                state |= {f"{k}.reward_norm.{n}": v for n, v in learner.reward_norm.state_dict().items()}
            state |= {f"{k}.optimizer.{name}": value for name, value in learner.optimizer.state.items()}
            state |= {f"{k}.recurrent.{i}": part for i, part in enumerate(learner.rollout.state)}
        state |= {f"{k}.own_return": part for k, part in enumerate(self._own)}
        for k, seat in enumerate(self.frozen):
            state |= {f"opponent{k}.recurrent.{i}": part for i, part in enumerate(seat.rollout.state)}
        return {"weights": weights, "state": state}

    def _streams(self) -> dict[str, torch.Generator]:
        """The random streams of all seats."""
        streams = {f"{k}.generator": learner.generator for k, learner in enumerate(self.learners)}
        frozen = [seat.generator for seat in self.frozen if seat.generator is not None]
        return streams | {f"opponent{k}.generator": stream for k, stream in enumerate(frozen)}

    def counters(self) -> dict[str, Any]:
        """What meta.json says besides."""
        facts = {"iteration": self.iteration, "wall_s": self.wall_s, "env": str(self.env)}
        return {**facts, "envs_saved": isinstance(self.vec, (NativeVec, CudaVec)), "rows": self.num_rows}

    def restore(self, files: Mapping[str, Mapping[str, Tensor]], meta: Mapping[str, Any]) -> None:
        """Goes on from a checkpoint. Envs that cannot give their state start anew, and `exact` says so."""
        try:
            self._restore(files["weights"], files["state"], meta)
        except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
            if isinstance(error, ShoalError):
                raise
            reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error).partition("\n")[0]
            raise CheckpointError(f"this checkpoint does not fit this run: {reason}.") from None

    def _restore(self, weights: Mapping[str, Tensor], state: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        same_rows = meta.get("rows") == self.num_rows
        for k, (actor, learner) in enumerate(zip(self.actors, self.learners)):
            load_actor(actor, weights, k)
            if len(state[f"{k}.generator"]) != len(learner.generator.get_state()):
                other = "cpu" if self.on_gpu else "cuda"
                raise CheckpointError(
                    f"this checkpoint's random stream is not of {self.device.type}. Go on with --device {other}."
                )
            if not learner.optimizer.fits(_under(state, f"{k}.optimizer.")):
                kind = type(learner.optimizer).__name__
                raise CheckpointError(f"this checkpoint's optimizer state is not of this {kind}.")
        for name, stream in self._streams().items():
            stream.set_state(state[name])
        for name, tensor in self._tensors()["state"].items():
            # rewards that were not scaled before may be from now on
            _put(tensor, state.get(name), must=name in state if ".reward_norm." in name else same_rows)
        self.step, self.iteration, self.wall_s = int(meta["step"]), int(meta["iteration"]), float(meta["wall_s"])
        if "envs" in state and isinstance(self.vec, (NativeVec, CudaVec)) and same_rows:
            self._resume_envs(state)
        else:
            self.exact = False
            for part in self._own:
                part.zero_()
            for learner in self.learners:
                if hasattr(learner, "begin_anew"):
                    learner.begin_anew()
            for rollout in [*(learner.rollout for learner in self.learners), *(seat.rollout for seat in self.frozen)]:
                for part in rollout.state:
                    part.zero_()
            # not the seeds of the start again: those episodes have been seen
            self.collector.start((env_seed(self.options.seed) + self.step) % (1 << 30))
        self._started = True

    def _resume_envs(self, state: Mapping[str, Tensor]) -> None:
        obs = self.vec.restore(checkpoint.to_bytes(state["envs"]))
        memory: Any = self.vec.tensors if isinstance(self.vec, CudaVec) else self.vec.memory.arrays
        self.collector.resume(obs, {"alive": memory["alive"], "action_mask": memory["masks"]})

    def player(self, greedy: bool) -> PolicyPlayer:
        """The policy as it is, to be evaluated."""
        actors = self.actors if not self.on_gpu else [actor.on_cpu() for actor in self.actors]
        others = [(seat.actor.on_cpu() if self.on_gpu else seat.actor, seat.role) for seat in self.frozen]
        judged = None
        if self.opponents:
            judged = [k for k in range(self.agents) if k not in self.opponents]
        return PolicyPlayer(
            [*actors, *(actor for actor, _ in others)],
            [*self.roles, *(role for _, role in others)],
            self.agents,
            greedy=greedy,
            seed=self.options.seed,
            judged=judged,
        )

    # ---- when numbers go wrong ----

    def _refuse_nonsense(self, metrics: Mapping[str, Any]) -> None:
        """Metrics are numbers, or tensors of one."""
        watched = [value for name, value in metrics.items() if name != "explained_variance"]
        tensors = [value for value in watched if isinstance(value, Tensor)]
        numbers = [value for value in watched if not isinstance(value, Tensor)]
        if all(map(math.isfinite, numbers)) and (not tensors or bool(torch.isfinite(torch.stack(tensors)).all())):
            return
        raise TrainingError(f"{self._culprit(metrics)} The last good checkpoint is as it was.")

    def _culprit(self, metrics: Mapping[str, Any]) -> str:
        at = f"step {self.step:,} (iteration {self.iteration + 1})"
        for learner, role in zip(self.learners, self.roles):
            rollout = learner.rollout
            names = [leaf.name for leaf in rollout.layout.leaves]
            places = [(f"observation{n}", leaf) for n, leaf in zip(names, rollout.obs) if leaf.dtype.is_floating_point]
            places.append(("reward", rollout.rewards))  # obs[t] is seen before rewards[t] is earned
            for what, values in sorted(places, key=lambda place: _first_bad(place[1])):
                bad = ~torch.isfinite(values.reshape(len(values), rollout.rows, -1))
                if bool(bad.any()):
                    t, row, element = (int(x) for x in bad.nonzero()[0])
                    value = float(values.reshape(len(values), rollout.rows, -1)[t, row, element])
                    return f"the {what} of {self._who(row, role)} is {value} (element {element}), seen before {at}."
            for rows, last in rollout.cut_off():
                for name, leaf in zip(names, last):
                    bad = ~torch.isfinite(leaf.reshape(len(leaf), -1))
                    if bool(bad.any()):
                        k, element = (int(x) for x in bad.nonzero()[0])
                        value = float(leaf.reshape(len(leaf), -1)[k, element])
                        who = self._who(int(rows[k]), role)
                        return f"the last observation{name} of {who} is {value} (element {element}), seen before {at}."
        named = [name for name, value in metrics.items() if not math.isfinite(float(value))]
        rate = self.options.train.learning_rate
        return (
            f"{', '.join(named)} became not finite at {at}, though observations and rewards are finite. "
            f"Try a smaller --train.learning-rate than {rate:g}, or --train.normalize-obs True."
        )

    def _who(self, row: int, role: Role) -> str:
        env, agent = divmod(row, role.count(self.agents))
        number = agent if role.agents is None else role.agents[agent]
        return f"env {env}" + (f", agent {number}" if self.agents > 1 else "")


def seat_opponents(env: Any, options: Options, root: Path = runs.ROOT) -> tuple[dict[int, str], Options]:
    """Who plays which agent, and the options with the env's own robots in their seats and runs by their checkpoints."""
    opponents = seats.parse(options.opponents)
    if not opponents:
        return {}, options
    spec = lib.load(registry.find(str(env))).spec if is_native(env) else None
    robots = seats.scripted(spec, opponents)
    for seat, who in opponents.items():
        if f"robot_{seat}" not in robots:
            try:
                opponents[seat] = str(_checkpoint_of(who, root))
            except ShoalError as error:
                raise seats.not_found(who, seat, spec, str(error)) from None
    return opponents, dataclasses.replace(options, opponents=seats.write(opponents), env={**options.env, **robots})


def _checkpoint_of(who: str, root: Path) -> Path:
    """A checkpoint's folder: the one that is named, or a run's best."""
    path = Path(who)
    if (path / "meta.json").is_file():
        return path.resolve()
    found = runs.find(who, root).best
    if found is None:
        raise ConfigError(f"{who} has no checkpoint yet.")
    return found.resolve()


def load_opponents(opponents: Mapping[int, str], vec: Any) -> list[tuple[Actor, Role]]:
    """The actors of runs that play seats of an env, each with all seats that it plays."""
    spec = getattr(vec, "spec_env", None)
    found: dict[tuple[str, int, int], tuple[Actor, list[int]]] = {}
    for seat, who in opponents.items():
        if who in seats.scripts(spec, seat):
            continue
        path = Path(who)
        player, _ = load_player(Run(path.parent.parent), path)
        agents = list(player.judged or range(player.agents))
        source = seat if seat in agents else agents[0]  # a run of one seat plays any other as it played its own
        number = next(n for n, role in enumerate(player.roles) if role.agents is None or source in role.agents)
        mine = player.roles[number]
        place = source if mine.agents is None else mine.agents.index(source)
        has_own = getattr(player.actors[number].policy, "agents", 1) > 1
        key = (who, number, place if has_own else 0)
        if key not in found:
            actor = player.actors[number].of_agent(place)
            if isinstance(actor.head, QHead):
                actor.head.epsilon.zero_()  # it explores no more
            found[key] = actor, []
        found[key][1].append(seat)
    every = cast(vec, "shared")
    made = []
    for (who, *_), (actor, taken) in found.items():
        home = next(role for role in every if role.agents is None or taken[0] in role.agents)
        role = seats.only(home, taken)
        if (actor.space, actor.head.space) != (role.observation_space, role.action_space):
            raise ConfigError(
                f"--opponents {taken[0]}={who}: that run sees {actor.space} and does {actor.head.space}; the agent "
                f"here sees {role.observation_space} and does {role.action_space}. Name a run of such an env."
            )
        made.append((actor, role))
    return made


def _first_bad(values: Tensor) -> int:
    """The first step with a value that is not finite."""
    bad = ~torch.isfinite(values.flatten(1)).all(1)
    return int(bad.nonzero()[0]) if bool(bad.any()) else len(values) + 1


def make_actor(
    role: Role, options: Options, number: int, policy: Any = None, device: Any = "cpu", agents: int = 1
) -> Actor:
    """The actor of a role in envs of so many agents: the user's own policy, or the one that `--nn.*` describes."""
    own, head, seed = policy, None, options.seed + (number << 40)
    make_policy, count = ALGORITHMS[options.algo].make_policy, role.count(agents)
    if policy is not None and not isinstance(policy, nn.Module):
        with seeded(options.seed):
            own = policy(role.observation_space, role.action_space)
    if make_policy is not None:
        with seeded(seed):
            made, head = make_policy(options.train, role, options.nn, count)
        own = made if own is None else own
    return Actor(
        role.observation_space,
        role.action_space,
        options.nn,
        seed=seed,
        policy=own,
        head=head,
        agents=count,
        normalize_obs=options.train.normalize_obs,
        compile=getattr(options.train, "compile", False),
        precision=options.train.precision,
        device=device,
    )


def load_actor(actor: Actor, weights: Mapping[str, Tensor], number: int) -> None:
    """Puts a checkpoint's weights into an actor, or says what does not fit."""
    mine = _under(weights, f"{number}.")
    for name, value in actor.state_dict().items():
        if name in mine and mine[name].dtype != value.dtype:
            raise CheckpointError(f"this checkpoint's {name} is {mine[name].dtype}, not {value.dtype}: it is not ours.")
    try:
        actor.load_state_dict(mine)
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines()[1:3]]
        raise CheckpointError(
            f"this checkpoint is of another policy: {' '.join(lines)} Give the --nn options it was trained with."
        ) from None


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}


def _put(into: Tensor, value: Tensor | None, must: bool) -> None:
    if value is not None and value.shape == into.shape and value.dtype == into.dtype:
        into.copy_(value)
    elif must:
        what = "nothing" if value is None else f"{tuple(value.shape)} of {value.dtype}"
        raise CheckpointError(f"this checkpoint has {what} where {tuple(into.shape)} of {into.dtype} fits.")


# ---- one run ----


def train(
    env: Any,
    /,
    *,
    policy: nn.Module | Callable[..., nn.Module] | None = None,
    config_file: str | Path | None = None,
    resume: str | Path | Run | None = None,
    runs_folder: str | Path = runs.ROOT,
    log: tuple[str, ...] = (),
    log_options: Mapping[str, Mapping[str, Any]] | None = None,
    console: str = "auto",
    options: Options | None = None,
    **tables: Any,
) -> Run:
    """Trains a policy on an env and returns the run. The keyword tables are those of a TOML file.

        train("breakout", seed=3, train={"total_steps": "20M"}, vec={"num_envs": 2048}, nn={"core": "lstm"})

    Args:
        env: what `shoal.make` takes: a name, a header's path, `gymnasium:…`, a function or class.
        policy: your own `nn.Module` that returns (logits, value), or a function of the spaces that makes one.
        config_file: a TOML file whose tables go over the env's tuned ones.
        resume: a run to go on with: its folder, id, `last`, or `auto` for this env's newest unfinished one.
        runs_folder: where the folders of runs are.
        log: loggers besides metrics.jsonl and the console: `tensorboard`, `wandb`.
        log_options: options of those, by name.
        console: `auto`, `dashboard`, `lines` or `off`.
        options: all options at once, instead of tables.
        **tables: algo, seed, device, and the tables train, vec, nn, eval, save, env.
    """
    root = Path(runs_folder)
    old = _run_to_resume(env, resume, root)
    if options is None:
        layers = [config.read_toml(Path(config_file))] if config_file is not None else []
        layers += [old.config] if old is not None else []
        options = options_for(env, *layers, tables)
    _check_devices(options)
    _, options = seat_opponents(env, options, root)
    check_loggers(log, log_options, console=console)
    if old is not None:
        with contextlib.suppress(OSError):
            checkpoint.recover(old.folder / "checkpoints")
    loaded = checkpoint.load_newest(old.checkpoints()) if old is not None else None
    trainer = Trainer(env, options, policy=policy)
    try:
        run = old if old is not None else runs.create(_env_name(env), root)
        if loaded is not None:
            trainer.restore(loaded[1], loaded[2])
        _describe(run, trainer, is_new=old is None)
        loggers = open_all(_run_facts(run, trainer), log, log_options, console=console)
    except OSError as error:
        trainer.close()
        raise ConfigError(f"{run.folder} cannot be written: {error.strerror or error}.") from None
    except BaseException:
        trainer.close()
        raise
    session = _Session(run, trainer, loggers)
    if old is not None and not trainer.exact:
        loggers.note(f"{_env_name(env)} cannot give its state: its envs start anew, so this resume is not to the bit")
    return session.go()


class _Session:
    """A trainer at work in a run's folder: logs, checkpoints, signals, the end."""

    def __init__(self, run: Run, trainer: Trainer, loggers: Loggers) -> None:
        self.run, self.trainer, self.loggers, self.options = run, trainer, loggers, trainer.options
        self.folder = run.folder / "checkpoints"
        self.signal = 0
        now = time.perf_counter()
        self.logged_at = self.saved_at = self.began = now
        self.first_step, self.logged_step = trainer.step, trainer.step
        self.saved_step, self.judged_step = trainer.step, trainer.step
        self.score: tuple[float, int] = (0.0, 0)  # sum and count of returns since the last checkpoint
        self.best = _best_score(run)
        self.usage = _Usage()

    def go(self) -> Run:
        """Trains to the end, or until a signal; what happened is in summary.json."""
        trainer, status, reason = self.trainer, "failed", ""
        (self.run.folder / "summary.json").unlink(missing_ok=True)
        try:
            with self._signals():
                while not trainer.is_done and not self.signal:
                    trainer.iterate()
                    self._after_iteration()
                self._log()
                self._save(must=True)
            status = "interrupted" if self.signal else "finished"
            reason = signal.Signals(self.signal).name if self.signal else ""
        except BaseException as error:
            reason = f"{type(error).__name__}: {error}"
            self._finish("failed", reason, None)
            raise
        try:
            score = None if self.signal or not self.options.eval.episodes else self._judge()
        except BaseException as error:  # the training is done and saved
            self._finish(status, f"no evaluation: {type(error).__name__}", None)
            raise
        self._finish(status, reason, score)
        if self.signal:
            raise Stopped(self.signal, self.run)
        return self.run

    def _after_iteration(self) -> None:
        now, trainer, options = time.perf_counter(), self.trainer, self.options
        if now - self.logged_at >= max(LOG_EVERY_S, (now - self.began) / 200):
            self._log()
        if options.eval.every and trainer.step - self.judged_step >= options.eval.every and not trainer.is_done:
            self._judge()
        by_time = options.save.every_s and now - self.saved_at >= options.save.every_s
        by_steps = options.save.every and trainer.step - self.saved_step >= options.save.every
        if (by_time or by_steps) and not trainer.is_done:
            self._log()
            self._save()

    def _log(self) -> None:
        trainer, now = self.trainer, time.perf_counter()
        if trainer.step == self.logged_step:
            return
        record = trainer.drain()
        total = now - self.logged_at
        known = sum(record[f"time/{kind}"] for kind in ("env", "inference", "copy", "learn"))
        record |= {"time/total": total, "time/other": max(0.0, total - known), "time": time.time()}
        record |= {"sps": (trainer.step - self.logged_step) / total, **self.usage.read()}
        if record.get("episode/n"):
            total_return, count = self.score
            n = int(record["episode/n"])
            self.score = total_return + record["episode/return"] * n, count + n
        self.logged_at, self.logged_step = now, trainer.step
        self.loggers.log(record)

    def _save(self, must: bool = False) -> None:
        trainer, options = self.trainer, self.options
        total_return, count = self.score
        score = total_return / count if count else None
        try:
            facts = {**trainer.counters(), "score": score}
            path = checkpoint.save(self.folder, trainer.step, trainer.state(), facts, options.save.keep)
            if score is not None and (self.best is None or score >= self.best):
                self.best = score
                checkpoint.mark_best(self.folder, path, score)
        except (CheckpointError, OSError) as error:
            if must:
                raise
            self.loggers.note(f"warning: {error}")
        else:
            told = "" if score is None else f", return {score:.4g}"
            self.loggers.note(f"checkpoint at {trainer.step:,} steps{told}")
        self.saved_at, self.saved_step, self.score = time.perf_counter(), trainer.step, (0.0, 0)

    def _judge(self) -> evaluate.Score | None:
        """Plays held-out episodes with the policy as it is."""
        options, trainer = self.options, self.trainer
        creator = partial(make, trainer.env, **options.env)
        try:
            player = trainer.player(options.eval.greedy)
            score = evaluate.play(creator, player, max(1, options.eval.episodes), env_seed(options.seed))
        except ShoalError as error:
            self.loggers.note(f"warning: no evaluation: {error}")
            return None
        self.judged_step = trainer.step
        self.loggers.note(f"evaluation: return {score.describe()}")
        record: dict[str, float] = {"step": trainer.step, "iteration": trainer.iteration, "wall_s": trainer.wall_s}
        record |= {"eval/return": score.mean, "eval/return_min": score.min, "eval/return_max": score.max}
        self.loggers.log({**record, "eval/length": score.length, "eval/n": len(score.returns), "time": time.time()})
        return score

    def _finish(self, status: str, reason: str, score: evaluate.Score | None) -> None:
        trainer = self.trainer
        trainer.close()
        seconds = time.perf_counter() - self.began
        summary: dict[str, Any] = {"status": status, "step": trainer.step, "wall_s": trainer.wall_s}
        summary |= {"sps": (trainer.step - self.first_step) / max(seconds, 1e-9), "reason": reason}
        summary |= {"eval": None if score is None else score.facts(), "exact": trainer.exact}
        with contextlib.suppress(OSError):
            self.run.write("summary.json", summary)
        self.loggers.close(summary)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGINT, SIGTERM and SIGUSR1 end the run after this iteration, with a checkpoint; a second SIGINT now."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask(number: int, _frame: Any) -> None:
            if self.signal and number == signal.SIGINT:
                raise KeyboardInterrupt
            self.signal = number
            self.loggers.note(f"{signal.Signals(number).name}: saving a checkpoint after this iteration")

        wanted = [signal.SIGINT, signal.SIGTERM, *([signal.SIGUSR1] if hasattr(signal, "SIGUSR1") else [])]
        before = {number: signal.signal(number, ask) for number in wanted}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class Stopped(KeyboardInterrupt):
    """A signal ended the run after a checkpoint. `run` is where to go on; the exit code is 128 + signal."""

    def __init__(self, number: int, run: Run) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}; go on with --resume {run.folder}")
        self.number, self.run = number, run


class _Usage:
    """CPU and memory of this process and its workers."""

    def __init__(self) -> None:
        import psutil

        self.process = psutil.Process()
        psutil.cpu_percent(None)
        self._cpu = psutil.cpu_percent

    def read(self) -> dict[str, float]:
        """Percent of all cores, and MB of this process and its children."""
        used = self.process.memory_info().rss
        for child in self.process.children():
            with contextlib.suppress(Exception):
                used += child.memory_info().rss
        return {"cpu_percent": self._cpu(None), "memory_mb": used / 1e6}


def load_player(run: Run, at: Path | None = None, device: str = "cpu", greedy: bool | None = None) -> tuple[Any, Any]:
    """A run's policy as a player, and the keyword arguments of `shoal.make` for its env."""
    name = run.facts.get("env", run.env)
    if not run.facts.get("env_is_a_name", True):
        raise ConfigError(f"{run.id} was trained on {name}, a function: evaluate it from Python, with the function.")
    options = options_for(name, run.config)
    path = at or run.best
    if path is None:
        raise ConfigError(f"{run.folder} has no checkpoint yet.")
    files, _ = checkpoint.load(path, ("weights",))
    with contextlib.closing(make(name, 1, **{**options.env, "backend": "serial"})) as vec:
        agents, opponents = vec.agents_per_env, seats.parse(options.opponents)
        roles = seats.without(cast(vec, options.nn.policies), opponents, agents)
        frozen = load_opponents(opponents, vec)
    if run.facts.get("own_policy"):
        raise ConfigError(f"{run.id} was trained with a policy of your own. Load its weights into it: {path}.")
    actors = [make_actor(role, options, k, agents=agents) for k, role in enumerate(roles)]
    for k, actor in enumerate(actors):
        load_actor(actor, files["weights"], k)
    chosen = options.eval.greedy if greedy is None else greedy
    judged = [k for k in range(agents) if k not in opponents] if opponents else None
    actors, roles = [*actors, *(a for a, _ in frozen)], [*roles, *(r for _, r in frozen)]
    player = PolicyPlayer(actors, roles, agents, greedy=chosen, seed=options.seed, judged=judged)
    return player, {"env": name, **options.env}


def _check_devices(options: Options) -> None:
    if options.train.total_steps < 1:
        raise ConfigError("--train.total-steps must be at least 1.")


def _env_name(env: Any) -> str:
    return str(env) if isinstance(env, (str, Path)) else getattr(env, "__name__", type(env).__name__)


def _run_to_resume(env: Any, resume: Any, root: Path) -> Run | None:
    if resume is None:
        return None
    if isinstance(resume, Run):
        return resume
    if str(resume) != "auto":
        return runs.find(resume, root)
    name = runs.folder_name(_env_name(env))
    mine = [run for run in runs.all_runs(root) if run.env == name and run.checkpoints() and not run.is_running]
    unfinished = [run for run in mine if (run.summary or {}).get("status") != "finished"]
    return unfinished[-1] if unfinished else None


def _best_score(run: Run) -> float | None:
    with contextlib.suppress(Exception):
        import json

        return float(json.loads((run.folder / "checkpoints" / "best.json").read_text())["score"])
    return None


def as_tables(options: Options) -> dict[str, Any]:
    """The options as the tables of a TOML file."""
    tables: dict[str, Any] = {name: getattr(options, name) for name in PLAIN}
    for name in TABLES:
        tables[name] = config.to_dict(getattr(options, name))
    return {**tables, "env": {key: _plain(value) for key, value in options.env.items()}}


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def _describe(run: Run, trainer: Trainer, is_new: bool) -> None:
    """Writes config.toml and run.json."""
    env, options = trainer.env, trainer.options
    tables = as_tables(options)
    plain = {key: value for key, value in tables["env"].items() if isinstance(value, (int, float, str, bool, list))}
    tables["env"] = plain
    runs.write_atomic(run.folder / "config.toml", config.write_toml(tables).encode())
    facts: dict[str, Any] = dict(run.facts) if not is_new else {"started": time.strftime("%Y-%m-%dT%H:%M:%S")}
    name = _env_name(env)
    facts |= {"id": run.id, "env": name, "env_is_a_name": isinstance(env, (str, Path)), "algo": options.algo}
    facts |= {
        "seed": options.seed,
        "device": device_of(options),
        "command": sys.argv,
        "commit": runs.commit(),
        "pid": os.getpid(),
    }
    facts["pid_began"] = runs.process_began(os.getpid())
    facts["versions"] = {
        "shoal": shoal.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
    facts["machine"] = {"system": platform.platform(), "cores": available_cores()}
    known = dataclasses.asdict(_run_facts(run, trainer))
    shown = ("backend", "num_envs", "num_rows", "num_threads", "num_params", "horizon", "total_steps")
    facts |= {name: known[name] for name in shown}
    run.write("run.json", facts)
    for name in ("facts", "config"):  # both are read again
        run.__dict__.pop(name, None)


def _run_facts(run: Run, trainer: Trainer) -> RunFacts:
    options = trainer.options
    return RunFacts(
        folder=run.folder,
        id=run.id,
        env=_env_name(trainer.env),
        algo=options.algo,
        backend=getattr(trainer.vec, "backend", "gymnasium"),
        device=str(trainer.device),
        seed=options.seed,
        num_envs=int(trainer.vec.num_envs),
        num_rows=trainer.num_rows,
        horizon=options.train.horizon,
        num_threads=int(getattr(trainer.vec, "num_threads", 0) or getattr(trainer.vec, "num_workers", 0) or 1),
        total_steps=options.train.total_steps,
        num_params=trainer.num_params,
        resumed_from=trainer.step,
        config=as_tables(options),
    )
