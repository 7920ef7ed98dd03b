"""Populations: members take turns on one trainer; with PBT they copy others, and every exchange is recorded."""

from __future__ import annotations

import json
import os
import random
import signal

import pytest

from shoal import checkpoint
from shoal.cli.main import main
from shoal.runs import Run
from shoal.seed_groups import SeedGroup, all_groups
from shoal.sweep import evolve, pbt
from shoal.sweep.evolve import train_population
from shoal.sweep.pbt import PBT, Journal
from shoal.sweep.ranges import Range
from shoal.train import session, train
from shoal.train.signals import Stopped
from tests.training import tiny

RANGES = {"train.learning_rate": "log(1e-4, 1e-1)", "train.gamma": "logit(0.9, 0.999)"}
MEMBERS, EVERY, TOTAL = 4, 256, 1024
TABLES = tiny(train={"total_steps": TOTAL}, save={"every_s": 1e-9, "every": 0, "keep": 2})


def evolved(folder, **more):
    given = {"pbt": PBT(every=EVERY), "layers": [], "ranges": RANGES, "runs_folder": folder, "console": "off"}
    return train_population("cartpole", MEMBERS, **{**given, **TABLES, **more})


def states(group):
    """The bytes of every member's last checkpoint."""
    found = {}
    for number, run in group.runs.items():
        files = checkpoint.load_newest(run.checkpoints())[1]
        tensors = {f"{name}.{k}": x.numpy().tobytes() for name, part in files.items() for k, x in part.items()}
        found[number] = tensors
    return found


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    return evolved(tmp_path_factory.mktemp("runs"))


def test_exchanges_are_recorded_and_change_the_members(group):
    journal = Journal(group.folder).read()
    assert list(journal) == [EVERY, 2 * EVERY, 3 * EVERY]
    decisions = [one for exchange in journal.values() for one in exchange]
    assert decisions
    assert all(one.score < one.source_score and one.member != one.source for one in decisions)
    assert [row["status"] for row in group.facts["results"]] == ["finished"] * MEMBERS
    last = decisions[-1]
    run = group.runs[last.member]
    assert run.config["train"]["learning_rate"] == last.values["train.learning_rate"]
    assert any(record.get("population/source") == last.source for record in run.metrics())
    assert run.config["seed"] == 1 + last.member


def test_a_member_that_copies_has_the_weights_and_optimizer_of_its_source(tmp_path, monkeypatch):
    seen = []
    real = evolve._Turns._copy

    def look(turns, member, state, decision):
        kept_envs = member.snapshot.files["state"]["envs"].clone()
        real(turns, member, state, decision)
        files = member.snapshot.files
        assert (files["state"]["envs"] == kept_envs).all()  # it goes on in its own envs
        assert all((files["weights"][name] == x).all() for name, x in state["weights"].items())
        assert (files["state"]["0.optimizer.exp_avg"] == state["state"]["0.optimizer.exp_avg"]).all()
        seen.append(decision)

    monkeypatch.setattr(evolve._Turns, "_copy", look)
    evolved(tmp_path, train={**TABLES["train"], "total_steps": 2 * EVERY})
    assert seen


def test_killed_populations_take_the_same_way_again(group, tmp_path, monkeypatch):
    """Killed before an exchange is recorded, after it, and while the last members finish."""
    for number, moment in enumerate(("before", "after", "last")):
        add, finish, calls = Journal.add, session.Session.finish, []

        def killed_add(journal, step, decisions, moment=moment, add=add, calls=calls):
            calls.append(step)
            if moment == "before" and len(calls) == 2:
                raise KeyboardInterrupt
            add(journal, step, decisions)
            if moment == "after" and len(calls) == 3:
                raise KeyboardInterrupt

        def killed_finish(own, reason="", moment=moment, finish=finish, calls=calls):
            if moment == "last" and own.run.id.endswith("member2"):
                raise KeyboardInterrupt
            return finish(own, reason)

        with monkeypatch.context() as patch:
            patch.setattr(Journal, "add", killed_add)
            patch.setattr(session.Session, "finish", killed_finish)
            with pytest.raises(KeyboardInterrupt):
                evolved(tmp_path / str(number))
        (made,) = all_groups(tmp_path / str(number))
        resumed = train_population("cartpole", resume=SeedGroup(made.folder), console="off")
        assert states(resumed) == states(group), moment
        assert Journal(resumed.folder).read() == Journal(group.folder).read()


def test_a_signal_waits_for_the_exchange_and_resume_continues(group, tmp_path, monkeypatch, capsys):
    iterate = session.Trainer.iterate

    def stop(trainer):
        iterate(trainer)
        if trainer.step == EVERY + 128 and trainer.options.seed == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(session.Trainer, "iterate", stop)
        with pytest.raises(Stopped):
            evolved(tmp_path)
    (made,) = all_groups(tmp_path)
    assert {checkpoint_of(run) for run in made.runs.values()} == {2 * EVERY}
    assert main(f"train cartpole --resume {made.folder} --runs {tmp_path} --console off --device cpu".split()) == 0
    assert states(SeedGroup(made.folder)) == states(group)


