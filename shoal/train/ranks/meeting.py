"""How the processes of one attempt find each other in a store that earlier attempts have used.

torchrun's store outlives a restart, so the names of an attempt must not be found by the next one. The number of
restarts is not the same for all: torchrun counts it on every node, and a node that was replaced begins at 0. So rank 0
chooses a token, and tells it to every process that asks.

    rank r      writes `hello/r`, a nonce of its own, and waits for `welcome/<nonce>`
    rank 0      answers every nonce that it finds with the token, until all of this attempt have `joined`

A nonce of an earlier attempt is answered, too; nobody reads that.
"""

from __future__ import annotations

import datetime
import time
import uuid
from typing import Any

from shoal.errors import RankError

POLL_S = 0.02


def meet(store: Any, job: str, rank: int, size: int, limit_s: float) -> str:
    """The token of this attempt, the same in all processes. Every process calls it once."""
    base = f"shoal/{job}/meeting/{size}"
    return _welcome(store, base, size, limit_s) if rank == 0 else _ask(store, base, rank, limit_s)


def _welcome(store: Any, base: str, size: int, limit_s: float) -> str:
    token, until = uuid.uuid4().hex, time.monotonic() + limit_s
    missing, answered = set(range(1, size)), set()
    while missing:
        for rank in sorted(missing):
            hello = f"{base}/hello/{rank}"
            if store.check([f"{base}/joined/{token}/{rank}"]):
                missing.discard(rank)
            elif store.check([hello]) and (nonce := store.get(hello).decode()) not in answered:
                store.set(f"{base}/welcome/{nonce}", token)
                answered.add(nonce)
        if missing and time.monotonic() > until:
            ranks = ", ".join(map(str, sorted(missing)[:8]))
            raise RankError(f"rank {ranks} of {size} did not join the others within {limit_s:g} s.")
        time.sleep(POLL_S if missing else 0.0)
    return token


def _ask(store: Any, base: str, rank: int, limit_s: float) -> str:
    nonce = uuid.uuid4().hex
    store.set(f"{base}/hello/{rank}", nonce)
    store.wait([f"{base}/welcome/{nonce}"], datetime.timedelta(seconds=limit_s))
    token = str(store.get(f"{base}/welcome/{nonce}").decode())
    store.set(f"{base}/joined/{token}/{rank}", "1")
    return token
