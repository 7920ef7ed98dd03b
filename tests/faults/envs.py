"""Envs that fail on demand: the action says how."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import threading
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class TwoArgumentsError(Exception):
    """Pickles, and then does not unpickle: its constructor does not take `args` back."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code}: {reason}")
        self.code, self.reason = code, reason


class UnpicklableError(Exception):
    """Holds a lock."""

    def __init__(self, message: str) -> None:
        super().__init__(message, threading.Lock())
        self.lock = threading.Lock()

    def __str__(self) -> str:
        return str(self.args[0])


class WordlessError(Exception):
    """Even its message raises."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class Actor(gymnasium.Env[Any, Any]):
    """Does what its action says. Its observation is (steps of this episode, episodes begun, its number)."""

    observation_space = spaces.Box(-1e9, 1e9, (3,), np.float32)
    WORDS = (
        "work end end_late fail fail_two fail_unpicklable fail_wordless fail_local fail_exit kill crash sleep nap stop "
        "spin hold leave write big bad_info huge_info"
    ).split()
    action_space = spaces.Discrete(len(WORDS))

    def __init__(self, nap_s: float = 0.3, close_s: float = 0.0, slow_number: int = -1) -> None:
        self.tick, self.episodes, self.number = 0, 0, -1
        self.nap_s, self.close_s, self.slow_number = nap_s, close_s, slow_number
        self.closed_file: str | None = None

    def obs(self) -> Any:
        return np.array([self.tick, self.episodes, self.number], np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        options = options or {}
        if seed is not None:
            self.number = seed
        if "word" in options and self.number == options.get("number", self.number):
            getattr(self, options["word"])()
        self.closed_file = options.get("closed_file", self.closed_file)
        self.tick = 0
        self.episodes += 1
        return self.obs(), {}

    def step(self, action: Any) -> Any:
        self.tick += 1
        result = getattr(self, self.WORDS[int(action)])()
        done, info = result if isinstance(result, tuple) else (False, result or {})
        return self.obs(), 1.0, done, False, info

    def close(self) -> None:
        if self.closed_file:
            with open(f"{self.closed_file}.{self.number}", "w") as file:
                file.write("closed")
        time.sleep(self.close_s)
        if self.close_s < 0.01:
            raise RuntimeError("an env whose close() raises")

    # ---- the words ----

    def work(self) -> None:
        pass

    def end(self) -> Any:
        return True, {}

    def end_late(self) -> Any:
        time.sleep(self.nap_s)
        return True, {}

    def fail(self) -> None:
        raise ValueError(f"env {self.number} does not like this")

    def fail_two(self) -> None:
        raise TwoArgumentsError(7, "seven")

    def fail_unpicklable(self) -> None:
        raise UnpicklableError("cannot travel")

    def fail_wordless(self) -> None:
        raise WordlessError

    def fail_local(self) -> None:
        class LocalError(Exception):
            pass

        raise LocalError("made here")

    def fail_exit(self) -> None:
        raise SystemExit(3)

    def kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def crash(self) -> None:
        import faulthandler

        faulthandler.disable()
        ctypes.string_at(0)

    def sleep(self) -> None:
        time.sleep(60)

    def nap(self) -> None:
        time.sleep(self.nap_s)

    def stop(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def spin(self) -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            pass

    def hold(self) -> None:
        """Native code that keeps the GIL."""
        ctypes.PyDLL(None).sleep(60)

    def leave(self) -> None:
        os._exit(5)

    def write(self) -> None:
        print("an env talks", flush=True)

    def big(self) -> Any:
        """Infos that go through the pipe."""
        return {"blob": np.arange(50_000)}

    def huge_info(self) -> Any:
        """More than a pipe holds while nobody reads it."""
        return {"blob": np.arange(1_000_000)}

    def bad_info(self) -> Any:
        return {"lock": threading.Lock()}

    def pid(self) -> int:
        return os.getpid()


def act(count: int, **words: int) -> Any:
    """Actions for `count` envs: `act(4, kill=2)` kills env 2."""
    actions = np.full(count, Actor.WORDS.index("work"))
    for word, env in words.items():
        actions[env] = Actor.WORDS.index(word)
    return actions


def step_for_ever(vec: Any, batch: int) -> None:
    while True:
        vec.recv()
        vec.send(act(batch))
        time.sleep(0.01)


def worker_number() -> int:
    """Of the worker process that this runs in."""
    return int(multiprocessing.current_process().name.rpartition("-")[2])


class Unborn(Actor):
    """Its constructor fails in some workers, and takes long in others."""

    def __init__(self, failing: tuple[int, ...], kind: str = "fail", slow: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.number = worker_number()
        if self.number in slow:
            time.sleep(30)
        if self.number in failing:
            getattr(self, kind)()


class Saver(gymnasium.Env[Any, Any]):
    """Returns what it is told to, once, in step 2: to see what Shoal makes of it."""

    action_space = spaces.Discrete(2)

    def __init__(self, space: Any, good: Any, bad: dict[str, Any], number: int = 1, where: str = "step") -> None:
        self.observation_space, self.good, self.bad, self.where = space, good, bad, where
        self.wanted, self.number, self.tick = number, -1, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.number, self.tick = self.number if seed is None else seed, 0
        if self.where == "reset" and self.number == self.wanted:
            return self.bad.get("reset", (self.bad.get("obs", self.good), self.bad.get("info", {})))
        return self.good, {}

    def step(self, action: Any) -> Any:
        self.tick += 1
        result = {"obs": self.good, "reward": 1.0, "terminated": False, "truncated": False, "info": {}}
        if self.number == self.wanted and self.tick == 2 and self.where == "step":
            if "tuple" in self.bad:
                return self.bad["tuple"]
            result |= self.bad
        return tuple(result.values())
