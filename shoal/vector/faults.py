"""What went wrong, and where: an env's exception with its number, seed, step and traceback, also across processes."""

from __future__ import annotations

import pickle
import signal
import traceback
from typing import Any, NamedTuple

import cloudpickle

from shoal.errors import BadOutput, EnvCrashed, ShoalError, WorkerDied


def env_crashed(
    error: BaseException | None,
    env: int,
    seed: int | None,
    step: int,
    in_reset: bool | str,
    report: dict[str, Any] | None,
) -> EnvCrashed:
    """An EnvCrashed (or BadOutput) that names the env. `report` is what came from another process."""
    kind = report["kind"] if report else type(error).__name__
    text = report["text"] if report else str(error)
    is_bad = report["is_bad"] if report else isinstance(error, BadOutput)
    doing = in_reset if isinstance(in_reset, str) else "reset" if in_reset else f"step {step}"
    seeded = "" if seed is None else f" (seed {seed})"
    if is_bad:
        made: EnvCrashed = BadOutput(f"env {env}{seeded} in {doing}: {text}.")
    else:
        tail = f"\n\nThe worker's traceback:\n{report['traceback']}" if report else ""
        made = EnvCrashed(f"env {env}{seeded} raised in {doing}: {kind}: {text}{tail}")
    made.env, made.seed, made.step = env, seed, step
    return made


def pack(error: BaseException) -> dict[str, Any]:
    """An exception as plain data that crosses a process boundary whatever the exception is made of."""
    try:
        text = str(error)
    except BaseException as second:  # an env's own exception may be broken too
        text = f"(its message cannot be read: {type(second).__name__})"
    return {
        "kind": type(error).__name__,
        "text": text,
        "is_bad": isinstance(error, BadOutput),
        "traceback": "".join(traceback.format_exception(type(error), error, error.__traceback__)),
        "pickled": _pickled(error),
    }


def _pickled(error: BaseException) -> bytes:
    """The exception itself; without what cannot be pickled of it; or nothing."""
    kind = type(error)
    parts = (kind, tuple(_portable(part) for part in error.args), _portable_state(error))
    for what, dumps in (
        (error, pickle.dumps),
        (error, cloudpickle.dumps),
        (_Parts(*parts), pickle.dumps),
        (_Parts(*parts), cloudpickle.dumps),
    ):
        try:
            found = bytes(dumps(what))
            if type(_whole(pickle.loads(found))) is kind:
                return found
        except BaseException:
            continue
    return b""


class _Parts(NamedTuple):
    """An exception taken apart, for one whose constructor does not take `args` back."""

    kind: type[BaseException]
    args: tuple[Any, ...]
    state: dict[str, Any]


def _portable(value: Any) -> Any:
    try:
        cloudpickle.dumps(value)
    except BaseException:
        return repr(value)
    return value


def _portable_state(error: BaseException) -> dict[str, Any]:
    return {name: _portable(value) for name, value in vars(error).items()}


def _whole(found: Any) -> Any:
    if not isinstance(found, _Parts):
        return found
    error = found.kind.__new__(found.kind, *found.args)
    error.args = found.args
    vars(error).update(found.state)
    return error


def unpack(report: dict[str, Any]) -> BaseException | None:
    """The original exception, where it could be brought over."""
    if not report["pickled"]:
        return None
    try:
        error = _whole(pickle.loads(report["pickled"]))
    except Exception:
        return None
    return error if isinstance(error, BaseException) else None


def worker_died(worker: int, pid: int | None, code: int | None, envs: tuple[int, int]) -> WorkerDied:
    """A WorkerDied that names the signal."""
    if code is not None and code < 0:
        number = -code
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = "unknown"
        how = f"was killed by signal {number} ({name})"
    else:
        number, how = 0, f"ended with code {code}"
    hint = ""
    if number == signal.SIGKILL:
        hint = " Out of memory is the usual reason: try fewer envs or workers."
    if number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS):
        hint = " Native code in the env crashed: run it alone under backend='serial' to find where."
    made = WorkerDied(
        f"worker {worker} (pid {pid}, envs {envs[0]} .. {envs[1] - 1}) {how}.{hint} "
        "With on_crash='restart' it would be replaced."
    )
    made.env, made.pid, made.signal = envs[0], pid, number or None
    return made


def call_env(env: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls a method, or reads or sets an attribute, of the env or of what it wraps."""
    if name == "__setattr__":
        target, (attribute, value) = env, args
        while not hasattr(target, attribute) and hasattr(target, "env"):
            target = target.env
        setattr(target if hasattr(target, attribute) else env, attribute, value)
        return None
    target = env
    while not hasattr(target, name) and hasattr(target, "env"):
        target = target.env
    if not hasattr(target, name):
        raise ShoalError(f"the env has no attribute {name!r}.")
    found = getattr(target, name)
    return found(*args, **kwargs) if callable(found) else found
