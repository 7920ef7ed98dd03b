"""`shoal step`: what is typed is done, wrong input is explained, and nothing is stepped by it."""

from __future__ import annotations

import io
import re
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import shoal
from shoal import registry
from shoal.cli import pixels
from shoal.cli.main import main
from shoal.cli.stepper import Stepper
from shoal.errors import ConfigError
from shoal.native import build, fields, lib
from tests.conftest import ENVS

GALLERY = registry.STOCK.parents[1] / "examples" / "gallery"


@pytest.fixture
def step(monkeypatch, capsys):
    """Runs `shoal step` with typed lines; returns the exit code and what it printed."""

    def run(env: str, *lines: str, flags: tuple[str, ...] = ()) -> tuple[int, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines) + "\n"))
        code = main(["step", env, *flags])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run


def test_a_typed_action_is_the_step_that_python_takes(step):
    vec = shoal.make("cartpole", 1, seed=3)
    vec.reset()
    obs, reward, *_ = vec.step(np.array([1]))
    code, out = step("cartpole", "1", flags=("--seed", "3"))
    assert code == 0
    assert f"step 1  action 1  reward {reward[0]:g}  return 1" in out
    assert f"obs [{' '.join(f'{number:.4g}' for number in obs[0].tolist())}]" in out


def test_the_fields_of_state_are_shown_by_name(step):
    _, out = step("squared", "4 x2; 1", "s")
    assert re.search(r"^  x +2$", out, re.MULTILINE)
    assert re.search(r"^  y +1$", out, re.MULTILINE)
    assert re.search(r"^  target_x +-?5$", out, re.MULTILINE)


def test_structs_in_structs_and_arrays_have_their_fields(tmp_path):
    header = tmp_path / "nested.h"
    header.write_text(
        '#define ENV_OBS OBS_F32(1)\n#define ENV_ACTION ACT_DISCRETE(2)\n#define ENV_NO_DRAW\n#include "core/env.h"\n'
        "enum { WIDE = 3 };\ntypedef struct {\n    float x, y;  // a comment; with a semicolon\n} Body;\n"
        "typedef struct {\n    int8_t kind;\n    Body bodies[WIDE];\n    uint8_t map[WIDE * 2][4];\n"
        "    double last;\n} State;\n"
    )
    found = fields.fields_of(build.Source.env(header))
    assert [(field.path, field.offset, field.dtype.str[1:], field.shape) for field in found] == [
        ("kind", 0, "i1", ()),
        *((f"bodies[{k}].{axis}", 4 + 8 * k + 4 * (axis == "y"), "f4", ()) for k in range(3) for axis in "xy"),
        ("map", 28, "u1", (6, 4)),
        ("last", 56, "f8", ()),
    ]


def test_a_state_in_an_included_file_and_arrays_as_long_as_a_const_have_their_fields():
    """lander's State is in a file of its folder; drone's has an array with the length of a const."""
    lander = [field.path for field in fields.fields_of(build.Source.env(registry.find("lander")))]
    assert lander[:7] == ["x", "y", "vx", "vy", "angle", "spin", "slip"]
    drone = [field.path for field in fields.fields_of(build.Source.env(registry.find("drone"), {"drones": 2}))]
    assert [path for path in drone if "body" in path] == ["drone[0].body", "drone[1].body"]


@pytest.mark.parametrize("name", ENVS)
def test_every_stock_env_is_stepped(name):
    stepper = Stepper(name, 0, {})
    for _ in range(5):
        stepper.step([stepper.random_action(agent) for agent in range(len(stepper.agents))])
    assert stepper.steps == 5
    assert pixels.ascii_art(stepper.frame(480), 40).strip()
    stepper.back(5)
    assert stepper.steps == 0
    stepper.close()


def test_random_play_of_a_seed_repeats(step):
    assert step("breakout", "x5", "s") == step("breakout", "x5", "s")


