"""A game in the terminal, for `shoal play` where there is no browser: the picture as half blocks, keys without echo.

A terminal reports no releases of keys: a pressed key counts for HOLD_S seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shoal.errors import ConfigError

HOLD_S = 0.18
BREAK_S = 0.9  # after an episode: keys that are still held start no new one, as in the browser
START = "press a key to start"
QUIT = ("\x03", "\x1b", "q")
CODES = {
    "\x1b[A": "ArrowUp",
    "\x1b[B": "ArrowDown",
    "\x1b[C": "ArrowRight",
    "\x1b[D": "ArrowLeft",
    " ": "Space",
    "\r": "Enter",
    "\n": "Enter",
}


def play_in_terminal(
    env: str, settings: dict[str, Any], opponents: str, seat: int | None, seed: int, runs: Path, keeper: Any
) -> int:
    """Plays until q, Esc or Ctrl-C."""
    from shoal.cli.play import free_seat
    from shoal.cli.screen import console
    from shoal.entry import make
    from shoal.evaluate import held_out
    from shoal.web import controls, game
    from shoal.web.facts import robots_of

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError("there is neither a browser nor a terminal here. 'shoal play ENV --page' prints an address.")
    with console().status("compiling the env"):
        player, kwargs = game.seat(env, settings, opponents, seed, runs)
        vec: Any = make(**{**kwargs, "num_envs": 1, "backend": "serial", "autoreset": "disabled"})
    with contextlib.closing(vec):
        spec = vec.module.spec
        facts = {
            "agents": list(map(str, spec.agent_spaces.agents)),
            "players": [{"agents": list(role.agents or range(spec.agents))} for role in player.roles],
            "robots": robots_of(vec),
            "controls": controls.describe(spec, vec.module.source.header),
        }
        table = Table(vec, player, facts, free_seat(facts, seat), kwargs)
        table.reset(held_out(seed))
        with raw_terminal():
            table.run(keeper)
    return 0


class Table:
    """One game: the person's keys, the opponents' actions, the picture, the record."""

    def __init__(self, vec: Any, player: Any, facts: dict[str, Any], mine: int, kwargs: dict[str, Any]) -> None:
        self.vec, self.player, self.facts, self.mine, self.kwargs = vec, player, facts, mine, kwargs
        self.controls = facts["controls"]
        self.last = [choice["rest"] or 0 for choice in self.controls["choices"]]
        self.held: dict[str, float] = {}
        self.queue: list[str] = []  # keys that wait for their step, where the game waits for the person
        self.episodes: list[dict[str, Any]] = []
        self.message = ""
        self.is_held = not self.controls["waits"]  # a still picture until the person is there
        self.ended = 0.0  # when the last episode ended

    def reset(self, seed: int | None) -> None:
        """Starts an episode: that of a seed, or the next one."""
        self.obs, self.infos = self.vec.reset(seed=seed)
        self.player.reset(self.vec.num_rows)
        self.episodes.append({"seed": None if seed is None else str(seed), "params": {}, "actions": []})

    def run(self, keeper: Any) -> None:
        """Steps at the env's speed, from the first key on; a game of turns waits for one at every step."""
        interval = 1.0 / float(self.controls["speed"])
        sys.stdout.write("\x1b[2J")
        while True:
            if self.is_held:
                self.message = START
            self.show()
            waits = self.controls["waits"] and self.is_my_turn() and not self.vec.ended[0]
            keys = read_keys(0.0 if self.queue else None if waits or self.is_held else interval)
            if any(key in QUIT for key in keys):
                return
            if self.is_held:
                self.is_held, self.message = not keys, ""
            now = time.monotonic()
            codes = [code for code in map(code_of, keys) if code in self.controls["keys"]]
            self.held = {key: end for key, end in self.held.items() if end > now} | dict.fromkeys(codes, now + HOLD_S)
            if self.vec.ended[0]:
                self.queue.clear()
                if keys and now - self.ended > BREAK_S:
                    self.reset(None)
                    self.message = ""
                continue
            if waits:  # every key is a step, however fast they come
                self.queue += codes
                if not self.queue:
                    continue
            self.step([self.queue.pop(0)] if waits else list(self.held))
            if self.vec.ended[0]:
                self.finish(keeper)

    def is_my_turn(self) -> bool:
        """Whether the person has a choice."""
        mask = self.infos.get("action_mask")
        return mask is None or int((mask[self.mine] != 0).sum()) > 1

    def step(self, codes: list[str]) -> None:
        """One step: the person's keys, and the opponents' policies."""
        import numpy as np

        memory = self.vec.memory.arrays["actions"]
        rows = np.zeros((self.vec.num_rows, self.vec.module.action_size), memory.dtype)
        rows[:] = [self.rest(agent) for agent in range(self.vec.num_rows)]
        if self.player.actors:
            self.fill_opponents(rows)
        if self.is_my_turn():
            chosen = self.values(codes)
            mask = self.infos.get("action_mask")
            if mask is not None and rows.shape[1] == 1 and not mask[self.mine][int(chosen[0])]:
                self.message = "this action is not allowed now"
                return
            rows[self.mine] = chosen
        self.message = ""
        self.episodes[-1]["actions"].append(rows.reshape(-1).tolist())
        batch: Any = rows.reshape(memory.shape)
        if self.vec.native_spec.action_kind == "mix":
            floats = self.vec.native_spec.action_dims[0]
            choices = rows[:, floats:].astype(np.int64)
            batch = (rows[:, :floats], choices if choices.shape[1] > 1 else choices[:, 0])
        alive = np.asarray(self.infos.get("alive", True), bool)
        self.obs, _, terminated, truncated, self.infos = self.vec.step(batch)
        self.player.observe(terminated | truncated | ~alive | ~np.asarray(self.infos.get("alive", True), bool))

    def fill_opponents(self, rows: Any) -> None:
        """The actions of the runs that play seats."""
        import numpy as np

        actions = self.player.act(self.obs, self.infos)
        parts = actions if isinstance(actions, tuple) else (actions,)
        flat = np.concatenate([np.asarray(part).reshape(len(rows), -1) for part in parts], 1)
        for role in self.player.roles:
            for agent in role.agents or range(len(rows)):
                rows[agent] = flat[agent]

    def values(self, codes: list[str]) -> list[float]:
        """The person's action, as `Hands.values` of shoal/web/page/controls.js."""
        values = [0.0] * self.vec.module.action_size
        choices = self.controls["choices"]
        picks = [last if choice["rest"] is None else choice["rest"] for choice, last in zip(choices, self.last)]
        for number in self.controls["numbers"]:
            values[number["column"]] = number["rest"]
        for code in codes:
            kind, at, value = self.controls["keys"][code]["does"]
            if kind == "number":
                values[self.controls["numbers"][at]["column"]] = value
            else:
                picks[at] = value
        for choice, pick in zip(choices, picks):
            values[choice["column"]] += choice["weight"] * pick
        self.last = picks
        return values

    def rest(self, agent: int) -> list[float]:
        """What an agent does whom nobody plays."""
        import numpy as np

        last, self.last = self.last, [choice["rest"] or 0 for choice in self.controls["choices"]]
        values = self.values([])
        self.last = last
        mask = self.infos.get("action_mask")
        if mask is not None and len(values) == 1 and not mask[agent][int(values[0])]:
            values = [float(np.argmax(mask[agent] != 0))]
        return values

    def finish(self, keeper: Any) -> None:
        """Notes the result and keeps the record."""
        from shoal.web.facts import plain_options

        arrays = self.vec.memory.arrays
        episode = self.episodes[-1]
        episode |= {"returns": arrays["final_return"].tolist(), "length": len(episode["actions"])}
        shown = " : ".join(f"{value:.2f}" for value in episode["returns"])
        self.message = f"episode over: return {shown}. Press a key for the next one."
        self.ended = time.monotonic()
        options = plain_options(self.kwargs)
        who = ["you" if agent == self.mine else "opponent" for agent in range(len(self.facts["agents"]))]
        record = {"format": "shoal-record 1", "env": self.kwargs["env"], "options": options, "person": self.mine}
        keeper.keep(json.dumps({**record, "agents": self.facts["agents"], "seats": who, "episodes": self.episodes}))

    def show(self) -> None:
        """The picture and two lines below it."""
        from shoal.cli import pixels

        size = shutil.get_terminal_size()
        frame = self.vec.frame(0, width=480)
        width = min(size.columns - 1, int((size.lines - 4) * 2 * frame.shape[1] / frame.shape[0]), pixels.MOST)
        picture = pixels.half_blocks(frame, max(width, pixels.LEAST))
        names = {code: text for text, code in CODES.items() if text.startswith("\x1b")}
        arrows = dict(zip(("ArrowUp", "ArrowDown", "ArrowRight", "ArrowLeft"), "↑↓→←"))
        keys = "  ".join(
            f"{arrows.get(code, code.removeprefix('Key').removeprefix('Digit').lower())} {facts['label']}"
            for code, facts in self.controls["keys"].items()
            if code in names or code not in arrows
        )
        total = float(self.vec.memory.arrays["returns"][self.mine])
        status = f"step {int(self.vec.memory.arrays['tick'][0])}  return {total:.2f}  {self.message}"
        lines = [*picture.split("\n"), status[: size.columns - 1], f"{keys}  q quit"[: size.columns - 1]]
        sys.stdout.write("\x1b[H" + "\x1b[K\r\n".join(lines) + "\x1b[K\x1b[J")
        sys.stdout.flush()


