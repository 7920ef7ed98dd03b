"""`shoal train` and what follows it: every option is shown, checked and used; what is wrong exits with 2."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import shoal.train
from shoal.cli.main import main
from shoal.cli.train import parse
from shoal.config import opt
from shoal.errors import ConfigError, ShoalError
from shoal.log import base, wandb
from shoal.runs import Run, all_runs, find
from shoal.train import TABLES, Options
from tests.training import STEPS, train_tiny

ROOT = Path(__file__).parent.parent
TINY = (
    "--vec.num-envs 16 --vec.torch-threads 1 --train.horizon 8 --train.minibatches 2 --train.epochs 1 --nn.hidden 16 "
    "--eval.episodes 0 --console off --device cpu"
).split()


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Runs go to a folder of the test's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")


def options(*words):
    return parse(["cartpole", *words]).options


# ---- what is shown ----


def test_help_shows_every_option_with_its_default_and_meaning(capsys):
    assert main(["train", "cartpole", "--help"]) == 0
    shown: dict[str, str] = {}
    for line in capsys.readouterr().out.splitlines():
        words = line.strip("│ ").split()
        if words and re.match(r"--[a-z]", words[0]):
            flag = words.pop(0)
            shown[flag] = ""
        if shown and "(default:" not in shown[flag]:
            shown[flag] = " ".join([*shown[flag].split(), *words])
    for table in TABLES:
        cls = type(getattr(Options(), table))
        for field in dataclasses.fields(cls):
            flag = f"--{table}.{field.name}".replace("_", "-")
            assert field.metadata["help"] in shown[flag], flag
    for flag, told in shown.items():
        assert re.match(r"(\{.*?\}|\[.*?\]|[A-Z|]+) [a-zA-Z0-9].*\(default:", told), f"{flag} has no meaning"
    assert shown["--env.gravity"] == "FLOAT m/s^2 (default: 9.8)"


def test_help_without_an_env_works(capsys):
    assert main(["train", "--help"]) == 0
    assert "--train.learning-rate" in capsys.readouterr().out


def test_tuned_values_are_the_defaults_that_help_shows(tmp_path, capsys):
    (tmp_path / "my.toml").write_text("[train]\nlearning_rate = 0.0123\n")
    assert main(["train", "cartpole", "--config", "my.toml", "--help"]) == 0
    assert "(default: 0.0123)" in capsys.readouterr().out


# ---- what is used ----


def test_flags_are_the_options():
    found = options(
        *"--train.total-steps 20M --train.learning-rate 1e-3 --vec.num-envs 4k --nn.core lstm --seed 5".split(),
        *"--train.normalize-obs True --eval.greedy False --env.max-steps 7 --save.every 1e6".split(),
    )
    assert found.train.total_steps == 20_000_000
    assert found.train.learning_rate == 1e-3
    assert found.vec.num_envs == 4000
    assert found.nn.core == "lstm"
    assert (found.seed, found.save.every, found.env) == (5, 1_000_000, {"max_steps": 7})
    assert found.train.normalize_obs is True
    assert found.eval.greedy is False


@pytest.mark.parametrize(
    "flag", ["--train.vtrace", "--train.normalize-obs", "--nn.separate", "--eval.greedy", "--vec.overlap"]
)
@pytest.mark.parametrize("word", ["False", "True"])
def test_false_is_false(flag, word):
    """Not the text 'False', which is true."""
    table, name = flag[2:].replace("-", "_").split(".")
    assert getattr(getattr(options(flag, word), table), name) is (word == "True")


def test_flags_go_over_the_config_file_and_that_over_tuned_values(tmp_path):
    (tmp_path / "my.toml").write_text('seed = 9\n[train]\ntotal_steps = "3M"\ngamma = 0.5\n[env]\nmax_steps = 70\n')
    found = options("--config", "my.toml", "--train.gamma", "0.6")
    assert (found.seed, found.train.total_steps, found.train.gamma) == (9, 3_000_000, 0.6)
    assert found.env == {"max_steps": 70}


def test_python_envs_take_their_own_keywords():
    words = "--env.max-episode-steps 9 --env.render-mode rgb_array --env.sutton-barto-reward True".split()
    found = parse(["gymnasium:CartPole-v1", *words, "--seed", "3"]).options
    assert found.env == {"max_episode_steps": 9, "render_mode": "rgb_array", "sutton_barto_reward": True}
    assert found.seed == 3


def test_values_of_python_envs_are_data(tmp_path):
    """Nothing is evaluated."""
    evil = f"__import__('pathlib').Path({str(tmp_path / 'ran')!r}).touch()"
    assert parse(["gymnasium:CartPole-v1", "--env.render-mode", evil]).options.env == {"render_mode": evil}
    assert not (tmp_path / "ran").exists()


@dataclasses.dataclass(frozen=True)
class Extra:
    """A table that Options might get."""

    depth: int = opt(3, "levels of the search", low=1)


@dataclasses.dataclass(frozen=True)
class More(shoal.train.Options):
    """Options with more fields."""

    colour: str = opt("red", "colour of the policy", choices=lambda: ["red", "blue"])
    extra: Extra = dataclasses.field(default_factory=Extra)


def test_every_field_of_the_options_is_a_flag(monkeypatch):
    """None is listed a second time in the command line."""
    known = shoal.train.options_for
    monkeypatch.setattr(shoal.train, "Options", More)
    monkeypatch.setattr(shoal.train, "options_for", lambda env, *layers: More(**vars(known(env, *layers))))
    given = options("--colour", "blue", "--extra.depth", "5", "--algo", "dqn", "--train.batch-size", "64")
    assert (given.colour, given.extra.depth, given.algo, given.train.batch_size) == ("blue", 5, "dqn", 64)
    with pytest.raises(ConfigError, match=r"--extra\.depth 0 is below 1"):
        options("--extra.depth", "0")
    with pytest.raises(SystemExit):
        options("--colour", "green")


def test_a_logger_from_outside_has_flags(monkeypatch, capsys):
    @dataclasses.dataclass(frozen=True)
    class Options:
        url: str = opt("localhost", "server that receives the numbers")
        every: int = opt(1, "records between two messages", low=1)

    monkeypatch.setitem(base.LOGGERS._registered, "http", base.LoggerType(lambda facts, o: base.Logger(), Options))
    assert main(["train", "cartpole", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--http.url" in shown
    assert "server that receives the numbers" in shown
    assert "loggers besides metrics.jsonl: tensorboard, wandb, http" in " ".join(shown.replace("│", " ").split())
    request = parse(["cartpole", "--log", "http", "--http.url", "there", "--wandb.project", "p"])
    assert request.log_options == {"http": {"url": "there", "every": 1}}
    assert main(["train", "cartpole", *TINY, "--log", "http", "--http.every", "0"]) == 2
    assert "--http.every 0 is below 1" in capsys.readouterr().err
    assert all_runs() == []
    assert main(["train", "cartpole", *TINY, "--log", "http", "--train.total-steps", "128"]) == 0


def test_wandb_defaults_are_those_of_its_logger():
    request = parse(["cartpole", "--log", "wandb"])
    assert request.log_options["wandb"] == dataclasses.asdict(wandb.Options())


@pytest.mark.parametrize("words", ["puffer_cartpole --train.total-timesteps 7k", "cartpole --train.total_timesteps=7k"])
def test_spellings_of_pufferlib(words):
    assert parse(words.split()).options.train.total_steps == 7000


def test_names_of_pufferlib_need_no_pufferlib():
    code = (
        "import sys; from shoal.cli.main import main; code = main(['train', 'atari-no-such-game']);"
        "assert not [name for name in sys.modules if name.startswith('shoal.puffer')]; sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2
    assert "atari:no-such-game" in done.stderr


def test_bench_train_has_help_of_its_own(capsys):
    assert main(["bench", "train", "cartpole", "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Measure how fast an env trains")
    assert "usage: shoal bench train cartpole" in out
    assert "--seconds N" in out


# ---- what is wrong ----

WRONG = {
    "--train.learning-rat 1e-3": "--train.learning-rate",
    "--train.learning-rate fast": "fast",
    "--train.epochs 2.5": "2.5",
    "--train.total-steps lots": "20M",
    "--train.total-steps -5": "",
    "--train.total-steps 0": "below 1",
    "--train.gamma 1.5": "above 1",
    "--train.gamma nan": "not a number",
    "--train.normalize-obs maybe": "maybe",
    "--nn.core lstn": "lstn",
    "--nn.hidden 0": "below 1",
    "--vec.backend gpu": "gpu",
    "--seed -1": "below 0",
    "--seed 1.5": "1.5",
    "--algo dqm": "ppo",
    "--env.gravty 3": "--env.gravity",
    "--env.gravity heavy": "heavy",
    "--tran.gamma 1": "--train.gamma",
    "--console loud": "loud",
    "--log wandbb": "Did you mean 'wandb'",
    "--train.minibatches 9999": "Try --train.minibatches 128",
    "--nn.core lstm --train.segment 3": "Try --train.segment 1",
    "--config nowhere.toml": "no such file",
    "--resume nothing": "no run",
    "extra": "extra",
}


@pytest.mark.parametrize("words", WRONG)
def test_a_wrong_flag_exits_with_2_and_a_suggestion(capsys, words):
    """Item 31. Before any work: no folder is made."""
    assert main(["train", "cartpole", *TINY, *words.split()]) == 2
    assert WRONG[words] in re.sub(r"[│\s]+", " ", capsys.readouterr().err)
    assert all_runs() == []


WRONG_TOML = {
    "[train]\nlearning_rat = 1.0": "Did you mean 'learning_rate'",
    "[train]\nlearning_rate = '1e-3'": "must be float, not str",
    "[train]\nepochs = 2.5": "epochs",
    "[train]\nepochs = true": "bool",
    "[train]\nnormalize_obs = 'False'": "must be bool, not str",
    "[train]\nnormalize_obs = 0": "must be bool, not int",
    "[train]\ntotal_steps = '1+1'": "not a count",
    "[train]\ngamma = nan": "not a number",
    "[train]\ngamma = inf": "above",
    "[nn]\ncore = 'lstn'": "Did you mean 'lstm'",
    "[nn]\ncore = 3": "core",
    "[nn]\nhidden = [1]": "hidden",
    "[vec]\nnum_envs = -1": "below 0",
    "[tran]\ngamma = 0.9": "Did you mean 'train'",
    "sede = 3": "Did you mean 'seed'",
    "seed = '3'": "must be int, not str",
    "train = 3": "table",
    "env = 3": "table",
    "[env]\ngravty = 1.0": "Did you mean 'gravity'",
    "[env]\ngravity = 'x'": "gravity",
    "[env]\ngravity = [1]": "gravity",
    "[env]\nmax_steps = 1.5": "max_steps",
    "[train": "is not TOML",
    "a = " + "[" * 9999: "is not TOML",
}


@pytest.mark.parametrize("text", WRONG_TOML)
def test_a_wrong_config_file_exits_with_2_and_a_suggestion(tmp_path, capsys, text):
    """Item 31."""
    (tmp_path / "my.toml").write_text(text)
    assert main(["train", "cartpole", *TINY, "--config", "my.toml"]) == 2
    assert WRONG_TOML[text] in re.sub(r"[│\s]+", " ", capsys.readouterr().err)
    assert all_runs() == []


def test_a_wrong_toml_beside_a_header_is_told(tmp_path, capsys):
    from shoal import registry

    (tmp_path / "my.h").write_text(registry.find("squared").read_text())
    (tmp_path / "my.toml").write_text("[train]\nhorizn = 3\n")
    assert main(["train", "./my.h", *TINY]) == 2
    assert "Did you mean 'horizon'" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["cartpol"], ["gymnasium:CartPol-v1"], ["./nothing.h"], ["no:such:thing"]])
def test_an_env_that_is_none_exits_with_2(capsys, words):
    assert main(["train", *words, *TINY]) == 2
    assert "error:" in capsys.readouterr().err
    assert all_runs() == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("gymnasium:Pendulum-v1 --env.gg 3", "has no param 'gg'. Did you mean 'g'?"),
        ("gymnasium:CartPole-v1 --env.sutton-barto-rewrd True", "Did you mean 'sutton_barto_reward'?"),
        ("gymnasium:CartPole-v1 --env.max-episode-step 3", "Did you mean 'max_episode_steps'?"),
    ],
)
def test_a_param_that_a_python_env_lacks_is_told(capsys, words, said):
    """Defect 36: before any process starts, and without a traceback."""
    assert main(["train", *words.split()]) == 2
    err = " ".join(capsys.readouterr().err.split())
    assert said in err
    assert "Traceback" not in err
    assert all_runs() == []


def test_a_header_in_this_folder_is_suggested(tmp_path, capsys):
    """Defect 36."""
    (tmp_path / "glider.h").touch()
    assert main(["train", "glider"]) == 2
    assert "unknown env 'glider'. Did you mean './glider.h'?" in capsys.readouterr().err


def test_envs_that_do_not_divide_over_workers_are_told(capsys):
    words = "--vec.num-envs 5 --vec.num-workers 2 --train.horizon 8 --eval.episodes 0 --console off".split()
    assert main(["train", "gymnasium:CartPole-v1", *words]) == 2
    assert re.search(r"5.*2", capsys.readouterr().err)


# ---- resuming ----


@pytest.fixture
def run(tmp_path) -> Run:
    return train_tiny("cartpole", tmp_path / "runs")


@pytest.mark.parametrize("how", ["folder", "id", "last", "env", "env/id"])
def test_a_run_is_found_by_any_of_its_names(run, how):
    names = {"folder": str(run.folder), "id": run.id, "last": "last", "env": "cartpole", "env/id": f"cartpole/{run.id}"}
    assert main(["train", "--resume", names[how], "--train.total-steps", str(7 * STEPS), "--console", "off"]) == 0
    assert run.summary["step"] == 7 * STEPS
    assert len(all_runs()) == 1


def test_a_resume_keeps_the_options_of_its_run(run):
    request = parse(["--resume", "last", "--train.gamma", "0.5"])
    assert request.env == "cartpole"
    assert request.options.nn.hidden == 16
    assert request.options.train.gamma == 0.5


def test_a_resume_of_another_env_is_told(run, capsys):
    assert main(["train", "squared", "--resume", "last"]) == 2
    assert f"{run.id} is a run of cartpole" in capsys.readouterr().err


def test_auto_begins_anew_where_nothing_is_unfinished(run):
    assert main(["train", "cartpole", *TINY, "--train.total-steps", str(STEPS), "--resume", "auto"]) == 0
    assert len(all_runs()) == 2


def test_auto_goes_on_with_what_is_unfinished(run):
    run.write("summary.json", {**run.summary, "status": "interrupted"})
    words = ["--resume", "auto", "--train.total-steps", str(7 * STEPS), "--console", "off"]
    assert main(["train", "cartpole", *words]) == 0
    assert (len(all_runs()), run.summary["step"]) == (1, 7 * STEPS)


def test_resume_without_a_run_is_told(capsys):
    assert main(["train", "--resume", "last"]) == 2
    assert "has no runs. Start one" in capsys.readouterr().err


# ---- packages from outside ----

PLUGIN = """
from dataclasses import dataclass
from shoal.cli.command import Command
from shoal.config import opt
from shoal.log import Logger, LoggerType

