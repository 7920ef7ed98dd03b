"""One game of midrange in the hands of a test: bodies where the test wants them, and the header's own functions."""

from __future__ import annotations

import ctypes
import functools
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from shoal import registry
from shoal.native import build

STATS = ("wins_0", "wins_1", "draws", "mutual_kills", "shots_0", "shots_1", "seconds", "range")
RIGHT, STRAIGHT, LEFT = range(3)
FIRST_MISSILE = {0: 2, 1: 4}  # of a side, with two channels


@functools.cache
def shim(env: str = "midrange", channels: int = 2) -> ctypes.CDLL:
    """The functions of the headers, compiled as an env is, and sooner: less optimization gives the same bytes."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "midrange.so"
        source = build.Source.env(registry.find(env), {"channels": channels})
        flags = [flag for flag in build.flags(source) if flag != "-fvisibility=hidden"]
        files = [str(Path(__file__).parent / "native" / "midrange_shim.c"), "-o", str(out)]
        command = [*build.find_compiler(), "-std=c11", *flags, "-O1", "-shared", f"-I{build.NATIVE}", *source.defines()]
        subprocess.run([*command, *files], check=True)
        library = ctypes.CDLL(str(out))
    for name in ("range", "look_up", "track_age", "scale"):
        getattr(library, f"shim_{name}").restype = ctypes.c_float
    library.shim_bytes.restype = ctypes.c_int64
    return library


def floats(array: np.ndarray) -> ctypes.c_void_p:
    """The address of an array, for a call."""
    return ctypes.c_void_p(array.ctypes.data)


def make_params(library: ctypes.CDLL, **changes: float) -> ctypes.Array[ctypes.c_char]:
    """The default params, with changes. Choices are given as numbers."""
    params = ctypes.create_string_buffer(library.shim_bytes(1))
    library.shim_defaults(params)
    for name, value in changes.items():
        assert library.shim_set(params, name.encode(), ctypes.c_double(value)), name
    return params


class Game:
    """A game from a seed, or with bodies that `put` has placed."""

    def __init__(self, seed: int = 0, *, env: str = "midrange", channels: int = 2, **params: float) -> None:
        self.shim = shim(env, channels)
        self.channels, self.action_size = channels, 2 if env == "midrange" else 3
        self.action_type = np.float32 if env == "midrange_continuous" else np.int32
        self.params = make_params(self.shim, **params)
        self.state = ctypes.create_string_buffer(self.shim.shim_bytes(0))
        self.rng = ctypes.create_string_buffer(self.shim.shim_bytes(2))
        self.shim.shim_reset(self.state, self.params, self.rng, ctypes.c_uint64(seed))
        self.rewards, self.ended, self.stats = np.zeros(2, np.float32), False, dict.fromkeys(STATS, 0.0)

    def put(self, body: int, x: float, y: float, heading: float, speed: float = 300.0, age: float = 0.0) -> Game:
        """Places an aircraft (0, 1) or a missile in flight; heading in rad from the x axis."""
        numbers = [ctypes.c_float(value) for value in (x, y, heading, speed)]
        self.shim.shim_put(self.state, body, *numbers, 1, ctypes.c_float(age))
        return self

    def step(self, mine: tuple[float, ...] = (STRAIGHT, 0), theirs: tuple[float, ...] = (STRAIGHT, 0)) -> Game:
        """One decision of both sides."""
        actions, ended = np.array([*mine, *theirs], self.action_type), ctypes.c_int32()
        assert len(actions) == 2 * self.action_size
        stats = np.zeros(len(STATS), np.float32)
        self.shim.shim_step(
            self.state, self.params, floats(actions), self.rng, floats(self.rewards), ctypes.byref(ended), floats(stats)
        )
        self.ended, self.stats = bool(ended.value), dict(zip(STATS, stats.tolist()))
        return self

    def body(self, number: int) -> dict[str, float]:
        """Where a body is."""
        out = np.zeros(8, np.float32)
        self.shim.shim_get(self.state, number, floats(out))
        return dict(zip(("x", "y", "dx", "dy", "speed", "rudder", "flies", "age"), out.tolist()))

    def flying(self, side: int) -> list[int]:
        """The missiles of a side in flight."""
        first = 2 + side * self.channels
        return [k for k in range(first, first + self.channels) if self.body(k)["flies"]]

    def ammo(self, side: int) -> int:
        """Missiles on the rails of a side."""
        return int(self.shim.shim_ammo(self.state, side))

    def set_ammo(self, side: int, ammo: int) -> Game:
        """Gives a side so many missiles."""
        self.shim.shim_set_ammo(self.state, side, ammo)
        return self

    def observe(self, side: int) -> np.ndarray:
        """What a side sees."""
        obs = np.full(49, np.nan, np.float32)
        self.shim.shim_observe(self.state, self.params, side, floats(obs))
        return obs

    def swapped(self) -> Game:
        """A game in which the sides have changed places."""
        other = object.__new__(Game)
        other.__dict__.update(self.__dict__)
        other.state = ctypes.create_string_buffer(len(self.state))
        other.rng = ctypes.create_string_buffer(self.rng.raw, len(self.rng))
        other.rewards = self.rewards.copy()
        self.shim.shim_swap(self.state, other.state)
        return other
