"""`shoal eval`: evaluates a run on seeds that training has not used, and records a video.

shoal/evaluate.py plays the episodes; shoal.train makes the player.
"""

from __future__ import annotations

import inspect
import json as jsonlib
import os
import re
import shlex
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro

from shoal.cli.command import Command
from shoal.cli.train import call_with_params, check_keywords
from shoal.names import shortened

GREEDY, SAMPLED = "greedy", "sampled"
ADVICE = {SAMPLED: "The final evaluation of a run samples with --eval.greedy False."}
MOST_AGENTS = 8  # rows of agents and groups in the table
NATIVE_ENVS, PYTHON_ENVS = 1024, 16  # the most envs at a time; Python envs are slow to make


def evaluate(words: list[str]) -> int:
    """Evaluate a run or an agent of yours: its return on held-out seeds, and a video.

    Plays whole episodes on seeds that training has not used, and prints the mean return with its 95 % confidence
    interval: once with the most likely action at each step (greedy), once with actions sampled from the policy.
    Each env plays a fixed number of episodes, so that short episodes are not preferred.

    --env.NAME VALUE plays under other params than those of training, any that 'shoal envs ENV' lists. Params that
    change the observations or the actions are refused. --opponents 1=seek,2=mine:Agent plays against others.

    A record of 'shoal play' (a .json file) is played again, and scored in the same way.

    --agent evaluates a Python class with act(obs, mask) on an env, without a run: mine:Agent, ./mine.py:Agent, random.

    Try:
        shoal eval last
        shoal eval cartpole --episodes 1000 --greedy
        shoal eval last --env.gravity 15 --seed 7
        shoal eval runs/breakout/20250101-120000 --checkpoint last --video breakout.gif
        shoal eval pong --agent random --episodes 20
    """
    return call_with_params(evaluate_under, "env", words, prog="shoal eval", text=inspect.getdoc(evaluate) or "")


