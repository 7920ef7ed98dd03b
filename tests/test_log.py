"""Loggers: the local log is complete whatever the others do, and none of them stops or slows the run."""

from __future__ import annotations

import dataclasses
import errno
import json
import re
import sys
import threading
import types
from pathlib import Path

import pytest

from shoal.config import opt
from shoal.errors import ConfigError
from shoal.log import Logger, base, jsonl, open_all, tensorboard, wandb
from shoal.log.base import Guarded, Loggers, LoggerType, RunFacts
from tests.demo_dashboard import facts, records
from tests.strict import strict_json

END = {"status": "finished", "step": 10, "wall_s": 1.0, "sps": 10.0, "eval": None, "reason": ""}


def lines(folder: Path) -> list[dict]:
    """The records of a run's file, by a parser that takes no NaN."""
    return [strict_json(line) for line in (folder / jsonl.NAME).read_text().splitlines()]


def write(folder: Path, record: dict, **changes) -> None:
    logger = jsonl.open(facts(folder, **changes))
    logger.log(record)
    logger.close(None)


class Recorder:
    """A good logger."""

    def __init__(self) -> None:
        self.told: list = []

    def log(self, record):
        self.told.append(record["step"])

    def note(self, text):
        self.told.append(text)

    def close(self, summary):
        self.told.append(summary)


# ---- jsonl ----


def test_every_record_is_a_line_at_once(tmp_path):
    logger = jsonl.open(facts(tmp_path))
    for k, record in enumerate(records(5), 1):
        logger.log(record)
        assert len(lines(tmp_path)) == k  # before close: a kill loses nothing
    assert lines(tmp_path) == list(records(5))
    logger.close(None)


def test_what_is_no_number_is_null(tmp_path):
    write(tmp_path, {"step": 1, "kl": float("nan"), "grad_norm": float("inf")})
    assert lines(tmp_path) == [{"step": 1, "kl": None, "grad_norm": None}]


def test_numbers_of_numpy_are_numbers(tmp_path):
    import numpy as np

    write(tmp_path, {"step": np.int64(3), "kl": np.float32(0.5)})
    assert lines(tmp_path) == [{"step": 3, "kl": 0.5}]


class FullDisk:
    """A file that takes a number of bytes, then no more until there is room again."""

    def __init__(self, file, room: int) -> None:
        self.file, self.room = file, room

    def write(self, data):
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        count = min(len(data), self.room)
        self.room -= count
        return self.file.write(data[:count])

    def __getattr__(self, name):
        return getattr(self.file, name)


def test_a_full_disk_delays_records_and_loses_none(tmp_path):
    warnings: list[str] = []
    logger = jsonl.open(facts(tmp_path), warn=warnings.append)
    some = [{"step": k, "kl": 0.1} for k in range(6)]
    disk = logger.file = FullDisk(logger.file, room=40)  # one line and a half
    for record in some[:4]:
        logger.log(record)
    assert lines(tmp_path) == some[:1], "half a line is taken away again"
    assert len(warnings) == 1
    assert "No space left" in warnings[0]
    disk.room = 10_000
    logger.log(some[4])
    assert lines(tmp_path) == some[:5]
    logger.log(some[5])
    logger.close(None)
    assert lines(tmp_path) == some
    assert len(warnings) == 1


def test_a_disk_that_stays_full_is_told_at_the_end(tmp_path):
    warnings: list[str] = []
    logger = jsonl.open(facts(tmp_path), warn=warnings.append)
    logger.file = FullDisk(logger.file, room=0)
    logger.log({"step": 1})
    logger.log({"step": 2})
    logger.close(None)
    assert "last 2 records" in warnings[-1]


def test_a_torn_line_is_cut_before_more_is_written(tmp_path):
    (tmp_path / jsonl.NAME).write_text('{"step": 1}\n{"step": 2, "k')
    write(tmp_path, {"step": 2})
    assert lines(tmp_path) == [{"step": 1}, {"step": 2}]


def test_a_resumed_run_has_each_step_once(tmp_path):
    path = tmp_path / jsonl.NAME
    path.write_text("".join(f'{{"step": {step}}}\n' for step in (10, 20, 30, 40)))
    write(tmp_path, {"step": 30}, resumed_from=20)
    assert [record["step"] for record in lines(tmp_path)] == [10, 20, 30]
    aside = path.with_suffix(".superseded.jsonl").read_text()
    assert [json.loads(line)["step"] for line in aside.splitlines()] == [30, 40], "set aside, not lost"


# ---- loggers that misbehave (fault 26) ----


