"""`shoal step`: steps one env by typed commands, to debug it.

shoal/cli/stepper.py plays the env, shoal/cli/pixels.py turns its frames into characters.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from shoal.cli.command import Command
from shoal.distributions import number_or_word
from shoal.errors import ConfigError, ShoalError

if TYPE_CHECKING:
    from shoal.cli.stepper import Stepper, StepResult

HELP = """\
  ACTION       one step: a number for each choice, as 2, or 0.5 -1; for two agents 0.5 -1 | 0 1
               ? is a random action of one agent: 2 | ?
  (empty)      one step with random actions, among those that the mask allows
  ACTION x10   ten steps with that action; x10: ten random steps. The end of the episode stops them
  b, b 5       back: undoes one step, or five (native envs)
  r, r 7       reset: the next episode, or that of seed 7
  o            the observation, with its bounds
  s            the state: the fields of State, or the attributes of a Python env
  p, p 60      the picture, 60 columns wide
  a            the action space, and what the mask allows
  set n=1      changes params from the next step on (native envs); set: lists them
  h, q         this help; quit
Commands on one line are separated by semicolons: 1 x3; s; p"""
SHOWN = 8  # elements of an observation in the line of a step
LISTED = 64  # elements of an observation, or of a field of the state, that are listed
PRINTED = 20  # steps of one command that are printed; of more, only the last


def step(
    env: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")],
    /,
    *,
    seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0,
    set: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE [...]", help_behavior_hint="(none)")] = (),
    picture: bool = False,
    width: Annotated[int, tyro.conf.arg(metavar="COLUMNS")] = 60,
) -> int:
    """Step an env by hand: type actions, see its state, observation, reward and picture.

    Reads one command per line; h lists the commands. Works from a pipe too: then every command is printed before its
    result, and the exit code is 1 if a command was wrong.

    Try:
        shoal step ./my_env.h
        shoal step cartpole --picture
        shoal step gymnasium:CartPole-v1
        echo "1 x3; s; p" | shoal step cartpole

    Args:
        env: The env: a name, the path of a header, or an id such as gymnasium:CartPole-v1.
        seed: The seed of the first episode and of random actions.
        set: Params of the env, and preset=NAME.
        picture: Print the picture after every step.
        width: The width of pictures, in columns.
    """
    from shoal.cli.pixels import check_width
    from shoal.cli.stepper import Stepper

    check_width(width)
    if not 0 <= seed < 2**63:
        raise ConfigError(f"--seed {seed} must be in 0 .. 2^63 - 1.")
    stepper = Stepper(env, seed, parse_settings(set))
    try:
        return Session(stepper, width, picture).run()
    finally:
        stepper.close()


def parse_settings(words: tuple[str, ...] | list[str]) -> dict[str, Any]:
    """`["speed=0.5", "preset=duel"]` as a dict. Numbers become numbers."""
    settings: dict[str, Any] = {}
    for word in words:
        name, _, value = word.partition("=")
        if not (name and value):
            raise ConfigError(f"'{word}' is not NAME=VALUE. For example: speed=0.5")
        settings[name] = number_or_word(value)
    return settings


class Session:
    """Reads commands and prints results, until q or the end of the input."""

    def __init__(self, stepper: Stepper, width: int, shows_picture: bool) -> None:
        self.stepper, self.width, self.shows_picture = stepper, width, shows_picture
        self.is_typed = sys.stdin.isatty()
        self.has_colours = sys.stdout.isatty()
        self.mistakes = 0

    def run(self) -> int:
        """Returns the exit code: 1 if a command from a pipe was wrong."""
        print(self._introduction())
        for line in self._lines():
            for command in line.split(";") if line.strip() else [""]:
                if command.strip() in ("q", "quit", "exit"):
                    return self._code()
                try:
                    self._do(command.split())
                except ShoalError as error:
                    self.mistakes += 1
                    print(f"  {error}")
        return self._code()

    def _code(self) -> int:
        return int(self.mistakes > 0 and not self.is_typed)

    def _lines(self) -> Iterator[str]:
        if not self.is_typed:
            for line in sys.stdin:
                print(f"> {line.strip()}")
                yield line
            return
        import readline  # noqa: F401, arrow keys and history for input()

        while True:
            try:
                yield input("> ")
            except EOFError:
                print()
                return

    def _introduction(self) -> str:
        stepper = self.stepper
        agents = f", {len(stepper.agents)} agents" if len(stepper.agents) > 1 else ""
        return f"{stepper.name}{agents}. {stepper.describe_actions()} h lists the commands.\n{self._obs_line()}"

    # ---- commands ----

    def _do(self, words: list[str]) -> None:
        verb = words[0] if words else ""
        commands = {
            "b": self._back,
            "r": self._reset,
            "o": self._observe,
            "s": self._state,
            "p": self._picture,
            "a": self._actions,
            "set": self._set,
            "h": self._help,
            "help": self._help,
        }
        if verb in commands:
            commands[verb](words[1:])
            return
        times = 1
        if words and (repeat := re.fullmatch(r"x(\d+)", words[-1])):
            times, words = int(repeat[1]), words[:-1]
            if not 1 <= times <= 1_000_000:
                raise ConfigError(f"x{times}: repeat 1 to 1,000,000 times.")
        self._step(words, times)

    def _step(self, words: list[str], times: int) -> None:
        stepper = self.stepper
        for count in range(1, times + 1):
            if stepper.is_over:
                stepper.reset()
                print(f"  a new episode\n{self._obs_line()}")
            if words:
                actions = stepper.read_actions(words)
            else:
                actions = [stepper.random_action(agent) for agent in range(len(stepper.agents))]
            masked = stepper.masked_choices(actions)
            result = stepper.step(actions)
            if times <= PRINTED or count == times or result.is_over:
                print(self._step_line(result))
                if masked:
                    print(
                        "  the mask forbids this action"
                        + (f" of {', '.join(masked)}" if masked[0] != "agent_0" else "")
                    )
            if result.is_over:
                print(self._end_line(result))
                break
        if self.shows_picture:
            self._picture([])

    def _back(self, words: list[str]) -> None:
        self.stepper.back(self._count("b", words, 1) or 0)
        print(f"  back at step {self.stepper.steps}\n{self._obs_line()}")

    def _reset(self, words: list[str]) -> None:
        seed = self._count("r", words, None)
        self.stepper.reset(seed)
        print(f"  reset{'' if seed is None else f' with seed {seed}'}\n{self._obs_line()}")

    def _observe(self, words: list[str]) -> None:
        _refuse_words("o", words)
        for agent, agent_name in enumerate(self.stepper.agents):
            if len(self.stepper.agents) > 1:
                print(f"  {agent_name}" + ("" if self.stepper.is_alive(agent) else " (out of the game)"))
            for name, values, low, high in self.stepper.observation(agent):
                print(_describe_array(f"obs{name}", values, low, high))

    def _state(self, words: list[str]) -> None:
        _refuse_words("s", words)
        rows = dict(self.stepper.state())
        indent = max(map(len, rows), default=0)
        for name, value in rows.items():
            print(f"  {name:<{indent}}  {_describe_value(value)}")

    def _picture(self, words: list[str]) -> None:
        from shoal.cli import pixels

        width = self._count("p", words, self.width) or self.width
        pixels.check_width(width)
        frame = self.stepper.frame(width=480)
        print(pixels.half_blocks(frame, width) if self.has_colours else pixels.ascii_art(frame, width))

    def _actions(self, words: list[str]) -> None:
        _refuse_words("a", words)
        for agent, name in enumerate(self.stepper.agents):
            mask = self.stepper.mask(agent)
            allowed = "" if mask is None else f"; the mask allows {' '.join(str(k) for k in mask.nonzero()[0])}"
            print(f"  {name}: {self.stepper.describe_action(agent)}{allowed}")

    def _set(self, words: list[str]) -> None:
        vec = self.stepper.vec
        if not self.stepper.is_native:
            raise ConfigError("set: a Python env has no params. Give them at the start: --set name=value.")
        if words:
            settings = parse_settings(words)
            known = vec.get_params()
            for name in settings:
                if name not in known:
                    raise ConfigError(f"set: no param '{name}'. It has {', '.join(known)}.")
            vec.set_params(**settings)
        for name, values in vec.get_params().items():
            if not words or any(word.startswith(f"{name}=") for word in words):
                print(f"  {name} = {values[0]:g}")

    def _help(self, words: list[str]) -> None:
        print(HELP)

    def _count(self, verb: str, words: list[str], default: int | None) -> int | None:
        if not words:
            return default
        if len(words) > 1 or not words[0].isdigit():
            raise ConfigError(f"'{verb} {' '.join(words)}': type {verb}, or {verb} and an int of at least 0.")
        return int(words[0])

    # ---- lines ----

    def _step_line(self, result: StepResult) -> str:
        actions = " | ".join(_describe_action(action) for action in result.actions)
        rewards = " ".join(f"{reward:.6g}" for reward in result.rewards)
        returns = " ".join(f"{total:.6g}" for total in self.stepper.returns)
        return f"step {self.stepper.steps}  action {actions}  reward {rewards}  return {returns}\n{self._obs_line()}"

    def _obs_line(self) -> str:
        lines = []
        for agent, agent_name in enumerate(self.stepper.agents):
            parts = [f"{name}{_brief(values)}" for name, values, _, _ in self.stepper.observation(agent)]
            whose = f" of {agent_name}" if len(self.stepper.agents) > 1 else ""
            out = "" if self.stepper.is_alive(agent) else " (out of the game)"
            lines.append(f"  obs{whose} {' '.join(parts)}{out}")
        return "\n".join(lines)

    def _end_line(self, result: StepResult) -> str:
        how = "truncated" if result.truncated.any() and not result.terminated.all() else "terminated"
        stats = "".join(f", {name} {value:.6g}" for name, value in result.stats.items())
        returns = " ".join(f"{total:.6g}" for total in self.stepper.returns)
        return (
            f"  the episode ended ({how}) after {self.stepper.steps} steps: return {returns}{stats}. "
            "The next step starts another."
        )


def _refuse_words(verb: str, words: list[str]) -> None:
    if words:
        raise ConfigError(f"'{verb} {' '.join(words)}': {verb} takes nothing more. Separate commands with semicolons.")


def _describe_action(action: Any) -> str:
    import numpy as np

    if isinstance(action, dict):
        return " ".join(f"{key} {_describe_action(part)}" for key, part in action.items())
    if isinstance(action, tuple):
        return " ".join(map(_describe_action, action))
    return " ".join(f"{number:g}" for number in np.reshape(action, -1))


def _brief(values: Any) -> str:
    """A few numbers, or what a large array holds."""
    flat = values.reshape(-1)
    if flat.size <= SHOWN:
        return "[" + " ".join(f"{number:.4g}" for number in flat.tolist()) + "]"
    head = " ".join(f"{number:.4g}" for number in flat[:SHOWN].tolist())
    return f"[{head} …] ({flat.size} numbers, {flat.min():.4g} .. {flat.max():.4g})"


def _describe_array(name: str, values: Any, low: Any, high: Any) -> str:
    """An array of an observation: a line for each element, or a summary of many."""
    import numpy as np

    if values.size > LISTED:
        facts = f"min {values.min():.6g}, max {values.max():.6g}, mean {values.mean():.6g}"
        grid = f"\n{_indented(str(values))}" if values.ndim == 2 and values.size <= 1024 else ""
        return f"  {name} {values.dtype} {values.shape}: {facts}{grid}"
    lines = []
    for place in np.ndindex(values.shape):
        value, least, most = values[place], low[place], high[place]
        bounds = "" if not np.isfinite([least, most]).any() else f"  in {least:g} .. {most:g}"
        outside = "  OUTSIDE its bounds" if not least <= value <= most else ""
        where = "".join(f"[{k}]" for k in place)
        lines.append(f"  {name}{where} = {value:.6g}{bounds}{outside}")
    return "\n".join(lines)


def _describe_value(value: Any) -> str:
    """A field of the state: a number, an array, or bytes."""
    import numpy as np

    if isinstance(value, bytes):
        return "\n    " + "\n    ".join(value[k : k + 32].hex(" ", 4) for k in range(0, len(value), 32))
    if isinstance(value, np.ndarray) and value.shape == () and value.dtype.kind in "iuf":
        return f"{value.item():.6g}" if value.dtype.kind == "f" else str(value.item())
    if isinstance(value, np.ndarray):
        text = np.array2string(value, precision=4, suppress_small=True, threshold=LISTED * LISTED, max_line_width=100)
        return text if "\n" not in text else f"{value.dtype} {value.shape}\n{_indented(text)}"
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


COMMAND = Command(step, order=95, examples={"shoal step ./my_env.h": "debug it: type actions, see its state"})