def test_back_undoes_steps_to_the_bit(step):
    stepper = Stepper("pong", 1, {})
    for _ in range(4):
        stepper.step([1])
    before = stepper.vec.snapshot()
    stepper.step([2])
    stepper.step([0])
    stepper.back(2)
    assert stepper.vec.snapshot() == before
    assert stepper.steps == 4
    code, out = step("pong", "1 x2", "b 3", "b")
    assert code == 1
    assert "b 3: there are 2 steps to undo in this episode." in out
    assert "back at step 1" in out


def test_reset_with_a_seed_is_that_seeds_episode(step):
    obs, _ = shoal.make("cartpole", 1).reset(seed=11)
    _, out = step("cartpole", "1 x3", "r 11", "r")
    first = f"reset with seed 11\n  obs [{' '.join(f'{number:.4g}' for number in obs[0].tolist())}]"
    assert first in out


def test_the_end_of_an_episode_stops_repeats_and_shows_the_stats(step):
    code, out = step("cartpole", "1 x100", "s", "1")
    assert code == 0
    ended = re.search(r"the episode ended \(terminated\) after (\d+) steps: return \d+, tilt [\d.]+", out)
    assert ended
    assert re.search(rf"^  steps +{ended[1]}$", out, re.MULTILINE)  # the last state can still be looked at
    assert "a new episode" in out
    assert "step 1  action 1" in out.split("a new episode")[1]


def test_the_observation_shows_bounds(step):
    _, out = step("cartpole", "o")
    assert re.search(r"obs\[0\] = -?[\d.e-]+  in -4\.8 \.\. 4\.8", out)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("7", "7 is out of range 0 .. 1. The action is a number in 0 .. 1. Nothing was stepped."),
        ("-1", "-1 is out of range 0 .. 1."),
        ("0.5", "'0.5' is no command and no int."),
        ("jump", "'jump' is no command and no int. The action is a number in 0 .. 1; h lists the commands."),
        ("1 1", "'1' is left over. An action is a number in 0 .. 1. Type x10 for ten random steps."),
        ("1 x0", "x0: repeat 1 to 1,000,000 times."),
        ("r -3", "'r -3': type r, or r and an int of at least 0."),
        ("s 3", "'s 3': s takes nothing more."),
        ("p 3", "the width of a picture is 3. Give 8 to 400 columns."),
        ("set speed", "'speed' is not NAME=VALUE."),
        ("set speed=1", "set: no param 'speed'. It has max_steps, gravity"),
        ("set gravity=heavy", "gravity='heavy' is not a number"),
        ("b", "b 1: there are 0 steps to undo"),
    ],
)
def test_wrong_input_is_explained_and_steps_nothing(step, line, says):
    code, out = step("cartpole", line, "s")
    assert code == 1
    assert says in out
    assert re.search(r"^  steps +0$", out, re.MULTILINE)


def test_several_agents_get_an_action_each(step):
    code, out = step(str(GALLERY / "tag.h"), "a", "1 0 | 0.5 -1", "0.25 0.25 ?", "1 1")
    assert code == 1
    assert "action 1 0 | 0.5 -1  reward -0.01 0.01" in out
    assert "action 0.25 0.25 | " in out
    assert "The action of agent_1 is 2 numbers: -1 .. 1 each, but 0 are left." in out


def test_a_masked_action_is_said_and_random_ones_are_allowed(step):
    stepper = Stepper(str(GALLERY / "pegs.h"), 0, {"empty": 4})
    allowed = set(np.flatnonzero(stepper.mask(0)).tolist())
    assert {int(stepper.random_action(0)) for _ in range(40)} == allowed
    forbidden = next(k for k in range(36) if k not in allowed)
    assert stepper.masked_choices([forbidden]) == ["agent_0"]
    assert stepper.masked_choices([next(iter(allowed))]) == []


def test_params_are_set_at_the_start_and_on_the_way(step):
    code, out = step("cartpole", "set", "set gravity=2 force=5", "1", flags=("--set", "gravity=3"))
    assert code == 0
    assert "  gravity = 3\n" in out
    assert "  gravity = 2\n  force = 5\n" in out
    code, out = step("cartpole", "1", flags=("--set", "gravty=3"))
    assert code == 2
    assert "no param 'gravty'. Did you mean 'gravity'?" in " ".join(out.split())


