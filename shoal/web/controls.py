"""Which keys choose which actions: derived from what a header says after `action:` in its comment.

    // action: 0 stay, 1 left, 2 right                          labels of one choice
    // action: turn + 3 * thrust + 6 * shoot. turn: 0 none, …   one choice that is composed of several
    // action: rudder (0 right, 1 straight, 2 left), fire (0 or 1)    several choices
    // action: rudder (-1 full right to 1 full left), throttle        numbers

A label that names a direction gets its arrow key, one that names no action is what happens without a key, and all
others get digits or letters. A header without such a comment gets digits.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from shoal.spec import EnvSpec

REST = ("stay", "none", "nothing", "straight", "straight on", "wait", "glide", "idle", "noop", "no-op", "hold fire")
MEANINGS = (  # words of a label, and the keys for it, the first free one
    (r"\b(left|west)\b|^clockwise", ("ArrowLeft", "KeyA")),
    (r"\b(right|east)\b|counter-clockwise", ("ArrowRight", "KeyD")),
    (r"\b(up|north|ahead|forward|main|thrust|thrusts|gas|open|full power)\b", ("ArrowUp", "KeyW")),
    (r"\b(down|south|back|brake|soft|closed)\b", ("ArrowDown", "KeyS")),
    (r"\b(fire|shoot|flap|jump|do|interact|hard|eat|zap|load|toggle|trigger)\b", ("Space", "Enter")),
)
PAIRS = (("ArrowLeft", "ArrowRight"), ("ArrowDown", "ArrowUp"), ("KeyA", "KeyD"), ("KeyS", "KeyW"))  # of numbers
SPARE = (*(f"Digit{k}" for k in (*range(1, 10), 0)), *(f"Key{letter}" for letter in "ZXCFGHJKLYUIOT"))
# Envs whose picture changes with time alone: a person has no time to think. All others that have no resting action, or
# that have masks, wait for the person.
RUNS_ON = ("pacman", "cartpole", "flappy", "snake", "chain")
WAITS = ("craftax_classic", "memory", "delayed", "bandit", "stochastic")
SPEEDS = {  # steps per second that a person can follow
    **dict.fromkeys(("breakthrough", "connect4", "go", "hex", "othello", "bandit", "memory", "delayed"), 2),
    **dict.fromkeys(("chain", "stochastic", "sokoban", "maze", "game2048"), 5),
    **dict.fromkeys(("overcooked", "warehouse", "harvest", "forage", "vacuum", "squared", "snake"), 8),
    **dict.fromkeys(("midrange", "midrange_full", "midrange_continuous", "tetris", "pacman"), 10),
    "breakout": 60,
}
BOARDS = ("breakthrough", "connect4", "go", "hex", "othello")  # a click chooses the move


def describe(spec: EnvSpec, header: Path) -> dict[str, Any]:
    """The controls of one agent, for shoal/web/page/controls.js."""
    text = action_text(header)
    counts = _counts(spec)
    is_board = header.stem in BOARDS or (bool(spec.mask_size) and sum(counts) > 24)
    keys = _Keys(is_board)
    choices = [
        _choice(column, part, spec, keys) for column, part in enumerate(_labels(spec, counts, text))
    ]  # they get their keys before the numbers
    numbers = [_number(element, spec, text, keys) for element in range(spec_floats(spec))]
    facts: dict[str, Any] = {"choices": choices, "numbers": numbers, "keys": keys.given}
    facts["waits"] = _waits(spec, header.stem, choices)
    facts["speed"] = SPEEDS.get(header.stem, 8 if facts["waits"] or spec.obs_dtype.kind == "u" else 30)
    facts["points"] = is_board
    return facts


def _choice(column: int, part: tuple[str, int, list[str]], spec: EnvSpec, keys: _Keys) -> dict[str, Any]:
    """One choice, whose labels get keys; but not the label that is chosen without a key."""
    name, weight, labels = part
    rest = next((k for k, label in enumerate(labels) if label.lower() in REST), None)
    if rest is None and column > 0:  # such as a throttle, which is open
        rest = labels.index("open") if "open" in labels else 0
    by_fullness = sorted(range(len(labels)), key=lambda k: "full" not in labels[k])  # the arrows turn fully
    for choice in by_fullness if len(labels) <= 24 else ():
        if choice != rest:
            keys.give(labels[choice], ["choice", column, choice])
    at = 0 if spec.action_kind == "discrete" else spec_floats(spec) + column
    return {"name": name, "weight": weight, "column": at, "labels": labels, "rest": rest}


def _number(element: int, spec: EnvSpec, text: str, keys: _Keys) -> dict[str, Any]:
    """One number, which two keys push to its bounds; a trigger has one key."""
    low, high = _at(spec.action_low, element), _at(spec.action_high, element)
    names = _number_names(text)
    name = names[element] if element < len(names) else f"number {element}"
    if re.search(r"trigger|fire", name):
        keys.set("Space", ["number", element, high])
    else:
        is_upright = bool(spec_floats(spec) > 1 and re.search(r"main|throttle", name))
        minus, plus = keys.free_pair(is_upright) or ("", "")
        if re.search(rf"{re.escape(name)} \(-1 full right", text):
            minus, plus = plus, minus
        for key, value in ((minus, max(low, -1e3)), (plus, min(high, 1e3))):
            if key:
                keys.set(key, ["number", element, value])
    rest = high if low >= 0.0 and name == "throttle" else min(max(0.0, low), high)
    return {"name": name, "column": element, "low": low, "high": high, "rest": rest}


def _waits(spec: EnvSpec, stem: str, choices: list[dict[str, Any]]) -> bool:
    """Whether the env stands still until the person acts: games in turns, and where no action means rest."""
    has_no_rest = any(choice["rest"] is None for choice in choices)
    is_patient = (bool(spec.mask_size) or has_no_rest) and stem not in RUNS_ON and not spec_floats(spec)
    return stem in WAITS or is_patient


def action_text(header: Path) -> str:
    """What the comment at the top of a header says after `action:`, as one line."""
    lines = []
    for line in header.read_text(errors="replace").splitlines():
        if not line.startswith("//"):
            break
        lines.append(line[2:].strip())
    found = re.search(r"\baction:\s*(.*?)(?:\s*\b(?:reward|obs|mask):|$)", " ".join(lines))
    return found[1] if found else ""


def spec_floats(spec: EnvSpec) -> int:
    """The numbers at the start of an action."""
    return spec.action_dims[0] if spec.action_kind in ("box", "mix") else 0


def _counts(spec: EnvSpec) -> list[int]:
    """The choices of each sub-action."""
    return list(spec.action_dims[1:] if spec.action_kind == "mix" else [] if spec_floats(spec) else spec.action_dims)


def _at(bounds: Any, element: int) -> float:
    return float(bounds if bounds.ndim == 0 else bounds[element])


def _labels(spec: EnvSpec, counts: list[int], text: str) -> list[tuple[str, int, list[str]]]:
    """(name, weight, labels) of each choice. The action is the sum of weight * choice over those of a column."""
    if spec.action_kind == "discrete":
        if parts := _composed(text, counts[0]):
            return parts
        return [("action", 1, _numbered(text, counts[0]) or [str(k) for k in range(counts[0])])]
    named = re.findall(r"([a-z]+) \(([^)]*)\)", text)
    if len(named) == len(counts):
        return [
            (name, 1, _numbered(words, count) or _switch(name, count)) for (name, words), count in zip(named, counts)
        ]
    labels = [_numbered(text, count) if k == 0 else None for k, count in enumerate(counts)]
    words = re.findall(r"and 1 to (\w+)", text)
    switches = [words[0] if words and count == 2 else f"choice {k}" for k, count in enumerate(counts)]
    return [
        (switches[k] if k else "move", 1, found or _switch(switches[k], counts[k])) for k, found in enumerate(labels)
    ]


def _switch(name: str, count: int) -> list[str]:
    return ["nothing", name] if count == 2 else [str(k) for k in range(count)]


def _numbered(text: str, count: int) -> list[str] | None:
    """The labels of `0 stay, 1 left, …`; None if there is not one for each choice."""
    labels: list[str] = []
    for number, label in re.findall(r"\b(\d+) ([a-z][^,;.:()]*)", text):
        if int(number) == len(labels):
            several = re.match(r"to (\d+) (.*)", label)  # 3 to 6 do nothing here
            labels += [several[2].strip()] * (int(several[1]) + 1 - len(labels)) if several else [label.strip()]
        if len(labels) == count:
            return labels
    return None


def _composed(text: str, count: int) -> list[tuple[str, int, list[str]]]:
    """The parts of `turn + 3 * thrust + 6 * shoot`; empty if the text has none for all choices."""
    found = re.match(r"(\w+)((?: \+ \d+ \* \w+)+)\.", text)
    if not found:
        return []
    terms = [(found[1], 1), *((name, int(weight)) for weight, name in re.findall(r"\+ (\d+) \* (\w+)", found[2]))]
    sizes = [(after[1] if after else count) // weight for (_, weight), after in zip(terms, [*terms[1:], None])]
    parts = []
    for (name, weight), size in zip(terms, sizes):
        said = re.search(rf"\b{name}: ([^.;]*)", text)
        labels = (_numbered(said[1], size) if said else None) or _switch(name, size)
        parts.append((name, weight, labels))
    return parts


def _number_names(text: str) -> list[str]:
    """The names of the numbers of an action, as far as the text has them."""
    short = re.sub(r"\([^)]*\)", "", text).split(".")[0]
    return [
        re.sub(r"^(the|and) ", "", part.strip()).split(":")[0][:24]
        for part in re.split(r",| and ", short)
        if part.strip()
    ]


class _Keys:
    """Gives each action a key that is still free."""

    def __init__(self, is_board: bool) -> None:
        self.given: dict[str, dict[str, Any]] = {}
        self.is_board = is_board

    def give(self, label: str, does: list[Any]) -> None:
        candidates: tuple[str, ...] = next((keys for words, keys in MEANINGS if re.search(words, label.lower())), ())
        if label.isdigit():  # the picture may show it; the columns of a board are the keys from 1 on, from the left
            candidates, label = () if self.is_board else (f"Digit{label}",), ""
        key = next((key for key in (*candidates, *SPARE) if key not in self.given), None)
        if key is not None:
            self.given[key] = {"label": label, "does": does}

    def free_pair(self, is_upright: bool) -> tuple[str, str] | None:
        """Two keys, of which the second means more; the upright ones if they are wanted and free."""
        free = [pair for pair in PAIRS if pair[0] not in self.given]
        return PAIRS[1] if is_upright and PAIRS[1] in free else next(iter(free), None)

    def set(self, key: str, does: list[Any]) -> None:
        self.given[key] = {"label": "", "does": does}