def code_of(key: str) -> str:
    """The browser's name of a key: KeyA, Digit1, ArrowUp."""
    if key in CODES:
        return CODES[key]
    return f"Digit{key}" if key.isdigit() else f"Key{key.upper()}"


def read_keys(timeout: float | None) -> list[str]:
    """The keys that were pressed within a time; None waits for one."""
    end = None if timeout is None else time.monotonic() + timeout
    keys: list[str] = []
    while True:
        left = None if end is None else max(0.0, end - time.monotonic())
        if not select.select([sys.stdin], [], [], left)[0]:
            return keys
        text = os.read(sys.stdin.fileno(), 64).decode(errors="ignore")
        while text:
            length = 3 if text[:2] == "\x1b[" else 1
            keys.append(text[:length])
            text = text[length:]
        if end is None:
            return keys


@contextlib.contextmanager
def raw_terminal() -> Iterator[None]:
    """A terminal without echo and cursor, restored at the end."""
    import termios
    import tty

    handle = sys.stdin.fileno()
    before = termios.tcgetattr(handle)
    try:
        tty.setcbreak(handle)
        sys.stdout.write("\x1b[?1049h\x1b[?25l")
        yield
    except KeyboardInterrupt:
        pass
    finally:
        termios.tcsetattr(handle, termios.TCSADRAIN, before)
        sys.stdout.write("\x1b[?25h\x1b[?1049l")
        sys.stdout.flush()
