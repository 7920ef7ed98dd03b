"""PuffeRL's checkpoints: what they hold besides the trainer's state, and which folders PuffeRL may remove.

PATH/latest.json      {"checkpoint": "000000004096", "written": [...]}
PATH/000000004096/    a checkpoint of shoal.checkpoint
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shoal import checkpoint
from shoal.errors import CheckpointError
from shoal.runs import write_atomic

WRITER = "PuffeRL"  # in the meta.json of every checkpoint that PuffeRL writes
LATEST = "latest.json"
NAME = r"\d{12,}"  # of a checkpoint's folder: its step


# ---- the folders of a path ----


def save(path: Path, step: int, files: Mapping[str, Mapping[str, Tensor]], facts: Mapping[str, Any]) -> None:
    """Writes a checkpoint into `path` and removes older ones that PuffeRL wrote, and nothing else."""
    if path.is_file():
        raise CheckpointError(f"{path} is a file; a checkpoint is a folder. Choose another path, or remove the file.")
    target = path / f"{step:012d}"
    if target.exists() and not _is_ours(target):
        raise CheckpointError(f"{target} was not written by PuffeRL, so it is not replaced. Choose another path.")
    saved = checkpoint.save(path, step, files, {**facts, "writer": WRITER}, keep=0)
    older = [name for name in _written(path) if name != saved.name and _is_ours(path / name)]
    latest = {"checkpoint": saved.name, "written": [*older, saved.name]}
    write_atomic(path / LATEST, json.dumps(latest).encode())
    for name in older:
        _remove(path / name)


def find(path: Path) -> Path:
    """The checkpoint of a path: the latest that PuffeRL wrote in it, otherwise the newest in it, otherwise the path."""
    if (path / "meta.json").is_file() or not path.is_dir():
        return path
    folders = [entry for entry in path.iterdir() if re.fullmatch(NAME, entry.name) and (entry / "meta.json").is_file()]
    latest = path / str(_latest(path).get("checkpoint"))
    return latest if latest in folders else max(folders, key=lambda entry: int(entry.name), default=path)


def _latest(path: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError, RecursionError):
        latest = json.loads((path / LATEST).read_text())
        return latest if isinstance(latest, dict) else {}
    return {}


def _written(path: Path) -> list[str]:
    """The names of the folders that latest.json lists as written by PuffeRL."""
    latest = _latest(path)
    listed = latest.get("written", [])
    names = [*(listed if isinstance(listed, list) else []), latest.get("checkpoint")]
    return [name for name in dict.fromkeys(map(str, names)) if re.fullmatch(NAME, name)]


def _is_ours(folder: Path) -> bool:
    """Whether PuffeRL wrote a checkpoint. Older ones have no writer, but only PuffeRL's have `is_fresh`."""
    if folder.is_symlink():
        return False
    with contextlib.suppress(CheckpointError):
        meta = checkpoint.read_meta(folder)
        return meta.get("writer") == WRITER or "is_fresh" in meta
    return False


def _remove(folder: Path) -> None:
    """Removes the files of a checkpoint, and its folder if it is then empty."""
    with contextlib.suppress(OSError, CheckpointError):
        for name in checkpoint.read_meta(folder)["files"]:
            (folder / name).unlink(missing_ok=True)
        (folder / "meta.json").unlink()  # last: while it exists, the next save tries again
        folder.rmdir()


# ---- rollouts that have not been learned from ----


def unlearned(learners: list[Any]) -> dict[str, Tensor]:
    """The tensors of rollouts that have not been learned from."""
    tensors: dict[str, Tensor] = {}
    for k, learner in enumerate(learners):
        rollout = learner.rollout
        tensors |= {f"{k}.rollout.{i}": part for i, part in enumerate(rollout.tensors())}
        for i, cut in enumerate(rollout.truncations):
            parts = [torch.tensor(cut.steps.start), cut.rows, *cut.obs, *cut.state]
            tensors |= {f"{k}.cut.{i:06d}.{j:03d}": part for j, part in enumerate(parts)}
    return tensors


def restore_unlearned(learners: list[Any], state: Mapping[str, Tensor]) -> bool:
    """Restores the rollouts that `unlearned` saved. Returns false, and changes nothing, if the sizes differ."""
    pairs = []
    for k, learner in enumerate(learners):
        for i, part in enumerate(learner.rollout.tensors()):
            saved = state.get(f"{k}.rollout.{i}")
            if saved is None or (saved.shape, saved.dtype) != (part.shape, part.dtype):
                return False
            pairs.append((part, saved))
    for part, saved in pairs:
        part.copy_(saved)
    for k, learner in enumerate(learners):
        cuts: dict[str, list[Tensor]] = {}
        for name in sorted(name for name in state if name.startswith(f"{k}.cut.")):
            cuts.setdefault(name.split(".")[2], []).append(state[name])
        leaves = len(learner.rollout.obs)
        learner.rollout.truncations.clear()
        for parts in cuts.values():
            last, recurrent = parts[2 : 2 + leaves], tuple(parts[2 + leaves :])
            learner.rollout.truncations.add(int(parts[0]), parts[1], last, recurrent)
    return True


def episode_starts(learners: list[Any]) -> list[tuple[Tensor, Tensor]]:
    """The first observations and states of the next rollouts, as pairs (tensor of the rollout, copy).

    Envs that started new episodes have written their first observations there. Restoring a saved rollout overwrites
    them with the last observations of its own episodes, which its update needs. `copy_back` of these pairs, after that
    update, prevents a transition that joins two episodes.
    """
    pairs = []
    for learner in learners:
        rollout = learner.rollout
        ends = [end[-1] for end in rollout.carried()]
        stacked = [part for leaf in rollout.stacked for part in leaf.last()]
        pairs += [(part, part.clone()) for part in [*ends, *stacked, *rollout.state]]
    return pairs


def copy_back(pairs: list[tuple[Tensor, Tensor]]) -> None:
    """Copies the copies back into their tensors."""
    for part, copy in pairs:
        part.copy_(copy)
