"""The number of torch's threads: measured once per machine and shape, and never above the number of idle cores."""

from __future__ import annotations

import json

import pytest
import torch

from shoal.train import torch_threads
from shoal.train.torch_threads import Shape, choose_threads, counts_up_to, fastest, measure

from .training import make_trainer, tiny, train_tiny

LARGE = Shape(rows=4096, inputs=128, outputs=128)


class Machine:
    """A fake machine: its cores, how many are idle, and how fast torch is with each number of threads."""

    def __init__(self, monkeypatch) -> None:
        self.cores = self.idle = 8
        self.seconds = {1: 8.0, 2: 4.4, 4: 2.4, 8: 1.5}
        self.is_reliable, self.measured = True, list[list[int]]()
        monkeypatch.setattr(torch_threads, "available_threads", lambda: self.cores)
        monkeypatch.setattr(torch_threads, "idle_cores", lambda: self.idle)
        monkeypatch.setattr(torch_threads, "measure", self.measure)

    def measure(self, shape: Shape, counts: list[int]) -> tuple[dict[int, float], bool]:
        self.measured.append(counts)
        return {count: self.seconds[count] for count in counts}, self.is_reliable


@pytest.fixture
def machine(monkeypatch) -> Machine:
    for name in torch_threads.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return Machine(monkeypatch)


# ---- the choice ----


@pytest.mark.parametrize(
    ("times", "wanted"),
    [
        ({1: 1.0, 2: 3.0}, 1),  # the machine of defect 27
        ({1: 1.0, 2: 0.9}, 1),  # too little for a second core
        ({1: 1.0, 2: 0.55}, 2),
        ({1: 8.0, 2: 4.4, 4: 2.4, 8: 1.5, 16: 1.45}, 8),
        ({1: 8.0, 2: 4.4, 4: 4.2, 8: 4.0}, 2),
        ({1: 8.0, 2: 9.0, 4: 3.0}, 4),
        ({1: 1.0}, 1),
    ],
)
def test_each_doubling_of_threads_must_pay_off(times, wanted):
    assert fastest(times) == wanted


def test_counts_are_powers_of_two_and_all_cores():
    assert [counts_up_to(most) for most in (1, 2, 6, 16)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8, 16]]


def test_small_work_is_not_measured(machine, tmp_path):
    assert choose_threads(Shape(256, 64, 64), tmp_path) == 1
    assert choose_threads(Shape(4096, 128, 128, steps=32), tmp_path) == 1  # a recurrent core: 128 rows at a time
    assert not machine.measured
    assert choose_threads(LARGE, tmp_path) == 8


def test_one_core_is_not_measured(machine, tmp_path):
    machine.cores = 1
    assert choose_threads(LARGE, tmp_path) == 1
    assert not machine.measured


def test_measured_shapes_are_limited(machine):
    """The measurement takes milliseconds for a minibatch of any size."""
    for shape in Shape(1 << 20, 128, 128), Shape(65536, 3000, 512), Shape(4096, 4, 100_000):
        measured = shape.rounded()
        assert measured.rows == 64 or measured.rows * measured.inputs * measured.outputs <= torch_threads.MAX_WORK
    assert Shape(4000, 120, 128).rounded() == LARGE.rounded()


# ---- the cache ----


def test_a_shape_is_measured_once(machine, tmp_path):
    assert [choose_threads(LARGE, tmp_path) for _ in range(3)] == [8] * 3
    assert machine.measured == [[1, 2, 4, 8]]
    choose_threads(Shape(4096, 512, 512), tmp_path)
    assert len(machine.measured) == 2
    assert not list(tmp_path.glob("*.part"))


def test_another_machine_measures_again(machine, tmp_path, monkeypatch):
    choose_threads(LARGE, tmp_path)
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    choose_threads(LARGE, tmp_path)
    monkeypatch.setattr(torch_threads, "cpu_model", lambda: "another CPU")
    choose_threads(LARGE, tmp_path)
    monkeypatch.setattr(torch, "__version__", "9.9")
    choose_threads(LARGE, tmp_path)
    machine.cores = 4
    choose_threads(LARGE, tmp_path)
    assert len(machine.measured) == 5


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"seconds": {"1": "x"}}', '{"seconds": {"2": 1.0}}', '{"seconds": 3}']
)
def test_a_damaged_cache_is_measured_again(machine, tmp_path, text):
    choose_threads(LARGE, tmp_path)
    [file] = tmp_path.iterdir()
    file.write_text(text)
    assert choose_threads(LARGE, tmp_path) == 8
    assert len(machine.measured) == 2
    assert json.loads(file.read_text())["seconds"]["8"] == 1.5