def evaluate_under(
    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")],
    /,
    *,
    episodes: int = 100,
    checkpoint: Annotated[str, tyro.conf.arg(metavar="{best,last,STEP}")] = "best",
    greedy: bool = False,
    sample: bool = False,
    seed: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="(default: by the run's)")] = None,
    agent: Annotated[str, tyro.conf.arg(metavar="NAME", help_behavior_hint="(default: the run's policy)")] = "",
    opponents: Annotated[str, tyro.conf.arg(metavar="1=WHO", help_behavior_hint="(default: the run's)")] = "",
    video: Annotated[str, tyro.conf.arg(metavar="{auto,none,FILE}")] = "auto",
    video_episodes: int = 1,
    env: tyro.conf.Suppress[tyro.conf.Fixed[dict[str, Any] | None]] = None,
    fps: Annotated[float | None, tyro.conf.arg(metavar="N", help_behavior_hint="(default: the env's)")] = None,
    json: bool = False,
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(default: no file)")] = None,
    runs: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("runs"),
) -> int:
    """Evaluates a run under the env params of training, overridden by `env`.

    Args:
        run: The run: its folder, its id, the name of its env (its newest run), or last. With --agent: the env. Or a
            record of 'shoal play'.
        episodes: The number of episodes, for greedy and for sampled actions each.
        checkpoint: The checkpoint: best, last, or a step. best has the highest return in training, or in the
            evaluations of --eval.every.
        greedy: Greedy actions only. By default both are played, and the video follows the run's --eval.greedy.
        sample: Sampled actions only.
        seed: The envs start from this seed + 2^30, which training does not use.
        agent: A Python agent that plays in place of a run's policy: mine:Agent, or a name.
        opponents: Other players than in training, for the seats that it names: 1=seek,2=RUN,3=mine:Agent.
        env: Env params that override those of training.
        video: The video file. auto is a file in RUN/videos/: MP4 if its encoder is installed, otherwise GIF.
        video_episodes: The number of episodes in the video.
        fps: Frames per second of the video.
        json: Print one line of JSON instead of the table, with every episode.
        out: Append that line of JSON to this file.
        runs: The folder of the runs.
    """
    from shoal import evaluate as playing
    from shoal import registry
    from shoal.cli.screen import console
    from shoal.entry import make
    from shoal.errors import ConfigError
    from shoal.runs import choose_checkpoint, find
    from shoal.train import env_seed, load_player
    from shoal.web import record

    _check(episodes, video_episodes, out)
    if record.is_record(run):
        return _evaluate_record(record.read(run), json, out)
    if agent:
        if greedy or sample or checkpoint != "best":
            flag = "--greedy" if greedy else "--sample" if sample else f"--checkpoint {checkpoint}"
            raise ConfigError(f"{flag} is for runs; --agent {agent} chooses its actions itself. Leave it out.")
        task = AgentTask(run, agent, opponents, dict(env or {}), 1 if seed is None else seed, runs)
        return _evaluate_agent(task, episodes, video, video_episodes, fps, json, out)
    trained = find(run, runs)
    start = env_seed(int(trained.facts.get("seed") or 0)) if seed is None else seed
    playing.held_out(start)
    chosen = choose_checkpoint(trained, checkpoint, f"--checkpoint {checkpoint}")
    modes = _modes(trained, greedy, sample)
    given = dict(env or {})
    check_keywords(str(trained.facts.get("env", trained.env)), given)
    other = {**given, "opponents": opponents} if opponents else given
    target, note = _target(trained, chosen, video, modes[0], fps, other)
    screen = console(stderr=json)
    players: dict[str, Any] = {}
    kwargs: dict[str, Any] = {}
    for mode in modes:
        more: dict[str, Any] = {name: x for name, x in (("env", given), ("opponents", opponents)) if x}
        players[mode], kwargs = load_player(trained, chosen, greedy=mode == GREEDY, **more)
    changed = _changed(trained, kwargs) if given else []
    maker = partial(make, **kwargs)
    limit = NATIVE_ENVS if registry.is_native(kwargs["env"]) else PYTHON_ENVS
    failed: Exception | None = None
    with screen.status("") as status:
        vec = maker(num_envs=min(episodes, limit), seed=playing.held_out(start))
        try:
            if target is not None and not playing.can_draw(vec):
                drawn = shortened(str(kwargs["env"]))
                target, note = None, f"No video: {drawn} cannot be drawn: {playing.why_not_drawn(vec)}"
            show_progress = partial(_show_progress, status, episodes)
            show_progress(0)
            result = playing.play_modes(vec, players, episodes, start, chosen=modes[0], progress=show_progress)
        finally:
            vec.close()
        if target is not None:
            status.update(f"recording {_count(video_episodes, 'episode')}")
            try:
                playing.record(maker, players[modes[0]], target, video_episodes, start, fps)
            except Exception as error:  # a failed video must not lose the score
                target, note, failed = None, f"No video: {error}", error
    facts = {
        "run": str(trained.folder),
        "env": str(kwargs["env"]),
        "checkpoint": chosen.name,
        "greedy": modes[0] == GREEDY,
        "seed": start,
        "params": {change.name: {"training": change.training, "evaluation": change.evaluation} for change in changed},
        **({"opponents": opponents} if opponents else {}),
        **_result_facts(result, target),
    }
    _write(facts, out, json)
    if not json:
        _show(screen, trained, chosen, result, changed)
    if failed is not None and video != "auto":
        raise failed  # --video named a file
    if note is not None:
        screen.print(f"\n{note}", soft_wrap=True)
    if json:
        return 0
    if target is not None:
        screen.print(f"\nVideo of {_count(video_episodes, 'episode')}, {modes[0]}: {target}", soft_wrap=True)
    _conclude(screen, trained)
    return 0


def _show_progress(status: Any, episodes: int, done: int) -> None:
    status.update(f"playing: {done:,} of {_count(episodes, 'episode')}")


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def _check(episodes: int, video_episodes: int, out: Path | None) -> None:
    from shoal.errors import ConfigError

    for name, value in (("episodes", episodes), ("video-episodes", video_episodes)):
        if value < 1:
            raise ConfigError(f"--{name} {value} must be at least 1.")
    if out and (out.is_dir() or not os.access(out if out.exists() else out.parent, os.W_OK)):
        raise ConfigError(f"--out {out} cannot be written. Choose a file in an existing folder that you may write to.")


def _modes(run: Any, greedy: bool, sample: bool) -> list[str]:
    """The ways to choose actions: that of the flag, or both, that of the run first."""
    from shoal.errors import ConfigError

    if greedy and sample:
        raise ConfigError("--greedy and --sample are mutually exclusive. Without them both are played.")
    if greedy or sample:
        return [GREEDY if greedy else SAMPLED]
    has_config = (run.folder / "config.toml").is_file()
    is_greedy = has_config and bool(run.config.get("eval", {}).get("greedy", False))
    return [GREEDY, SAMPLED] if is_greedy else [SAMPLED, GREEDY]


def _changed(run: Any, kwargs: dict[str, Any]) -> list[Any]:
    """The params that differ from those of training."""
    from shoal.train.evaluation import changed_params

    return changed_params(run, kwargs)


