"""Every kind of extension is one file outside the package: it is found, shown, configured, trained with and resumed.

The files are in tests/extensions/; docs/extending.md explains them. One package holds them all, and is installed as
any package is: a folder on the path, with the entry points that the docs show.
"""

from __future__ import annotations

import csv
import importlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import shoal
from shoal import checkpoint, config, registry
from shoal.algos import fast
from shoal.algos.algorithm import ALGORITHMS
from shoal.algos.fast import fused, layered
from shoal.algos.optimizers import OPTIMIZERS
from shoal.cli.command import COMMANDS
from shoal.cli.main import main
from shoal.errors import ConfigError
from shoal.log.base import LOGGERS
from shoal.log.frame import frame
from shoal.log.history import History
from shoal.nn.cores import CORES
from shoal.nn.encoders import ENCODERS
from shoal.plugins import Plugins
from shoal.runs import Run, find
from shoal.train import Trainer, options_for, train
from shoal.train.run_files import run_facts
from shoal.vector.backends import BACKENDS
from tests.training import contents, cut

ROOT = Path(__file__).parent.parent
FILES = ROOT / "tests" / "extensions"
PAGE = ROOT / "docs" / "extending.md"
REGISTRIES: dict[str, Plugins] = {
    "reinforce": ALGORITHMS,
    "lion": OPTIMIZERS,
    "gru": CORES,
    "patches": ENCODERS,
    "blocks": BACKENDS,
    "csv": LOGGERS,
    "sizes": COMMANDS,
}
STEPS = 16 * 8  # of one iteration
CONFIG = f"""
algo = "reinforce"
device = "cpu"

[train]
optimizer = "lion"
total_steps = {6 * STEPS}
horizon = 8
baseline_coef = 0.25

[optimizer]
beta1 = 0.8

[nn]
hidden = 16
layers = 1
core = "gru"
encoder = "patches"

[core]
update_bias = 2.0

[vec]
num_envs = 16
backend = "blocks"
torch_threads = 1

[backend]
block_size = 5

[eval]
episodes = 4

[save]
every_s = 0.0
every = 1
keep = 100
"""


def load(name: str) -> ModuleType:
    return importlib.import_module(f"tests.extensions.{name}")


# ---- as a package of someone else, on the command line ----


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    """A folder on the path that holds the package `shoal_extras`, with the entry points of the docs."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(FILES, folder / "shoal_extras", ignore=shutil.ignore_patterns("__pycache__"))
    (block,) = [text for text in toml_blocks() if "entry-points" in text]
    groups = config.toml.loads(block)["project"]["entry-points"]
    assert {"shoal.envs", *(plugins.group for plugins in REGISTRIES.values())} == set(groups)
    info = folder / "shoal_extras-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shoal-extras\nVersion: 1.0\n")
    lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in names.items()) for group, names in groups.items()]
    (info / "entry_points.txt").write_text("\n".join(lines))
    (folder / "run.toml").write_text(CONFIG)
    return folder


def toml_blocks() -> list[str]:
    return re.findall(r"^```toml\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def run_shoal(package: Path, *words: str, code: int = 0) -> str:
    """What `shoal` prints where the package is installed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(package), str(ROOT)]), "COLUMNS": "100"}
    command = [sys.executable, "-m", "shoal", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=package, timeout=120)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def trained(package) -> tuple[Run, str]:
    """A run with every kind of extension, and what it printed."""
    words = "--config run.toml --log csv --csv.columns step loss/baseline --console lines".split()
    out = run_shoal(package, "train", "glimmer", *words)
    return find("last", package / "runs"), out


def test_help_lists_the_names_and_the_options_of_all(package):
    assert "List the tensors of a run's newest checkpoint" in run_shoal(package, "--help")
    words = "--algo reinforce --train.optimizer lion --nn.core gru --nn.encoder patches --vec.backend blocks".split()
    out = run_shoal(package, "train", "glimmer", *words, "--help")
    shown = " ".join(out.replace("│", " ").split())
    for name in ("reinforce", "lion", "gru", "patches", "blocks"):
        assert re.search(rf"{{[^}}]*\b{name}\b[^}}]*}}", shown), name
    assert re.search(r"loggers besides metrics.jsonl: [^(]*\bcsv\b", shown)
    for flag, text in {
        "--train.baseline-coef": "weight of the baseline loss",
        "--optimizer.beta1": "part of the momentum in the direction of a step",
        "--core.update-bias": "initial bias of the update gate",
        "--encoder.channels": "features of a patch",
        "--backend.block-size": "envs of a block",
        "--csv.file": "file in the run's folder",
        "--env.wait": "steps between the light and the question",
    }.items():
        assert re.search(rf"{flag} [^-]*{text}", shown), flag
    assert "--train.clip" not in shown, "an option of PPO"


