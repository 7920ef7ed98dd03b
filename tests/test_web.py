"""Envs and policies in WebAssembly: the bytes of the CPU, the actions of `shoal eval`, pages that work in a browser.

What compiles needs `zig` (the extra `web`), what runs needs Node or Chromium: tests of what is missing are skipped.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import shutil
import subprocess
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import shoal
from shoal import registry
from shoal.algos.roles import assign_roles
from shoal.cli.main import main
from shoal.errors import CompileFailed, CompilerMissing, ConfigError
from shoal.native import build as native_build
from shoal.native import lib
from shoal.player import PolicyPlayer
from shoal.train import env_params
from shoal.train.options import options_for
from shoal.train.players import make_actor
from shoal.web import build, controls, game, page, record
from shoal.web.facts import letters, packed
from shoal.web.serve import PageServer

from . import browser

ENGINE = page.PAGE / "engine.js"
SOME = ("breakout", "snake", "midrange")  # vectorized state; bytes and several agents; several choices and robots
GOLDEN = """
const fs = require("fs"), Shoal = require(process.argv[1]);
for (const file of process.argv.slice(2)) {
  const module = new WebAssembly.Module(fs.readFileSync(file));
  console.log(Shoal.golden(new WebAssembly.Instance(module, {}).exports));
}
"""

SHAPES = ("rect", "circle", "line", "text", "polygon")  # of native/core/draw.h

needs_zig = pytest.mark.skipif(build.find_zig() is None, reason="zig is not installed: pip install 'shoal[web]'")
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
needs_chromium = pytest.mark.skipif(browser.find() is None, reason="chromium is not installed")


def every_or_some() -> list[Any]:
    """SOME in every run; all stock envs in the slow ones."""
    names = registry.stock_names()
    return [pytest.param(name, marks=() if name in SOME else pytest.mark.slow) for name in names]


def hashes(env: str) -> dict[str, Any]:
    """The golden hashes of an env."""
    found: dict[str, Any] = json.loads((Path(__file__).parent / "golden.json").read_text())[env]
    return found


def source_of(env: str, consts: dict[str, int] | None = None) -> native_build.Source:
    return native_build.Source.env(registry.find(env), consts)


# ---- the env ----


@needs_zig
@needs_node
@pytest.mark.parametrize("env", every_or_some())
def test_golden_hash_in_node_is_that_of_the_cpu(env):
    """Also of the presets that change consts alone: params are set by the page."""
    header = registry.find(env)
    spec = lib.load(header).spec
    expected, modules = [hashes(env)["hash"]], [build.module(source_of(env))]
    for preset in spec.presets:
        params, consts = spec.split({"preset": preset.name})
        if consts and not params:
            expected.append(hashes(env)[f"hash of {preset.name}"])
            modules.append(build.module(source_of(env, consts)))
    done = subprocess.run(["node", "-e", GOLDEN, ENGINE, *modules], capture_output=True, text=True, check=True)
    assert done.stdout.split() == expected


def random_game(
    name: str, core: str = "none", bits: str = "16", steps: int = 20, **options: Any
) -> tuple[game.Game, PolicyPlayer, dict[str, Any]]:
    """A game of random policies, with logits that are not all alike."""
    chosen = options_for(name, {**options, "nn": {"core": core, **options.get("nn", {})}})
    chosen = dataclasses.replace(chosen, env=env_params.at(name, chosen.env, 1.0))  # the last values of schedules
    kwargs = {"env": name, **chosen.env_options}
    with contextlib.closing(shoal.make(**{**kwargs, "num_envs": 1, "backend": "serial"})) as vec:
        roles, agents = assign_roles(vec, chosen.nn.policies, chosen.nn.groups), vec.agents_per_env
    actors = [make_actor(role, chosen, k, agents=agents) for k, role in enumerate(roles)]
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for actor in actors:
            for parameter in actor.parameters():
                parameter += 0.02 * torch.randn(parameter.shape, generator=generator)
            if hasattr(actor.policy, "actor"):
                actor.policy.actor.weight *= 60.0
    player = PolicyPlayer(actors, roles, agents, greedy=True)
    return game.of_player(kwargs, player, 7, bits, {"run": "test", "step": 0}, steps=steps), player, kwargs


def play_in_node(facts: dict[str, Any], steps: int, folder: Path) -> tuple[bytes, dict[str, Any]]:
    (folder / "game.json").write_text(json.dumps(facts))
    script = Path(__file__).parent / "web_play.js"
    arguments = [str(script), str(ENGINE), str(folder / "game.json"), str(steps), str(folder / "out")]
    subprocess.run(["node", *arguments], check=True, timeout=200)
    return (folder / "out.obs").read_bytes(), json.loads((folder / "out.json").read_text())


def agreement(name: str, core: str, steps: int, folder: Path, **options: Any) -> tuple[float, int]:
    """The share of the same greedy actions in Node and in the player of `shoal eval`. Observations must be equal."""
    torch.set_num_threads(1)
    made, player, kwargs = random_game(name, core, "auto", steps, **options)
    obs_bytes, played = play_in_node(made.facts, steps, folder)
    same = count = 0
    with contextlib.closing(shoal.make(**{**kwargs, "num_envs": 1, "backend": "serial"})) as vec:
        obs, infos = vec.reset(seed=7)
        player.reset(vec.num_rows)
        size = vec.memory.arrays["obs"].nbytes
        for step in range(steps):
            assert vec.memory.arrays["obs"].tobytes() == obs_bytes[step * size : (step + 1) * size], f"step {step}"
            rows = np.array(played["actions"][step]).reshape(vec.num_rows, -1)
            own = player.act(obs, infos)
            flat = np.concatenate(
                [np.asarray(part).reshape(vec.num_rows, -1) for part in (own if isinstance(own, tuple) else (own,))], 1
            )
            alive = np.asarray(infos.get("alive", True), bool) & np.ones(vec.num_rows, bool)
            near = np.isclose(flat, rows, atol=2e-3) if vec.native_spec.has_float_actions else flat == rows
            same, count = same + int(near.all(1)[alive].sum()), count + int(alive.sum())
            taken = rows.astype(vec.memory.arrays["actions"].dtype).reshape(vec.memory.arrays["actions"].shape)
            obs, _, terminated, truncated, infos = vec.step(taken)
            player.observe(terminated | truncated | ~alive | ~np.asarray(infos.get("alive", True), bool))
            assert bool(played["ends"][step]) == bool(vec.memory.arrays["tick"][0] == 0)
    return same / count, count


@needs_zig
@needs_node
@pytest.mark.slow
@pytest.mark.parametrize("core", ["none", "lstm", "mingru"])
@pytest.mark.parametrize("env", registry.stock_names())
def test_greedy_actions_in_node_are_those_of_eval(env, core, tmp_path):
    share, count = agreement(env, core, 1000, tmp_path)
    assert share >= 0.999
    assert count >= 1000


# the heads besides those of PPO's defaults: for envs with one choice, and for envs with numbers
Q_HEADS: dict[str, dict[str, Any]] = {
    "c51": {"algo": "dqn", "train": {"distribution": "c51", "dueling": True, "layer_norm": True}},
    "quantile": {"algo": "dqn", "train": {"distribution": "quantile"}},
    "pqn": {"algo": "pqn"},
}
BOX_HEADS: dict[str, dict[str, Any]] = {
    "stds by state": {"nn": {"std": "state"}},
    "squashed": {"nn": {"squash": "tanh"}},
}


@needs_zig
@needs_node
@pytest.mark.slow
@pytest.mark.parametrize("env", registry.stock_names())
def test_greedy_actions_of_every_head_in_node_are_those_of_eval(env, tmp_path):
    spec = lib.load(registry.find(env)).spec
    heads = BOX_HEADS if spec.has_float_actions else Q_HEADS if spec.action_kind == "discrete" else {}
    for head, options in heads.items():
        share, count = agreement(env, "none", 1000, tmp_path, **options)
        assert share >= 0.999, head
        assert count >= 1000


@needs_zig
@needs_node
@pytest.mark.parametrize(
    ("env", "core", "options"),
    [
        ("breakout", "none", {}),
        ("forage", "lstm", {}),
        ("pendulum", "mingru", {"env": {"wrap": ["stack=3", "skip=2"]}}),
        ("connect4", "none", {}),
    ],
)
def test_some_greedy_actions_in_node_are_those_of_eval(env, core, options, tmp_path):
    share, _ = agreement(env, core, 200, tmp_path, **options)
    assert share >= 0.995


@needs_zig
@needs_node
def test_params_that_are_drawn_per_episode_are_drawn_alike(tmp_path):
    share, _ = agreement("cartpole", "none", 300, tmp_path, env={"gravity": "uniform(5, 15)"})
    assert share >= 0.99


def shape_of_page(item: dict[str, Any]) -> tuple[Any, ...]:
    """A shape with its colour and all of its numbers, as the page has it."""
    kind, colour = SHAPES[item["kind"]], f"#{item['color']:06x}"
    if kind == "polygon":
        return kind, colour, *item["points"]
    return kind, colour, *(float(item[key]) for key in "xyabc"), item.get("text")


def shape_of_cpu(item: dict[str, Any]) -> tuple[Any, ...]:
    """The same of `draw`."""
    if item["kind"] == "polygon":
        return item["kind"], item["color"], *(number for point in item["points"] for number in point)
    return item["kind"], item["color"], *(item[key] for key in "xyabc"), item.get("text")


@needs_zig
@needs_node
def test_picture_and_curves_of_the_page_are_those_of_the_header(tmp_path):
    """midrange: the shapes of its space-time graph."""
    made, _, kwargs = random_game("midrange")
    _, played = play_in_node(made.facts, 40, tmp_path)
    with contextlib.closing(shoal.make(**{**kwargs, "num_envs": 1, "backend": "serial"})) as vec:
        vec.reset(seed=7)
        for actions in played["actions"]:
            vec.step(np.array(actions, np.int32).reshape(vec.memory.arrays["actions"].shape))
        picture, curves = vec.draw(0), vec.curves(0, 0)
    assert played["picture"]["view"] == pytest.approx(picture["view"])
    assert list(map(shape_of_page, played["picture"]["items"])) == list(map(shape_of_cpu, picture["items"]))
    for name, curve in curves.items():
        assert np.array_equal(np.float32(played["curves"][name]), curve.reshape(-1)), name


# ---- building ----


@needs_zig
def test_a_module_is_compiled_once_and_again_when_its_header_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    header = tmp_path / "own.h"
    header.write_text(registry.find("squared").read_text())
    first = build.module(native_build.Source.env(header))
    assert build.module(native_build.Source.env(header)) == first
    header.write_text(header.read_text() + "\n// changed\n")
    assert build.module(native_build.Source.env(header)) != first


@needs_zig
def test_a_header_that_does_not_compile_says_where(tmp_path, monkeypatch):
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    header = tmp_path / "own.h"
    header.write_text(registry.find("squared").read_text().replace("env_step(", "env_stap("))
    with pytest.raises(CompileFailed, match="WebAssembly"):
        build.module(native_build.Source.env(header))
    assert not list((tmp_path / "cache").glob("*.wasm"))


def test_a_missing_compiler_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(build, "find_zig", lambda: None)
    monkeypatch.setattr(build, "PREBUILT", tmp_path)
    with pytest.raises(CompilerMissing, match=r"pip install 'shoal\[web\]'"):
        build.module(source_of("squared"))


def test_play_names_a_wrong_env_before_it_looks_for_a_browser(capsys):
    assert main(["play", "cartpol"]) == 2
    assert "Did you mean 'cartpole'" in capsys.readouterr().err
    assert main(["play", "gymnasium:CartPole-v1"]) == 2
    assert "is a Python env" in capsys.readouterr().err


# ---- controls ----


@pytest.mark.parametrize(
    ("env", "keys"),
    [
        ("breakout", {"ArrowLeft": 1, "ArrowRight": 2}),
        ("lander", {"ArrowLeft": 1, "ArrowUp": 2, "ArrowRight": 3}),
        ("tetris", {"ArrowLeft": 1, "ArrowRight": 2, "ArrowDown": 5, "Space": 6}),
        ("memory", {"Digit0": 0, "Digit3": 3}),  # as in the picture
        ("connect4", {"Digit1": 0, "Digit7": 6}),  # from the left
    ],
)
def test_keys_follow_the_comment_of_the_header(env, keys):
    header = registry.find(env)
    found = controls.describe(lib.load(header).spec, header)["keys"]
    assert {key: found[key]["does"][2] for key in keys} == keys


def test_a_composed_action_has_a_key_for_each_of_its_parts():
    header = registry.find("asteroids")
    found = controls.describe(lib.load(header).spec, header)
    assert [(one["name"], one["weight"], len(one["labels"])) for one in found["choices"]] == [
        ("turn", 1, 3),
        ("thrust", 3, 2),
        ("shoot", 6, 2),
    ]
    assert {key: value["does"][1] for key, value in found["keys"].items()} == {
        "ArrowLeft": 0,
        "ArrowRight": 0,
        "ArrowUp": 1,
        "Space": 2,
    }


def test_every_stock_env_has_controls_for_every_choice():
    for env in registry.stock_names():
        header = registry.find(env)
        spec = lib.load(header).spec
        found = controls.describe(spec, header)
        counts = [len(one["labels"]) for one in found["choices"]]
        assert int(np.prod(counts)) == int(np.prod(controls._counts(spec))), env
        assert len(found["numbers"]) == controls.spec_floats(spec), env
        assert found["points"] or found["keys"], env


# ---- records ----


def make_record(tmp_path: Path, **changes: Any) -> Path:
    """A record of two random episodes of squared."""
    episodes = []
    with contextlib.closing(shoal.make("squared", 1, autoreset="disabled", backend="serial")) as vec:
        rng = np.random.default_rng(0)
        for seed in (11, None):
            vec.reset(seed=seed)
            actions = []
            while not actions or not vec.ended[0]:
                actions.append([int(rng.integers(5))])
                vec.step(np.array(actions[-1]))
            returns = vec.memory.arrays["final_return"].tolist()
            episodes.append({"seed": seed, "params": {}, "actions": actions, "returns": returns})
    facts = {"format": record.FORMAT, "env": "squared", "options": {}, "agents": ["agent_0"], "person": 0}
    path = tmp_path / "session.json"
    path.write_text(json.dumps({**facts, "seats": ["you"], "episodes": episodes, **changes}))
    return path


def test_eval_plays_a_record_again(tmp_path, capsys):
    path = make_record(tmp_path)
    said = [sum(episode["returns"]) for episode in json.loads(path.read_text())["episodes"]]
    assert main(["eval", str(path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["returns"] == pytest.approx(said)
    assert facts["mode"] == "person"
    assert main(["eval", str(path)]) == 0
    assert "played by a person" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "other 2"}, "format 'other 2'"),
        ({"env": "no_such_env"}, "cannot be made"),
        ({"agents": ["a", "b"]}, "has the agents a, b"),
        ({"episodes": [{"seed": 1, "actions": [[0, 0]]}]}, r"expected \(steps, 1\)"),
        ({"episodes": [{"seed": 1, "actions": [[9]]}]}, "9"),
        ({"episodes": [{"seed": 1, "actions": [[0]]}]}, "no episode that ended"),
        ({"episodes": [{"seed": "x", "actions": [[0]]}]}, "is no record"),
        ({"episodes": 3}, "is no record"),
    ],
)
def test_a_bad_record_is_refused(changes, message, tmp_path):
    with pytest.raises((ConfigError, shoal.errors.ActionError), match=message):
        record.replay(record.read(make_record(tmp_path, **changes)))


def test_a_record_with_other_returns_is_refused(tmp_path):
    path = make_record(tmp_path)
    data = json.loads(path.read_text())
    data["episodes"][1]["returns"] = [123.0]
    path.write_text(json.dumps(data))
    with pytest.raises(ConfigError, match=r"episode 1 returned \[123.0\]"):
        record.replay(record.read(path))


# ---- pages ----


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 5, 1000])
def test_bytes_as_letters_are_base_85_without_angle_brackets(size):
    data = np.random.default_rng(size).bytes(size)
    assert letters(data) == base64.b85encode(data).decode().replace("<", ",")


@needs_node
def test_bytes_that_a_page_holds_are_read_again():
    data = np.random.default_rng(0).bytes(4099)
    texts = [letters(data[:size]) for size in (0, 1, 2, 3, 4, 4099)]
    unpack = f"""const Packed = require({json.dumps(str(page.PAGE / page.UNPACK))});
        for (const text of {json.dumps(texts)}) console.log(Buffer.from(Packed.bytesOf(text)).toString("hex"));
        Packed.unpacked({json.dumps(packed(data))}).then((all) => console.log(Buffer.from(all).toString("hex")));"""
    done = subprocess.run(["node", "-e", unpack], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n") == [data[:size].hex() for size in (0, 1, 2, 3, 4, 4099)] + [data.hex(), ""]


def test_a_page_escapes_what_it_holds():
    text = page.html({"title": "</title><script>alert(1)</script>", "env": "</script><b>"})
    assert "<script>alert" not in text
    assert "</script><b>" not in text


def test_export_refuses_bad_files_before_it_loads_a_run(tmp_path, capsys):
    for name, message in (("agent.png", "is no page"), ("no/agent.html", "cannot be written")):
        assert main(["export", "no-such-run", "-o", str(tmp_path / name)]) == 2
        assert message in capsys.readouterr().err.replace("\n", " ")


def test_a_python_env_has_no_page():
    with pytest.raises(ConfigError, match="is a Python env"):
        game.of_env("gymnasium:CartPole-v1", {})


def test_the_server_refuses_strangers():
    kept: list[str] = []

    def receive(text: str) -> None:
        record.check(text)
        kept.append(text)

    server = PageServer(lambda report: f"page {report}", receive)
    try:
        base = server.url.rsplit("/", 2)[0]

        def ask(url: str, body: str | None = None, **headers: str) -> int:
            data = None if body is None else body.encode()
            request = urllib.request.Request(url, data, headers)
            try:
                with urllib.request.urlopen(request, timeout=10) as answer:
                    return answer.status
            except urllib.error.HTTPError as error:
                error.close()
                return error.code

        blank = {"env": "pong", "options": {}, "agents": [], "person": 0, "seats": [], "episodes": []}
        good = json.dumps({"format": record.FORMAT, **blank})
        assert ask(server.url) == 200
        assert ask(f"{base}/") == 403
        assert ask(f"{base}/{'x' * len(server.token)}/") == 403
        assert ask(server.url, Host="evil.example") == 403
        assert ask(server.url, Origin="http://evil.example") == 403
        assert ask(f"{server.url}record", good, Origin="http://evil.example") == 403
        assert ask(f"{base}/record", good) == 403
        assert ask(f"{server.url}record", "{}") == 400
        assert kept == []
        assert ask(f"{server.url}record", good, Origin=base) == 204
        assert kept == [good]
    finally:
        server.close()


def write_page(env: str, folder: Path, **facts: Any) -> Path:
    path = folder / f"{env}.html"
    page.write(path, random_game(env)[0].facts | facts)
    return path


@needs_zig
@needs_chromium
def test_a_page_plays_pauses_restarts_and_replays(tmp_path):
    with browser.Browser() as tab:
        tab.open(write_page("snake", tmp_path))
        tab.run("app.setSpeed(12)")
        tab.wait("app.env.tick > 20 || app.results.length > 0")
        tab.key("KeyP")
        assert tab.run("app.paused")
        tab.run("document.getElementById('seed').value = '5'; app.restart()")
        tab.run("for (let k = 0; k < 5; k++) app.advance(true)")
        first = tab.run("Array.from(app.env.save())")
        now = tab.run("JSON.stringify(app.picture)")
        tab.run("app.replay(1)")
        assert tab.run("JSON.stringify(app.picture)") != now
        tab.run("app.restart(); for (let k = 0; k < 5; k++) app.advance(true)")
        assert tab.run("Array.from(app.env.save())") == first
        assert tab.run("document.querySelectorAll('.chance').length") == 3
        assert tab.errors == []


@needs_zig
@needs_chromium
@pytest.mark.slow
@pytest.mark.parametrize("env", registry.stock_names())
def test_golden_hash_and_page_in_chromium(env, tmp_path):
    """Every env: the hash of the CPU, a picture that is not empty, no error in half a second of play."""
    page.write(tmp_path / "page.html", random_game(env)[0].facts)
    module = packed(build.module(source_of(env)).read_bytes())  # the page's may have the consts of tuned options
    with browser.Browser() as tab:
        tab.open(tmp_path / "page.html")
        expression = (
            f"(async () => {{ const code = await Shoal.unpacked('{module}'); "
            "return Shoal.golden((await WebAssembly.instantiate(code, {})).instance.exports); })()"
        )
        assert tab.run(expression) == hashes(env)["hash"]
        tab.wait("app.env.tick > 0 || app.results.length > 0")
        colours = (
            "new Set(new Uint32Array(document.getElementById('game').getContext('2d')"
            ".getImageData(0, 0, app.env && document.getElementById('game').width, 400).data.buffer)).size"
        )
        assert tab.run(colours) > 3
        assert tab.errors == []


@needs_zig
@needs_chromium
@pytest.mark.parametrize("way", ["key", "tap"])
def test_a_game_of_a_person_starts_with_a_key_or_a_tap(way, tmp_path):
    with browser.Browser() as tab:
        tab.open(write_page("breakout", tmp_path, seats_of_person=[0]))
        banner = "document.getElementById('banner').textContent"
        tab.run("new Promise((done) => setTimeout(done, 400))")
        assert tab.run("[app.env.tick, app.paused]") == [0, False]
        assert tab.run(banner) == "press a key or tap to start"
        tab.key("ShiftLeft")  # of a shortcut, such as one for a screenshot
        assert tab.run("app.isHeld")
        tab.key("ArrowLeft", hold=True) if way == "key" else tab.click(300, 300)
        tab.wait("app.env.tick > 0")
        assert tab.run(banner) == ""
        assert not tab.run("app.match.episodes[0].actions[0][0] === 0") or way == "tap"  # the key is its first action
        assert tab.errors == []


@needs_zig
@needs_chromium
def test_a_page_asks_for_no_frames_while_nothing_moves(tmp_path):
    with browser.Browser() as tab:
        tab.open(write_page("breakout", tmp_path))
        tab.wait("app.env.tick > 3")
        tab.key("KeyP")
        tab.run("new Promise((done) => setTimeout(done, 100))")
        assert tab.run("app.asked") == 0
        tab.key("KeyP")
        tick = tab.run("app.env.tick + 1000 * app.results.length")
        tab.wait(f"app.env.tick + 1000 * app.results.length > {tick + 3}")
        tab.run("app.setSpeed(0)")  # one step per second: the page sleeps in between
        tab.run("new Promise((done) => setTimeout(done, 100))")
        assert tab.run("app.asked") == 0
        tab.run("app.restart()")
        tab.wait("app.env.tick >= 2", 10)
        assert tab.errors == []


@needs_zig
@needs_chromium
def test_a_game_that_waits_steps_at_once_and_the_reply_in_its_time(tmp_path):
    """Time in which nobody plays is not made up for: connect4 has two steps a second."""
    path = tmp_path / "page.html"
    page.write(path, game.of_env("connect4", {}).facts | {"seats_of_person": [0]})
    with browser.Browser() as tab:
        tab.open(path)
        tab.run("new Promise((done) => setTimeout(done, 1500))")
        assert tab.run("[app.isHeld, app.env.tick, app.isWaiting]") == [False, 0, True]
        steps = tab.run(
            "new Promise((done) => { app.hands.press(Object.keys(app.game.controls.keys)[0]); app.wake(); "
            "requestAnimationFrame(() => done(app.env.tick)); })"  # after the app's own
        )
        assert steps == 1
        tab.wait("app.env.tick === 2", 5)
        assert tab.errors == []


def test_a_game_in_the_terminal_starts_with_a_key(monkeypatch, capsys):
    from shoal.cli import terminal

    asked: list[Any] = []

    def keys(timeout: float | None) -> list[str]:
        """One key, one step without, the end."""
        asked.append((timeout, int(vec.memory.arrays["tick"][0]), table.message))
        return [["x"], [], ["q"]][len(asked) - 1]

    monkeypatch.setattr(terminal, "read_keys", keys)
    player, kwargs = game.seat("breakout", {}, "", 1, Path("runs"))
    with contextlib.closing(
        shoal.make(**{**kwargs, "num_envs": 1, "backend": "serial", "autoreset": "disabled"})
    ) as vec:
        facts = {"agents": ["agent_0"], "controls": controls.describe(vec.module.spec, vec.module.source.header)}
        table = terminal.Table(vec, player, facts, 0, kwargs)
        table.reset(1)
        table.run(None)
    assert [timeout is None for timeout, _, _ in asked] == [True, False, False]
    assert [tick for _, tick, _ in asked] == [0, 1, 2]
    assert asked[0][2] == "press a key to start"
    assert asked[1][2] == ""
    assert "press a key to start" in capsys.readouterr().out


# Plays on, and after each step compares the canvas with the same picture drawn at once: the most colours of a picture
# that differ clearly. Single pixels on the soft edges of circles do: a browser draws these otherwise near a clip.
COMPARE = """(() => {
const canvas = document.getElementById("game"), other = document.createElement("canvas");
const pixels = (one) => one.getContext("2d").getImageData(0, 0, one.width, one.height).data;
let most = 0;
for (let step = 0; step < 40; step++) {
  app.advance(true);
  [other.width, other.height, other.shown] = [canvas.width, canvas.height, null];
  View.paint(other, app.picture, app.cropped());
  const [shown, whole] = [pixels(canvas), pixels(other)];
  most = Math.max(most, shown.filter((colour, k) => Math.abs(colour - whole[k]) > 48).length);
}
return most; })()"""


@needs_zig
@needs_chromium
@pytest.mark.slow
@pytest.mark.parametrize("env", registry.stock_names())
def test_a_picture_drawn_in_part_is_the_picture(env, tmp_path):
    with browser.Browser() as tab:
        tab.open(write_page(env, tmp_path))
        tab.run("app.setPaused(true)")
        assert tab.run(COMPARE) < 20
        if tab.run("Boolean(app.game.views)"):
            tab.run("app.switchView()")
            assert tab.run(COMPARE) < 20
        assert tab.errors == []


@needs_zig
@needs_chromium
@pytest.mark.slow
def test_a_script_wins_midrange_against_the_drone(tmp_path):
    """It flies at the drone and fires: by keys alone, on the page that `shoal play` serves."""
    made = game.of_env("midrange", {}, "1=drone")
    page.write(tmp_path / "page.html", made.facts | {"seats_of_person": [0]})
    with browser.Browser() as tab:
        tab.open(tmp_path / "page.html")
        tab.run("app.setSpeed(7)")
        while not tab.run("app.results.length"):
            seen = tab.run("Array.from(app.env.obs(0))")
            distance, sine, cosine = 50 * seen[7], seen[8], seen[9]
            turn = "ArrowLeft" if sine > 0.05 else "ArrowRight" if sine < -0.05 or cosine < 0 else ""
            for key in ("ArrowLeft", "ArrowRight"):
                partial(tab.key, hold=True)(key) if key == turn else tab.release(key)
            if distance < 14 and abs(sine) < 0.2 and cosine > 0 and seen[5] < 0.3:
                tab.key("Space")
        assert tab.run("app.results[0].returns[0]") > 0.9
        yaw = tab.run("app.env.param('draw_yaw')[0]")
        tab.key("KeyE")
        assert tab.run("app.env.param('draw_yaw')[0]") == yaw + 5
        tab.key("KeyV")
        assert tab.run("app.cropped()") == [0, 0, 100, 112]
        assert tab.errors == []


@needs_zig
@needs_chromium
@pytest.mark.slow
@pytest.mark.parametrize("env", ["connect4", "othello", "go", "hex", "breakthrough"])
def test_a_click_on_a_board_is_a_move(env, tmp_path):
    """Where an allowed action shows, a click (or two) plays it."""
    page.write(tmp_path / "page.html", game.of_env(env, {}, "1=random").facts | {"seats_of_person": [0]})
    with browser.Browser() as tab:
        tab.open(tmp_path / "page.html")
        tab.wait("app.isMyTurn()")
        wanted = tab.run("Controls.findPlaces(app.match, app.scratch(), 0).filter((place) => place.at.length)")[-1]
        for point in ([wanted["from"][0]] if env == "breakthrough" else []) + [wanted["at"][0]]:
            spot = tab.run(
                "(() => { const box = document.getElementById('game').getBoundingClientRect(), at = "
                "View.place(app.picture.view, box.width, box.height); "
                f"return [box.left + at.x + at.sx * {point[0]}, box.top + at.y + at.sy * {point[1]}]; }})()"
            )
            tab.click(*spot)
        tab.wait("app.match.episodes.at(-1).actions.length > 0", 5)
        assert tab.run("app.match.episodes.at(-1).actions[0][0]") == wanted["action"]
