"""The process behind `shoal watch`: games of checkpoints, pages of leagues and sweeps.

    shoal.watch.worker ROOT [HEADER ...]      a line of JSON in, a line of JSON out

A game takes about 0.02 s of one core, and is made when a checkpoint is new and a page shows it. Runs of Shoal's own
networks are read without torch, whose import takes 2 s; others, leagues and sweeps import it when they are asked for.
It runs no code that a run's folder names: only stock envs, envs of installed packages, and the headers that the user
gave; no policy, agent, interpreter or wrapper of anyone's own. Checkpoints are safetensors.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from shoal.errors import ConfigError, ShoalError
from shoal.watch.files import Root

MOST_BYTES = 1 << 30  # of a checkpoint, or of a sweep's journal
NICE = 5  # a little less than a training: with less, a page would wait for seconds where all cores are busy
MOST_MEMORY = 8 << 30  # bytes that the process may allocate
RETRY_S = 30.0  # until a checkpoint whose game could not be made is tried again
DEEPEST = 4  # runs whose opponents are runs
SWEEP_FILES = ("sweep.json", "journal.log", "results.json")
NOT_NATIVE = (
    "A Python env cannot run in a page. 'shoal eval RUN' records a video, and so does training with --callback "
    "'video(every=1M)'. They are shown here."
)


class Worker:
    """Answers requests about the runs of one folder."""

    def __init__(self, root: Path, headers: list[str]) -> None:
        self.root = Root(root)
        self.headers = [Path(header).resolve() for header in headers]
        # of each run, the checkpoint that has no game, why, and when to try again: a page asks every two seconds
        self.failed: dict[str, tuple[Path, ShoalError, float]] = {}

    def answer(self, request: dict[str, Any]) -> Any:
        """The result of one request: its field `do` is the name of a method below."""
        known: dict[str, Callable[..., Any]] = {
            "warm": self.warm,
            "game": self.game,
            "league": self.league,
            "sweep": self.sweep,
        }
        return known[request.pop("do")](**request)

    def warm(self) -> None:
        """Imports what the first game needs."""
        import shoal.web.from_files  # noqa: F401

    def game(self, folder: str, newer_than: int = -1) -> dict[str, Any] | None:
        """The game of the newest checkpoint; None if there is none newer."""
        from shoal.runs import Run

        run = Run(folder)
        for attempt in range(3):
            path = run.last
            if path is None:
                raise ConfigError("The run has no checkpoint yet. Training saves one every --save.every-s seconds.")
            if int(path.name) <= newer_than:
                return None
            if folder in self.failed:
                failed, why, until = self.failed[folder]
                if failed == path and time.monotonic() < until:
                    raise why
            try:
                self.check_files(path)
                self.check_options(run)
                return self._game(run, path)
            except ShoalError as error:
                if path.exists():
                    self.failed[folder] = (path, error, time.monotonic() + RETRY_S)
                    raise
                if attempt == 2:
                    raise
        raise AssertionError

    def _game(self, run: Any, path: Path) -> dict[str, Any]:
        from shoal.web import from_files

        with contextlib.suppress(from_files.NotPlain):
            return from_files.game(run, path, self.root.json(run.folder / "policy.json"))
        self.check_opponents(run)
        return self._game_with_torch(run, path)

    def _game_with_torch(self, run: Any, path: Path) -> dict[str, Any]:
        from shoal.evaluate import held_out
        from shoal.train import env_seed, load_player
        from shoal.web import game

        player, kwargs = load_player(run, path)
        about = {"run": run.id, "step": int(path.name), "greedy": bool(player.greedy and player.greedy[0])}
        seed = run.facts.get("seed")
        start = held_out(env_seed(seed if isinstance(seed, int) else 0))
        return game.of_player(kwargs, player, start, "16", about, steps=1).facts

    # ---- what a run's folder may ask for ----

    def check_files(self, folder: Path) -> None:
        """Raises if a checkpoint is not made of files below the runs."""
        total = 0
        for path in [folder, *folder.iterdir()]:
            if path.is_symlink() or not self.root.holds(path) or not (path.is_file() or path == folder):
                raise ConfigError(f"{path.name} of the checkpoint is a link, which is not followed.")
            total += path.stat().st_size
        if total > MOST_BYTES:
            raise ConfigError(f"The checkpoint has {total >> 20} MB, and at most {MOST_BYTES >> 20} MB are read.")

    def check_run(self, run: Any, depth: int = 0) -> None:
        """Raises if playing a run would execute code that its folder names."""
        self.check_options(run)
        self.check_opponents(run, depth)

    def check_options(self, run: Any) -> None:
        """The part of it without the opponents, which web/from_files.py does not load."""
        from shoal.entry import make

        for name in ("run.json", "config.toml"):
            if self.root.read(run.folder / name, 1) is None:
                raise ConfigError(f"{name} is missing or lies outside the runs.")
        self.check_env(str(run.facts.get("env", run.env)))
        tables = run.config
        nn, vec, env = (_table(tables, name) for name in ("nn", "vec", "env"))
        own_words = [name for name, kind in inspect.signature(make).parameters.items() if kind.kind != kind.VAR_KEYWORD]
        for what, value in (("nn.policy", nn.get("policy")), ("vec.python", vec.get("python"))):
            if value:
                raise ConfigError(f"The run has {what} = {_short(value)}. shoal watch runs no code that a run names.")
        for name in env:
            if name in own_words:
                raise ConfigError(f"The run's config.toml sets env.{name}, which is not a param of an env.")

    def check_opponents(self, run: Any, depth: int = 0) -> None:
        """Raises if an opponent is code, or a run that may not be played."""
        from shoal.names import is_name
        from shoal.train import seats

        for who in seats.parse(str(run.config.get("opponents", ""))).values():
            if is_name(who):
                raise ConfigError(f"The opponent {_short(who)} is Python code, and shoal watch runs none.")
            if "/" in who or os.sep in who:
                self._check_opponent(Path(who), depth)

    def _check_opponent(self, path: Path, depth: int) -> None:
        from shoal.runs import Run

        if depth >= DEEPEST or not self.root.holds(path):
            raise ConfigError(f"The opponent {_short(path)} is not below the runs that are watched.")
        self.check_files(path)
        self.check_run(Run(path.parent.parent), depth + 1)

    def check_env(self, env: str) -> None:
        """Raises if an env is neither known by name nor one of the headers that the user gave."""
        from shoal import registry

        if not registry.is_native(env):
            raise ConfigError(NOT_NATIVE)
        if env in registry.known_names() or (env.endswith(".h") and Path(env).resolve() in self.headers):
            return
        raise ConfigError(f"The env is a header of your own. To compile and play it here: shoal watch --header {env}")

    # ---- pages ----

    def league(self, folder: str) -> str:
        """The page of a run's league."""
        from shoal.league.page import html_of
        from shoal.match import read_league
        from shoal.runs import Run

        run = Run(folder)
        path = run.last
        if path is None:
            raise ConfigError("The run has no checkpoint yet, and the results of a league are in there.")
        self.check_files(path)
        report = read_league(run, path.name)
        anchor = report.table.names[report.table.anchor]
        lines = [
            f"{report.members} members in the pool now; {anchor} has rating 0. Results are those of the training games."
        ]
        return html_of(report.table, f"{run.env}, run {run.id}: the league at step {report.step:,}", lines)

    def sweep(self, folder: str) -> str:
        """The page of a sweep. A copy is read: no lock is held and nothing is repaired in the folder itself."""
        if _missing("optuna"):
            raise ConfigError("Sweeps need Optuna: pip install 'shoal[sweep]'")
        from shoal.sweep import page
        from shoal.sweep.store import Sweep

        source = Path(folder)
        with tempfile.TemporaryDirectory(prefix="shoal-watch-") as scratch:
            copy = Path(scratch) / source.parent.name / source.name
            copy.mkdir(parents=True)
            for name in SWEEP_FILES:
                data = self.root.read(source / name, MOST_BYTES)
                if data is not None:
                    (copy / name).write_bytes(data)
            if not (copy / "journal.log").is_file():
                raise ConfigError("The sweep has no journal yet.")
            shown = page.data(Sweep(copy))
        shown["note"] = str(shown["note"]).replace(str(copy), str(source))
        return page.html_of(shown)


