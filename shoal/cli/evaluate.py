"""`shoal eval`: how well a run plays on seeds that it has not seen, and a video of it.

The playing is in shoal/evaluate.py; the player comes from shoal/train.py.
"""

from __future__ import annotations

import json as jsonlib
import os
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro

NATIVE_ENVS, PYTHON_ENVS = 1024, 16  # at most so many envs at a time; a Python env is dear to make


def command(
    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")],
    /,
    *,
    episodes: int = 100,
    checkpoint: Annotated[str, tyro.conf.arg(metavar="{best,last,STEP}")] = "best",
    greedy: bool = False,
    sample: bool = False,
    seed: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="(default: the run's)")] = None,
    video: Annotated[str, tyro.conf.arg(metavar="{auto,none,FILE}")] = "auto",
    video_episodes: int = 1,
    fps: Annotated[float | None, tyro.conf.arg(metavar="N", help_behavior_hint="(default: the env's)")] = None,
    json: bool = False,
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(default: no file)")] = None,
    runs: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("runs"),
) -> int:
    """Evaluate a run: its return on held-out seeds, and a video.

    Plays whole episodes that training has not seen, and prints the mean return with its 95 % confidence interval. Each
    env plays a number of episodes that is fixed beforehand, so that short ones are not preferred.

    Try:
        shoal eval last
        shoal eval cartpole --episodes 1000 --greedy
        shoal eval runs/breakout/20250101-120000 --checkpoint last --video breakout.gif

    Args:
        run: The run: its folder, its id, the name of its env (its newest run), or last.
        episodes: How many episodes to play.
        checkpoint: Which checkpoint: the best, the last, or that of a step.
        greedy: Take the likeliest action each time (default: as the run itself evaluates, --eval.greedy).
        sample: Draw actions from the policy.
        seed: Envs start from this seed + 2^30, which training does not use.
        video: Where to put the video: auto is RUN/videos/, as MP4 where that is installed, else as GIF.
        video_episodes: How many episodes the video shows.
        fps: Frames per second of the video.
        json: Print one line of JSON instead of the table, with every episode.
        out: Append that line to this file.
        runs: The folder that runs are in.
    """
    from shoal.cli.main import console
    from shoal.entry import make
    from shoal.evaluate import can_draw, held_out, play, record
    from shoal.runs import find
    from shoal.train import load_player

    _check(episodes, video_episodes, out)
    found = find(run, runs)
    start = int(found.facts.get("seed") or 0) if seed is None else seed
    held_out(start)
    chosen = _choose(found, checkpoint)
    greedy = _is_greedy(found, greedy, sample)
    target, note = _target(found, chosen, video, greedy, fps)
    screen = console(stderr=json)
    player, kwargs = load_player(found, chosen, device="cpu", greedy=greedy)
    maker = partial(make, **kwargs)
    limit = PYTHON_ENVS if ":" in str(kwargs["env"]) else NATIVE_ENVS
    failed: Exception | None = None
    with screen.status("") as status:
        vec = maker(num_envs=min(episodes, limit), seed=held_out(start))
        try:
            if target is not None and not can_draw(vec):
                target, note = None, f"No video: {kwargs['env']} cannot draw itself."
            tell = partial(_tell, status, episodes)
            tell(0)
            score = play(vec, player, episodes, start, progress=tell)
        finally:
            vec.close()
        if target is not None:
            status.update(f"recording {_count(video_episodes, 'episode')}")
            try:
                record(maker, player, target, video_episodes, start, fps)
            except Exception as error:  # the score is there, whatever becomes of the video
                target, note, failed = None, f"No video: {error}", error
    facts = {
        "run": str(found.folder),
        "env": str(kwargs["env"]),
        "checkpoint": chosen.name,
        "greedy": greedy,
        "seed": start,
        **score.facts(),
        "cut": score.cut,
        "stats": {name: sum(values) / len(values) for name, values in score.stats.items()},
        "video": None if target is None else str(target),
        "returns": score.returns,
        "lengths": score.lengths,
    }
    line = jsonlib.dumps(facts)
    if out is not None:
        with out.open("a") as file:
            file.write(line + "\n")
    if json:
        print(line)
    else:
        _show(screen, found, chosen, score, greedy)
    if failed is not None and video != "auto":
        raise failed  # it was asked for
    if note is not None:
        screen.print(f"\n{note}", soft_wrap=True)
    if json:
        return 0
    if target is not None:
        screen.print(f"\nVideo of {_count(video_episodes, 'episode')}: {target}", soft_wrap=True)
    _conclude(screen, found, greedy)
    return 0


