"""The flags of `shoal train` for a population: --population, --pbt, --replay, and ranges as of `shoal sweep`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shoal import config
from shoal.cli.command import value_of
from shoal.errors import ConfigError
from shoal.runs import ROOT, folder_name
from shoal.seed_groups import SeedGroup, all_groups, find_group

OWN = ("--pbt", "--replay")
AUTO = "auto"  # the value of --pbt alone


def read(words: Sequence[str]) -> tuple[list[str], dict[str, Any], SeedGroup | None]:
    """The words to parse, the tables of ranges by `--sweep.*` flags, and the population that --resume names."""
    flags = [word.partition("=")[0] for word in words]
    if any(word in ("-h", "--help") for word in words):
        return list(words), {}, None
    given = [flag for flag in flags if flag in OWN or flag.startswith("--sweep.")]
    if "--population" not in flags:
        if given:
            raise ConfigError(f"{given[0]} is for a population. Add --population 16.")
        return list(words), {}, None
    for flag in ("--seeds", "--gpus", "--processes", "--parallel"):
        if flag in flags:
            raise ConfigError(f"{flag} and --population are mutually exclusive: a population trains in one process.")
    from shoal.cli.sweep import split

    own, ranges, rest = split(_with_values(words))
    other = [word for word in own if word.startswith("--") and word != "--population"]
    if other:
        raise ConfigError(f"{other[0]} is for 'shoal sweep', not for a population of 'shoal train'. Leave it out.")
    rest += own
    return (*_resumed(rest, ranges),)


def _with_values(words: Sequence[str]) -> list[str]:
    """`--pbt` alone as `--pbt auto`."""
    found: list[str] = []
    for at, word in enumerate(words):
        found.append(word)
        is_alone = at + 1 == len(words) or words[at + 1].startswith("--")
        found += [AUTO] if word == "--pbt" and is_alone else []
    return found


def _resumed(words: list[str], ranges: dict[str, Any]) -> tuple[list[str], dict[str, Any], SeedGroup | None]:
    """With --resume: the population, whose first run has the options of all flags."""
    text = value_of(words, "--resume")
    if text is None:
        return words, ranges, None
    root = value_of(words, "--runs") or str(ROOT)
    env = folder_name(words[0]) if not words[0].startswith("-") else None
    found = find_group(text, root)
    if text in ("auto", "last"):
        groups = [g for g in all_groups(root) if g.kind == "population" and env in (None, g.env)]
        groups = [g for g in groups if text == "last" or not (g.is_finished or g.is_running)]
        found = groups[-1] if groups else None
    if found is None and text != "auto":
        raise ConfigError(f"--resume {text}: {root}/ has no population by that name. 'shoal runs' lists them.")
    at = words.index("--resume") if "--resume" in words else words.index(f"--resume={text}")
    rest = [*words[:at], *words[at + (2 if words[at] == "--resume" else 1) :]]
    return rest, ranges, found


def train(request: Any, ranges: dict[str, Any], group: SeedGroup | None, common: dict[str, Any]) -> None:
    """Trains the population of a parsed command line."""
    from shoal.sweep.api import layers_of
    from shoal.sweep.evolve import train_population
    from shoal.sweep.pbt import PBT

    if group is not None:
        train_population(request.env, resume=group, **{**common, "options": None})
        return
    file = config.read_toml(Path(request.config)) if request.config else {}
    rule: Any = False
    table = file.get("population", {})
    if request.pbt or table:
        rule = config.from_dict(PBT, table, "population")
        if request.pbt not in ("", AUTO):
            try:
                rule = config.from_dict(PBT, {"every": request.pbt}, "population", rule)
            except ConfigError as error:
                raise ConfigError(f"--pbt {request.pbt}: {error}") from None
    layers = [*layers_of(request.env, request.options, file), ranges]
    train_population(request.env, request.population, pbt=rule, layers=layers, replay=request.replay or None, **common)
