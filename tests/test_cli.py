"""The command line: what a person types, reads and is told; what a machine parses."""

from __future__ import annotations

import inspect
import itertools
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest

import shoal
from shoal import conformance, registry
from shoal.cli import bench_env, command, pages
from shoal.cli import main as cli
from shoal.cli.command import COMMANDS, Command, verbs
from shoal.cli.main import main
from shoal.errors import ConfigError
from shoal.measure import Sample, Stepper, measure
from shoal.native import lib
from tests.strict import strict_json

ROOT = Path(__file__).parent.parent
TINY = ("--seconds", "0.02", "--repeats", "2", "--num-envs", "16")


@pytest.fixture(autouse=True)
def wide_screen(monkeypatch):
    """So that no word under test is cut by a line break."""
    monkeypatch.setenv("COLUMNS", "300")


# ---- finding a verb, help, errors and exit codes ----


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"], ["help"]])
def test_overview_names_every_verb_and_an_example(capsys, argv):
    assert main(argv) == 0
    out = capsys.readouterr().out
    for verb in verbs():
        assert re.search(rf"^  {verb} +[A-Z]\w+ .+\.$", out, re.MULTILINE), verb
    assert "shoal bench env all" in out


@pytest.mark.parametrize("verb", verbs())
def test_help_explains_every_option(capsys, verb):
    if command.find(verb).parses_words:
        pytest.skip("its flags are dataclass fields: tests/test_cli_train.py")
    assert main([*verb.split(), "--help"]) == 0
    out = " ".join(capsys.readouterr().out.replace("│", " ").split())
    function = command.find(verb).run
    doc = inspect.getdoc(function) or ""
    assert f"shoal {verb} " in out.split("Try:")[1], "an example"
    for name, parameter in inspect.signature(function).parameters.items():
        meaning = re.search(rf"^    {name}: (.+)$", doc, re.MULTILINE)
        assert meaning, f"{name} has no help"
        assert " ".join(meaning[1].split()) in out
        if parameter.kind == parameter.KEYWORD_ONLY:
            assert f"--{name.replace('_', '-')}" in out
        if parameter.default not in (None, (), "", parameter.empty, ("all",)):
            value = parameter.default
            shown = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
            assert f"(default: {shown})" in out, name


# ---- commands from outside ----


@pytest.fixture
def outside(monkeypatch):
    """Adds a command, as another package does."""

    def add(name, plugin):
        monkeypatch.setitem(COMMANDS._registered, name, plugin)

    return add


def greet(name: str = "you", /, *, times: int = 1) -> int:
    """Greet someone.

    Args:
        name: Who is greeted.
        times: How often.
    """
    print(f"Hello, {name}." * times)
    return 3