def _target(
    run: Any, checkpoint: Path, where: str, mode: str, fps: float | None, env: dict[str, Any]
) -> tuple[Path | None, str | None]:
    """The video's file, or why there is none. Raises if --video names a file that cannot be written."""
    from shoal import video

    rate = 30.0 if fps is None else fps
    if where == "none":
        return None, None
    if where != "auto":
        return video.check(where, rate), None
    if not any(map(video.can_write, video.SUFFIXES)):
        return None, f"No video: no encoder is installed. Install one: {video.INSTALL}"
    folder: Path = run.folder / "videos"
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        return None, f"No video: cannot make {folder}: {error.strerror}. Choose a file with --video FILE."
    name = f"{checkpoint.name}{'-greedy' if mode == GREEDY else ''}"
    if env:  # beside the video under the params of training
        words = "-".join(f"{param}={value}" for param, value in env.items())
        name += f"-{re.sub(r'[^A-Za-z0-9_=.-]+', '_', words)[:80]}".rstrip(".")
    return video.check(folder / name, rate), None


def _result_facts(result: Any, video: Path | None) -> dict[str, Any]:
    """What is written about an evaluation, whoever played."""
    score = result.score
    return {
        **result.facts(),
        "cut": score.cut,
        "stats": {name: sum(values) / len(values) for name, values in score.stats.items()},
        "video": None if video is None else str(video),
        "returns": score.returns,
        "lengths": score.lengths,
    }


def _write(facts: dict[str, Any], out: Path | None, is_printed: bool) -> None:
    """Appends a line of JSON to a file, and prints it."""
    line = jsonlib.dumps(facts)
    if out is not None:
        with out.open("a") as file:
            file.write(line + "\n")
    if is_printed:
        print(line)


def _show(screen: Any, run: Any, checkpoint: Path, result: Any, changed: list[Any]) -> None:
    from rich.text import Text

    head = f"{run.env}, run {run.id}, checkpoint of step {int(checkpoint.name):,}"
    summary = run.summary or {}
    if summary.get("selected_by") and (summary.get("best") or {}).get("step") == int(checkpoint.name):
        head += f", the best by its {summary['selected_by']}"
    screen.print(Text(head, "bold"), soft_wrap=True)
    if changed:
        screen.print(
            Text(f"under other params than in training: {', '.join(map(str, changed))}", "yellow"), soft_wrap=True
        )
    per_mode = " each," if len(result.scores) > 1 else ""
    screen.print(
        Text(f"{_count(len(result.score.returns), 'episode')}{per_mode} on held-out seeds\n", "dim"), soft_wrap=True
    )
    _show_scores(screen, result)
    if (better := result.better()) is not None:
        screen.print(f"\nThe {better} policy plays better. {ADVICE.get(better, '')}".rstrip(), soft_wrap=True)


def _show_scores(screen: Any, result: Any) -> None:
    """The table of a score for each mode."""
    from rich.table import Table

    from shoal.evaluate import MAX_STEPS, show
    from shoal.stats import ci95, mean

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for justify in ("left", "right", "right", "right", "right"):
        table.add_column(justify=justify, no_wrap=True)
    for number, (mode, score) in enumerate(result.scores.items()):
        if number:
            table.add_row()
        table.add_row(mode, "mean", "95 %", "min", "max", style="bold")
        rows = {"return": score.returns, **_by_agent(score), "length": score.lengths, **score.stats}
        for name, values in rows.items():
            interval = ci95(values) if len(values) > 1 else None
            width = "" if interval is None else f"± {show(interval)}"
            style = "bold cyan" if name == "return" else ""
            table.add_row(name, show(mean(values), interval), width, show(min(values)), show(max(values)), style=style)
    screen.print(table)
    for mode, score in result.scores.items():
        if score.cut:
            words = "episode was" if score.cut == 1 else "episodes were"
            screen.print(
                f"\n{score.cut:,} {mode} {words} stopped at {MAX_STEPS:,} steps and count with the return so far."
            )


