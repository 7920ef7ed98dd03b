"""`shoal play`: a person plays an env, in the browser or in the terminal. shoal/web makes the page and the record."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import tyro

from shoal.cli.command import Command

FileFlag = Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(default: plays/ENV/TIME.json)")]


def play(
    env: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")],
    /,
    *,
    opponents: Annotated[str, tyro.conf.arg(metavar="1=WHO,2=WHO", help_behavior_hint="(default: nobody)")] = "",
    seat: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="(default: the first free one)")] = None,
    seed: Annotated[int, tyro.conf.arg(metavar="N")] = 1,
    set: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE [...]", help_behavior_hint="(none)")] = (),
    out: FileFlag = None,
    terminal: bool = False,
    page: bool = False,
    port: Annotated[int, tyro.conf.arg(metavar="N")] = 0,
    runs: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("runs"),
) -> int:
    """Play an env yourself, alone or against robots and runs.

    Opens a page in the browser; where there is none, the game is in the terminal. The session is recorded: 'shoal eval
    FILE' plays it again and scores it like a run.

    Try:
        shoal play breakout
        shoal play connect4 --opponents 1=search4
        shoal play midrange --opponents 1=crank
        shoal play tag --opponents 0=last,1=last,2=last

    Args:
        env: The env: a name, or the path of a header.
        opponents: Who plays the other agents: 1=seek,2=RUN. Agents that nobody plays do nothing.
        seat: The agent that you play.
        seed: The seed of the first episode is this + 2^30, as in 'shoal eval'.
        set: Params of the env, and preset=NAME.
        out: The record of the session.
        terminal: Play in the terminal, also where there is a browser.
        page: Serve the page, also where no browser was found: the address is printed.
        port: The port of the page on 127.0.0.1; 0: any free one.
        runs: The folder of the runs.
    """
    from shoal import registry
    from shoal.cli.step import parse_settings
    from shoal.errors import ConfigError
    from shoal.evaluate import held_out
    from shoal.web.facts import check_native

    if terminal and page:
        raise ConfigError("--terminal and --page are mutually exclusive. Leave one out.")
    if not 0 <= port < 65536:
        raise ConfigError(f"--port {port} must be in 0 .. 65535.")
    held_out(seed)
    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        raise ConfigError(f"--out {out} cannot be written. Choose a file in an existing folder.")
    check_native(env)
    registry.find(env)
    settings = parse_settings(set)
    keeper = Keeper(out or Path("plays") / Path(env).stem / f"{time.strftime('%Y%m%d-%H%M%S')}.json")
    if terminal or not (page or has_browser()):
        from shoal.cli.terminal import play_in_terminal

        result = play_in_terminal(env, settings, opponents, seat, seed, runs, keeper)
    else:
        result = _play_in_browser(env, settings, opponents, seat, seed, runs, keeper, port, opens=has_browser())
    keeper.conclude()
    return result


class Keeper:
    """Writes the record of a session to its file, whenever an episode ends."""

    def __init__(self, path: Path) -> None:
        self.path, self.episodes = path, 0

    def keep(self, text: str) -> None:
        """Checks a record and writes it, complete or not at all."""
        from shoal.web import record

        data = record.check(text)
        if not data["episodes"]:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        temporary.write_text(json.dumps(data))
        temporary.replace(self.path)
        self.episodes = sum("returns" in episode for episode in data["episodes"])

    def conclude(self) -> None:
        """Says what was recorded."""
        from shoal.cli.screen import console, suggest

        screen = console()
        if not self.episodes:
            screen.print("No episode was played to its end.")
            return
        count = f"{self.episodes} episode{'s' if self.episodes > 1 else ''}"
        screen.print(f"{count} recorded in {self.path}\n", soft_wrap=True)
        suggest(screen, {f"shoal eval {self.path}": "score the session"})


def has_browser() -> bool:
    """Whether a browser can open here: not in a session without a screen."""
    import webbrowser

    if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return False
    try:
        webbrowser.get()
    except webbrowser.Error:
        return False
    return True


def _play_in_browser(
    env: str,
    settings: dict[str, Any],
    opponents: str,
    seat: int | None,
    seed: int,
    runs: Path,
    keeper: Keeper,
    port: int,
    *,
    opens: bool,
) -> int:
    import webbrowser

    from shoal.cli.screen import console
    from shoal.web import game, page
    from shoal.web.serve import PageServer

    screen = console()
    with screen.status("compiling the env"):
        made = game.of_env(env, settings, opponents, seed=seed, root=runs)
    facts = made.facts | {"seats_of_person": [free_seat(made.facts, seat)]}
    server = PageServer(lambda report: page.html(facts | {"report": report}), keeper.keep, port)
    try:
        screen.print(f"{facts['title']}: {server.url}", soft_wrap=True)
        screen.print("Play in the browser. Ctrl-C ends the session.")
        if opens:
            webbrowser.open(server.url)
        while True:
            time.sleep(1.0)
    except KeyboardInterrupt:
        screen.print()
    finally:
        server.close()
    return 0


def free_seat(facts: dict[str, Any], seat: int | None) -> int:
    """The agent that the person plays: the one asked for, or the first without a player."""
    from shoal.errors import ConfigError

    agents = len(facts["agents"])
    taken = {agent for player in facts["players"] for agent in player["agents"]} | set_of_robots(facts)
    if seat is not None:
        if not 0 <= seat < agents:
            raise ConfigError(f"--seat {seat}: the env has agents 0 to {agents - 1}.")
        if seat in taken:
            raise ConfigError(f"--seat {seat} is taken by --opponents. Leave it out there.")
        return seat
    return next(agent for agent in range(agents) if agent not in taken)


def set_of_robots(facts: dict[str, Any]) -> set[int]:
    """The agents that scripted robots of the env play."""
    return {int(name.removeprefix("robot_")) for name, value in facts["robots"].items() if value}


COMMAND = Command(play, order=22, examples={"shoal play breakout": "play it yourself, in the browser"})
