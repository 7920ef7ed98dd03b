"""Errors of envs: the exception with the env's number, seed, step and traceback, also from another process."""

from __future__ import annotations

import pickle
import signal
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

from shoal.errors import BadOutput, ConfigError, EnvCrashed, ShoalError, WorkerDied, did_you_mean


def env_crashed(
    error: BaseException | None,
    env: int,
    seed: int | None,
    step: int,
    in_reset: bool | str,
    report: dict[str, Any] | None,
) -> EnvCrashed:
    """An EnvCrashed (or BadOutput) that names the env. `report` describes an exception of another process."""
    kind = report["kind"] if report else type(error).__name__
    text = report["text"] if report else str(error)
    is_bad = report["is_bad"] if report else isinstance(error, BadOutput)
    doing = in_reset if isinstance(in_reset, str) else "reset" if in_reset else f"step {step}"
    seeded = "" if seed is None else f" (seed {seed})"
    if is_bad:
        crash: EnvCrashed = BadOutput(f"env {env}{seeded} in {doing}: {text}.")
    else:
        tail = f"\n\nThe worker's traceback:\n{report['traceback']}" if report else ""
        crash = EnvCrashed(f"env {env}{seeded} raised in {doing}: {kind}: {text}{tail}")
    crash.env, crash.seed, crash.step = env, seed, step
    return crash


def crash_of(report: dict[str, Any]) -> EnvCrashed:
    """The exception that a worker reports, with the worker's own as its cause."""
    crash = env_crashed(None, report["env"], report["seed"], report["step"], report["doing"], report)
    crash.__cause__ = unpack(report)
    return crash


def pack(error: BaseException, pickled: Callable[[BaseException], bytes] | None = None) -> dict[str, Any]:
    """An exception as plain data, which can be sent to another process whatever the exception holds.

    `pickled` pickles the exception itself, as far as that is possible.
    """
    try:
        text = str(error)
    except BaseException as second:  # str() of a user's exception may raise
        text = f"(its message cannot be read: {type(second).__name__})"
    return {
        "kind": type(error).__name__,
        "text": text,
        "is_bad": isinstance(error, BadOutput),
        "traceback": "".join(traceback.format_exception(type(error), error, error.__traceback__)),
        "pickled": (pickled or _pickled)(error),
    }


def _pickled(error: BaseException) -> bytes:
    """The exception pickled; or without its parts that cannot be pickled; or empty bytes."""
    import cloudpickle  # an interpreter that only steps envs need not have it

    kind = type(error)
    parts = (kind, tuple(_portable(part) for part in error.args), _portable_state(error))
    for candidate, dumps in (
        (error, pickle.dumps),
        (error, cloudpickle.dumps),
        (_Parts(*parts), pickle.dumps),
        (_Parts(*parts), cloudpickle.dumps),
    ):
        try:
            data = bytes(dumps(candidate))
            if type(_rebuilt(pickle.loads(data))) is kind:
                return data
        except BaseException:
            continue
    return b""


class _Parts(NamedTuple):
    """The parts of an exception, for one that cannot be constructed from its `args`."""

    kind: type[BaseException]
    args: tuple[Any, ...]
    state: dict[str, Any]


def _portable(value: Any) -> Any:
    import cloudpickle

    try:
        cloudpickle.dumps(value)
    except BaseException:
        return repr(value)
    return value


def _portable_state(error: BaseException) -> dict[str, Any]:
    return {name: _portable(value) for name, value in vars(error).items()}


def _rebuilt(value: Any) -> Any:
    """The exception of its parts; any other value unchanged."""
    if not isinstance(value, _Parts):
        return value
    error = value.kind.__new__(value.kind, *value.args)
    error.args = value.args
    vars(error).update(value.state)
    return error


def unpack(report: dict[str, Any]) -> BaseException | None:
    """The original exception, if it could be pickled."""
    if not report["pickled"]:
        return None
    try:
        error = _rebuilt(pickle.loads(report["pickled"]))
    except Exception:
        return None
    return error if isinstance(error, BaseException) else None


def restart_event(worker: int, pid: int | None, fault: EnvCrashed, timeout_s: float, episodes: int) -> str:
    """One sentence on a worker that was restarted after a fault."""
    if not isinstance(fault, WorkerDied):
        cause = f"did not answer within {timeout_s:g} s"
    elif fault.signal:
        cause = f"died with {_signal_name(fault.signal)}"
    else:
        cause = "exited"
    counted = "1 episode was" if episodes == 1 else f"{episodes} episodes were"
    return f"worker {worker} (pid {pid}) {cause} and was restarted; its {counted} truncated"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def worker_died(worker: int, pid: int | None, code: int | None, envs: tuple[int, int]) -> WorkerDied:
    """A WorkerDied with the signal that killed the worker."""
    if code is not None and code < 0:
        number = -code
        how = f"was killed by signal {number} ({_signal_name(number)})"
    else:
        number, how = 0, f"ended with code {code}"
    hint = ""
    if number == signal.SIGKILL:
        hint = " The usual reason is that memory ran out: try fewer envs or workers."
    if number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS):
        hint = " Native code in the env crashed: run one env with backend='serial' to find where."
    error = WorkerDied(
        f"worker {worker} (pid {pid}, envs {envs[0]} .. {envs[1] - 1}) {how}.{hint} "
        "on_crash='restart' would start a new one."
    )
    error.env, error.pid, error.signal = envs[0], pid, number or None
    return error


def call_env(env: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls a method, or reads or sets an attribute, of an env or of the env that it wraps."""
    if name == "__setattr__":
        target, (attribute, value) = env, args
        while not hasattr(target, attribute) and hasattr(target, "env"):
            target = target.env
        setattr(target if hasattr(target, attribute) else env, attribute, value)
        return None
    if name == "__get_param__":
        return getattr(_owner(env, *args), *args)
    if name == "__set_param__":
        return setattr(_owner(env, args[0]), *args)
    target = env
    while not hasattr(target, name) and hasattr(target, "env"):
        target = target.env
    if not hasattr(target, name):
        raise ShoalError(f"the env has no attribute {name!r}.")
    value = getattr(target, name)
    return value(*args, **kwargs) if callable(value) else value


def _owner(env: Any, name: str) -> Any:
    """The env that has a param as its attribute: `env` or one that it wraps. A method or an unknown name raises."""
    target = env
    while name not in dir(target) and hasattr(target, "env"):
        target = target.env
    if name not in dir(target) or callable(getattr(target, name)):
        known = [word for word, held in vars(target).items() if not word.startswith("_") and _is_param(held)]
        what = "a method of" if name in dir(target) else "no attribute of"
        raise ConfigError(
            f"'{name}' is {what} {type(target).__name__}.{did_you_mean(name, known)} "
            f"Params of a Python env are its attributes: {', '.join(known) or 'it has none that are numbers or text'}."
        )
    return target


def _is_param(value: Any) -> bool:
    return isinstance(value, (bool, int, float, str))