def test_a_run_with_all_of_them_ends(trained):
    run, out = trained
    assert run.summary["status"] == "finished"
    assert run.summary["eval"]["episodes"] == 4
    assert f"Finished: {6 * STEPS} steps" in out
    assert (run.facts["algo"], run.facts["env"], run.facts["backend"]) == ("reinforce", "glimmer", "blocks")


def test_the_options_of_all_are_saved(trained):
    saved = trained[0].config
    assert saved["train"]["baseline_coef"] == 0.25
    assert saved["optimizer"] == {"beta1": 0.8, "beta2": 0.99}
    assert saved["core"] == {"update_bias": 2.0}
    assert saved["encoder"] == {"channels": 16}
    assert saved["backend"] == {"block_size": 5}


def test_the_checkpoint_holds_what_each_of_them_made(trained):
    files, _ = checkpoint.load(trained[0].last)
    weights, state = files["weights"], files["state"]
    assert weights["0.policy.core.cell.weight_hh"].shape == (3 * 16, 16)
    assert weights["0.policy.body.encoder.parts.0.cnn.patches.weight"].shape == (16, 1, 4, 4)
    assert [name for name in state if "optimizer" in name] == ["0.optimizer.momentum"]
    assert state["0.optimizer.momentum"].abs().sum() > 0
    assert state["0.updates"] == 6


def test_the_logger_writes_its_columns(trained):
    with (trained[0].folder / "metrics.csv").open() as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["step", "loss/baseline"]
    assert rows[-1][0] == str(6 * STEPS) or rows[-2][0] == str(6 * STEPS), "the last record is of the evaluation"
    assert float(rows[1][1]) > 0


def test_lines_show_the_metrics_of_the_algorithm(trained):
    assert re.search(r"\bbaseline +\d", trained[1])


def test_a_run_with_all_of_them_resumes_exactly(trained, package, tmp_path):
    run = trained[0]
    shutil.copytree(run.folder, tmp_path / "runs" / "glimmer" / run.id)
    resumed = cut(Run(tmp_path / "runs" / "glimmer" / run.id), 3)
    out = run_shoal(package, "train", "--resume", str(resumed.folder), "--console", "lines")
    assert "not bit-exact" not in out
    assert contents(Run(resumed.folder)) == contents(run)


def test_eval_and_the_command_take_the_run(trained, package):
    run = trained[0]
    assert '"episodes": 5' in run_shoal(
        package, "eval", str(run.folder), "--episodes", "5", "--json", "--video", "none"
    )
    out = run_shoal(package, "sizes", run.id)
    assert re.search(r"^weights +0\.policy\.core\.cell\.weight_hh +\(48, 16\)$", out, re.MULTILINE)
    assert re.search(r"^state +0\.optimizer\.momentum ", out, re.MULTILINE)


# ---- in this process, by `register` ----


@pytest.fixture
def registered(monkeypatch, tmp_path) -> Path:
    """All extensions, registered as a script does; the folder of the runs."""
    for name, plugins in REGISTRIES.items():
        monkeypatch.setattr(plugins, "_registered", {})
        plugins.register(name, load(name))
        assert name in plugins.names()
        assert name not in plugins.stock()
    monkeypatch.setattr(registry, "_registered", {"glimmer": FILES / "glimmer.h"})
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tables(**changes: Any) -> dict[str, Any]:
    """The options of CONFIG, with some replaced."""
    all_tables = config.toml.loads(CONFIG)
    for name, value in changes.items():
        all_tables[name] = {**all_tables.get(name, {}), **value} if isinstance(value, dict) else value
    return all_tables


PLAIN: dict[str, Any] = {
    "device": "cpu",
    "nn": {"hidden": 16},
    "vec": {"num_envs": 16, "torch_threads": 1, "backend": "serial"},
    "eval": {"episodes": 0},
}


def learner_of(env: str, **changes: Any) -> Any:
    layers = {name: {**PLAIN.get(name, {}), **value} for name, value in changes.items() if isinstance(value, dict)}
    trainer = Trainer(env, options_for(env, {**PLAIN, **changes, **layers}))
    trainer.close()
    return trainer.learners[0]


