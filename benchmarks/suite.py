"""Every stock env to its target: `python benchmarks/learning.py --suite`.

Each run is what `shoal train ENV --seed S --device D` does. `jobs` processes train one run after another, each on its
share of the cores, so that Python and torch are loaded once for many runs. A score is the mean return of 100 held-out
episodes (or `episodes` of [score]); in a two-player env, the share of games won against its robot `against`. Runs that
take longest start first. benchmarks/suite_pool.py has the processes: a run that fails is tried once more, and never
ends the others.

Each finished run is a line of benchmarks/results/suite.jsonl at once. `--missing` continues a suite that was cut off:
it leaves out runs that have a line of the same code, env and options. `--limit S` starts no run that would not end
within S seconds. `--out FILE` appends to another file; `--missing` looks into both. `--runs FOLDER` keeps the agents of
the first seed, for `scripts/site --keep`. `write_page` writes the table of docs/suite.md from the newest line of each
env and seed.

On a GPU several processes take turns unless NVIDIA's MPS runs: with it their kernels run at the same time. The suite
starts it for its own processes.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import suite_pool

from shoal import config, registry
from shoal.measure import describe_machine
from shoal.runs import commit
from shoal.train.recent import LatestReturns

ROOT = Path(__file__).parent.parent
RESULTS, PAGE = ROOT / "benchmarks/results/suite.jsonl", ROOT / "docs/suite.md"
MARKS = r"(<!-- Written by benchmarks/learning.py --suite -->\n).*?(<!-- The end of what --suite writes. -->)"
CPU_MARKS = MARKS.replace("--suite", "--suite --device cpu")
EPISODES, GAMES = 100, 2000
MOST_ENVS = 1024  # of an evaluation
CURVE_POINTS = 60


@dataclass(frozen=True)
class Goal:
    """The table [score] of an env's TOML file; on a GPU, [cuda.score] overrides it."""

    target: float
    why: str = ""  # what justifies the target
    random: float | None = None  # the score of random play
    scripted: float | None = None  # of a simple scripted player
    against: str = ""  # a robot: the score is the share of games won against it
    opponents: str = ""  # --opponents of the training run
    episodes: int = EPISODES  # held-out episodes of the score: more where returns vary much
    total_steps: int = 0  # of the suite's run, where the options are for more than the target; 0: those of the options

    @classmethod
    def of(cls, env: str, device: str = "cuda") -> Goal | None:
        """The goal of a stock env; None if it has none."""
        path = registry.STOCK / f"{env}.toml"
        tables = config.read_toml(path) if path.is_file() else {}
        table = {**tables.get("score", {}), **(tables.get("cuda", {}).get("score", {}) if device == "cuda" else {})}
        return cls(**{name: table[name] for name in cls.__dataclass_fields__ if name in table}) if table else None


@functools.cache
def goals(device: str = "cuda") -> dict[str, Goal]:
    """The goals of all stock envs that have one."""
    found = {env: Goal.of(env, device) for env in registry.stock_names()}
    return {env: goal for env, goal in found.items() if goal is not None}


def played(env: str) -> str:
    """The params with which an env is trained and scored on a GPU and that are not its own: `side=9`."""
    from shoal.native import lib
    from shoal.train import env_params, options_for

    spec = lib.load(registry.find(env)).spec
    usual: dict[str, Any] = {param.name: param.default for param in spec.params}
    usual |= {const.name: const.default for const in spec.consts}
    chosen = env_params.evaluated(env, options_for(env, {"device": "cuda"}).env)
    return ", ".join(f"{name}={value}" for name, value in chosen.items() if value != usual.get(name))


# ---- one run ----