def test_a_command_may_come_from_outside(capsys, outside):
    """Overview, help, flags, examples, suggestions and the exit code follow from the function."""
    outside("greet_person", Command(greet, order=15, examples={"shoal greet person Ada": "say hello to Ada"}))
    assert main([]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^  greet person +Greet someone\.$", out, re.MULTILINE)
    assert re.search(r"^  shoal greet person Ada +say hello to Ada$", out, re.MULTILINE)
    rows = [line.strip() for line in out.splitlines()]
    places = [next(k for k, row in enumerate(rows) if row.startswith(verb)) for verb in ("train", "greet", "eval")]
    assert places == sorted(places), "in the order that it asks for"
    assert main(["greet", "person", "Ada", "--times", "2"]) == 3
    assert capsys.readouterr().out == "Hello, Ada.Hello, Ada.\n"
    assert main(["greet", "person", "--help"]) == 0
    assert "How often." in capsys.readouterr().out
    assert main(["greet"]) == 0
    assert "greet person" in capsys.readouterr().out
    assert main(["greet", "Ada"]) == 2
    assert "Did you mean 'shoal greet person Ada'?" in capsys.readouterr().err


def test_a_command_may_be_a_plain_function(capsys, outside):
    outside("hello", greet)
    assert main(["hello", "Bo"]) == 3
    assert main(["helo"]) == 2
    assert "Did you mean 'hello'?" in capsys.readouterr().err


def test_a_command_that_cannot_be_loaded_hides_no_other(capsys, monkeypatch):
    def load():
        raise ImportError("no module named 'nothing'")

    point = SimpleNamespace(name="odd", value="nothing:odd", load=load)
    monkeypatch.setattr(COMMANDS, "_entry_points", lambda: {"odd": point})
    assert main([]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^  odd +command 'odd' of 'nothing:odd' cannot be loaded: ImportError", out, re.MULTILINE)
    assert re.search(r"^  train +Train", out, re.MULTILINE)
    assert main(["odd"]) == 2
    assert main(["envs", "cartpole"]) == 0


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_overview_keeps_its_columns_apart(capsys, monkeypatch, width):
    """Defect 37: a long example ran into its meaning, and summaries wrapped to the first column."""
    monkeypatch.setenv("COLUMNS", str(width))
    assert main([]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= width
    table = out.split("Verbs\n")[1].rpartition("\n\n")[0]
    assert all(line.startswith("  ") for line in table.splitlines() if line and line != "Examples")
    assert re.search(r"^  shoal tune gymnasium:CartPole-v1(\s{2,}|\n +)the fastest", out, re.MULTILINE)


def test_output_replaces_what_the_encoding_lacks():
    """Defect 31, for every command: a pipe of ASCII gets +- for ±, not an error."""
    code = (
        "from shoal.cli.command import COMMANDS; from shoal.cli.main import main; from shoal.cli.screen import console;"
        "COMMANDS.register('odd', lambda: console().print('8 ± 1 …') or print('9 ± 1') or 0);"
        "raise SystemExit(main(['odd']))"
    )
    for encoding, shown in (("ascii", "8 +- 1 ...\n9 +- 1\n"), ("utf-8", "8 ± 1 …\n9 ± 1\n")):
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            capture_output=True,
            env={**os.environ, "PYTHONIOENCODING": encoding},
        )
        assert (done.returncode, done.stdout.decode(encoding)) == (0, shown), done.stderr


def test_help_is_whole_after_arguments(capsys):
    main(["bench", "env", "cartpole", "--help"])
    assert "NAME" in capsys.readouterr().out
    assert main(["help", "new"]) == 0
    assert "--force" in capsys.readouterr().out


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"shoal {shoal.__version__}\n"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["envz"], "Did you mean 'envs'?"),
        (["bench", "cartpole"], "Did you mean 'shoal bench env cartpole'?"),
        (["--versoin"], "Did you mean '--version'?"),
        (["envs", "cartpol"], "unknown env 'cartpol'. Did you mean 'cartpole'?"),
        (["envs", "./nothing.h"], "no such file"),
        (["envs", "--jsn"], "--json"),
        (["bench", "env", "cartpol"], "Did you mean 'cartpole'?"),
        (["bench", "env", "cartpole", "--backends", "thread"], "threads"),
        (["bench", "env", "cartpole", "--num-envs", "0"], "num_envs=0"),
        (["bench", "env", "cartpole", "--num-envs", "x"], "num-envs"),
        (["bench", "env", "cartpole", "--seconds", "0"], "--seconds 0"),
        (["bench", "env", "cartpole", "--seconds", "nan"], "--seconds nan"),
        (["bench", "env", "cartpole", "--repeats", "0"], "--repeats 0"),
        (["bench", "env", "cartpole", "--num-threads", "0"], "--num-threads 0"),
        (["bench", "env", "cartpole", "--backends", "serial", "--num-threads", "2"], "Add threads"),
        (["bench", "env", "cartpole", "--out", "/no/such/folder/x.jsonl"], "--out /no/such/folder/x.jsonl"),
        (["bench", "env", "cartpole", "--out", "/"], "--out /"),
        (["new"], "NAME"),
        (["check"], "PATH"),
    ],
)
def test_mistakes_exit_2_with_the_next_move(capsys, argv, said):
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert said in err
    assert out == ""
    assert "Traceback" not in err


