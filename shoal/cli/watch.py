"""`shoal watch`: a local page of runs: curves, comparison, and the newest checkpoint playing. shoal/watch serves it."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Annotated, Any

import tyro

from shoal.cli.command import Command

LIST = "(default: the list of all runs)"


def watch(
    run: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[RUN ...]", help_behavior_hint=LIST)
    ] = (),
    /,
    *,
    runs: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("runs"),
    port: Annotated[int, tyro.conf.arg(metavar="N")] = 0,
    header: Annotated[
        tuple[Path, ...], tyro.conf.arg(metavar="FILE.h [...]", help_behavior_hint="(default: none)")
    ] = (),
    no_browser: bool = False,
) -> int:
    """Watch runs in the browser: live curves, comparisons, and the newest checkpoint playing while it trains.

    Serves a page on 127.0.0.1, at an address with a token, and opens the browser. It reads the files of runs: training
    does nothing for it. Nothing is written, and no code that a run's folder names is executed.

    Try:
        shoal watch
        shoal watch last
        shoal watch cartpole breakout
        shoal watch runs/breakout/sweep-20261116-193741

    Args:
        run: Open the page of this run, or the comparison of several: folders, ids from 'shoal runs', the name of an env
            (its newest run), a folder of runs, a group of seeds, or last. Of a sweep, its trials are listed.
        runs: The folder of the runs.
        port: The port on 127.0.0.1; 0: any free one.
        header: Env headers of your own that may be compiled and played. Stock envs and those of packages always are.
        no_browser: Print the address alone.
    """
    from shoal.cli.screen import console
    from shoal.errors import ConfigError
    from shoal.watch.background import Background

    if not 0 <= port < 65536:
        raise ConfigError(f"--port {port} must be in 0 .. 65535.")
    for path in header:
        if path.suffix != ".h" or not path.is_file():
            raise ConfigError(f"--header {path} is no header: name an existing file that ends with .h.")
    root, start = choose(run, runs)
    if not root.is_dir():
        raise ConfigError(
            f"{root}/ does not exist. Start a run ('shoal train cartpole'), or name a folder: --runs FOLDER"
        )
    screen = console()
    background = Background(root.resolve(), list(header))
    background.start()  # it imports what the first game needs, while this process imports the server
    from shoal.watch.server import Server, Watch

    serving = Watch(root, background=background)
    server = Server(serving, port, start)
    try:
        screen.print(server.url, soft_wrap=True, highlight=False)
        screen.print(f"The runs in {root}/. Ctrl-C ends the page; training goes on.", soft_wrap=True)
        threading.Thread(target=serving.warm, args=(_named_run(start),), daemon=True).start()
        if not no_browser:
            _open(server.url)
        while True:
            time.sleep(60.0)
    except KeyboardInterrupt:
        screen.print()
    finally:
        server.close()
    return 0


def choose(names: tuple[str, ...], runs: Path) -> tuple[Path, str]:
    """The folder of runs to serve, and the part of the address that opens the runs that are named."""
    from urllib.parse import quote

    from shoal.errors import ConfigError

    if not names:
        return runs, ""
    trials = [sweep for name in names if (sweep := _find_sweep(name, runs)) is not None]
    if trials:
        if len(names) > 1:
            raise ConfigError(f"{trials[0]} is a sweep. Name it alone: its trials are listed.")
        return trials[0] / "trials", ""
    found: dict[Path, Any] = {}
    for name in names:
        found |= {one.folder.resolve(): one for one in _find(name, runs)}
    roots = {folder.parent.parent for folder in found}
    if len(roots) > 1:
        listed = " and ".join(sorted(str(root) for root in roots)[:2])
        raise ConfigError(f"the runs lie in {listed}, and the page is of one folder. Name runs of one of them.")
    ids = [f"{folder.parent.name}/{folder.name}" for folder in found]
    here = runs if runs.is_dir() and runs.resolve() in roots else roots.pop()
    page = f"#/run/{quote(ids[0])}" if len(ids) == 1 else "#/compare/" + ",".join(map(quote, ids))
    return here, page


def _named_run(start: str) -> str:
    """The run whose page an address opens; empty for other pages."""
    from urllib.parse import unquote

    return unquote(start.removeprefix("#/run/")) if start.startswith("#/run/") else ""


def _find_sweep(name: str, root: Path) -> Path | None:
    """The folder of a sweep by its path or id; None if the name is none of a sweep."""
    places = [Path(name), root / name, *(root.glob(f"*/{name}") if name.startswith("sweep-") else ())]
    return next((place for place in places if (place / "sweep.json").is_file()), None)


def _find(name: str, root: Path) -> list[Any]:
    """The runs with a name; a folder of runs and a group of seeds mean all of their runs."""
    from shoal import runs
    from shoal.seed_groups import find_group

    path = Path(name)
    inside = [] if (path / "run.json").is_file() else [*path.glob("*/run.json"), *path.glob("*/*/run.json")]
    if inside:
        return [runs.Run(file.parent) for file in sorted(inside)]
    group = find_group(name, root)
    return [runs.find(name, root)] if group is None else list(group.runs.values())


def _open(url: str) -> None:
    import webbrowser

    from shoal.cli.play import has_browser

    if has_browser():
        webbrowser.open(url)


COMMAND = Command(watch, order=24, examples={"shoal watch": "live curves of all runs, and the newest agents playing"})
