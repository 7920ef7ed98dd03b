"""`shoal sizes`: the tensors of a run's newest checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from shoal.cli.command import Command


def sizes(
    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")],
    /,
    *,
    runs: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("runs"),
) -> int:
    """List the tensors of a run's newest checkpoint, with their shapes.

    Args:
        run: The run: its folder, its id, the name of its env (its newest run), or last.
        runs: The folder that runs are in.
    """
    from shoal import checkpoint
    from shoal.runs import find

    files, _ = checkpoint.load(find(run, runs).last)
    for file, tensors in files.items():
        for name, tensor in tensors.items():
            print(f"{file:8} {name:32} {tuple(tensor.shape)}")
    return 0


COMMAND = Command(sizes, examples={"shoal sizes last": "list the weights of the newest run"})