def guarded(logger, **options) -> tuple[Guarded, list[str]]:
    warnings: list[str] = []
    return Guarded("test", lambda: logger, warnings.append, **options), warnings


def test_a_good_logger_is_told_everything_in_order():
    recorder = Recorder()
    guard, warnings = guarded(recorder)
    for step in range(100):
        guard.log({"step": step})
    guard.note("saved")
    guard.close(END)
    assert recorder.told == [*range(100), "saved", END]
    assert warnings == []


def test_a_record_is_told_as_it_was_then():
    recorder, record, gate = Recorder(), {"step": 1}, threading.Event()
    recorder.note = lambda text: gate.wait(5)
    guard, _ = guarded(recorder)
    guard.note("hold")
    guard.log(record)
    record["step"] = 2  # the run uses its dict again
    gate.set()
    guard.close(None)
    assert recorder.told[0] == 1


@pytest.mark.parametrize("where", ["open", "log", "note", "close"])
@pytest.mark.parametrize("error", [ConnectionError("no route"), SystemExit(1)])
def test_one_that_raises_is_switched_off_with_one_warning(where, error):
    def fail(*_):
        raise error

    recorder, warnings = Recorder(), []
    if where != "open":
        setattr(recorder, where, fail)
    guard = Guarded("test", fail if where == "open" else lambda: recorder, warnings.append)
    guard.log({"step": 1})
    guard.note("saved")
    if where != "close":
        guard._thread.join(5)
        assert not guard._thread.is_alive()
        for step in range(2000):  # none of them waits anywhere, and none adds to the memory
            guard.log({"step": step})
        assert len(guard._waiting) == 0
    guard.close(END)
    assert len(warnings) == 1
    assert warnings[0].startswith(f"logger test is switched off: {type(error).__name__}")


def test_one_that_blocks_forever_holds_up_nothing():
    gate = threading.Event()
    recorder = Recorder()
    recorder.log = lambda record: gate.wait(60)
    guard, warnings = guarded(recorder, queue=10, patience_s=0.05)
    for step in range(100):
        guard.log({"step": step})
    guard.close(END)
    threading.Timer(0.2, gate.set).start()  # so that a failure here does not hang the tests
    assert len(guard._waiting) <= 11, "bounded"
    assert guard.dropped >= 89
    assert [w for w in warnings if "too slow and loses" in w] == warnings[:1]
    assert "did not finish within 0.05 s" in warnings[1]
    assert guard._thread.daemon, "so the process can leave"


def test_a_slow_one_loses_the_oldest_and_counts_them():
    gate = threading.Event()
    recorder = Recorder()
    recorder.note = lambda text: gate.wait(5)
    guard, warnings = guarded(recorder, queue=10)
    guard.note("hold")
    while guard._waiting:  # until the thread holds
        threading.Event().wait(0.001)
    for step in range(100):
        guard.log({"step": step})
    gate.set()
    guard.close(END)
    assert recorder.told == [*range(90, 100), END]
    assert guard.dropped == 90
    assert "90 records" in warnings[-1]


def test_the_run_goes_on_and_the_local_log_is_complete(tmp_path, monkeypatch, capsys):
    """The whole fan: jsonl beside loggers that raise in open, in log, and that block."""
    gate = threading.Event()

    def raises(facts, options):
        raise ConnectionError("offline")

    def blocks(facts, options):
        gate.wait(60)

    class Bad(Recorder):
        def log(self, record):
            raise ZeroDivisionError

    for name, opener in {"a": raises, "b": blocks, "c": lambda facts, options: Bad()}.items():
        monkeypatch.setitem(base.LOGGERS._registered, name, LoggerType(opener))
    monkeypatch.setattr(base, "PATIENCE_S", 0.05)
    monkeypatch.setattr(Guarded.__init__, "__kwdefaults__", {"queue": 5, "patience_s": 0.05})
    loggers = open_all(facts(tmp_path), "abc", console="off")
    for record in records(50):
        loggers.log(record)
    loggers.close(END)
    gate.set()
    assert lines(tmp_path) == list(records(50))
    err = capsys.readouterr().err
    assert "logger a is switched off: ConnectionError: offline" in err
    assert "logger b did not finish" in err
    assert "logger c is switched off: ZeroDivisionError" in err


