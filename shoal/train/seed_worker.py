"""The process of one seed, when seeds are trained side by side: `python -m shoal.train.seed_worker`.

It reads the arguments of `train` from stdin, and watches stdin afterwards: when it ends, the parent has died, and this
process saves a checkpoint and stops. Exit codes are those of `shoal train`. The last line of its output says why it
failed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from typing import Any, BinaryIO

import cloudpickle

from shoal.errors import ConfigError, ShoalError
from shoal.train.loop import train
from shoal.train.many_seeds import SIZE_BYTES
from shoal.train.signals import Stopped


def main() -> int:
    """Trains the run that stdin describes and returns the exit code."""
    stdin = sys.stdin.buffer
    size = int.from_bytes(stdin.read(SIZE_BYTES), "little")
    request: dict[str, Any] = cloudpickle.loads(stdin.read(size))  # from the parent, which is our own program
    threading.Thread(target=_stop_with_parent, args=(stdin,), daemon=True).start()
    sys.argv = request.pop("argv")
    env = request.pop("env")
    try:
        run = train(env, console="off", **request)
    except Stopped as stop:
        print(stop, flush=True)
        return 128 + stop.number
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        return 128 + signal.SIGINT
    except ShoalError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        return 2 if isinstance(error, ConfigError) else 1
    except Exception:
        print(traceback.format_exc(), flush=True)
        return 1
    return 0 if (run.summary or {}).get("status") == "finished" else 1


def _stop_with_parent(stdin: BinaryIO) -> None:
    """Waits for the end of stdin, then stops this run as SIGTERM does."""
    while stdin.read(1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # the thread that waits for stdin would hold up the end of the interpreter