class Rows(gymnasium.Env):
    """A Python env with structured spaces and no pictures."""

    observation_space = spaces.Dict({"camera": spaces.Box(0, 255, (20, 20), np.uint8), "gear": spaces.Discrete(5)})
    action_space = spaces.Tuple((spaces.Discrete(3, start=1), spaces.Box(-1, 1, (2,))))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seen = []
        return {"camera": np.full((20, 20), 7, np.uint8), "gear": 2}, {}

    def step(self, action):
        self.seen.append((int(action[0]), action[1].tolist()))
        return {"camera": np.full((20, 20), 9, np.uint8), "gear": 3}, 0.5, False, False, {}


def test_python_envs_with_structured_spaces(step):
    gymnasium.register("ShoalRows-v0", Rows, disable_env_checker=True)
    try:
        code, out = step("gymnasium:ShoalRows-v0", "3 0.5 -1", "o", "s", "", "p", "b", "4 0 0")
    finally:
        del gymnasium.registry["ShoalRows-v0"]
    assert code == 1
    assert "action 3 0.5 -1  reward 0.5" in out
    assert "obs['gear'] = 3  in 0 .. 4" in out
    assert "obs['camera'] uint8 (20, 20): min 9, max 9" in out
    assert "[(3, [0.5, -1.0])]" in out
    assert "p: this env gives no picture" in out
    assert "b: the state of a Python env cannot be put back" in out
    assert "4 is out of range 1 .. 3" in out


def test_a_terminal_has_a_prompt_and_colours(monkeypatch, capsys):
    """At a prompt a mistake is no failure, and the end of the input ends the session."""
    lines = iter(["4", "9", "p 16"])
    monkeypatch.setattr(sys, "stdin", type("Terminal", (), {"isatty": lambda self: True})())
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)

    def read(prompt: str) -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", read)
    assert main(["step", "squared"]) == 0
    out = capsys.readouterr().out
    assert "9 is out of range 0 .. 4" in out
    assert out.count("▀") == 16 * 8


def test_agents_with_different_actions(step):
    pytest.importorskip("mpe2")
    code, out = step("pettingzoo:mpe2/simple_speaker_listener_v4", "2 | 4", "2 5")
    assert code == 1
    assert "An action is a number in 0 .. 2 for speaker_0, a number in 0 .. 4 for listener_0." in out
    assert "action 2 | 4  reward" in out
    assert "5 is out of range 0 .. 4. The action of listener_0" in out


def test_unknown_envs_and_widths_are_refused_before_any_work(step):
    assert step("cartpol", "1")[0] == 2
    assert "Give 8 to 400 columns" in step("cartpole", "1", flags=("--width", "5"))[1]
    code, out = step("cartpole", "1", flags=("--seed", "-1"))
    assert code == 2
    assert "--seed -1 must be in 0" in out


def test_pictures_are_characters():
    frame = np.zeros((40, 80, 3), np.uint8)
    frame[10:30, 20:60] = (255, 128, 0)
    art = pixels.ascii_art(frame, 16).split("\n")
    assert art == ["", "    @@@@@@@@", "    @@@@@@@@", ""]
    blocks = pixels.half_blocks(frame, 16).splitlines()
    assert len(blocks) == 4
    assert all(line.count("▀") == 16 for line in blocks)
    assert "38;2;255;128;0" in blocks[1]
    with pytest.raises(ConfigError, match="Give 8 to 400 columns"):
        pixels.check_width(4000)


def test_a_frame_smaller_than_the_picture_is_drawn():
    assert pixels.ascii_art(np.eye(3, dtype=np.uint8)[..., None].repeat(3, 2) * 255, 8)


def test_the_state_without_known_fields_is_bytes(monkeypatch):
    monkeypatch.setattr(fields, "fields_of", lambda source: ())
    stepper = Stepper("squared", 0, {})
    name, value = next(iter(stepper.state()))
    assert f"{lib.load(registry.find('squared')).record_bytes} bytes" in name
    assert isinstance(value, bytes)
