"""Watch: a thread of each process that finds other processes which failed, died or hang.

Every second it tells the others, through the store of the launcher, that this process is alive, and whether it works
or waits for others. It looks at the others in the same way:

    failed    a process told the others that it failed, and why
    died      its process does not exist any more, or (on another machine) has sent nothing for 25 s
    hangs     it has worked for longer than the timeout without an exchange, while others wait for it
    alone     the store does not answer: the launcher is gone

Then the main thread has 8 s to end by itself: it usually waits for the failed process, and the wait ends with an error.
If it cannot, because it is stuck in a library, the thread ends this process.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import sys
import threading
import time
import traceback
from typing import Any

BEAT_S = 1.0
LOST_S = 25.0  # without a sign of a process on another machine
SILENT_S = 3.5  # after which a process is suspect, if an exchange has failed
GRACE_S = 8.0  # for the main thread to end by itself
EXPLAIN_S = 6.0  # in which the reason for a broken connection is looked for
HEARD_S = 5.0  # that a failed process waits for rank 0 to read why
FOLDER_VARIABLE = "SHOAL_RANKS_FOLDER"  # a temporary folder of the launcher
FRAMES = 6  # of the stack of a process that hangs


class Watch(threading.Thread):
    """Watches all processes of a run."""

    def __init__(self, store: Any, prefix: str, rank: int, size: int, timeout_s: float) -> None:
        super().__init__(name="shoal rank watch", daemon=True)
        self.store, self.prefix, self.rank, self.size, self.timeout_s = store, prefix, rank, size, timeout_s
        self.host, self.pid = socket.gethostname(), os.getpid()
        self.exchanges = 0  # begun and ended: it changes as long as the process makes progress
        self.waits = 0  # nested waits for other processes
        self.is_patient = 0
        self.fault = ""
        self._main = threading.main_thread().ident
        self._seen: dict[int, tuple[str, float]] = {}  # the last beat of each rank, and when it changed
        self._progress: dict[int, tuple[int, float]] = {}
        self._beats: dict[int, dict[str, Any]] = {}
        self._stopped = threading.Event()
        self._lock = threading.Lock()  # the store answers one question at a time

    # ---- what the main thread does ----

    def enter(self) -> None:
        """The main thread waits for others from now on."""
        self.exchanges += 1
        self.waits += 1

    def leave(self) -> None:
        """It works again."""
        self.waits -= 1
        self.exchanges += 1

    def report(self, error: BaseException) -> None:
        """Tells the others why this process fails. Rank 0 prints it; if it does not answer, this process does."""
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip()
        fault = f"rank {self.rank} (process {self.pid} on {self.host}) failed:\n{text}"
        self.stop()
        with contextlib.suppress(Exception), self._lock:
            if not self.store.check([f"{self.prefix}/fault"]):  # the first one is the cause
                self.store.set(f"{self.prefix}/fault", fault)
            until = time.monotonic() + HEARD_S
            while time.monotonic() < until:
                if self.store.check([f"{self.prefix}/heard"]):
                    return
                time.sleep(0.1)
        print(f"shoal: {fault}", file=sys.stderr, flush=True)

    def explain(self) -> str:
        """Why a wait for others has failed: what is known of the process that failed first; empty if nothing."""
        until = time.monotonic() + EXPLAIN_S
        while not self.fault and time.monotonic() < until:
            with contextlib.suppress(Exception):
                self._look()
            if not self.fault:
                time.sleep(0.2)
        return self.fault or self._slowest()

    def stop(self) -> None:
        """Ends the watch."""
        self._stopped.set()

    # ---- the thread ----

    def run(self) -> None:
        """Tells and looks, every second, until the process ends."""
        failures, found_at = 0, 0.0
        while not self._stopped.wait(BEAT_S):
            try:
                self.tell()
                if not self.fault:
                    self._look()
                failures = 0
            except Exception as error:
                failures += 1
                if failures >= 3 and not self.fault:
                    self.fault = f"the launcher is gone: its store does not answer ({str(error).partition(chr(10))[0]})"
            if self.fault and not found_at:
                found_at = time.monotonic()
            if found_at and time.monotonic() - found_at > GRACE_S and not self._stopped.is_set():
                self._end()

    def _end(self) -> None:
        """Ends this process: the main thread did not. Rank 0 says why; if it is the one that failed, rank 1 does."""
        if self.rank == 0 or "launcher" in self.fault or (self.rank == 1 and self.fault.startswith("rank 0 ")):
            print(f"shoal: rank {self.rank} ends: {self.fault}", file=sys.stderr, flush=True)
        if folder := os.environ.get(FOLDER_VARIABLE):  # the launcher would have removed it
            shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)

    def tell(self) -> None:
        """Tells the others that this process is alive, and what it does."""
        beat: dict[str, Any] = {"at": time.time(), "n": self.exchanges, "waits": bool(self.waits or self.is_patient)}
        beat |= {"pid": self.pid, "host": self.host, "stack": self._stack()}
        with self._lock:
            self.store.set(f"{self.prefix}/beat/{self.rank}", json.dumps(beat))

    def _stack(self) -> str:
        """Where the main thread is."""
        frame = sys._current_frames().get(self._main or 0)
        if frame is None or self.waits:
            return ""
        lines = traceback.extract_stack(frame)[-FRAMES:]
        return "\n".join(f"  {line.filename}:{line.lineno} in {line.name}" for line in lines)

    def _look(self) -> None:
        """Sets `fault` if another process has failed, died, or hangs."""
        others = [rank for rank in range(self.size) if rank != self.rank]
        with self._lock:
            if self.store.check([f"{self.prefix}/fault"]):
                self.fault = self.store.get(f"{self.prefix}/fault").decode()
                if self.rank == 0:  # the process that failed may end
                    self.store.set(f"{self.prefix}/heard", "1")
                return
            known = [rank for rank in others if rank in self._seen or self.store.check([f"{self.prefix}/beat/{rank}"])]
            texts = self.store.multi_get([f"{self.prefix}/beat/{rank}" for rank in known]) if known else []
        now = time.monotonic()
        for rank, raw in zip(known, texts):
            text = raw.decode()
            self._beats[rank] = beat = json.loads(text)
            if self._seen.get(rank, ("", 0.0))[0] != text:
                self._seen[rank] = text, now
                if self._progress.get(rank, (-1, 0.0))[0] != beat["n"] or beat["waits"]:
                    self._progress[rank] = beat["n"], now
            silent_s, idle_s = now - self._seen[rank][1], now - self._progress[rank][1]
            where = f"rank {rank} (process {beat['pid']} on {beat['host']})"
            if beat["host"] == self.host and not _exists(beat["pid"]):
                self.fault = f"{where} died without an error message: it was killed, perhaps for lack of memory."
            elif beat["host"] != self.host and silent_s > LOST_S:
                self.fault = f"{where} has sent no sign of life for {silent_s:.0f} s: its machine or network is gone."
            elif idle_s > self.timeout_s:
                stack = f" It was last in\n{beat['stack']}" if beat["stack"] else ""
                self.fault = (
                    f"{where} hangs: the others have waited for it for {idle_s:.0f} s (--rank-timeout-s "
                    f"{self.timeout_s:g}).{stack}"
                )

    def _slowest(self) -> str:
        """The process that others waited for, when a wait has timed out before the watch found it."""
        silence = {rank: time.monotonic() - at for rank, (_, at) in self._seen.items()}
        silent = max(silence, key=lambda rank: silence[rank], default=-1)
        working = [rank for rank, beat in self._beats.items() if not beat["waits"]]
        if silent >= 0 and silence[silent] > SILENT_S:
            rank, what = silent, f"hangs: it has sent no sign of life for {silence[silent]:.0f} s."
        elif working:
            rank = min(working, key=lambda rank: self._beats[rank]["n"])
            what = f"hangs: it did not answer in {self.timeout_s:g} s (--rank-timeout-s)."
        else:
            return ""
        beat = self._beats[rank]
        stack = f" It was last in\n{beat['stack']}" if beat["stack"] else ""
        return f"rank {rank} (process {beat['pid']} on {beat['host']}) {what}{stack}"


def _exists(pid: int) -> bool:
    """Whether a process of this machine exists and is not a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    with contextlib.suppress(OSError, IndexError), open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] not in "ZX"
    return True
