"""What the processes of a pool do in tests. It imports little, so that they start at once."""

from __future__ import annotations

import os
import time
from pathlib import Path


def attempt(folder, name):
    """Work of the pool: what its name says."""
    with open(f"{folder}/{name}", "a") as file:
        file.write("tried\n")
    tries = len(Path(folder, name).read_text().splitlines())
    if name == "dies":
        os._exit(9)
    if name == "fails once" and tries == 1:
        raise ValueError("not yet")
    if name == "hangs":
        time.sleep(600)
    return f"{name}, try {tries}"
