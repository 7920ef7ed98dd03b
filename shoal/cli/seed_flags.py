"""The flags of `shoal train` for several seeds: --seeds, --parallel, and --resume of a group of seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shoal.errors import ConfigError
from shoal.runs import ROOT
from shoal.seed_groups import SeedGroup, find_group, group_to_resume, parse_seeds


def read(words: Sequence[str]) -> tuple[list[str], SeedGroup | None]:
    """The words to parse, and the group of seeds that --resume names.

    --resume with --seeds names a group, and needs no value: the newest unfinished group with these seeds is meant. In
    the words it becomes the first run of the group, whose options are the defaults of all flags.
    """
    if any(word in ("-h", "--help") for word in words):
        return list(words), None
    flags = [word.partition("=")[0] for word in words]
    has_seeds = "--seeds" in flags
    if has_seeds and "--seed" in flags:
        raise ConfigError("--seed and --seeds are mutually exclusive. --seeds 1 2 3 trains a run for each seed.")
    if "--parallel" in flags and not has_seeds and "--resume" not in flags:
        raise ConfigError("--parallel is for several seeds. Add --seeds 1 2 3.")
    if "--resume" not in flags:
        return list(words), None
    at = flags.index("--resume")
    resume, used = _value_at(words, at)
    if not resume and has_seeds:
        resume = "auto"
    root = _flag(words, "--runs") or str(ROOT)
    env = words[0] if not words[0].startswith("-") else None
    group = _group(resume, env, _seeds(words), has_seeds, root)
    if not has_seeds and group is None:
        return list(words), None
    rest = [*words[:at], *words[at + used :]]
    if group is None:
        return rest, None
    if resume == "auto":
        rest = _without(rest, "--init")  # it is for new runs
    if env is None:
        rest.insert(0, str(group.facts.get("env", group.env)))
    first = next(iter(group.runs.values()), None)
    return rest if first is None else [*rest, "--resume", str(first.folder)], group


def train(env: str, seeds: tuple[int, ...], parallel: int, group: SeedGroup | None, common: dict[str, Any]) -> None:
    """Trains the seeds: those given, and those of the group."""
    from shoal.train import train_seeds

    wanted = parse_seeds(_count_or_list(seeds)) if seeds else group.seeds if group is not None else []
    if group is not None and "parallel" in group.facts and parallel == 1:
        parallel = int(group.facts["parallel"])
    train_seeds(env, wanted, parallel=parallel, resume=group, **common)


def _group(resume: str, env: str | None, seeds: list[int], has_seeds: bool, root: str) -> SeedGroup | None:
    if has_seeds:
        return group_to_resume(resume, env, seeds, root)
    return find_group(resume, root) if resume not in ("", "auto", "last") else None


def _seeds(words: Sequence[str]) -> list[int]:
    """The seeds after --seeds; empty if there are none, or if one is no number, which the parser reports."""
    at = next((k for k, word in enumerate(words) if word == "--seeds"), None)
    if at is None:
        return []
    values = []
    for word in words[at + 1 :]:
        if not word.lstrip("-").isdecimal() or word.startswith("--"):
            break
        values.append(int(word))
    return parse_seeds(_count_or_list(values)) if values else []


def _count_or_list(values: Sequence[int]) -> int | list[int]:
    """One number is the number of seeds."""
    return values[0] if len(values) == 1 else list(values)


def _value_at(words: Sequence[str], at: int) -> tuple[str, int]:
    """The value of the flag at a position, and how many words both take."""
    if "=" in words[at]:
        return words[at].partition("=")[2], 1
    if at + 1 < len(words) and not words[at + 1].startswith("--"):
        return words[at + 1], 2
    return "", 1


def _flag(words: Sequence[str], flag: str) -> str:
    """The value of a flag; empty if it is not given."""
    at = next((k for k, word in enumerate(words) if word.partition("=")[0] == flag), None)
    return "" if at is None else _value_at(words, at)[0]


def _without(words: list[str], flag: str) -> list[str]:
    """The words without a flag and its value."""
    at = next((k for k, word in enumerate(words) if word.partition("=")[0] == flag), None)
    return words if at is None else [*words[:at], *words[at + _value_at(words, at)[1] :]]
