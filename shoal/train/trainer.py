"""Trainer: envs, actors and learners of one run, and its progress. `iterate` collects a rollout and learns from it.

Two runs with the same seed write the same weights. A run that is stopped and resumed writes the same weights, bit for
bit, as one that was not, if its envs can save their state (all native envs can).
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from shoal import checkpoint
from shoal.algos.actor import Actor
from shoal.algos.agents.actor import AgentActor
from shoal.algos.algorithm import ALGORITHMS
from shoal.algos.collect import Seat
from shoal.algos.collect.device import DeviceCollector
from shoal.algos.collect.host import HostCollector
from shoal.algos.collect.host_envs import HostEnvCollector
from shoal.algos.collect.league import LeagueCollector
from shoal.algos.collect.native import NativeCollector, covers
from shoal.algos.optimizers import fits
from shoal.algos.roles import Role, assign_roles, find_groups, groups_of, mask_size
from shoal.algos.rollout import Rollout
from shoal.algos.shards import Shards
from shoal.errors import CheckpointError, ConfigError, ShoalError
from shoal.nn.encoders import Encoder
from shoal.player import PolicyPlayer
from shoal.seeds import stream_seed
from shoal.spec import Array
from shoal.train import init as initial_weights
from shoal.train import league_members, restoring, seats, shard_options
from shoal.train.curriculum import changing_seats
from shoal.train.env_params import ParamSchedules
from shoal.train.envs import device_of, env_seed, make_vec, resolve_train
from shoal.train.graphs import Graphs, Pace, copy_of_state, put_back
from shoal.train.health import Context, check_finite, gpu_errors_explained
from shoal.train.league_play import LeaguePlay, find_seating
from shoal.train.opponents import is_capturable, load_opponents, memory_of, restore_memory, seat_opponents
from shoal.train.options import Options
from shoal.train.param_changes import set_env_params
from shoal.train.players import load_actor, make_actors, policy_name, seat_player, under, with_policies
from shoal.train.shaping import Shaping
from shoal.train.tally import MAX_LISTED, AgentTally, ReturnTally, Tally
from shoal.train.torch_settings import TorchSettings, keep_freed_memory, use_deterministic_kernels
from shoal.train.torch_threads import Shape, choose_threads
from shoal.vector.base import VecEnv
from shoal.vector.foreign import as_vec_env


class Trainer:
    """One run in training, without a folder: for your own training loop.

    Args:
        env: what `shoal.make` takes.
        options: `options_for(env, ...)`.
        vec: a vector env to train on, instead of one made from env and options.
        policy: a custom `nn.Module` that returns (logits, value), or a function of the spaces that makes one.
        first_seed: the seed of the envs' first reset; default: derived from the run's seed.
        is_resumed: `restore` follows, so the weights of `--init` are not loaded.
        reward: a reward of your own, which the learners see in place of the env's: a class or object with `compute`.
        shards: all shards of the run, if this trains one of them (sharded.py). Steps and rows are those of all.
    """

    def __init__(
        self,
        env: Any,
        options: Options,
        *,
        vec: Any = None,
        policy: nn.Module | Callable[..., nn.Module] | None = None,
        first_seed: Any = None,
        is_resumed: bool = False,
        reward: Any = None,
        shards: Shards | None = None,
    ) -> None:
        shard_options.check(options, shards)
        keep_freed_memory()
        self.torch_settings = TorchSettings()
        self.opponents, options = seat_opponents(env, league_members.resolve(env, options, vec=vec))
        self.env, self.options = env, options
        self.shards, self.num_shards = shards, 1 if shards is None else shards.count
        made = options if shards is None else shard_options.of_one(env, options, shards.count)  # what its envs need
        self.first_env = 0 if shards is None else shards.index * made.vec.num_envs  # its number in the run
        self.first_seed = env_seed(options.seed) + self.first_env if first_seed is None else first_seed
        self.step = self.iteration = 0
        self.wall_s = 0.0
        self.is_resumed = is_resumed
        self.exact = True  # whether all resumes were bit-exact
        self.is_broken = False  # whether it failed while other processes took part
        self.is_kept = False  # whether a pool keeps it for the next run (swap.py)
        self.is_altered = False  # whether its envs have other params than the options say
        self._started = False
        self._updates = 0  # since the last drain
        self._params_now: dict[str, float] = {}  # of the rollout: env params that have a schedule
        self._learn_s = 0.0
        self.graphs: Graphs | None = None
        self._is_captured = False
        self._pace = Pace()
        self.vec: VecEnv = make_vec(env, made) if vec is None else as_vec_env(vec)
        try:
            with gpu_errors_explained(options):
                self._build(policy, reward)
        except BaseException:
            self.torch_settings.restore()
            if vec is None:
                self.vec.close()
            raise

    # ---- building ----

    def _build(self, policy: Any, reward: Any = None) -> None:
        options, vec = self.options, self.vec
        self.agents = vec.agents_per_env
        seats.check(self.opponents, self.agents)
        seating = find_seating(vec, options)
        frozen = load_opponents(self.opponents, vec, options.seed)
        changing = changing_seats(options, vec)
        self.goal = None if changing is None else frozen  # whom evaluations play, where a curriculum changes opponents
        self.num_rows = self.num_envs * (self.agents - len(self.opponents))
        if seating is not None:
            self.num_rows = seating.own[0].num_rows(vec.num_envs, self.agents)
        options = self.options = dataclasses.replace(options, train=resolve_train(options, vec, self.num_rows))
        roles = assign_roles(vec, options.nn.policies, options.nn.groups)
        # of each learner: the agents that it can play, and in a league those rows that it plays
        self.roles = seats.without(roles, self.opponents, self.agents)
        played = self.roles
        if seating is not None:
            played = seating.own
            self.roles = [dataclasses.replace(seating.role, name=role.name) for role in played]
        named = find_groups(vec, options.nn.groups)
        self.groups = named or groups_of(roles)
        if self.agents > 1:
            options = self.options = with_policies(options, named)
        self.on_gpu = vec.is_on_gpu or device_of(options) == "cuda"
        self.device = torch.device(vec.device if vec.is_on_gpu else device_of(options))
        if self.on_gpu:
            use_deterministic_kernels(options.train.precision)
        self.algorithm = ALGORITHMS.find(options.algo)
        if options.vec.surplus_envs and not self.algorithm.takes_late_steps:
            raise ConfigError(
                f"--vec.surplus-envs {options.vec.surplus_envs} is not supported by --algo {options.algo}, which needs "
                "complete rollouts. Use 0, or --algo ppo."
            )
        # Python envs do not declare action masks: the infos of the first reset show them
        first = None if vec.native_spec is not None else vec.reset(seed=self.first_seed)
        infos = {} if first is None else first[1]
        self.actors = make_actors(played, options, policy, self.device, self.agents)
        # before the learners are made: they copy weights (DQN's target network)
        has_init = bool(options.init) and not self.is_resumed
        self.init = initial_weights.load(self.actors, options) if has_init else None
        config, own = shard_options.of_learner(self.algorithm, options, self.shards)
        self.learners = [
            self.algorithm.learner(
                config,
                actor,
                role.num_rows(vec.num_envs, self.agents),
                seed=options.seed,
                name=policy_name(k),
                mask_size=mask_size(vec, role, actor.head, infos),
                has_dead_rows=vec.has_dead_rows,
                optimizer_options=options.optimizer,
                device=self.device,
                **own,
            )
            for k, (actor, role) in enumerate(zip(self.actors, played))
        ]
        self.shaping = Shaping(reward, options, self.learners, self.device)
        learning = zip(self.actors, played, self.learners)
        self.seats = [Seat(a, r, learner.rollout, learner.streams["actions"]) for a, r, learner in learning]
        for k, seat in enumerate(self.seats):
            seat.shaper = self.shaping.shaper(k)
        self.frozen = [self._seat_frozen(actor, role, infos) for actor, role in changing or frozen]
        self.league: LeaguePlay | None = None
        if seating is not None:
            size = mask_size(vec, seating.others, self.actors[0].head, infos)
            self.league = LeaguePlay(seating, vec, self.options, self.learners, size, self.device, policy)
        # against opponents, the returns of the learners are summed here: the env's are means over all agents
        judged = self.learners[:1] if self.league is not None else self.learners
        self._own_returns = [torch.zeros_like(x.rollout.rewards[0]) for x in judged if self.has_opponents]
        self._ended = ReturnTally(self.device)
        self._tallies = [Tally(self.device) for _ in self.learners]
        self._agents_seen = AgentTally()
        self.collector = self._make_collector([*self.seats, *self.frozen])
        if first is not None:
            self.collector.resume(first[0], {**infos, **vec.current_infos()})
            self._started = True
        self.param_schedules = ParamSchedules(vec, options.env, options.vec.surplus_envs)
        # one with shards: the number decides the order of sums, and must not depend on the processes' cores
        is_single = self.on_gpu or self.shards is not None
        self.threads = options.vec.torch_threads or (1 if is_single else self._torch_threads())
        # results depend on the order of sums, so on threads and groups: they are saved, so that a run can be repeated
        chosen: dict[str, Any] = {"torch_threads": self.threads, "num_envs": self.num_envs}
        if vec.native_spec is not None and not vec.is_on_gpu:
            chosen["num_groups"] = len(vec.ranges)
        self.options = dataclasses.replace(options, vec=dataclasses.replace(options.vec, **chosen))

    def _seat_frozen(self, actor: Actor, role: Role, infos: dict[str, Any]) -> Seat:
        """A seat for an actor that does not learn."""
        horizon, rows = self.options.train.horizon, self.vec.num_envs * role.count(self.agents)
        actor.to(self.device)
        actor.head.to(self.device)
        size = mask_size(self.vec, role, actor.head, infos)
        if isinstance(actor, AgentActor):
            actor.seat(rows, size)
        rollout = Rollout(actor, horizon, rows, segment=horizon, has_dead_rows=True, mask_size=size, device=self.device)
        rollout.needs_last_value = False
        own = () if self.shards is None else (f"shard {self.shards.index}",)
        seed = stream_seed(self.options.seed, "opponent", *(role.agents or ()), "actions", *own)
        return Seat(actor, role, rollout, torch.Generator(self.device).manual_seed(seed), learns=False)

    def _make_collector(self, seats: list[Seat]) -> Any:
        vec, surplus = self.vec, self.options.vec.surplus_envs
        if self.league is not None and not self.on_gpu:
            return HostCollector(vec, [*seats, self.league.seat])
        if not self.on_gpu:
            return NativeCollector(vec, seats[0]) if covers(vec, seats, surplus) else HostCollector(vec, seats, surplus)
        if surplus:
            raise ConfigError(f"--vec.surplus-envs {surplus} is not supported on a GPU. Use 0, or --device cpu.")
        fused = [learner.fused for learner in self.learners]
        if self.league is not None:
            return LeagueCollector(vec, seats, fused, self.league.members)
        return DeviceCollector(vec, seats, fused) if vec.is_on_gpu else HostEnvCollector(vec, seats, fused[0])

    def _torch_threads(self) -> int:
        """One if C learns: it has threads of its own, beside which torch's would only wait. Otherwise measured."""
        learns_in_c = all(getattr(learner, "native", None) is not None for learner in self.learners)
        return 1 if learns_in_c else choose_threads(self._minibatch_shape())

    def _minibatch_shape(self) -> Shape:
        """The largest products of an update on one minibatch."""
        rollout = max((learner.rollout for learner in self.learners), key=lambda rollout: rollout.rows)
        encoders = [m.features for actor in self.actors for m in actor.modules() if isinstance(m, Encoder)]
        hidden, rows = self.options.nn.hidden, self.options.train.minibatch(rollout.rows)
        return Shape(rows, inputs=max(hidden, *encoders, 1), outputs=hidden, steps=rollout.segment)

    # ---- progress ----

    @property
    def num_envs(self) -> int:
        """Envs of the whole run; `vec` has those of one shard."""
        return self.vec.num_envs * self.num_shards

    @property
    def num_params(self) -> int:
        """The number of weights that are trained."""
        return sum(p.numel() for actor in self.actors for p in actor.policy.parameters())

    @property
    def steps_per_iteration(self) -> int:
        """Environment steps of one rollout, over all rows that it waits for; in a league, of the main learner."""
        horizon: int = self.options.train.horizon
        return horizon * (self.num_rows - self.options.vec.surplus_envs * self.num_learning)

    @property
    def has_opponents(self) -> bool:
        """Whether some agents do not learn."""
        return bool(self.opponents) or self.league is not None

    @property
    def num_learning(self) -> int:
        """Agents of an env that the main learner plays."""
        return self.seats[0].role.count(self.agents) if self.league is not None else self.agents - len(self.opponents)

    @property
    def is_done(self) -> bool:
        """Whether all steps are done, or a limit of the algorithm is reached."""
        return self.learners[0].has_finished or bool(self.step >= self.options.train.total_steps)

    def player(self, greedy: bool) -> PolicyPlayer:
        """The current policies, to be evaluated."""
        judged = self.actors if self.league is None else self.actors[:1]  # the main learner plays all sides
        actors = [actor.on_cpu() for actor in judged] if self.on_gpu else judged
        seated = [(seat.actor, seat.role) for seat in self.frozen] if self.goal is None else self.goal
        frozen = [(actor.on_cpu() if self.on_gpu else actor, role) for actor, role in seated]
        options: dict[str, Any] = {"agents": self.agents, "greedy": greedy, "seed": self.options.seed}
        options["groups"] = self.groups
        return seat_player(actors, self.roles[: len(actors)], frozen, self.opponents, **options)

    # ---- one iteration ----

    def start(self, seed: Any = None) -> None:
        """Resets the envs for a new run, by the run's seed or by another."""
        seed = self.first_seed if seed is None else seed
        if not (self._started and self.step == 0 and seed is self.first_seed):  # Python envs were reset while building
            if self.league is not None:
                self.league.begin_games()
            self.collector.start(seed)
        self._started = True

    def iterate(self) -> None:
        """Collects one rollout and learns from it."""
        before = time.perf_counter()
        if not self._started:
            self.start()
        with gpu_errors_explained(self.options):
            if self.on_gpu and not self._is_captured:
                self.capture()
                before = time.perf_counter()  # compile and capture time is not counted as training
            self.collect()
            self.learn()
            if self.graphs is not None and self.graphs.collect is not None:
                self._pace.step()
            elif self.on_gpu:
                torch.cuda.synchronize()
        self.wall_s += time.perf_counter() - before

    def wait(self) -> None:
        """Waits until the GPU is idle. That counts as training."""
        before = time.perf_counter()
        if self.on_gpu:
            with gpu_errors_explained(self.options):
                torch.cuda.synchronize()
        self.wall_s += time.perf_counter() - before

    def collect(self) -> None:
        """Fills the rollouts."""
        torch.set_num_threads(self.threads)
        if not self._started:
            self.start()
        done = self.step / self.options.train.total_steps
        self._params_now = {f"schedule/env.{name}": value for name, value in self.param_schedules.set(done).items()}
        if self.league is not None:
            self.league.before_iteration()
        if self.graphs is not None and self.graphs.collect is not None:
            self.graphs.collect()
        else:
            self._collect()
        self.step += self.steps_per_iteration

    def _collect(self) -> None:
        self.collector.collect()
        for learner, carry in zip(self.learners, self._own_returns):
            rollout, counted = learner.rollout, learner.rollout.counted()
            returns = rollout.running_returns(1.0, carry)
            self._ended.add(returns, rollout.dones if counted is None else rollout.dones & counted)
        self.shaping.finish(is_stepped=self.vec.is_on_gpu)  # last: until here rollouts have the env's rewards

    def learn(self) -> None:
        """One update of every policy on its rollout."""
        torch.set_num_threads(self.threads)
        before = time.perf_counter()
        done = (self.step - self.steps_per_iteration) / self.options.train.total_steps
        for k, learner in enumerate(self.learners):
            rate = learner.set_progress(done)
            if self.graphs is not None and self.graphs.updates:
                self.graphs.updates[k]()
            else:
                self._update(k)
            self._tallies[k].add({"learning_rate": rate, **learner.schedule_metrics(), **self._params_now})
        self._updates += 1
        self.iteration += 1
        if self.league is not None:
            self.league.after_iteration(self.step, self.iteration)
        self._learn_s += time.perf_counter() - before

    def _update(self, number: int) -> None:
        metrics = self.algorithm.update(self.learners[number])
        if self.shards is not None:
            metrics = shard_options.mean_metrics(metrics, self.shards, self.device)
        if not self.on_gpu:  # on a GPU once per log, because reading waits for the device
            self._check_finite(metrics)
        self._tallies[number].add(metrics)

    def drain(self) -> dict[str, float]:
        """Means and sums since the last call: losses, episodes, seconds by activity."""
        self.wait()
        record: dict[str, float] = {"iteration": self.iteration, "step": self.step, "wall_s": self.wall_s}
        if self._updates:
            means: dict[str, float] = {}
            by_policy: dict[str, float] = {}
            for role, tally in zip(self.roles, self._tallies):
                for name, total in tally.drain().items():
                    means[name] = means.get(name, 0.0) + total / (self._updates * len(self._tallies))
                    by_policy[f"{name}/{role.name}"] = total / self._updates
            if self.on_gpu:
                self._check_finite(means)
            record |= means
            if 1 < len(self.roles) <= MAX_LISTED:
                record |= {name: x for name, x in by_policy.items() if not name.startswith("learning_rate/")}
        self._updates = 0
        stats = self._with_own_returns(self.vec.drain_stats())
        record["episode/n"] = stats.pop("episodes", 0)
        record |= self._agents_seen.record(self.vec.agent_stats, self.groups)
        for name, numbers in stats.items():
            record |= {f"episode/{name}": numbers["mean"]}
            record |= {f"episode/{name}_min": numbers["min"], f"episode/{name}_max": numbers["max"]}
        record |= self.shaping.drain()
        record |= {} if self.league is None else self.league.metrics()
        record |= self.collector.age.drain()
        for name, seconds in self.collector.times.drain().items():
            record[f"time/{name}"] = seconds
        record["time/learn"], self._learn_s = self._learn_s, 0.0
        return record

    def _with_own_returns(self, stats: dict[str, Any]) -> dict[str, Any]:
        """The env's statistics; against opponents, with the episodes and returns of the learners alone."""
        if not self.has_opponents:
            return stats
        stats.pop("return", None)
        count, mean, low, high = self._ended.drain()
        if count:
            stats["return"] = {"mean": mean, "min": low, "max": high}
        return stats | {"episodes": count}

    def _check_finite(self, metrics: Mapping[str, Any]) -> None:
        # normalization clips an infinite observation: it shows in the moments only
        moments = [part for actor in self.actors for part in actor.moments.values()]
        means = {f"mean of observations {k}": part.mean.sum().float() for k, part in enumerate(moments)}
        rollouts = [(seat.rollout, seat.role) for seat in self.seats]
        context = Context(self.step, self.iteration, self.learners[0].config.learning_rate, self.agents)
        check_finite({**metrics, **means}, rollouts, context)

    def set_env_params(self, values: Mapping[str, Any]) -> None:
        """Changes params of all envs of the run."""
        self.is_altered = True
        set_env_params(self.vec, values)

    def drain_events(self) -> list[str]:
        """What happened to the envs since the last call and raised no error: sentences."""
        return self.vec.drain_events()

    @property
    def drained_returns(self) -> Array | None:
        """The returns of the single episodes of the last `drain`; None: there are sums only."""
        return self.vec.drained_returns

    def patient(self) -> AbstractContextManager[None]:
        """A context that may take as long as it likes: with several processes, the others wait."""
        return nullcontext()

    def close(self) -> None:
        """Closes the envs and restores torch's settings; not if a pool keeps the trainer for the next run."""
        if self.is_kept:
            return
        self.vec.close()
        self.torch_settings.restore()

    # ---- CUDA graphs ----

    def capture(self) -> None:
        """Captures the work on the GPU as graphs, and restores the state from before.

        Collecting is captured if the envs are on the GPU too, learning if truncations have fixed sizes.
        """
        self._is_captured = True
        has_updates = self.shards is None and self.learners[0].rollout.truncations.is_fixed
        if not self.vec.is_on_gpu and not has_updates:
            return
        saved = copy_of_state(self)
        action_streams = [seat.stream for seat in (*self.seats, *self.frozen)]
        action_streams += [] if self.league is None else self.league.streams().values()
        update_streams = [learner.streams["minibatches"] for learner in self.learners]
        # an update with shards waits for the other shards: no graph can hold it
        updates = [partial(self._update, k) for k in range(len(self.learners)) if self.shards is None]
        is_held = is_capturable(self.frozen) and (self.league is None or self.league.is_capturable)
        collect = self._collect if self.vec.is_on_gpu and is_held else None
        self.graphs = Graphs(collect, action_streams, updates, update_streams)
        put_back(self, saved)

    def forget_graphs(self) -> None:
        """Captures the graphs anew before the next iteration: who acts, or what is rewarded, has changed."""
        self.graphs, self._is_captured = None, False

    # ---- checkpoints ----

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Everything that a bit-exact resume needs, as the files of a checkpoint."""
        files = self._tensors()
        files["state"] |= {name: stream.get_state() for name, stream in self._streams().items()}
        files["state"] |= {} if self.league is None else self.league.decisions()
        if self.vec.can_snapshot and self._started:
            files["state"]["envs"] = checkpoint.from_bytes(self.vec.snapshot())
        return files

    own_state = state  # of this shard, where a subclass has several

    def _tensors(self) -> dict[str, dict[str, Tensor]]:
        """The tensors that training changes."""
        rows = self._row_tensors() | memory_of(self.frozen) | ({} if self.league is None else self.league.memory())
        return {"weights": self.weights(), "state": self._state_tensors() | rows | self.shaping.tensors()}

    def weights(self) -> dict[str, Tensor]:
        """The policies, with their normalizers: what a player needs."""
        return {f"{k}.{name}": x for k, actor in enumerate(self.actors) for name, x in actor.state_dict().items()}

    def _state_tensors(self) -> dict[str, Tensor]:
        tensors = {
            f"{k}.{name}": x for k, learner in enumerate(self.learners) for name, x in learner.state_tensors().items()
        }
        return tensors if self.league is None else tensors | self.league.state_tensors()

    def _row_tensors(self) -> dict[str, Tensor]:
        """Tensors with an entry for each row: they do not fit a run with another number of rows."""
        tensors = {
            f"{k}.{name}": x for k, learner in enumerate(self.learners) for name, x in learner.row_tensors().items()
        }
        tensors |= {f"{k}.own_return": part for k, part in enumerate(self._own_returns)}
        for k, seat in enumerate(self.frozen):
            tensors |= {f"opponent{k}.recurrent.{i}": part for i, part in enumerate(seat.rollout.state)}
        return tensors if self.league is None else tensors | self.league.row_tensors()

    def _streams(self) -> dict[str, torch.Generator]:
        """All random streams, by their names in a checkpoint."""
        streams = {
            f"{k}.stream.{name}": s for k, learner in enumerate(self.learners) for name, s in learner.streams.items()
        }
        streams |= {} if self.league is None else self.league.streams()
        return streams | {f"opponent{k}.stream.actions": seat.stream for k, seat in enumerate(self.frozen)}

    def counters(self) -> dict[str, Any]:
        """What a checkpoint's meta.json holds besides the step."""
        facts = {"iteration": self.iteration, "wall_s": self.wall_s, "env": str(self.env)}
        facts |= {"envs_saved": self.vec.can_snapshot, "rows": self.num_rows}
        facts |= {} if self.shards is None else {"shards": self.num_shards}
        return {**facts, "policies": [role.name for role in self.roles]}

    def restore(self, files: Mapping[str, Mapping[str, Tensor]], meta: Mapping[str, Any]) -> None:
        """Continues from a checkpoint. Envs that cannot save their state start new episodes, and `exact` is False."""
        try:
            self._restore(files["weights"], files["state"], meta)
        except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
            if isinstance(error, ShoalError):
                raise
            reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error).partition("\n")[0]
            raise CheckpointError(f"the checkpoint does not fit this run: {reason}.") from None

    def _restore(self, weights: Mapping[str, Tensor], state: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        if self.league is not None:
            self.league.check(state)
        restoring.check_shards(meta, self.num_shards)
        restoring.check_streams(self._streams(), state, self.device)
        restoring.check_policies(meta, [role.name for role in self.roles])
        for k, (actor, learner) in enumerate(zip(self.actors, self.learners)):
            load_actor(actor, weights, k)
            if not fits(learner.optimizer, under(state, f"{k}.optimizer.")):
                kind = type(learner.optimizer).__name__
                raise CheckpointError(
                    f"the checkpoint's optimizer state does not fit {kind}. Use its --train.optimizer."
                )
        for name, stream in self._streams().items():
            stream.set_state(state[name])
        for name, tensor in self._state_tensors().items():
            # a resume may turn on the normalization of rewards
            restoring.put(tensor, state.get(name), name, must=name in state or ".reward_norm." not in name)
        same_rows = meta.get("rows") == self.num_rows
        if same_rows:
            for name, tensor in self._row_tensors().items():
                restoring.put(tensor, state.get(name), name)
            restore_memory(self.frozen, state)
            for learner in self.learners:
                learner.check_restored()
        self.shaping.restore(state)
        if self.league is not None:
            self.league.restore(state, same_rows)
        self.step, self.iteration, self.wall_s = int(meta["step"]), int(meta["iteration"]), float(meta["wall_s"])
        if "envs" in state and self.vec.can_snapshot and same_rows:
            self._restore_envs(state)
        else:
            self.param_schedules.set(self.step / self.options.train.total_steps)
            self._restart_envs()
        self._started = True

    def _restore_envs(self, state: Mapping[str, Tensor]) -> None:
        obs = self.vec.restore(checkpoint.to_bytes(state["envs"]))
        self.collector.resume(obs, self.vec.current_infos())

    def _restart_envs(self) -> None:
        """Starts new episodes: the resume is not bit-exact."""
        self.exact = False
        for part in self._own_returns:
            part.zero_()
        for learner in self.learners:
            learner.restart_episodes()
        for seat in self.frozen:
            seat.rollout.reset_state()
        self.shaping.restart()
        if self.league is not None:
            self.league.begin_games()
        # other seeds than at the start: the policy has already learned from those episodes
        self.collector.start(env_seed(self.options.seed, "resumed", self.step) + self.first_env)
