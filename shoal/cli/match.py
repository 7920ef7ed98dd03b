"""`shoal match`: runs and robots against each other, in all seats, with intervals. shoal/match plays the games."""

from __future__ import annotations

import inspect
import json as jsonlib
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from shoal.cli.command import Command
from shoal.cli.train import call_with_params


def match(words: list[str]) -> int:
    """Play runs and robots against each other: a cross table, ratings and intervals.

    A player is a run (its folder, its id, the name of its env, last), the folder of a checkpoint, a scripted robot of
    the env, a Python agent (mine:Agent), or random. RUN@best, RUN@last and RUN@STEP name a checkpoint; without it a run
    plays with its last one, or with its best one if it learned against --opponents. Every pair plays --games games, in
    all seats equally often, on seeds that training has not used. Each env plays a fixed number of games to the end, so
    that short games are not preferred. On an env with more than two sides, one player plays one side and the other one
    all others, in turns.

    --env.NAME VALUE sets params of the env; the others are those of the first run. Without a run, --env names the env.

    Try:
        shoal match last random
        shoal match last last@100000 seek --games 2000
        shoal match seek flee hunt --env vacuum --env.preset duel-stun
        shoal match runs/connect4/a runs/connect4/b --html match.html --json match.json
    """
    return call_with_params(match_under, "params", words, prog="shoal match", text=inspect.getdoc(match) or "")


def match_under(
    players: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="A B [C ...]")],
    /,
    *,
    games: int = 10_000,
    env: Annotated[str, tyro.conf.arg(metavar="ENV", help_behavior_hint="(default: that of the first run)")] = "",
    seed: int = 0,
    greedy: bool = False,
    margin: Annotated[
        float | None, tyro.conf.arg(metavar="X", help_behavior_hint="(default: --league.margin of the run)")
    ] = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    num_envs: Annotated[int, tyro.conf.arg(metavar="N")] = 0,
    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(default: no file)")] = None,
    html: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(default: no file)")] = None,
    runs: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("runs"),
    params: tyro.conf.Suppress[tyro.conf.Fixed[dict[str, Any] | None]] = None,
) -> int:
    """Plays the match.

    Args:
        players: Two or more players.
        games: The games of each pair, rounded up so that all seats are played equally often.
        env: The env of a match without runs.
        seed: The seed of the match; the same seed gives the same games.
        greedy: Runs take their most probable actions. By default they sample, as opponents in training do.
        margin: A difference of returns up to this is a draw.
        device: Where native envs and networks are; auto: a GPU if there is one and the env is native.
        num_envs: The number of envs at a time; 0: up to 4096 native or 16 Python envs.
        json: Write all results to this file; - prints them, and nothing else.
        html: Write the cross table and ratings as a web page to this file.
        runs: The folder of the runs.
    """
    from shoal.cli import crosstable
    from shoal.cli.screen import console
    from shoal.errors import ConfigError
    from shoal.league.page import write_html
    from shoal.match import play_match

    to_stdout = json is not None and str(json) == "-"
    if games < 1:
        raise ConfigError(f"--games {games} must be at least 1.")
    crosstable.check_file(None if to_stdout else json, "--json", ".json")
    crosstable.check_file(html, "--html", ".html")
    screen = console(stderr=to_stdout)
    with screen.status("") as status:
        played = play_match(
            players,
            env=env,
            env_options=params,
            games=games,
            seed=seed,
            greedy=greedy,
            margin=margin,
            device=device,
            num_envs=num_envs,
            runs_folder=runs,
            progress=lambda done, total: status.update(f"playing: {done:,} of {total:,} games"),
        )
    facts = played.facts()
    if to_stdout:
        print(jsonlib.dumps(facts))
    elif json is not None:
        crosstable.write_json(json, facts)
    title, lines = _about(played)
    if html is not None:
        write_html(played.table, html, title, lines)
    if to_stdout:
        return 0
    screen.print(title, style="bold", soft_wrap=True)
    for line in lines:
        screen.print(line, style="dim", soft_wrap=True)
    screen.print()
    crosstable.show(screen, played.table)
    for path in (json, html):
        if path is not None:
            screen.print(f"\nwrote {path}", soft_wrap=True)
    return 0


def _about(played: Any) -> tuple[str, list[str]]:
    """The title of a match, and what there is to know about it."""
    table = played.table
    chosen = "most probable" if played.greedy else "sampled"
    lines = [
        f"{played.games:,} games of each pair on held-out seeds, {table.sides} sides, each equally often; "
        f"actions {chosen}, seed {played.seed}, {played.seconds:.1f} s."
    ]
    if played.margin:
        lines.append(f"A difference of returns up to {played.margin:g} is a draw.")
    if played.cut:
        lines.append(f"{played.cut:,} games were stopped at the step limit and count with the returns so far.")
    return f"{played.env}: {', '.join(table.names)}", [*lines, *played.notes]


COMMAND = Command(
    match,
    order=25,
    examples={"shoal match last random": "play the newest run against random actions"},
    parses_words=True,
)