def test_the_dashboard_has_the_rows_of_the_algorithm(registered):
    run = train("glimmer", runs_folder=registered, console="off", **tables())
    trainer = Trainer("glimmer", options_for("glimmer", run.config))
    history = History(run_facts(run, trainer))
    trainer.iterate()
    history.add(trainer.drain())
    trainer.close()
    text = "\n".join("".join(part for part, _ in line) for line in frame(history, 110, 40, False))
    for label in ("policy loss", "baseline loss", "grad norm"):
        assert label in text
    assert "clip fraction" not in text, "a metric of PPO"


def test_the_fast_paths_do_not_take_over_what_they_do_not_know(registered):
    ppo = {"horizon": 8, "minibatches": 2}
    assert fused.not_covered(learner_of("cartpole", train=ppo)) == ""
    assert fused.not_covered(learner_of("cartpole", train={**ppo, "optimizer": "lion"})) == "--train.optimizer lion"
    assert "--nn.core" in fused.not_covered(learner_of("cartpole", train=ppo, nn={"core": "gru"}))
    assert "observations" in fused.not_covered(learner_of("glimmer", train=ppo, nn={"encoder": "patches"}))
    assert "--nn.core" in layered.not_covered(learner_of("cartpole", train=ppo, nn={"core": "gru"}))
    assert "--nn.encoder" in layered.not_covered(learner_of("glimmer", train=ppo, nn={"encoder": "patches"}))
    reinforce = learner_of("cartpole", algo="reinforce", train={"horizon": 8})
    assert reinforce.fused is None
    assert fast.native_q_learning(learner_of("cartpole", train={**ppo, "optimizer": "lion"}), 16) is None


def test_a_stock_algorithm_trains_with_every_extension(registered):
    ppo = {"optimizer": "lion", "horizon": 8, "minibatches": 2, "total_steps": STEPS}
    run = train("glimmer", runs_folder=registered, console="off", log=("csv",), **{**tables(algo="ppo"), "train": ppo})
    files, _ = checkpoint.load(run.last)
    assert "0.optimizer.momentum" in files["state"]
    assert "0.policy.core.cell.weight_hh" in files["weights"]
    assert (run.folder / "metrics.csv").read_text().startswith("step,episode/return")


def test_the_core_is_the_gru_of_torch(registered):
    torch.manual_seed(0)
    core = load("gru").GRU(5, 4, load("gru").GRUOptions())
    x, state = torch.randn(6, 3, 5), core.initial_state(3)
    resets = torch.zeros(6, 3, dtype=torch.bool)
    resets[2, 1] = True
    stepped = []
    for t in range(6):
        state = (torch.where(resets[t].unsqueeze(-1), 0.0, state[0]),)
        out, state = core(x[t], state)
        stepped.append(out)
    assert torch.equal(core.unroll(x, core.initial_state(3), resets), torch.stack(stepped))


def test_the_backend_equals_serial(registered):
    blocks, serial = shoal.make("glimmer", 12, backend="blocks", block_size=5), shoal.make("glimmer", 12)
    assert (blocks.backend, blocks.block_size) == ("blocks", 5)
    for vec in (blocks, serial):
        vec.reset(seed=3)
    for k in range(20):
        actions = [(k + row) % 2 for row in range(12)]
        for mine, expected in zip(blocks.step(actions)[:4], serial.step(actions)[:4]):
            assert (mine == expected).all()


def test_a_run_with_all_of_them_learns(registered):
    """The first image shows where to go in the second one. By chance the return is 0.5."""
    changes: dict[str, Any] = {"train": {"total_steps": 25_000, "learning_rate": 0.008}, "vec": {"num_envs": 32}}
    changes |= {"env": {"wait": 1}, "eval": {"episodes": 100}, "save": {"every": 0}}
    run = train("glimmer", runs_folder=registered, console="off", **tables(**changes))
    assert run.summary["eval"]["return"] > 0.9


def test_a_logger_with_the_name_of_a_table_runs_with_its_defaults(registered):
    LOGGERS.register("train", load("csv"))
    words = "--log train --vec.num-envs 16 --vec.torch-threads 1 --train.total-steps 128 --train.horizon 8"
    assert (
        main(["train", "glimmer", *words.split(), "--console", "off", "--eval.episodes", "0", "--device", "cpu"]) == 0
    )
    assert (find("last").folder / "metrics.csv").read_text().startswith("step,episode/return")