def _by_agent(score: Any) -> dict[str, tuple[float, ...]]:
    """The returns of groups and agents, as rows of the table. Of more than MOST_AGENTS, the JSON has the others."""
    parts = {**score.groups, **score.agents}
    if len(parts) > MOST_AGENTS and score.groups:
        parts = score.groups
    listed = sorted(parts, key=lambda name: sum(parts[name].returns)) if len(parts) > MOST_AGENTS else list(parts)
    if len(listed) > MOST_AGENTS:  # the lowest and the highest
        listed = [*listed[: MOST_AGENTS // 2], *listed[-MOST_AGENTS // 2 :]]
    return {f"  {name}": parts[name].returns for name in listed}


def _conclude(screen: Any, run: Any) -> None:
    from shoal.cli.screen import suggest
    from shoal.log.base import exact_count

    folder = shlex.quote(str(run.folder))
    hints, summary, more = {f"shoal plot {folder}": "draw its learning curve"}, run.summary or {}, ""
    if summary.get("status") == "finished" and (run.folder / "config.toml").is_file():
        planned = run.config.get("train", {}).get("total_steps", 0)  # with as many it would not train
        more = f" --train.total-steps {exact_count(2 * max(int(summary.get('step', 0)), planned))}"
    hints[f"shoal train --resume {folder}{more}"] = "train longer" if more else "continue training"
    screen.print()
    suggest(screen, hints)


# ---- agents of the user's own ----


@dataclass(frozen=True)
class AgentTask:
    """An agent to evaluate: the env, who plays it, and where."""

    env: str
    agent: str
    opponents: str
    params: dict[str, Any]
    seed: int
    runs: Path


def _evaluate_agent(
    task: AgentTask, episodes: int, video: str, video_episodes: int, fps: float | None, json: bool, out: Path | None
) -> int:
    """Plays with an agent and shows its score; a video only where --video names a file."""
    from rich.text import Text

    from shoal import evaluate as playing
    from shoal import registry
    from shoal.cli.screen import console
    from shoal.entry import make
    from shoal.errors import ConfigError, UnknownEnv
    from shoal.names import shortened
    from shoal.train.evaluation import AGENT, agent_player
    from shoal.video import check as check_video

    if not registry.is_native(task.env):
        check_keywords(task.env, task.params)
    playing.held_out(task.seed)
    target = None if video in ("auto", "none") else check_video(video, 30.0 if fps is None else fps)
    try:
        player, kwargs = agent_player(task.env, task.agent, task.params, task.opponents, task.seed, task.runs)
    except UnknownEnv as error:
        raise ConfigError(f"{error} With --agent, name an env, not a run.") from None
    screen, maker = console(stderr=json), partial(make, **kwargs)
    limit = NATIVE_ENVS if registry.is_native(task.env) else PYTHON_ENVS
    with screen.status("") as status:
        show_progress = partial(_show_progress, status, episodes)
        result = playing.play_modes(
            maker, {AGENT: player}, episodes, task.seed, chosen=AGENT, num_envs=limit, progress=show_progress
        )
        if target is not None:
            status.update(f"recording {_count(video_episodes, 'episode')}")
            playing.record(maker, player, target, video_episodes, task.seed, fps)
    score = result.score
    facts = {
        "env": task.env,
        "agent": task.agent,
        "opponents": task.opponents,
        "seed": task.seed,
        **_result_facts(result, target),
    }
    _write(facts, out, json)
    if json:
        return 0
    against = f", against {task.opponents}" if task.opponents else ""
    screen.print(Text(f"{task.env}, agent {shortened(task.agent)}{against}", "bold"), soft_wrap=True)
    screen.print(Text(f"{_count(len(score.returns), 'episode')} on held-out seeds\n", "dim"), soft_wrap=True)
    _show_scores(screen, result)
    if target is not None:
        screen.print(f"\nVideo of {_count(video_episodes, 'episode')}: {target}", soft_wrap=True)
    return 0


# ---- sessions of `shoal play` ----


def _evaluate_record(session: Any, json: bool, out: Path | None) -> int:
    """Plays a record again and shows its score."""
    from rich.text import Text

    from shoal.cli.screen import console
    from shoal.web import record

    result, unfinished = record.replay(session)
    facts = {"record": str(session.path), "env": session.env, "seats": session.seats, **_result_facts(result, None)}
    _write(facts, out, json)
    if json:
        return 0
    screen = console()
    seats = ", ".join(f"{name}: {who}" for name, who in zip(session.agents, session.seats))
    screen.print(Text(f"{session.env}, played by a person ({seats})", "bold"), soft_wrap=True)
    left_out = f"; {_count(unfinished, 'unfinished episode')} left out" if unfinished else ""
    screen.print(Text(f"{_count(len(result.score.returns), 'episode')}{left_out}\n", "dim"), soft_wrap=True)
    _show_scores(screen, result)
    return 0


COMMAND = Command(
    evaluate, order=20, examples={"shoal eval last": "evaluate the newest run, with a video"}, parses_words=True
)
