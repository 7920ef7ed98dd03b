"""The examples run, are short, and do what their docstrings say."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from shoal import checkpoint, names
from shoal.cli.main import main
from shoal.runs import all_runs, find
from tests.faults.tools import ROOT

EXAMPLES = Path(ROOT) / "examples"


def run(name: str, *words: str) -> str:
    """Runs an example as a user does; returns what it prints."""
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *words]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "name",
    [
        "custom_policy.py",
        "custom_env.py",
        "own_loop.py",
        "league_loop.py",
        "schedules.py",
        "callbacks.py",
        "domain_randomization.py",
        "gallery.py",
        "load_and_act.py",
        "curriculum.py",
        "connect4.py",
    ],
)
def test_an_example_is_under_sixty_lines(name):
    assert len((EXAMPLES / name).read_text().splitlines()) < 60


def test_a_league_in_a_loop_of_your_own_tells_who_played():
    out = run("league_loop.py", "--steps", "6000", "--envs", "64")
    assert "random: " in out
    assert "latest: " in out
    assert "against the pool" in out


def test_your_own_policy_is_trained(tmp_path):
    out = run("custom_policy.py", "--steps", "2048", "--envs", "16", "--runs", str(tmp_path))
    weights, _ = checkpoint.load(find("last", tmp_path).last, ("weights",))
    assert "0.policy.blocks.1.1.weight" in weights["weights"]
    assert "return" in out


def test_trained_policies_act(tmp_path):
    out = run("load_and_act.py", "--steps", "4k", "--runs", str(tmp_path))
    assert "CartPole-v1: return" in out
    assert "over 2560 episodes" in out
    assert (tmp_path / "cartpole.pt").is_file()


def test_connect_four_is_learned_by_self_play(tmp_path):
    out = run("connect4.py", "--steps", "4k", "--games", "8", "--runs", str(tmp_path)).splitlines()
    assert [len(row.split()) for row in out[:6]] == [7] * 6
    assert re.fullmatch(r"against one_ply: won \d, drawn \d, lost \d of 8 games", out[6])


def test_your_own_env_is_trained_in_processes(tmp_path):
    out = run("custom_env.py", "--steps", "4k", "--runs", str(tmp_path))
    trained = find("last", tmp_path)
    assert trained.summary["status"] == "finished"
    assert "process" in out
    assert "targets a game" in out


def test_schedules_change_options_and_params_during_the_run(tmp_path):
    out = run("schedules.py", "--steps", "8k", "--runs", str(tmp_path))
    table = [line.split() for line in out.splitlines()[1:-1]]
    assert [float(column) for column in table[0][1:4]] == [0.005, 0.01, 0.5]
    assert float(table[-1][1]) < 0.005
    assert float(table[-1][3]) > 1.5
    assert "with half_pole 2" in out


def test_callbacks_and_a_loop_end_their_runs(tmp_path):
    out = run("callbacks.py", "--steps", "30k", "--runs", str(tmp_path))
    assert "finished at step" in out
    assert "the loop ended at step" in out
    assert "a return of 100" in out
    first, second = all_runs(tmp_path)
    assert any("curriculum/half_pole" in record for record in first.metrics())
    assert second.summary["reason"] == "a return of 100"


def test_a_curriculum_has_its_phases(tmp_path):
    out = run("curriculum.py", "--steps", "30k", "--runs", str(tmp_path))
    assert "phase 1 of 3" in out
    assert "with half_pole 1" in out
    assert find("last", tmp_path).config["env"] == {"half_pole": 1.0}


def test_seeds_other_params_and_the_weights_of_another_run(tmp_path):
    out = run("seeds_and_init.py", "--steps", "4k", "--seeds", "2", "--runs", str(tmp_path))
    assert "95 % interval over 2 seeds" in out
    assert "under gravity 29.4 (training: 9.8):" in out
    assert find("last", tmp_path).facts["init"]["not_loaded"] == []


def test_the_gallery_is_drawn(tmp_path):
    out = run("gallery.py", "--out", str(tmp_path / "new"), "--steps", "3", "--width", "64")
    names = sorted(path.stem for path in (EXAMPLES / "gallery").glob("*.h"))
    assert sorted(path.stem for path in (tmp_path / "new").glob("*.png")) == names
    assert out.count("shapes") == len(names) == 5


def test_moments_of_midrange_are_drawn(tmp_path):
    out = run("midrange_pictures.py", "--out", str(tmp_path / "new"), "--width", "120")
    assert sorted(path.stem for path in (tmp_path / "new").iterdir()) == ["defend", "safe", "too_late"]
    margins = dict(re.findall(r"(\w+)\.png: margin (\S+) km", out))
    assert float(margins["safe"]) > 0 > float(margins["too_late"])


def test_your_own_parts_are_chosen_by_name(tmp_path, monkeypatch, capsys):
    """The commands of the example's docstring, shortened; then evaluated and resumed from another folder."""
    monkeypatch.chdir(EXAMPLES / "own_by_name")
    monkeypatch.setattr(sys, "path", list(sys.path))
    words = "train mine:Room --nn.policy mine:Small --reward mine:Thrifty --log mine:Csv --env.outside -5"
    tiny = "--train.total-steps 2k --vec.num-envs 8 --vec.backend serial --device cpu --console off --eval.episodes 1"
    assert main([*words.split(), *tiny.split(), "--runs", str(tmp_path)]) == 0
    trained = find("mine:Room", tmp_path)
    assert trained.config["env"] == {"outside": -5}
    last = (trained.folder / "returns.csv").read_text().splitlines()[-1].split(",")
    assert float(last[2]) < float(last[1])  # heating costs
    assert main(["eval", "mine:Room", "--agent", "mine:Thermostat", "--episodes", "2"]) == 0
    assert "agent mine:Thermostat" in capsys.readouterr().out
    monkeypatch.chdir(tmp_path)
    assert main(["eval", str(trained.folder), "--episodes", "1"]) == 0
    assert "mine-Room" in capsys.readouterr().out
    more = f"train --resume {trained.folder} --train.total-steps 4k --eval.episodes 0 --console off"
    assert main(more.split()) == 0
    assert find("last", tmp_path).metrics()[-1]["step"] >= 4000
    sys.modules.pop("mine", None)


