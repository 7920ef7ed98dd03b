"""A second Ctrl-C ends a command whose main thread is in C code that does not return: an endless loop of a header.

Python runs signal handlers between its own instructions, so neither the default handler nor that of a run is called
there. The signal's number arrives in a pipe all the same, and a thread reads it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE_S = 3.0  # after the second Ctrl-C: time for Python's own handler

STUCK = (
    "\nstopped: compiled code did not return, so no checkpoint was saved. If the env is a header of yours, a loop "
    "in it may be endless: 'shoal check HEADER' finds it.\n"
)


@contextmanager
def second_interrupt_ends(patience_s: float = PATIENCE_S) -> Iterator[None]:
    """Within the block, a second SIGINT ends the process if its main thread runs no Python code for a while."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "set_wakeup_fd"):
        yield
        return
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    before = signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
    if before != -1:  # an event loop reads the signals of this process
        signal.set_wakeup_fd(before)
        os.close(reads)
        os.close(writes)
        yield
        return
    threading.Thread(target=_watch, args=(reads, patience_s), daemon=True, name="shoal-interrupts").start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(-1)
        os.close(writes)  # ends the thread


def _watch(reads: int, patience_s: float) -> None:
    count = 0
    while numbers := os.read(reads, 64):
        count += numbers.count(signal.SIGINT)
        if count < 2 or signal.SIGINT not in numbers:
            continue
        if not _runs_python(patience_s):
            os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, STUCK.encode())
            os._exit(128 + signal.SIGINT)
    os.close(reads)


def _runs_python(patience_s: float) -> bool:
    """Whether the main thread executes Python code within so many seconds: it then runs handlers of signals, too."""
    ran = threading.Event()

    def take(_: int | None) -> int:
        ran.set()
        return 0

    answer = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(take)
    _ANSWERS.append(answer)  # it may be called late: never collected
    ctypes.pythonapi.Py_AddPendingCall(answer, None)
    return ran.wait(patience_s)


_ANSWERS: list[object] = []