def test_exit_codes(capsys, monkeypatch):
    def failing(error):
        def fail() -> int:
            """Fail."""
            raise error

        return Command(fail)

    monkeypatch.setattr(cli, "find", lambda verb: failing(KeyboardInterrupt()))
    assert main(["envs"]) == 130
    assert capsys.readouterr().err.strip() == "interrupted"
    monkeypatch.setattr(cli, "find", lambda verb: failing(ConfigError("num_envs=0. Try [bold]1[/bold].")))
    assert main(["envs"]) == 2
    assert capsys.readouterr().err == "error: num_envs=0. Try [bold]1[/bold].\n"
    monkeypatch.setattr(cli, "find", lambda verb: failing(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):  # a fault of ours keeps its traceback
        main(["envs"])


def test_check_is_wired(monkeypatch):
    calls = []
    failed = conformance.Outcome("builds", "failed", "")
    monkeypatch.setattr(conformance, "run_checks", lambda *args, **kwargs: calls.append((*args, kwargs)) or [failed])
    assert main(["check", "./x.h", "--quick"]) == 1
    assert main(["check", "cartpole", "--json"]) == 1
    assert main(["check", "vacuum", "--preset", "dust"]) == 1
    expected = [("./x.h", 400, None), ("cartpole", 2000, None), ("vacuum", 2000, "dust")]
    assert calls == [(path, {"steps": steps, "preset": preset}) for path, steps, preset in expected]


def test_as_a_program():
    code = "import sys; from shoal.cli.main import main; main(['--help']); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    done = subprocess.run([sys.executable, "-m", "shoal", "envz"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("error: 'envz'")


# ---- envs ----


def test_list_shows_every_env(capsys, monkeypatch):
    for width in ("80", "120"):
        monkeypatch.setenv("COLUMNS", width)
        assert main(["envs"]) == 0
        out = capsys.readouterr().out
        for env in registry.stock_names():
            spec = lib.load(registry.find(env)).spec
            row = re.search(rf"^{env} .*$", out, re.MULTILINE)[0]
            assert pages.obs_text(spec) in row
            assert pages.action_text(spec) in row
            assert re.search(rf"  {spec.agents}  +{spec.max_steps or 'none'}", row)
            assert pages.summary(registry.find(env))[:30] in out
        assert max(map(len, out.splitlines())) <= int(width)


def test_list_survives_a_header_that_does_not_build(capsys, monkeypatch, tmp_path):
    header = tmp_path / "odd.h"
    header.write_text('// odd.h: says little.\n#include <[bold]>\n#include "core/env.h"\n')
    monkeypatch.setitem(registry._registered, "odd", header)
    assert main(["envs"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^odd .*does not compile", out, re.MULTILINE)
    assert "cartpole" in out
    assert main(["envs", "--json"]) == 0
    listed = {entry["name"]: entry for entry in strict_json(capsys.readouterr().out)}
    assert "does not compile" in listed["odd"]["error"]
    assert listed["cartpole"]["agents"] == 1
    assert main(["envs", "odd"]) == 2
    assert main(["bench", "env", "odd", *TINY]) == 2


def test_list_as_json(capsys):
    assert main(["envs", "--json"]) == 0
    assert [entry["name"] for entry in strict_json(capsys.readouterr().out)] == registry.known_names()


def test_the_first_part_of_names_lists_a_family(capsys):
    assert main(["envs", "minigrid"]) == 0
    out = capsys.readouterr().out
    family = [name for name in registry.stock_names() if name.startswith("minigrid_")]
    assert [name for name in registry.stock_names() if re.search(rf"^{name} ", out, re.MULTILINE)] == family
    assert f"{len(family)} envs." in out
    assert main(["envs", "minigrid", "--json"]) == 0
    assert [entry["name"] for entry in strict_json(capsys.readouterr().out)] == family
    assert main(["envs", "lander"]) == 0  # an env's name is that env, though lander_continuous starts with it
    assert "lander_continuous" not in capsys.readouterr().out.splitlines()[0]
    assert main(["envs", "minigri"]) == 2
    assert "unknown env 'minigri'" in capsys.readouterr().err


def test_env_as_json(capsys):
    assert main(["envs", "cartpole", "--json"]) == 0
    entry = strict_json(capsys.readouterr().out)
    assert entry["observation"] == {
        "dtype": "float32",
        "shape": [4],
        "low": [-4.8, None, -0.41887903, None],
        "high": [4.8, None, 0.41887903, None],
    }
    assert entry["action"] == {"kind": "discrete", "choices": 2}
    assert {"name": "gravity", "type": "float", "default": 9.8, "help": "m/s^2"} in entry["params"]
    assert '"default": 500,' in json.dumps(entry["params"][0]), "an int param has an int default"
    assert main(["envs", "pendulum", "--json"]) == 0
    assert strict_json(capsys.readouterr().out)["action"] == {"kind": "box", "size": 1, "low": -2.0, "high": 2.0}


def test_page_tells_all(capsys, env):
    assert main(["envs", env]) == 0
    out = " ".join(capsys.readouterr().out.split())
    spec = lib.load(registry.find(env)).spec
    assert pages.summary(registry.find(env)) in out
    assert pages.obs_text(spec) in out
    assert pages.action_text(spec) in out
    for entries in (spec.params, spec.consts, spec.stats):
        for entry in entries:
            stem, _, number = entry.name.rpartition("_")
            alike = [other for other in entries if re.fullmatch(stem + "_[0-9]", other.name)]
            is_one_row = number.isdigit() and len(alike) > 1 and len({other.help for other in alike}) == 1
            assert (f"{stem}_0 to {alike[-1].name} " if is_one_row else f"{entry.name} ") in out
            assert entry.help in out
    for preset in spec.presets:
        assert f"{preset.name}: {preset.help}." in out
    id = re.search(r"shoal/\w+-v\d+", out)[0]
    assert id in gymnasium.registry
    assert f'shoal.make("{env}", num_envs=4096)' in out
    assert ("Compile-time" in out) == bool(spec.consts)


def test_page_examples_run(env):
    page = pages.page(registry.find(env))
    code = page.split("```python\n")[1].split("```")[0]
    exec(code.replace("4096", "2"), {"shoal": shoal})
    call = re.search(r"per env: `(shoal\.make\(.+\))`\.", page)[1]
    exec(call, {"shoal": shoal})


def test_page_of_a_header(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    text = registry.find("cartpole").read_text()
    text = text.replace("cartpole.h:", "mine.h:").replace("cart left", "cart [left]")
    Path("mine.h").write_text(text.replace('"m/s^2"', '"a | b < c, m*s*kg"'))
    assert main(["envs", "./mine.h"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("mine\n\nPush a cart")
    assert "a | b < c, m*s*kg" in out
    assert 'shoal.make("./mine.h", num_envs=4096)' in out
    assert 'shoal.register("mine", "./mine.h")' in out
    monkeypatch.setitem(registry._registered, "mine", Path("mine.h").resolve())
    assert main(["envs"]) == 0
    assert re.search(r"^mine .* Push a cart \[left\] or right", capsys.readouterr().out, re.MULTILINE), "no markup"


def test_docs_are_fresh():
    """Fails after a header changed: run scripts/docs."""
    done = subprocess.run([sys.executable, ROOT / "scripts" / "docs", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# ---- bench ----


def test_bench_prints_a_table_and_what_next(capsys):
    assert main(["bench", "env", "cartpole", "pendulum", *TINY]) == 0
    out = capsys.readouterr().out
    for env, how in itertools.product(("cartpole", "pendulum"), ("serial", "threads x")):
        assert re.search(
            rf"^({env})? +{how}\d* +[\d.]+[kM]? +[\d.]+ \.\. [\d.]+ +[\d.,]+ +[█▏▎▍▌▋▊▉]", out, re.MULTILINE
        )
    assert re.search(r"fastest env is (cartpole|pendulum) with [\d.]+ (thousand|million) steps per second", out)
    assert "shoal new my_env" in out


@pytest.mark.parametrize("width", [80, 81, 90, 120])
def test_a_table_of_long_names_fits_into_a_terminal(width):
    """Nothing is cut off: without room for bars there are none."""
    from rich.console import Console

    rows = [("mountain_car_continuous", 1, 1.2e8), ("tag_continuous", 8, 9.36e6), ("drive", 8, 6.09e5)]
    configs = [
        bench_env.Config(env, 4096, backend, threads, agents)
        for env, agents, _ in rows
        for backend, threads in (("serial", None), ("threads", 16))
    ]
    rates = {env: rate for env, _, rate in rows}
    samples = {
        repr(x): Sample(x.num_envs, x.agents, (9, 9), (4096 / rates[x.env], 5000 / rates[x.env])) for x in configs
    }
    console = Console(width=width)
    with console.capture() as captured:
        console.print(
            bench_env._table(configs, samples, {"cpu": "CPU", "cores": 2, "python": "3", "shoal": "1"}, width)
        )
    out = captured.get()
    assert "…" not in out
    assert ("█" in out) == (width >= 120)


def test_bench_counts_agents(capsys, tmp_path):
    header = tmp_path / "pair.h"
    header.write_text(
        '#define ENV_OBS OBS_F32(1)\n#define ENV_ACTION ACT_MULTI(5, 2)\n#define ENV_AGENTS 2\n#include "core/env.h"\n'
        "#define ENV_NO_DRAW\ntypedef struct { int a; } State;\n"
        "ENV_FN void env_reset(State *s, const Params *p, Rng *r) { (void)p, (void)r; s->a = 0; }\n"
        "ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *o, Rng *r)"
        "{ (void)s, (void)p, (void)a, (void)o, (void)r; }\n"
        "ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *o)"
        "{ (void)s, (void)p, (void)agent; o[0] = 0.0f; }\n"
    )
    assert main(["bench", "env", str(header), *TINY, "--backends", "serial"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"agent\s+env +backend", out)
    found = re.search(r"serial +([\d.]+)([kM]) .* ([\d.]+)([kM]) ", out)
    steps, agent_steps = (float(found[k]) * {"k": 1e3, "M": 1e6}[found[k + 1]] for k in (1, 3))
    assert agent_steps == pytest.approx(2 * steps, rel=0.01)


def test_bench_as_json(capsys, tmp_path):
    out = tmp_path / "results.jsonl"
    argv = ["bench", "env", "cartpole", "--seconds", "0.02", "--repeats", "3", "--json", "--out", str(out)]
    assert main([*argv, "--num-envs", "8", "24", "8", "--num-threads", "1", "2"]) == 0
    assert main([*argv, "--backends", "serial"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed == out.read_text().splitlines()
    assert len(printed) == 2
    run = strict_json(printed[0])
    assert {"cpu", "cores", "python", "numpy", "commit", "date"} <= set(run["machine"])
    configs = [(row["num_envs"], row["backend"], row["num_threads"]) for row in run["results"]]
    assert configs == [(n, b, t) for n in (8, 24) for b, t in (("serial", 1), ("threads", 1), ("threads", 2))]
    for row in run["results"]:
        assert len(row["us_per_call"]) == 3
        rate = row["steps_per_s"]
        assert 0 < rate["min"] <= rate["median"] <= rate["max"]
        assert rate["max"] == pytest.approx(1e6 * row["num_envs"] / min(row["us_per_call"]), rel=0.01)


def test_bench_all_leaves_out_what_does_not_build(capsys, monkeypatch, tmp_path):
    (tmp_path / "odd.h").write_text("#error odd\n")
    monkeypatch.setattr(registry, "known_names", lambda: ["cartpole", "odd"])
    monkeypatch.setitem(registry._registered, "odd", tmp_path / "odd.h")
    assert main(["bench", "env", "all", *TINY]) == 1
    out = capsys.readouterr().out
    assert "odd was skipped: " in out
    assert re.search(r"^cartpole +serial", out, re.MULTILINE)


def test_measure_takes_turns_and_closes():
    log, closed = [], []

    def maker(name):
        def step():
            log.append(name)
            time.sleep(0.001)

        return lambda: Stepper(step, envs=7, agents=2, close=lambda: closed.append(name))

    heard = []
    names = ["a", "b", "c"]
    samples = measure({n: maker(n) for n in names}, 0.01, 3, progress=lambda so_far, done: heard.append(done))
    turns = [name for name, _ in itertools.groupby(log)]
    assert turns == names * 4, "a trial each, then three rounds"
    assert closed == names
    assert heard == sorted(heard)
    assert heard[0] == 0.0
    assert heard[-1] < 1.0
    for sample in samples.values():
        assert (sample.envs, sample.agents) == (7, 2)
        assert len(sample.seconds_per_call) == 3
        assert len(sample.calls) == 3
        assert all(1 <= calls <= 4 for calls in sample.calls), "0.01 s in 3 turns of calls that take over 1 ms"
        assert sample.median == pytest.approx(7e6 / sample.us_per_call)


def test_measure_takes_the_clock_that_is_given():
    now = itertools.count(step=0.5)
    samples = measure({"a": lambda: Stepper(lambda: None, envs=7)}, 2.0, 2, clock=lambda: next(now))
    assert samples["a"].calls == (2, 4), "slices of 1 s; a call of the trial took 0.5 s, one of the first slice 0.25 s"
    assert samples["a"].seconds_per_call == (0.25, 0.125)


def test_measure_closes_after_a_failure():
    closed = []

    def fail():
        raise ZeroDivisionError

    makers = {
        "good": lambda: Stepper(lambda: None, 1, close=lambda: closed.append("good")),
        "bad": lambda: Stepper(fail, 1, close=lambda: closed.append("bad")),
    }
    with pytest.raises(ZeroDivisionError):
        measure(makers, 0.01, 1)
    assert closed == ["good", "bad"]


def test_bench_actions_are_random_and_as_a_policy_gives_them(env):
    vec = shoal.make(env, 8, seed=0)
    vec.reset()
    batches = bench_env._random_actions(vec)
    assert len(batches) == bench_env.POOL_SIZE
    assert batches[0].dtype == (np.float32 if vec.native_spec.action_kind == "box" else np.int64)
    assert len({batch.tobytes() for batch in batches}) > 1
    for batch in batches:
        assert vec.action_space.contains(batch)
        vec.step(batch)


def test_rates_read_well():
    assert [bench_env._short(rate) for rate in (12, 999.7, 1234, 99_960, 138_200_000, 2.5e9)] == [
        "12.0",
        "1.00k",
        "1.23k",
        "100k",
        "138M",
        "2.50G",
    ]
    assert [bench_env._words(rate) for rate in (12, 1234, 138_200_000, 2.53e9)] == [
        "12",
        "1.2 thousand",
        "138 million",
        "2.5 billion",
    ]
    assert bench_env._bar(1.0, 4) == "████"
    assert bench_env._bar(0.5, 3) == "█▌"
    assert bench_env._bar(0.0, 3) == "▏"


# ---- new ----


def test_new_writes_an_env_that_keeps_the_contract(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["new", "my_game"]) == 0
    out = capsys.readouterr().out
    for line in ("shoal check ./my_game.h", "shoal bench env ./my_game.h", 'shoal.make("./my_game.h", num_envs=4096)'):
        assert line in out
    text = Path("my_game.h").read_text()
    assert text.startswith("// my_game.h: ")
    assert "@" not in text
    outcomes = list(conformance.run_checks("./my_game.h", steps=100))
    assert len(outcomes) == len(conformance.CHECKS)
    assert not [outcome for outcome in outcomes if outcome.status == "failed"]
    spec = lib.load(Path("my_game.h")).spec
    assert len(spec.params) > 1
    assert spec.stats
    assert spec.has_draw


def test_new_env_can_be_played_well(tmp_path):
    """Its comment promises that every ball can be caught and that an episode has 12."""
    main(["new", "my_game", "--dir", str(tmp_path)])
    vec = shoal.make(tmp_path / "my_game.h", 16, seed=0)
    obs, _ = vec.reset()
    for _ in range(500):
        away = obs[:, 1] - obs[:, 0]
        obs, *_ = vec.step(np.where(away > 0.1, 2, np.where(away < -0.1, 1, 0)))
    played = vec.drain_stats()
    assert played["episodes"] == 16
    assert played["return"] == {"mean": 12.0, "min": 12.0, "max": 12.0}


def test_new_does_not_overwrite(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("my_env.h").write_text("mine")
    assert main(["new", "my_env"]) == 2
    assert "--force" in capsys.readouterr().err
    assert Path("my_env.h").read_text() == "mine"
    assert main(["new", "my_env", "--force"]) == 0
    assert Path("my_env.h").read_text().startswith("// my_env.h")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("My-Env.h", "Try 'shoal new my_env'"),
        ("2fast", "Try 'shoal new fast'"),
        ("../up", "Try 'shoal new up'"),
        ("", "Try 'shoal new my_env'"),
        ("cartpole", "Choose another name: 'shoal new my_cartpole'"),
    ],
)
def test_new_refuses_names(capsys, monkeypatch, tmp_path, name, said):
    monkeypatch.chdir(tmp_path)
    assert main(["new", name]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_new_where_it_cannot_write(capsys, tmp_path):
    assert main(["new", "my_env", "--dir", str(tmp_path / "none")]) == 2
    assert f"mkdir -p {tmp_path / 'none'}" in capsys.readouterr().err
    (tmp_path / "my_env.h").mkdir()
    assert main(["new", "my_env", "--dir", str(tmp_path), "--force"]) == 2
    assert "Choose another folder with --dir" in capsys.readouterr().err