@dataclass(frozen=True)
class Options:
    file: str = opt("steps.txt", "file that the steps are written to")

class Steps(Logger):
    def __init__(self, facts, options):
        self.file = open(facts.folder / options.file, "w")

    def log(self, record):
        self.file.write(str(int(record["step"])) + chr(10))

    def close(self, summary):
        self.file.close()

LOGGER = LoggerType(Steps, Options)

def count(number: int = 3) -> int:
    '''Count to a number.

    Args:
        number: The last number.
    '''
    print(*range(1, number + 1))
    return 0

COMMAND = Command(count)
"""


def test_a_package_adds_a_command_and_a_logger_by_entry_points(tmp_path):
    """One file outside of Shoal: they are listed, with help and flags, and a run logs with it."""
    (tmp_path / "plugged.py").write_text(PLUGIN)
    info = tmp_path / "plugged-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged\nVersion: 1.0\n")
    points = "[shoal.commands]\ncount_up = plugged\n[shoal.loggers]\nsteps = plugged\n"
    (info / "entry_points.txt").write_text(points)

    def run_shoal(*words):
        path = os.pathsep.join([str(tmp_path), str(ROOT)])
        environment = {**os.environ, "PYTHONPATH": path, "COLUMNS": "120"}
        done = subprocess.run([sys.executable, "-m", "shoal", *words], capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert re.search(r"count up +Count to a number\.", run_shoal())
    assert run_shoal("count", "up", "--number", "4") == "1 2 3 4\n"
    words = ["--log", "steps", "--steps.file", "mine.txt", "--train.total-steps", "256"]
    run_shoal("train", "cartpole", *TINY, *words)
    assert (find("last").folder / "mine.txt").read_text() == "128\n256\n"


# ---- end to end ----


@pytest.mark.parametrize("env", ["squared", "gymnasium:CartPole-v1"])
def test_train_eval_plot_runs(env, tmp_path, capsys):
    words = "--vec.num-envs 4 --vec.backend serial --train.total-steps 320 --train.horizon 8 --train.minibatches 2"
    nets = "--nn.hidden 16 --vec.torch-threads 1 --eval.episodes 4 --console lines --save.every 64"
    assert main(["train", env, *words.split(), *nets.split()]) == 0
    out = capsys.readouterr().out
    assert "Finished: 320 steps" in out
    run = find("last")
    assert run.facts["env"] == env
    assert run.summary["eval"]["episodes"] == 4
    assert main(["eval", "last", "--episodes", "4"]) == 0
    assert main(["plot", "last"]) == 0
    assert main(["runs"]) == 0
    assert run.id in capsys.readouterr().out
    assert main(["train", "--resume", "last", "--train.total-steps", "640", "--console", "lines"]) == 0
    assert ("not bit-exact" in capsys.readouterr().out) is (":" in env)


def test_errors_are_ours():
    with pytest.raises(ShoalError):
        parse(["cartpole", "--config", "nowhere.toml"])
    with pytest.raises(ConfigError, match="no env given"):
        parse([])
