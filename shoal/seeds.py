"""Seeds of a run's random streams: each is derived from the run's seed by the stream's name.

    stream_seed(1, "policy 0", "actions")

No two streams of a run share a seed, and no two runs share a stream. Knows nothing of what the streams are for.
"""

from __future__ import annotations

import hashlib


def stream_seed(seed: int, *name: str | int, bits: int = 63) -> int:
    """The seed of a named stream of a run, below 2^bits.

    A hash, not a sum or a shift: seeds that are near each other, and names that are, give seeds that are not.
    """
    text = repr((int(seed), *name)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") & ((1 << bits) - 1)


def env_seed(seed: int, *name: str | int) -> int:
    """The seed of a run's first env; env i has this seed plus i.

    It has 30 bits: some Python envs accept only 31 or 32, and evaluation adds 2^30 for held-out seeds.
    """
    return stream_seed(seed, "envs", *name, bits=30)