@pytest.mark.parametrize("error", [OSError("gone"), ValueError("odd")])
def test_a_screen_that_fails_is_left_and_jsonl_is_not(tmp_path, capsys, error):
    def fail(*_):
        raise error

    loggers, screen, file = Loggers(), Recorder(), jsonl.open(facts(tmp_path))
    screen.log = fail
    loggers.add("console", screen)
    loggers.add("jsonl", file)
    for k in range(3):
        loggers.log({"step": k})
    loggers.log({"step": "no number"})  # a fault of ours: that line is missing, no other
    loggers.log({"step": 4})
    loggers.close(None)
    assert [record["step"] for record in lines(tmp_path)] == [0, 1, 2, 4]
    err = capsys.readouterr().err.splitlines()
    assert len(err) == 2
    assert "logger console failed in log" in err[0]


def test_nobody_reading_on_is_no_fault(capsys):
    loggers, screen = Loggers(), Recorder()
    screen.log = lambda record: (_ for _ in ()).throw(BrokenPipeError())
    loggers.add("console", screen)
    loggers.log({"step": 1})
    assert capsys.readouterr().err == ""


def test_ctrl_c_in_a_logger_reaches_the_run():
    loggers, screen = Loggers(), Recorder()
    screen.log = lambda record: (_ for _ in ()).throw(KeyboardInterrupt())
    loggers.add("console", screen)
    with pytest.raises(KeyboardInterrupt):
        loggers.log({"step": 1})


def test_warnings_go_to_the_screen_where_there_is_one(capsys):
    loggers, screen = Loggers(), Recorder()
    loggers.add("console", screen)
    loggers.warn("something")
    assert screen.told == ["warning: something"]
    assert capsys.readouterr().err == ""


# ---- mistakes, before any work ----


def test_a_logger_is_a_file():
    assert base.names() == ["tensorboard", "wandb"]
    assert base.LOGGERS.stock() == ("jsonl", "tensorboard", "wandb")


def test_a_logger_may_come_from_outside(tmp_path, monkeypatch):
    """Its options are checked like those of stock loggers."""

    @dataclasses.dataclass(frozen=True)
    class Options:
        path: str = opt("numbers.txt", "file that is written")
        every: int = opt(1, "records between two lines", low=1)

    class Text(Logger):
        def __init__(self, facts, options):
            self.file = (facts.folder / options.path).open("w")

        def log(self, record):
            self.file.write(f"{record['step']}\n")

        def close(self, summary):
            self.file.close()

    monkeypatch.setitem(base.LOGGERS._registered, "text", LoggerType(Text, Options))
    loggers = open_all(facts(tmp_path), ["text"], {"text": {"path": "mine.txt"}}, console="off")
    loggers.log({"step": 7})
    loggers.note("the base class ignores it")
    loggers.close(END)
    assert (tmp_path / "mine.txt").read_text() == "7\n"
    wrong = {"Did you mean 'path'": {"pth": "x"}, "below 1": {"every": 0}, "must be int, not str": {"every": "x"}}
    for said, given in wrong.items():
        with pytest.raises(ConfigError, match=said):
            open_all(facts(tmp_path / "none"), ["text"], {"text": given}, console="off")


def test_wandb_has_one_default_mode():
    """The command line's and Python's: W&B's own."""
    assert wandb.Options().mode == "online"


@pytest.mark.parametrize(
    ("wanted", "options", "console", "said"),
    [
        (["tensorbord"], {}, "off", "Did you mean 'tensorboard'?"),
        (["jsonl"], {}, "off", "'jsonl' is always on"),
        (["wandb"], {"wandb": {"projet": "x"}}, "off", "Did you mean 'project'?"),
        (["wandb"], {"wandb": {"mode": "ofline"}}, "off", "Did you mean 'offline'?"),
        ([], {}, "dashbord", "Did you mean 'dashboard'?"),
    ],
)
def test_mistakes_are_told_before_anything_is_written(tmp_path, wanted, options, console, said):
    with pytest.raises(ConfigError, match=said.replace("?", r"\?")):
        open_all(facts(tmp_path / "run"), wanted, options, console=console)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_missing_package_is_an_install_line_before_training(tmp_path, monkeypatch, name):
    real = base.importlib.util.find_spec  # the plugins are found with it, too
    monkeypatch.setattr(base.importlib.util, "find_spec", lambda one: None if one == name else real(one))
    with pytest.raises(ConfigError, match=rf'pip install "shoal\[{name}\]"'):
        open_all(facts(tmp_path / "run"), [name], {"wandb": {"mode": "offline"}}, console="off")
    assert not (tmp_path / "run").exists()


# ---- tensorboard ----