def _table(tables: dict[str, Any], name: str) -> dict[str, Any]:
    found = tables.get(name)
    return found if isinstance(found, dict) else {}


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) < 80 else f"{text[:79]}…"


def _missing(package: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(package) is None


def _limit_memory() -> None:
    """Options of a run may ask for a network of any size: then this process fails, and no other one."""
    with contextlib.suppress(ImportError, OSError, ValueError, AttributeError):
        import resource

        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        limit = min(MOST_MEMORY, whole // 2)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # Linux, if the memory is full all the same


def serve(root: Path, headers: list[str], lines: IO[str], out: IO[str]) -> None:
    """Answers lines until there are no more."""
    _limit_memory()
    worker = Worker(root, headers)
    for number, line in enumerate(lines):
        try:
            answer = {"result": worker.answer(json.loads(line))}
        except ShoalError as error:
            answer = {"error": str(error)}
        except Exception as error:  # a damaged folder may raise anything; the next request is answered all the same
            answer = {"error": f"{type(error).__name__}: {error}"}
        out.write(json.dumps(answer) + "\n")
        out.flush()
        if number == 1:  # the first game has been shown
            with contextlib.suppress(OSError, AttributeError):
                os.nice(NICE)


def main() -> None:
    """Answers lines of standard input until it ends."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what anything prints does not mix with the answers
    serve(Path(sys.argv[1]), sys.argv[2:], sys.stdin, out)


if __name__ == "__main__":
    main()