def test_a_cache_folder_that_cannot_be_written_is_no_error(machine, tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    assert choose_threads(LARGE, file / "folder") == 8


# ---- a busy machine ----


def test_a_busy_machine_gets_one_thread_without_a_measurement(machine, tmp_path):
    machine.idle = 0
    assert choose_threads(LARGE, tmp_path) == 1
    assert not machine.measured
    machine.idle = 8
    assert choose_threads(LARGE, tmp_path) == 8
    machine.idle = 1  # also if the times are known
    assert choose_threads(LARGE, tmp_path) == 1


def test_threads_are_at_most_the_idle_cores(machine, tmp_path):
    machine.idle = 5
    machine.seconds[5] = 2.3
    assert choose_threads(LARGE, tmp_path) == 4
    assert machine.measured == [[1, 2, 4, 5]]
    assert not list(tmp_path.iterdir())  # not all were measured
    machine.idle = 8
    assert choose_threads(LARGE, tmp_path) == 8
    machine.idle = 3
    assert choose_threads(LARGE, tmp_path) == 2
    assert len(machine.measured) == 2


def test_times_of_a_process_that_did_not_get_its_core_are_not_used(machine, tmp_path):
    machine.is_reliable = False
    assert choose_threads(LARGE, tmp_path) == 1
    assert not list(tmp_path.iterdir())


def test_the_measurement_notices_that_others_used_the_core(monkeypatch):
    clock = iter(range(10_000))
    monkeypatch.setattr(torch_threads.time, "perf_counter", lambda: float(next(clock)))
    monkeypatch.setattr(torch_threads.time, "thread_time", lambda: 0.0)
    assert measure(Shape(64, 16, 16), [1])[1] is False


# ---- the measurement itself ----


def test_measuring_changes_neither_threads_nor_random_numbers():
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    times, _ = measure(Shape(256, 32, 32), [1, 2])
    assert set(times) == {1, 2}
    assert all(0 < seconds < 60 for seconds in times.values())
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)


# ---- in a run ----


@pytest.fixture
def chosen(monkeypatch) -> list[Shape]:
    """The shapes of runs that learn in torch. Where C learns, torch has one thread."""
    shapes: list[Shape] = []
    monkeypatch.setattr("shoal.algos.fast.native_ppo", lambda learner: None)
    monkeypatch.setattr("shoal.train.trainer.choose_threads", lambda shape: shapes.append(shape) or 2)
    return shapes


def test_a_trainer_measures_its_own_shape(chosen):
    tables = {"vec": {"num_envs": 64, "torch_threads": 0}, "train": {"horizon": 32, "minibatches": 4}}
    make_trainer("breakout", **tables, nn={"hidden": 128}).close()
    assert chosen[0].rows == 64 * 32 // 4
    assert chosen[0].outputs == 128
    assert chosen[0].inputs >= 100  # breakout's observations
    assert chosen[0].steps == 1
    make_trainer("breakout", **{**tables, "train": {**tables["train"], "segment": 16}}, nn={"core": "lstm"}).close()
    assert chosen[1].steps == 16


def test_torch_has_one_thread_beside_ppo_in_c(monkeypatch):
    monkeypatch.setattr("shoal.train.trainer.choose_threads", lambda shape: pytest.fail("measured"))
    trainer = make_trainer("breakout", vec={"num_envs": 1024, "torch_threads": 0}, train={"horizon": 16})
    assert trainer.learners[0].native is not None
    assert trainer.threads == 1
    trainer.close()


def test_the_user_chooses_the_threads(chosen):
    trainer = make_trainer("cartpole", vec={"torch_threads": 3})
    assert trainer.threads == 3
    assert not chosen
    trainer.close()


def test_collect_and_learn_use_the_number_without_iterate():
    """A user's own loop gets the same bits as `iterate`."""
    trainer, before = make_trainer("cartpole", vec={"torch_threads": 1}), torch.get_num_threads()
    try:
        for part in trainer.collect, trainer.learn, trainer.iterate:
            torch.set_num_threads(2)
            part()
            assert torch.get_num_threads() == 1
    finally:
        trainer.close()
        torch.set_num_threads(before)


def test_a_resumed_run_uses_the_saved_number(chosen, tmp_path):
    """Sums depend on it, so it is part of the run."""
    from shoal.train import train

    run = train_tiny("cartpole", tmp_path, vec={"torch_threads": 0})
    assert run.config["vec"]["torch_threads"] == 2
    assert len(chosen) == 1
    steps = 2 * tiny()["train"]["total_steps"]
    again = train("cartpole", resume=run, train={"total_steps": steps}, runs_folder=tmp_path, console="off")
    assert again.config["vec"]["torch_threads"] == 2
    assert len(chosen) == 1