def test_the_page_of_your_own_parts_shows_the_example():
    source = (EXAMPLES / "own_by_name" / "mine.py").read_text()
    page = (Path(ROOT) / "docs" / "your-own.md").read_text()
    for block in re.findall(r"^```py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        assert block in source, block


def test_your_own_loop_learns(capsys):
    """From about 20 to over 100 in a few seconds; it reaches 500 in full."""
    before = torch.get_num_threads()
    loop = runpy.run_path(str(EXAMPLES / "own_loop.py"))
    assert loop["main"](62_000) > 100
    torch.set_num_threads(before)
    assert "steps  return" in capsys.readouterr().out


def test_robot_vacuums_are_trained_with_the_flags_of_the_original_script(tmp_path):
    words = (
        "--num-envs 8 --train-frequency 4 --env-n 5 --charger-positions 2,2 --robot-0-energy 1000 --robot-1-energy 100"
    )
    words += " --e-collision 20 --e-charge 20 --use-epsilon-decay --epsilon-decay 0.998 --num-episodes 12 --n-step 2"
    words += " --save-frequency 500 --wandb-mode disabled --memory-size 5000 --replay-start-size 200 --max-steps 60"
    out = run("train_vacuum.py", *words.split(), "--runs", str(tmp_path))
    trained = find("last", tmp_path)
    assert trained.config["train"]["epsilon_decay"] == 0.998
    assert (trained.config["env"]["charger_x_0"], trained.config["env"]["energy_1"]) == (2, 100.0)
    assert "mean return" in out


def test_midrange_is_trained_with_the_flags_of_the_original_script(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "path", list(sys.path))
    script = names.load(str(EXAMPLES / "train_midrange.py"))

    def play(words: str) -> str:
        script.main(script.parse([*words.split(), "--runs", str(tmp_path)]))
        return capsys.readouterr().out

    words = "--agent ppo --opponent drone --reward pointing --num-envs 8 --time-scale 2 --device cpu --max-steps 128"
    words += " --lr 0.001 --n-steps 32 --batch-size 64 --n-epochs 2 --gamma 0.98 --gae-lambda 0.9 --clip-epsilon 0.1"
    words += " --entropy-coef 0.02 --episode-max-steps 60 --seed 3 --render --log-interval 2 --eval-games 4"
    out = play(words)
    trained = find("last", tmp_path)
    own = trained.config["train"]
    assert [line.split()[1] for line in out.splitlines() if line.startswith("step")] == ["512", "1,024"]
    assert "of 4 games" in out
    assert (own["horizon"], own["minibatches"], own["epochs"], own["total_steps"]) == (32, 4, 2, 1024)
    assert (own["learning_rate"], own["gamma"], own["gae_lambda"]) == (0.001, 0.98, 0.9)
    assert (own["clip"], own["entropy_coef"], trained.config["seed"]) == (0.1, 0.02, 3)
    assert (trained.config["env"]["time_scale"], trained.config["env"]["max_steps"]) == (2.0, 60)
    assert (trained.config["opponents"], trained.config["device"]) == ("1=drone", "cpu")
    assert trained.config["reward"].endswith("train_midrange.py:Pointing")
    assert trained.config["vec"]["num_envs"] == 8
    assert list((trained.folder / "videos").iterdir())
    more = "--opponent chaser --num-envs 8 --max-steps 32 --n-steps 32 --time-scale 2 --eval-games 2"
    play(f"{more} --checkpoint {trained.folder}")
    assert find("last", tmp_path).facts["init"]["not_loaded"] == []
    assert find("last", tmp_path).config["opponents"].endswith("train_midrange.py:Chaser")
    assert "chaser against drone: 100 % won" in play("--agent chaser --eval-games 8")
    assert "ppo against self" in play("--opponent self --num-envs 4 --max-steps 16 --n-steps 16 --eval-games 2")


def test_params_are_drawn_and_both_policies_play_on_all(tmp_path):
    out = run("domain_randomization.py", "--steps", "2048", "--envs", "16", "--episodes", "2", "--runs", str(tmp_path))
    head, fixed, drawn = out.splitlines()
    assert head.split()[-5:] == ["0.005", "0.02", "0.04", "0.06", "0.08"]
    assert fixed.startswith("0.02 ")
    assert drawn.startswith("loguniform(0.005, 0.08) ")
    assert find("last", tmp_path).config["env"]["dt"] == "loguniform(0.005, 0.08)"


def test_the_groups_of_a_chase_learn_a_policy_each(tmp_path):
    out = run("chase/train.py", "--steps", "20k", "--envs", "16", "--runs", str(tmp_path))
    trained = find("last", tmp_path)
    assert trained.facts["policies"] == {"predators": [0, 1, 2], "prey": [3]}
    returns = {name: score["return"] for name, score in trained.summary["eval"]["groups"].items()}
    assert returns["predators"] == pytest.approx(-returns["prey"], rel=1e-3)
    assert f"prey: return {returns['prey']:.2f}, value loss" in out


def test_a_league_and_plain_self_play_meet(tmp_path):
    words = "--steps 4k --envs 32 --games 2 --robots random"
    out = run("self_play.py", *words.split(), "--runs", str(tmp_path))
    assert "the league: " in out
    assert "the match: 2 games of each pair" in out
    points = [float(line.split()[1]) for line in out.splitlines() if line.endswith("of the points")]
    assert len(points) == 3
    assert sum(points) == pytest.approx(150.0, abs=0.3)