def test_an_env_of_a_package_has_tuned_options(registered, monkeypatch):
    shutil.copy(FILES / "glimmer.h", registered / "glimmer.h")
    (registered / "glimmer.toml").write_text("[train]\nhorizon = 24\n")
    assert options_for("glimmer").train.horizon == 32
    monkeypatch.setattr(registry, "_registered", {"glimmer": registered / "glimmer.h"})
    assert options_for("glimmer").train.horizon == 24


def test_a_broken_backend_is_an_error_only_where_it_is_used(registered, monkeypatch):
    point = importlib.metadata.EntryPoint("broken", "missing_module", BACKENDS.group)
    monkeypatch.setattr(BACKENDS, "_entry_points", lambda: {"broken": point})
    with pytest.raises(ConfigError, match="Native envs have cuda, serial, threads, blocks"):
        shoal.make("glimmer", 2, backend="block")
    with pytest.raises(ConfigError, match="backend 'broken' of 'missing_module' cannot be loaded"):
        shoal.make("glimmer", 2, backend="broken")


# ---- options of their own ----


def test_options_start_from_the_defaults_of_another_choice(registered):
    first = {"train": {"optimizer": "lion"}, "optimizer": {"beta1": 0.5}}
    assert options_for("cartpole", first).optimizer == load("lion").LionOptions(beta1=0.5)
    assert config.to_dict(options_for("cartpole", first, {"train": {"optimizer": "adam"}}).optimizer) == {}
    again = options_for("cartpole", first, {"train": {"optimizer": "adam"}}, {"train": {"optimizer": "lion"}})
    assert again.optimizer == load("lion").LionOptions()


def test_options_of_a_plugin_are_used(registered):
    lion = {"train": {"horizon": 8, "minibatches": 2, "optimizer": "lion"}}
    assert learner_of("cartpole", **lion, optimizer={"beta2": 0.5}).optimizer.values.beta2 == 0.5
    core = learner_of("cartpole", train={"horizon": 8}, nn={"core": "gru"}, core={"update_bias": 3.0}).actor.policy.core
    assert (core.cell.bias_ih[16:32] == 3.0).all()
    policy = learner_of(
        "glimmer", train={"horizon": 8}, nn={"encoder": "patches"}, encoder={"channels": 3}
    ).actor.policy
    assert policy.body.encoder.features == 3 * 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--train.optimizer lion --optimizer.beta1 1.5", "--optimizer.beta1 1.5 is above 1.0"),
        ("--log csv --csv.file a/b.csv", "--csv.file 'a/b.csv' must be the name of a file"),
        ("--algo reinforc", "reinforce"),
        ("--nn.core gr", "gru"),
        ("--optimizer.beta1 0.5", "--optimizer.beta1"),
    ],
)
def test_mistakes_exit_with_2(registered, capsys, words, said):
    assert main(["train", "cartpole", "--console", "off", "--device", "cpu", *words.split()]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        ({"optimizer": {"beta1": 0.5}}, r"\[optimizer\] has options, but train.optimizer = 'adam' has none of its own"),
        ({"train": {"optimizer": "lion"}, "optimizer": {"beta": 0.5}}, "optimizer has no option 'beta'. Did you mean"),
        ({"train": {"optimizer": "lion"}, "optimizer": 3}, "'optimizer' is a table of options, not 3"),
    ],
)
def test_a_table_that_does_not_fit_raises(registered, layer, said):
    with pytest.raises(ConfigError, match=said):
        options_for("cartpole", layer)


# ---- the page ----


def test_the_page_shows_the_files_themselves():
    """Every Python block that names a file is a part of that file."""
    shown = re.findall(
        r"^`tests/extensions/(\w+)\.py`:\n\n```py\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    assert {name for name, _ in shown} == set(REGISTRIES)
    for name, block in shown:
        text = (FILES / f"{name}.py").read_text()
        for part in block.split("\n...\n"):
            assert part.strip("\n") in text, f"{name}: {part}"


def test_the_registration_of_the_page_works(registered, monkeypatch):
    (block,) = [
        text for text in re.findall(r"^```py\n(.*?)^```$", PAGE.read_text(), re.M | re.S) if "register(" in text
    ]
    monkeypatch.setattr(OPTIMIZERS, "_registered", {})
    exec(block, {})
    assert OPTIMIZERS.find("lion") is load("lion").Lion


def test_the_page_names_every_group():
    for plugins in REGISTRIES.values():
        assert f"`{plugins.group}`" in PAGE.read_text()