def test_tensorboard_has_every_number(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = tensorboard.open(facts(tmp_path, config={"train": {"epochs": 4}}))
    for record in records(3):
        logger.log(record)
    logger.close(END)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    wanted = {key if "/" in key else f"train/{key}" for key in record if key not in ("step", "time")}
    assert set(events.Tags()["scalars"]) == wanted
    returns = events.Scalars("episode/return")
    assert [event.step for event in returns] == [r["step"] for r in records(3)]
    assert [event.value for event in returns] == pytest.approx([r["episode/return"] for r in records(3)])
    assert events.Tags()["tensors"] == ["config/text_summary"]


def test_flat_config():
    assert tensorboard.flatten({"seed": 1, "train": {"epochs": 4}}) == {"seed": 1, "train.epochs": 4}


# ---- wandb: a stand-in, which keeps what it is told ----


class FakeWandb(types.ModuleType):
    def __init__(self, key: str | None) -> None:
        super().__init__("wandb")
        self.api = types.SimpleNamespace(api_key=key)
        self.run = types.SimpleNamespace(rows=[], summary={}, code=None)
        self.run.log = lambda row, step: self.run.rows.append((step, row))
        self.run.finish = lambda exit_code: setattr(self.run, "code", exit_code)
        self.Settings = lambda **options: options

    def init(self, **options):
        self.options = options
        return self.run


@pytest.fixture
def fake(monkeypatch):
    """No account on this machine."""
    module = FakeWandb(key=None)
    module.__spec__ = types.SimpleNamespace()
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def test_wandb_gets_facts_and_numbers(tmp_path, fake):
    logger = wandb.open(facts(tmp_path, config={"env": {"skip": 3}}), project="p", mode="offline")
    for record in records(2):
        logger.log(record)
    logger.close(END)
    assert fake.options["mode"] == "offline"
    assert fake.options["project"] == "p"
    assert fake.options["config"] == {"env": {"skip": 3}, "run": {"env": "breakout", "algo": "ppo", "seed": 1}}
    assert fake.options["dir"] == str(tmp_path)
    assert fake.run.rows == [(record["step"], record) for record in records(2)]
    assert fake.run.code == 0


def test_wandb_takes_runs_of_equal_names_for_different_ones(tmp_path, fake):
    """A run that is resumed goes on in W&B; one of the same name elsewhere, or after its deletion, is a new one."""
    ids = []
    for folder, step in (("a", 0), ("a", 500), ("b", 0)):
        (tmp_path / folder).mkdir(exist_ok=True)
        wandb.open(facts(tmp_path / folder, resumed_from=step), mode="offline").close(END)
        ids.append(fake.options["id"])
        assert re.fullmatch(r"breakout-[A-Za-z0-9_-]+", ids[-1])
    assert ids[0] == ids[1] != ids[2]


def test_wandb_goes_on_with_a_run_of_an_older_version(tmp_path, fake):
    """Its id was its name."""
    (tmp_path / "wandb").mkdir()
    given = facts(tmp_path, resumed_from=500)
    for _ in range(2):
        wandb.open(given, mode="offline").close(END)
        assert fake.options["id"] == f"{given.env}-{given.id}"


@pytest.mark.parametrize("summary", [None, {"status": "failed"}])
def test_wandb_knows_a_run_that_failed(tmp_path, fake, summary):
    wandb.open(facts(tmp_path), mode="offline").close(summary)
    assert fake.run.code == 1


def test_wandb_never_asks_at_the_prompt(tmp_path, fake):
    with pytest.raises(ConfigError, match="'wandb login', or use --wandb.mode offline"):
        open_all(facts(tmp_path), ["wandb"], console="off")
    fake.api.api_key = "x"
    open_all(facts(tmp_path), ["wandb"], console="off").close(END)
    assert fake.options["mode"] == "online"


# ---- numbers as a person reads them ----


def test_numbers():
    assert [base.human(x) for x in (0, 7, 950, 1234, 17_300, 999_600, 1.2e6, 2e9)] == [
        *("0", "7", "950", "1.23k", "17.3k", "1M", "1.2M", "2G")
    ]
    assert [base.number(x) for x in (0.0, 0.0123, 2.5e-5, 487.31, -3.14159, 1.2e6, 12)] == [
        *("0", "0.0123", "2.5e-05", "487.3", "-3.142", "1.2M", "12")
    ]
    assert base.number(float("nan")) == "nan"
    assert base.number(float("-inf")) == "-inf"
    assert [base.duration(s) for s in (0.24, 9.96, 59.9, 59.99, 185, 7620, 270_000)] == [
        *("0.2s", "10s", "60s", "1m00s", "3m05s", "2h07m", "3d03h")
    ]
    assert base.duration(float("nan")) == "?"


def test_facts_need_little():
    assert RunFacts(Path("x"), "id", "cartpole").config == {}