def checkpoint_of(run: Run) -> int:
    return int(run.checkpoints()[-1].name)


def test_a_recorded_population_is_replayed_to_the_bit(group, tmp_path, monkeypatch):
    def never(*given, **more):
        raise AssertionError("a replay decides nothing")

    monkeypatch.setattr(evolve, "decide", never)
    again = evolved(tmp_path, replay=group)
    assert states(again) == states(group)


def test_members_without_exchanges_are_runs_that_train_alone(tmp_path):
    found = evolved(tmp_path, pbt=False)
    assert not (found.folder / pbt.JOURNAL).exists()
    values = found.facts["first"]["2"]
    own = {name.partition(".")[2]: value for name, value in values.items()}
    tables = {**TABLES, "seed": 3, "train": {**TABLES["train"], **own}}
    alone = train("cartpole", runs_folder=tmp_path / "alone", console="off", **tables)
    files = checkpoint.load_newest(alone.checkpoints())[1]
    assert states(found)[2] == {f"{n}.{k}": x.numpy().tobytes() for n, part in files.items() for k, x in part.items()}


# ---- the rules ----


def test_the_worst_quarter_copies_the_best():
    part = Range("log", 1e-4, 1e-1)
    values = {number: {"train.learning_rate": 0.01} for number in range(8)}
    scores = {number: float(number) for number in range(8)} | {7: float("nan")}
    decisions = pbt.decide(scores, values, {"train.learning_rate": part}, PBT(resample=0.0), seed=1, step=100)
    assert [one.member for one in decisions] == [0, 1]
    assert all(one.source in (5, 6) for one in decisions)
    assert {one.values["train.learning_rate"] for one in decisions} <= {0.012, 0.01 / 1.2}
    assert pbt.decide(scores, values, {"train.learning_rate": part}, PBT(resample=0.0), seed=1, step=100) == decisions
    assert not pbt.decide(dict.fromkeys(range(8), 1.0), values, {"train.learning_rate": part}, PBT(), seed=1, step=100)


@pytest.mark.parametrize(
    "part",
    [Range("log", 1e-4, 1e-1), Range("logit", 0.9, 0.999), Range("uniform", 0.1, 0.3), Range("choice", choices=(1, 2))],
)
def test_values_stay_in_their_ranges(part):
    rng = random.Random(0)
    value = pbt.draw(part, rng)
    seen = {value}
    for _ in range(200):
        value = pbt.perturb(part, value, PBT(), rng)
        seen.add(value)
        assert part.holds(value)
    assert len(seen) > 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("cartpole --pbt", "--pbt is for a population. Add --population 16."),
        ("cartpole --population 1", "--population 1 must be a number of members in 2 .. 10000."),
        ("cartpole --population 4 --seeds 2", "--seeds and --population are mutually exclusive"),
        ("cartpole --population 4 --processes 2", "--processes and --population are mutually exclusive"),
        ("cartpole --population 4 --trials 3", "--trials is for 'shoal sweep'"),
        ("cartpole --population 4 --sweep.train.horizon pow2(8,16)", "train.horizon decides its shape"),
        ("cartpole --population 4 --replay x", "--replay repeats the exchanges of a population. Add --pbt."),
        ("cartpole --population 4 --pbt --replay x", "has no population by that name"),
        ("cartpole --population 4 --pbt often", "--pbt often: 'often' is not a count"),
        ("gymnasium:CartPole-v1 --population 4", "--population 4 does not support a Python env"),
        ("cartpole --population 4 --train.shards 2", "--population 4 does not support --train.shards 2"),
        ("cartpole --population 4 --resume nothing", "has no population by that name"),
    ],
)
def test_mistakes_are_errors_before_any_work(tmp_path, capsys, words, message):
    assert main(f"train {words} --device cpu --runs {tmp_path} --console off".split()) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("verb", "flag"), [("sweep", "--pbt 100k"), ("bench train", "--population 8")])
def test_populations_are_for_training_only(verb, flag, capsys):
    pytest.importorskip("optuna")
    verb, *more = verb.split()
    assert main([verb, *more, "cartpole", *flag.split(), "--device", "cpu"]) == 2
    assert f"{flag.split()[0]} is for 'shoal train', not for 'shoal" in " ".join(capsys.readouterr().err.split())


def test_the_command_trains_and_replays(tmp_path, capsys):
    flags = "--vec.num-envs 16 --train.horizon 8 --train.minibatches 2 --train.total-steps 512 --eval.episodes 0"
    base = f"train cartpole --population 3 --pbt 128 {flags} --device cpu --runs {tmp_path} --console lines"
    assert main([*base.split(), "--sweep.train.gamma", "logit(0.9, 0.99)"]) == 0
    (made,) = all_groups(tmp_path)
    assert f"Best: member {made.facts['best']}" in capsys.readouterr().out
    assert json.loads((made.folder / "seeds.json").read_text())["pbt"]["every"] == 128
    assert main([*base.split(), "--replay", made.id]) == 0
    first, second = all_groups(tmp_path)
    assert states(first) == states(second)
    assert main(["runs", "--runs", str(tmp_path)]) == 0
