"""Shards: envs and minibatches in parts, trained by any number of processes to the same bits."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from shoal.algos import fast
from shoal.algos.algorithm import ALGORITHMS
from shoal.algos.shards import Exchange, Turns, divide, ordered_sum
from shoal.errors import CheckpointError, ConfigError, RankError
from shoal.runs import Run, all_runs
from shoal.train import Trainer, make_trainer, options_for, start, train
from shoal.train.envs import make_vec
from shoal.train.ranks.launch import Launch, shutdown_options
from shoal.train.ranks.meeting import meet
from shoal.train.ranks.sameness import check_same, code_hash
from shoal.train.ranks.world import join
from shoal.train.sharded import ShardedTrainer, merge_records
from tests.fake_gpu import GpuLikeVec, use_fake_graphs
from tests.rank_runs import run_ranks
from tests.training import contents, cut, tiny, tiny_trainer, train_tiny

CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "ppo": ("cartpole", {}),
    "lstm": ("memory", {"nn": {"core": "lstm"}, "train": {"segment": 4}}),
    "torch": ("cartpole", {"nn": {"activation": "gelu"}}),
    "normalized": ("pendulum", {"train": {"normalize_obs": True, "normalize_reward": True}}),
    "batch": ("cartpole", {"train": {"normalize_advantage": "batch", "optimizer": "muon", "target_kl": 0.05}}),
    "dead rows": ("vacuum", {"train": {"minibatches": 2, "normalize_reward": True}}),
    "truncated": ("cartpole", {"env": {"max_steps": 7}, "nn": {"activation": "gelu"}}),
    "priority": ("cartpole", {"train": {"priority": 0.5}}),
    "dqn": ("cartpole", {"algo": "dqn", "train": {"replay_start": 64}}),
    "dqn priority": ("cartpole", {"algo": "dqn", "train": {"priority": 0.6, "normalize_obs": True}}),
    "pqn": ("cartpole", {"algo": "pqn", "train": {"normalize_obs": True}}),
}


class Walk(gymnasium.Env[Any, Any]):
    """A Python env of random observations, truncated after 9 steps."""

    observation_space = spaces.Box(-1, 1, (3,), np.float32)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self.np_random.random(3, dtype=np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self.np_random.random(3, dtype=np.float32), float(action), False, self.steps >= 9, {}


class Fragile(Walk):
    """It raises at its 30th step in rank 1."""

    def step(self, action: Any) -> Any:
        Fragile.count = getattr(Fragile, "count", 0) + 1
        if os.environ.get("RANK") == "1" and Fragile.count > 150:
            raise ZeroDivisionError("the floor is gone")
        return super().step(action)


def sharded(name: str, shards: int, **tables: Any) -> tuple[Any, dict[str, Any]]:
    env, own = CASES[name]
    merged = {**own, **tables, "train": {**own.get("train", {}), **tables.get("train", {}), "shards": shards}}
    return env, merged


def train_case(name: str, shards: int, folder: Path, **tables: Any) -> str:
    """Trains a tiny run; returns its folder."""
    env, own = sharded(name, shards, **tables)
    return str(train_tiny(env, folder, **own).folder)


# ---- the parts ----


def test_turns_run_one_at_a_time_in_order():
    turns, seen = Turns(3), []

    def play(number: int) -> None:
        for step in range(4):
            seen.append((step, number))
            time.sleep(0.001 * (3 - number))
            turns.next()

    turns.run([lambda k=k: play(k) for k in range(3)])
    assert seen == [(step, number) for step in range(4) for number in range(3)]


def test_an_error_in_one_shard_ends_all():
    turns, ended = Turns(3), []

    def play(number: int) -> None:
        try:
            turns.next()
            if number == 1:
                raise ZeroDivisionError("shard 1")
            turns.next()
        finally:
            ended.append(number)

    with pytest.raises(ZeroDivisionError, match="shard 1"):
        turns.run([lambda k=k: play(k) for k in range(3)])
    assert sorted(ended) == [0, 1, 2]


def test_shards_that_disagree_are_an_error_and_no_deadlock():
    turns = Turns(2)
    with pytest.raises(AssertionError, match="shard"):
        turns.run([lambda: None, turns.next])


def test_sums_are_added_in_the_order_of_the_shards():
    parts = torch.tensor([[1e8], [1.0], [-1e8], [1.0]])
    assert ordered_sum(parts).item() == 1.0  # 1e8 + 1 is 1e8 in float32; another order would give 2
    exchange, found = Exchange(4, range(4)), {}

    def play(k: int) -> None:
        view = exchange.shards()[k]
        found[k] = view.sum(parts[k]).item(), view.gather(parts[k]).flatten().tolist()
        total, other = view.sum_all(torch.ones(2), torch.full((), float(k)))
        assert total.tolist() == [4.0, 4.0]
        assert other.item() == 6.0

    exchange.run([lambda k=k: play(k) for k in range(4)])
    assert set(map(str, found.values())) == {str((ordered_sum(parts).item(), parts.flatten().tolist()))}


def test_what_does_not_divide_is_explained():
    assert divide(12, 4, "--vec.num-envs") == 3
    with pytest.raises(ConfigError, match=r"--vec.num-envs 10 does not divide over --train.shards 4. Try 8 or 12."):
        divide(10, 4, "--vec.num-envs")


def test_records_of_shards_are_merged():
    records = [
        {"step": 8, "loss": 1.0, "episode/n": 1, "episode/return": 10.0, "episode/return_max": 10.0},
        {"step": 8, "loss": 3.0, "episode/n": 3, "episode/return": 2.0, "episode/return_max": 4.0},
        {"step": 8, "loss": 2.0, "episode/n": 0},
    ]
    merged = merge_records(records)
    assert merged == {"step": 8, "loss": 2.0, "episode/n": 4, "episode/return": 4.0, "episode/return_max": 10.0}


# ---- the same algorithm ----


@pytest.mark.parametrize("name", [name for name in CASES if "priority" not in name])
def test_one_shard_learns_as_without_shards(name, monkeypatch):
    """The update in shards, with a single one, against the plain update: equal up to rounding."""
    env, own = CASES[name]
    plain = tiny_trainer(env, **own)
    options = options_for(env, {**tiny(**own), "device": "cpu"})
    view = Exchange(1, range(1)).shards()[0]
    # the same random streams as without shards
    monkeypatch.setattr("shoal.algos.learner.stream_seed", lambda seed, name, stream: _seed(seed, name, stream))
    try:
        trainer = Trainer(env, options, shards=view)
        try:
            for made in (plain, trainer):
                if name == "torch":
                    assert made.learners[0].native is None
            trainer.learners[0].streams["actions"].set_state(plain.learners[0].streams["actions"].get_state())
            trainer.learners[0].streams["minibatches"].set_state(plain.learners[0].streams["minibatches"].get_state())
            for _ in range(2):
                plain.iterate()
                trainer.iterate()
            ours, theirs = trainer.learners[0].weights, plain.learners[0].weights
            torch.testing.assert_close(ours, theirs, rtol=2e-3, atol=2e-4)
            records = plain.drain(), trainer.drain()
            for metric in ("kl", "entropy", "loss/value", "explained_variance", "loss/q", "grad_norm"):
                if metric in records[0] and np.isfinite(records[0][metric]):
                    assert records[1][metric] == pytest.approx(records[0][metric], rel=5e-2, abs=1e-3), metric
        finally:
            trainer.close()
    finally:
        plain.close()


def _seed(seed: int, name: str, stream: str) -> int:
    from shoal.seeds import stream_seed

    return stream_seed(seed, name.partition(" shard ")[0], stream)


def test_envs_have_the_seeds_of_their_number_in_the_run():
    options = options_for("cartpole", {**tiny(), "train": {**tiny()["train"], "shards": 4}})
    trainer = make_trainer("cartpole", options)
    whole = tiny_trainer("cartpole")
    try:
        trainer.start()
        whole.start()
        obs = torch.cat([part.learners[0].rollout.obs[0][-1] for part in trainer.own])
        assert torch.equal(obs, whole.learners[0].rollout.obs[0][-1])
        assert trainer.num_envs == whole.num_envs == 16
        assert trainer.steps_per_iteration == whole.steps_per_iteration
        streams = [part.learners[0].streams["actions"].initial_seed() for part in trainer.own]
        assert len(set(streams)) == 4
    finally:
        trainer.close()
        whole.close()


def test_learning_in_shards_uses_c_where_it_can():
    options = options_for("cartpole", {**tiny(), "train": {**tiny()["train"], "shards": 2}})
    trainer = make_trainer("cartpole", options)
    try:
        assert all(part.learners[0].native is not None for part in trainer.own)
        assert trainer.threads == 1
    finally:
        trainer.close()
    env, own = sharded("dqn", 2)
    trainer = make_trainer(env, options_for(env, tiny(**own)))
    try:
        assert fast.native_q_learning(trainer.learners[0], 16) is None  # C takes gradient and step at once
        assert "with shards DQN learns in torch" in trainer.learners[0].plain_reason
        assert trainer.learners[0].config.batch_size == 16
    finally:
        trainer.close()


# ---- processes ----


def test_two_processes_write_the_files_of_one(tmp_path):
    tables = {"save": {"every": 0, "every_s": 0}}
    alone = Run(train_case("ppo", 2, tmp_path / "one", **tables))
    folders = run_ranks(2, train_case, "ppo", 2, tmp_path / "two")
    together = Run(folders[0])
    assert folders[0] == folders[1]
    assert together.summary["status"] == "finished"
    own, theirs = contents(alone), contents(together)
    assert own
    assert {name: theirs[name] for name in own} == own  # weights, optimizer, envs, random streams
    config = together.config
    assert config["train"]["shards"] == 2
    assert config["vec"]["num_envs"] == 16


def test_envs_on_a_gpu_train_in_shards(tmp_path, monkeypatch):
    """Graphs are captured before the first rollout, in every process: the envs must have been reset by then."""
    use_fake_graphs(monkeypatch)
    monkeypatch.setattr("shoal.train.trainer.make_vec", lambda *given: GpuLikeVec(make_vec(*given)))
    alone = contents(Run(train_case("torch", 2, tmp_path / "one")))
    assert any(b"shard1.envs" in file for file in alone.values())
    folders = run_ranks(2, train_case, "torch", 2, tmp_path / "two")
    assert contents(Run(folders[0])) == alone
    monkeypatch.setattr(Trainer, "capture", lambda trainer: None)
    assert contents(Run(train_case("torch", 2, tmp_path / "plain"))) == alone


def test_a_rank_that_raises_ends_the_others_with_its_traceback(tmp_path):
    began = time.monotonic()
    results = run_ranks(2, _train_fragile, tmp_path)
    assert time.monotonic() - began < 30
    assert results[1] == ("died",)
    text = results[0][0]
    assert "RankError: rank 1 (process " in text
    assert "ZeroDivisionError: the floor is gone" in text
    assert "test_shards.py" in text  # the traceback of rank 1
    assert "--resume continues from it" in text
    (folder,) = (tmp_path / "Fragile").iterdir()
    assert "the floor is gone" in Run(folder).summary["reason"]


def test_a_rank_0_that_hangs_is_named_by_rank_1(monkeypatch, capfd):
    """Rank 1 waits for the next command, for which there is no limit: rank 0 may evaluate for hours."""
    monkeypatch.setenv("SHOAL_RANK_TIMEOUT_S", "1")
    monkeypatch.setattr("shoal.train.ranks.watch.GRACE_S", 0.2)
    assert run_ranks(2, _hang_in_rank_0) == [("died",)] * 2
    assert "shoal: rank 1 ends: rank 0 (process " in (text := capfd.readouterr().err)
    assert "hangs: the others have waited for it for" in text
    assert "in _hang_in_rank_0" in text


def _hang_in_rank_0() -> None:
    world = join()
    assert world is not None
    time.sleep(60) if world.leads else world.receive()


def _train_fragile(folder: Path) -> None:
    # 8 envs of 8 steps in each rank: the third iteration
    train_tiny(Fragile, folder, train={"shards": 2, "normalize_obs": True}, vec={"backend": "serial"})


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CASES))
def test_any_number_of_processes_gives_the_same_bits(name, tmp_path):
    alone = contents(Run(train_case(name, 4, tmp_path / "1")))
    assert alone
    for size in (2, 4):
        folders = run_ranks(size, train_case, name, 4, tmp_path / str(size))
        assert contents(Run(folders[0])) == alone


def test_a_large_sum_that_processes_divide_is_the_same(monkeypatch):
    numbers = torch.randn(4, 1001, generator=torch.Generator().manual_seed(0)) * 1e3
    monkeypatch.setattr("shoal.train.ranks.world.DIVIDE_FROM", 100)
    for total in run_ranks(4, _sum_row, numbers):
        assert total == ordered_sum(numbers).tolist()


def _sum_row(numbers: Any) -> list[float]:
    world = join()
    assert world is not None
    total = world.sum(numbers[world.rank : world.rank + 1]).tolist()
    assert world.received < numbers.numel() * 4
    return total  # type: ignore[no-any-return]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["serial", "process"])
def test_the_command_trains_python_envs_in_processes(backend, tmp_path):
    """`shoal train --processes 2`, whose ranks have workers of their own, against one process."""
    words = ["tests.test_shards:Walk", "--train.shards", "2", "--vec.num-envs", "16", "--vec.backend", backend]
    words += ["--train.horizon", "8", "--train.total-steps", "768", "--train.normalize-reward", "True"]
    words += ["--eval.episodes", "0", "--console", "off", "--device", "cpu"]
    found = []
    for name, more in {"1": [], "2": ["--processes", "2"]}.items():
        command = [sys.executable, "-m", "shoal", "train", *words, *more, "--runs", str(tmp_path / name)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        (run,) = all_runs(tmp_path / name)
        assert run.summary["status"] == "finished"
        found.append((run.last / "weights.safetensors").read_bytes())
    assert found[0] == found[1]


def test_processes_meet_in_a_store_that_earlier_attempts_have_used():
    """Also where a node was replaced, whose torchrun has counted fewer restarts: nothing but the store decides."""
    server = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    seen = []
    for attempt in range(3):
        server.set("shoal/job/meeting/3/hello/1", f"left by attempt {attempt}")  # of a process that was killed
        with ThreadPoolExecutor(3) as pool:
            clients = [torch.distributed.TCPStore("127.0.0.1", server.port, is_master=False) for _ in range(3)]
            tokens = list(pool.map(meet, clients, ["job"] * 3, (0, 1, 2), [3] * 3, [20.0] * 3))
        assert len(set(tokens)) == 1
        seen.append(tokens[0])
    assert len(set(seen)) == 3
    with pytest.raises(RankError, match=r"rank 1, 2 of 3 did not join the others within 0\.1 s"):
        meet(server, "job", 0, 3, 0.1)


@pytest.mark.slow
def test_a_mistake_is_one_message_before_anything_starts(tmp_path):
    words = ["cartpole", "--processes", "2", "--train.shards", "3", "--runs", str(tmp_path / "runs")]
    done = subprocess.run([sys.executable, "-m", "shoal", "train", *words], capture_output=True, text=True, timeout=200)
    assert done.returncode == 2
    assert "--train.shards 3 does not divide over 2 processes" in " ".join(done.stderr.split())
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo", "lstm", "dqn", "normalized"])
def test_stop_on_four_resume_on_one(name, tmp_path):
    folders = run_ranks(4, train_case, name, 4, tmp_path)
    run = Run(folders[0])
    whole = contents(run)
    stopped = cut(run, 3)
    env, _ = CASES[name]
    train(env, resume=stopped, console="off")
    assert contents(Run(folders[0])) == whole


# ---- mistakes ----


def test_a_checkpoint_of_other_shards_is_refused(tmp_path):
    run = Run(train_case("ppo", 2, tmp_path))
    with pytest.raises(CheckpointError, match="the checkpoint has 2 shards, this run has 4 shards. Use --train.shards"):
        train("cartpole", resume=cut(run, 3), console="off", train={"shards": 4})


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"vec": {"num_envs": 15}}, "--vec.num-envs 15 does not divide over --train.shards 2. Try 14 or 16"),
        ({"algo": "dqn", "train": {"batch_size": 33}}, "--train.batch-size 33 does not divide"),
        ({"league": {"on": True}, "env_name": "connect4"}, "a league .* does not work with --train.shards 2"),
        ({"vec": {"surplus_envs": 4}}, "--vec.surplus-envs 4 does not work with --train.shards 2"),
    ],
)
def test_what_shards_do_not_support_is_refused(tables, message, tmp_path):
    env = tables.pop("env_name", "cartpole")
    own = tiny(**tables)
    own["train"] |= {"shards": 2}
    with pytest.raises(ConfigError, match=message):
        train(env, runs_folder=tmp_path, console="off", **own)
    assert not list(tmp_path.glob("*/*"))


def test_an_algorithm_without_shards_is_refused(monkeypatch):
    options = options_for("cartpole", tiny(train={"shards": 2}))
    plain = dataclasses.replace(ALGORITHMS.find("ppo"), shard=None)
    monkeypatch.setattr("shoal.train.shard_options.ALGORITHMS", SimpleNamespace(find=lambda name: plain))
    with pytest.raises(ConfigError, match="--algo ppo does not support shards"):
        make_trainer("cartpole", options)


def test_a_plain_trainer_refuses_shards():
    with pytest.raises(ConfigError, match="make_trainer"):
        Trainer("cartpole", options_for("cartpole", tiny(train={"shards": 2})))


def test_flags_that_contradict_each_other():
    with pytest.raises(ConfigError, match="mutually exclusive"):
        Launch(gpus=2, processes=2).check()
    with pytest.raises(ConfigError, match="--max-restarts 3 is for --gpus and --processes"):
        Launch(max_restarts=3).check()
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="--gpus 4: torch finds no GPU on this machine. Use --processes 4."):
            Launch(gpus=4).check()
    Launch(processes=2, max_restarts=1).check()


def test_ranks_that_differ_are_named(tmp_path):
    results = run_ranks(2, _differ)
    for text, *_ in results:
        assert "ConfigError: rank 1 on " in text
        assert "in its options: 'seed 1' instead of 'seed 0'" in text
    assert len(code_hash()) == 12


def _differ() -> None:
    world = join()
    assert world is not None
    check_same(world, f"seed {os.environ['RANK']}")


def test_shards_must_divide_over_the_processes(tmp_path):
    results = run_ranks(2, train_case, "ppo", 3, tmp_path)
    assert "--train.shards 3 does not divide over 2 processes. Try --train.shards 2 or 4" in results[0][0]
    assert not list(tmp_path.glob("*/*"))


def test_a_loop_of_ones_own_needs_one_process(tmp_path):
    assert "start() trains in one process, and there are 2" in run_ranks(2, _start)[0][0]


def _start() -> None:
    start("cartpole")


def test_sharded_trainer_is_a_trainer():
    assert issubclass(ShardedTrainer, Trainer)
    assert issubclass(RankError, RuntimeError)


def test_older_versions_of_torch_have_no_timeout_of_stopping():
    @dataclasses.dataclass
    class Older:
        max_restarts: int

    @dataclasses.dataclass
    class Newer(Older):
        shutdown_timeout: int

    assert shutdown_options(Older) == {}
    assert shutdown_options(Newer)["shutdown_timeout"] > 0