def _tell(status: Any, episodes: int, done: int) -> None:
    status.update(f"playing: {done:,} of {_count(episodes, 'episode')} over")


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def _check(episodes: int, video_episodes: int, out: Path | None) -> None:
    from shoal.errors import ConfigError

    for name, value in (("episodes", episodes), ("video-episodes", video_episodes)):
        if value < 1:
            raise ConfigError(f"--{name} {value} must be at least 1.")
    if out and (out.is_dir() or not os.access(out if out.exists() else out.parent, os.W_OK)):
        raise ConfigError(f"--out {out} cannot be written. Choose a file in a folder that exists and is yours.")


def _choose(run: Any, which: str) -> Path:
    """The checkpoint that `best`, `last` or a step names."""
    from shoal.errors import ConfigError

    there: list[Path] = run.checkpoints()
    if not there:
        raise ConfigError(f"{run.folder} has no checkpoint yet. Training saves one now and then, and when it ends.")
    if which in ("best", "last"):
        chosen: Path | None = run.best if which == "best" else run.last
        return chosen or there[-1]
    digits = which.replace("_", "").replace(",", "")
    steps = [int(path.name) for path in there]
    if not digits.isdecimal():
        raise ConfigError(f"--checkpoint {which} must be best, last or a step.")
    if int(digits) not in steps:
        near = min(steps, key=lambda step: abs(step - int(digits)))
        raise ConfigError(
            f"--checkpoint {which}: {run.folder} has none of that step. The nearest is {near}; it has "
            f"{_count(len(steps), 'checkpoint')} from {steps[0]} to {steps[-1]}."
        )
    return there[steps.index(int(digits))]


def _is_greedy(run: Any, greedy: bool, sample: bool) -> bool:
    """As the flags say; without them, as the run itself evaluates."""
    from shoal.errors import ConfigError

    if greedy and sample:
        raise ConfigError("--greedy and --sample cannot both be. Give one, or none.")
    has_config = (run.folder / "config.toml").is_file()
    return greedy or (not sample and has_config and bool(run.config.get("eval", {}).get("greedy", False)))


def _target(run: Any, checkpoint: Path, where: str, greedy: bool, fps: float | None) -> tuple[Path | None, str | None]:
    """Where the video goes, if anywhere, and why not. What was asked for and cannot be is told before the playing."""
    from shoal import video

    rate = 30.0 if fps is None else fps
    if where == "none":
        return None, None
    if where != "auto":
        return video.check(where, rate), None
    if not any(map(video.can_write, video.SUFFIXES)):
        return None, f"No video: {video.INSTALL} brings what writes them."
    folder: Path = run.folder / "videos"
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        return None, f"No video: cannot make {folder}: {error.strerror}. Choose a place with --video FILE."
    return video.check(folder / f"{checkpoint.name}{'-greedy' if greedy else ''}", rate), None


def _show(screen: Any, run: Any, checkpoint: Path, score: Any, greedy: bool) -> None:
    from rich.table import Table
    from rich.text import Text

    from shoal.evaluate import ci95, mean, show

    how = "greedy" if greedy else "actions drawn from the policy"
    head = f"{run.env}, run {run.id}, checkpoint of step {int(checkpoint.name):,}"
    screen.print(Text(head, "bold"), soft_wrap=True)
    screen.print(Text(f"{_count(len(score.returns), 'episode')} on held-out seeds, {how}\n", "dim"), soft_wrap=True)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("")
    for column in ("mean", "95 %", "min", "max"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, values in {"return": score.returns, "length": score.lengths, **score.stats}.items():
        width = f"± {show(ci95(values))}" if len(values) > 1 else ""
        style = "bold cyan" if name == "return" else ""
        table.add_row(name, show(mean(values)), width, show(min(values)), show(max(values)), style=style)
    screen.print(table)
    if score.cut:
        from shoal.evaluate import MAX_STEPS

        words = "episode was" if score.cut == 1 else "episodes were"
        screen.print(f"\n{score.cut:,} {words} cut at {MAX_STEPS:,} steps: they count with their return so far.")


def _conclude(screen: Any, run: Any, greedy: bool) -> None:
    from shoal.cli.main import suggest

    hints = {f"shoal plot {run.folder}": "its learning curve"}
    if not greedy:
        hints[f"shoal eval {run.folder} --greedy"] = "the likeliest action each time"
    hints[f"shoal train --resume {run.folder}"] = "train on"
    screen.print()
    suggest(screen, hints)