def one(
    env: str,
    goal: Goal,
    seed: int,
    device: str,
    options: dict[str, Any] | None = None,
    is_scored: bool = True,
    keep: Path | None = None,
) -> dict[str, Any]:
    """Trains one run, with other options than those of its TOML file if given, and measures its score.

    What `scripts/site --keep` needs of it is then below `keep`, if given.
    """
    from shoal.match import play_match
    from shoal.train import train

    with tempfile.TemporaryDirectory() as folder:
        tables = given(goal)
        tables |= {**(options or {}), "seed": seed, "device": device, "eval": {"episodes": 0}}
        began = time.perf_counter()
        run = train(env, console="off", runs_folder=folder, **tables)
        summary = run.summary or {}
        records = [m for m in run.metrics() if m.get("episode/n")]
        trained_s = time.perf_counter() - began
        if not is_scored:
            score = None
        elif goal.against:
            played = play_match([str(run.folder), goal.against], games=GAMES, device=device, runs_folder=folder)
            score = played.facts()["results"][0]["win_rate"]
        else:
            score = evaluate(run, goal.episodes, device)
        seconds = time.perf_counter() - began
        num_envs = run.config["vec"]["num_envs"]
        if keep is not None:
            keep_run(run, goal, score, keep)
    facts = {"steps": summary["step"], "train_s": round(summary["wall_s"], 2), "seconds": round(seconds, 1)}
    facts["score_s"] = round(seconds - trained_s, 1)
    if not goal.against:
        facts["episodes"] = goal.episodes
        facts |= first_reached(records, goal.target, num_envs)
    thinning = max(1, -(-len(records) // CURVE_POINTS))
    curve = [[m["step"], round(m["wall_s"], 2), round(m["episode/return"], 4)] for m in records[::-1][::thinning][::-1]]
    last = records[-1] if records else {}
    stats = {
        name.removeprefix("episode/"): round(value, 4)
        for name, value in last.items()
        if name.startswith("episode/") and not name.endswith(("_min", "_max"))
    }
    return {"env": env, "seed": seed, "device": device, "score": score, **facts, "stats": stats, "curve": curve}


def given(goal: Goal) -> dict[str, Any]:
    """The options that a goal adds to those of the env's TOML file."""
    tables: dict[str, Any] = {"opponents": goal.opponents} if goal.opponents else {}
    return {**tables, "train": {"total_steps": goal.total_steps}} if goal.total_steps else tables


def keep_run(run: Any, goal: Goal, score: float | None, folder: Path) -> Path:
    """Copies the agent of a run, without its optimizer, metrics and older checkpoints, to `folder`/ENV/ID.

    Its summary has the score, its command is the one that trains it.
    """
    shutil.rmtree(folder / run.env, ignore_errors=True)
    kept: Path = folder / run.env / run.id
    at = run.last.relative_to(run.folder)
    (kept / at).mkdir(parents=True)
    for name in ("config.toml", "policy.json", at / "meta.json", at / "weights.safetensors"):
        shutil.copy(run.folder / name, kept / name)
    words = ["shoal", "train", run.env, "--seed", str(run.facts["seed"])]
    words += ["--opponents", goal.opponents] if goal.opponents else []
    words += ["--train.total-steps", str(goal.total_steps)] if goal.total_steps else []
    result = {"against": goal.against, "win_rate": score} if goal.against else {"return": score}
    (kept / "run.json").write_text(json.dumps({**run.facts, "command": words}))
    (kept / "summary.json").write_text(json.dumps({**run.summary, "eval": result, "best": None}))
    return kept


def evaluate(run: Any, episodes: int, device: str) -> float:
    """The headline score of `shoal train`, without the other way to choose actions, which would take as long again.

    On a GPU the same held-out episodes are played there: several runs share the cores.
    """
    import shoal
    from shoal.evaluate import held_out, play
    from shoal.match.device import play_on_device
    from shoal.train import env_seed, load_player

    player, options = load_player(run, run.last)
    seed = env_seed(run.config["seed"])
    if device != "cuda":
        return play(functools.partial(shoal.make, **options), player, episodes, seed, num_envs=MOST_ENVS).mean
    with contextlib.closing(shoal.make(**options, num_envs=min(episodes, MOST_ENVS), backend="cuda")) as vec:
        returns, _, _ = play_on_device(vec, player, episodes, held_out(seed))
    return float(returns[:, player.judged or slice(None)].mean())  # the returns of opponents do not count


def first_reached(records: Iterable[dict[str, Any]], target: float, least: int) -> dict[str, Any]:
    """When training episodes first had a mean return of `target`: seconds and steps, None if never.

    A mean is over the newest episodes, at least `least`, one for each env: the first to end are mostly short ones.
    """
    newest = LatestReturns(least)
    for record in records:
        newest.add_record(record)
        if newest.is_full and newest.mean >= target:
            return {"reached_s": round(record["wall_s"], 2), "reached_steps": record["step"]}
    return {"reached_s": None, "reached_steps": None}


def work(env: str, seed: int, device: str, keep: Path | None) -> dict[str, Any]:
    """In a worker process: the results of a run."""
    row = one(env, goals(device)[env], seed, device, keep=keep)
    free(row, device)
    return row


def free(row: dict[str, Any], device: str) -> None:
    """Leaves the memory of a GPU to the other processes, and notes which GPU it is."""
    if device == "cuda":
        import torch

        torch.cuda.empty_cache()
        row["gpu"] = torch.cuda.get_device_name()


# ---- all runs ----


@functools.cache
def _code() -> bytes:
    """A digest of the library without what belongs to one env alone."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "shoal").rglob("*")):
        if path.suffix in (".py", ".c", ".h", ".toml") and path.parent != registry.STOCK:
            digest.update(path.read_bytes())
    return digest.digest()


def version(env: str) -> str:
    """What a run depends on beside its seed: the code, the env's header and its options."""
    digest = hashlib.sha256(_code())
    for path in (registry.STOCK / f"{env}.h", registry.STOCK / f"{env}.toml"):
        digest.update(path.read_bytes() if path.is_file() else b"")
    return digest.hexdigest()[:12]


def expected(env: str, device: str, before: dict[str, list[dict[str, Any]]]) -> float:
    """Seconds of a run by its last results, whose number of steps may differ; infinite without any."""
    tables = config.read_toml(path) if (path := registry.STOCK / f"{env}.toml").is_file() else {}
    train = {**tables.get("train", {}), **(tables.get("cuda", {}).get("train", {}) if device == "cuda" else {})}
    if (goal := goals(device).get(env)) is not None and goal.total_steps:
        train["total_steps"] = goal.total_steps
    seconds = (
        run["seconds"] + run.get("train_s", 0.0) * (train.get("total_steps", run["steps"]) / run["steps"] - 1.0)
        for run in before.get(env, [])
    )
    return max(seconds, default=float("inf"))


def run_suite(
    envs: Sequence[str],
    seeds: Sequence[int],
    device: str,
    jobs: int,
    *,
    missing: bool = False,
    limit_s: float = 0.0,
    out: Path | None = None,
    keep: Path | None = None,
) -> list[tuple[str, int]]:
    """Trains all envs with all seeds, and appends a line for each run. Returns the runs without results.

    `keep` is a folder for the agents of the first seed.
    """
    wanted, lines = goals(device), read(RESULTS, out)
    out = out or RESULTS
    before = newest(lines, device)
    runs = [(env, seed) for seed in seeds for env in envs]
    if missing:
        done = {(line["env"], line["seed"], line["device"], line.get("version")) for line in lines}
        runs = [(env, seed) for env, seed in runs if (env, seed, device, version(env)) not in done]
    times = {env: expected(env, device, before) for env in envs}
    runs.sort(key=lambda run: -times[run[0]])
    began = time.perf_counter()
    facts = {
        "machine": describe_machine(),
        "commit": commit(),
        "jobs": jobs,
        "call": time.strftime("%Y-%m-%d %H:%M:%S"),
    }
    tasks = [
        suite_pool.Task((env, seed), (env, seed, device, keep if seed == seeds[0] else None), times[env], group=env)
        for env, seed in runs
    ]
    left = {task.name for task in tasks}
    with suite_pool.mps(device == "cuda" and jobs > 1) as is_on:
        print(f"{len(tasks)} runs, {jobs} at a time, MPS {'on' if is_on else 'off'}", flush=True)
        for (env, seed), row in suite_pool.run_all(tasks, work, jobs, limit_s, shared_cores=device == "cuda"):
            wall = time.perf_counter() - began
            if isinstance(row, str):
                print(f"{env} seed {seed} failed after {wall:.0f} s:\n{row}", flush=True)
                continue
            left.discard((env, seed))
            row |= {**facts, "version": version(env), "mps": is_on, "ended_s": round(wall, 1)}
            with out.open("a") as file:
                file.write(json.dumps({**row, "time": time.strftime("%Y-%m-%d %H:%M")}) + "\n")
            verdict = "ok" if row["score"] >= wanted[env].target else "MISSED"
            verdict += f", reached after {row['reached_s']} s" if row.get("reached_s") is not None else ""
            print(
                f"{wall:4.0f} {env:23} seed {seed}  target {wanted[env].target:8.4g}  score {row['score']:8.4g}  "
                f"{row['steps'] / 1e6:7.1f}M steps  {row['train_s']:6.1f} of {row['seconds']:6.1f} s  {verdict}",
                flush=True,
            )
    print(f"{len(tasks) - len(left)} of {len(tasks)} runs: {time.perf_counter() - began:.0f} s", flush=True)
    if left:
        print("no results, --missing trains them:", *(f"{env}/{seed}" for env, seed in sorted(left)), flush=True)
    return sorted(left)


# ---- the page ----


def read(*paths: Path | None) -> list[dict[str, Any]]:
    """The lines of results files. A line that was cut off is left out."""
    lines = []
    for path in dict.fromkeys(path for path in paths if path is not None and path.is_file()):
        for line in path.read_text().splitlines():
            try:
                lines.append(json.loads(line))
            except json.JSONDecodeError:
                continue
    return lines


def newest(lines: list[dict[str, Any]] | None = None, device: str = "cuda") -> dict[str, list[dict[str, Any]]]:
    """The newest run of each seed on a device by env, of the version (code and options) that was used last."""
    lines = [line for line in (read(RESULTS) if lines is None else lines) if line["device"] == device]
    last = {line["env"]: line.get("version") for line in lines}
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for line in lines:
        if line.get("version") == last[line["env"]]:
            found.setdefault(line["env"], {})[line["seed"]] = line
    return {env: [by_seed[seed] for seed in sorted(by_seed)] for env, by_seed in sorted(found.items())}


def number(value: float | None) -> str:
    """A score for a table."""
    return "" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def span(values: Iterable[float]) -> str:
    """The range of some seconds: `1.2 to 3.4`."""
    least, *_, most = sorted([*values] * 2) or (0.0, 0.0)
    return f"{least:.1f} to {most:.1f}" if most - least >= 0.05 else f"{most:.1f}"


def table() -> str:
    """All envs on a GPU in Markdown: those that were not trained, too. Below it, what all runs took, and what the
    targets are: beside the scores, long texts would push each other out of the page.
    """
    done, wanted = newest(), goals()
    rows = [
        "| env | random | scripted | target | reached, by seed | steps | seconds to it | seconds of a run |",
        "|---|---|---|---|---|---|---|---|",
    ]
    reasons = ["| env | what the target is |", "|---|---|"]
    for env in registry.stock_names():
        goal, runs = wanted.get(env), done.get(env, [])
        cells = [f"[{env}](envs/{env}.md)"]
        if goal is None:
            rows.append(f"| {cells[0]} | | | | no target | | | |")
            continue
        missed = [run for run in runs if run["score"] < goal.target]
        reached = ", ".join(number(run["score"]) for run in runs) + (" **missed**" if missed else "")
        times = [run["reached_s"] for run in runs if run.get("reached_s") is not None]
        episodes = {run.get("episodes", EPISODES) for run in runs} - {EPISODES}
        many = f"mean of {min(episodes):,} episodes. " if episodes else ""
        why = f"share of games won against {goal.against}. {goal.why}" if goal.against else many + goal.why
        why += f" ({given})" if (given := played(env)) else ""
        cells += [number(goal.random), number(goal.scripted), number(goal.target), reached or "not trained yet"]
        cells += [f"{number(runs[0]['steps'] / 1e6)}M" if runs else "", span(times) if times else ""]
        cells += [span(run["seconds"] for run in runs) if runs else ""]
        rows.append(f"| {' | '.join(cells)} |")
        reasons.append(f"| {env} | {why.replace('|', '/')} |")
    return "\n".join([*rows, "", *summary(done, wanted), "", *reasons])


def cpu_table() -> str:
    """Envs that were trained on a CPU, in Markdown."""
    done, wanted = newest(device="cpu"), goals("cpu")
    if not done:
        return "No runs yet."
    rows = ["| env | target | score | steps | seconds to it | seconds of training |", "|---|---|---|---|---|---|"]
    for env, runs in done.items():
        target, times = wanted[env].target, [run["reached_s"] for run in runs if run.get("reached_s") is not None]
        scores = ", ".join(number(run["score"]) + ("" if run["score"] >= target else " (below)") for run in runs)
        cells = [f"[{env}](envs/{env}.md)", number(target), scores, f"{number(runs[0]['steps'] / 1e6)}M"]
        cells += [span(times) if times else "", span(run["train_s"] for run in runs)]
        rows.append(f"| {' | '.join(cells)} |")
    good = [env for env, runs in done.items() if all(run["score"] >= wanted[env].target for run in runs)]
    machines = sorted({f"{x['cpu']}, {x['cores']} cores" for runs in done.values() for x in [runs[-1]["machine"]]})
    jobs = span_of({run["jobs"] for runs in done.values() for run in runs})
    said = f"{len(good)} of {len(done)} targets are reached. {jobs} runs at a time: {'; '.join(machines)}."
    return "\n".join([*rows, "", said])


def summary(done: dict[str, list[dict[str, Any]]], wanted: dict[str, Goal]) -> list[str]:
    """How many targets were reached, and the wall time of the calls that the newest results are from."""
    runs = [(env, run) for env, of_env in done.items() if env in wanted for run in of_env]
    if not runs:
        return []
    good = [env for env in wanted if done.get(env) and all(run["score"] >= wanted[env].target for run in done[env])]
    text = [f"{len(good)} of {len(wanted)} targets are reached by all seeds that were trained; {len(runs)} runs."]
    if timed := [run for _, run in runs if "call" in run]:
        calls = {call: max(run["ended_s"] for run in of_call) for call, of_call in by(timed, "call")}
        *others, last = [f"{seconds:.0f} s" for seconds in calls.values()]
        times = f"{', '.join(others)} and {last}" if others else last
        jobs, gpus = {run["jobs"] for run in timed}, {run.get("gpu", "CPU only") for run in timed}
        total = f" ({sum(calls.values()):.0f} s in all)" if len(calls) > 1 else ""
        who = "They" if len(timed) == len(runs) else f"{len(timed)} of them"
        text += [
            f"{who} took {times}{total} of wall time, {span_of(jobs)} runs at a time on {', '.join(sorted(gpus))}."
        ]
    if trials := [run for _, run in runs if "trial" in run]:
        text += [f"{len(trials)} are trials (`benchmarks/trials.py`), beside other work on the GPU."]
    return [" ".join(text)]


def by(runs: list[dict[str, Any]], key: str) -> Iterable[tuple[str, list[dict[str, Any]]]]:
    """The runs in groups of equal `key`."""
    ordered = sorted(runs, key=lambda run: str(run[key]))
    return [(name, list(group)) for name, group in itertools.groupby(ordered, key=lambda run: str(run[key]))]


def span_of(values: set[int]) -> str:
    """`14`, or `11 to 14`."""
    return f"{min(values)}" if len(values) == 1 else f"{min(values)} to {max(values)}"


def put(page: str, marks: str, rows: str) -> str:
    """The page with rows between its marks."""
    return re.sub(marks, lambda match: f"{match[1]}{rows}\n{match[2]}", page, flags=re.DOTALL)


def write_page() -> None:
    """Writes both tables into docs/suite.md."""
    page = PAGE.read_text()
    for marks, rows in ((MARKS, table()), (CPU_MARKS, cpu_table())):
        page = put(page, marks, rows)
    PAGE.write_text(page)
