"""The `shoal` command: finds the verb, parses its flags by `tyro`, turns errors into exit codes.

Exit codes: 0 all well, 1 a check or a run failed, 2 a mistake in the command; 130, 143 and 138 a run was stopped by
SIGINT, SIGTERM or SIGUSR1 after a checkpoint.

A verb is a function: its signature is its flags, its docstring their help, its result the exit code. To add one,
write `cli/<verb>.py` and a line in VERBS. What is slow to import is imported inside the functions, because
`shoal --help` imports every verb to read its first line.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import tyro

import shoal
from shoal.errors import ConfigError, ShoalError, UnknownEnv, did_you_mean

# In the order in which a new user meets them. Two words are a verb with its object.
VERBS = {
    "train": "shoal.cli.train:command",
    "eval": "shoal.cli.evaluate:command",
    "plot": "shoal.cli.plot:command",
    "runs": "shoal.cli.runs:command",
    "envs": "shoal.cli.envs:command",
    "bench env": "shoal.cli.bench:command",
    "bench train": "shoal.cli.bench_train:command",
    "tune": "shoal.cli.tune:command",
    "profile": "shoal.cli.tune:profile",
    "new": "shoal.cli.new:command",
    "check": "shoal.cli.main:check",
}

EXAMPLES = {
    "shoal train breakout": "train a policy and watch it learn",
    "shoal eval last": "how well the newest run plays, and a video of it",
    "shoal plot last": "its learning curve",
    "shoal bench env all": "how fast the envs are on this machine",
    "shoal envs": "the envs that there are",
    "shoal envs breakout": "all about one of them",
    "shoal tune gymnasium:CartPole-v1": "the fastest way to step a Python env here",
    "shoal new my_env": "a header to start your own env from",
    "shoal check ./my_env.h": "whether it keeps what an env must keep",
}

HELP = ("-h", "--help", "help")


def check(
    path: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PATH")],
    /,
    *,
    quick: bool = False,
    json: bool = False,
    preset: Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="(default: none)")] = None,
) -> int:
    """Check that an env header keeps what an env must keep.

    It compiles without warnings everywhere, repeats with a seed, and stays in its declared spaces under random play.
    Exits with 1 if any check fails.

    Try:
        shoal check ./my_env.h
        shoal check cartpole --quick

    Args:
        path: The env header to check, or the name of a known env.
        quick: Play fewer steps in each check.
        json: Print the results as JSON, for machines.
        preset: Check the env as one of its presets sets it.
    """
    from shoal.cli.check import run

    return run(path, quick, json, preset)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line (default: this process's) and returns its exit code."""
    # before torch loads OpenMP: threads that spin at a barrier starve each other where anything else runs (docs/LOG.md)
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        return dispatch(list(sys.argv[1:] if argv is None else argv))
    except ShoalError as error:
        report(error)
        return 2
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `shoal envs | head`: nobody reads on, so be silent at exit too
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except SystemExit as exit:  # tyro has printed help (0) or what was wrong with a flag (2)
        return exit.code if isinstance(exit.code, int) else 0 if exit.code is None else 1


def dispatch(argv: list[str]) -> int:
    """Calls the verb that the first words name with the rest as its flags."""
    if not argv or argv == ["help"] or argv[0] in HELP[:2]:
        return overview(VERBS)
    if argv[0] in ("--version", "-V"):
        print(f"shoal {shoal.__version__}")
        return 0
    if argv[0] == "help":  # `shoal help envs`
        return dispatch([*argv[1:], "--help"])
    for words in (2, 1):
        verb = " ".join(argv[:words])
        if verb in VERBS:
            return call(verb, argv[words:])
    group = {verb: VERBS[verb] for verb in VERBS if verb.startswith(f"{argv[0]} ")}
    if group and (len(argv) == 1 or argv[1] in HELP):
        return overview(group)
    raise ConfigError(_unknown(argv, list(group)))


def load(verb: str) -> Callable[..., int]:
    """The function of a verb."""
    module, _, name = VERBS[verb].partition(":")
    function: Callable[..., int] = getattr(importlib.import_module(module), name)
    return function


def call(verb: str, args: list[str]) -> int:
    """Parses the flags by the verb's signature and runs it. Help and bad flags raise SystemExit."""
    function = load(verb)
    if getattr(function, "takes_words", False):  # its flags depend on its words: it parses them itself
        return function(args)
    if any(word in args for word in HELP[:2]):
        args = ["--help"]  # on its own, or tyro leaves the arguments out that are given already
    text = inspect.getdoc(function) or ""
    return tyro.cli(
        function,
        prog=f"shoal {verb}",
        args=args,
        description=text.split("\nArgs:\n")[0].rstrip(),
        config=(tyro.conf.FlagCreatePairsOff,),
    )


def overview(verbs: dict[str, str]) -> int:
    """What there is to type: the verbs, each with the first line of its help, and examples."""
    from rich.text import Text

    heading = "bold"
    out = Text()
    out.append(f"Shoal {shoal.__version__}", "bold cyan").append(": thousands of environments stepped as one.\n\n")
    out.append("Usage: ", heading).append("shoal VERB [options]\n\n")
    out.append("Verbs\n", heading)
    for verb in verbs:
        line = (inspect.getdoc(load(verb)) or "").partition("\n")[0]
        out.append(f"  {verb:<13}", "cyan").append(f"{line}\n")
    out.append("\nExamples\n", heading)
    shown = {line: what for line, what in EXAMPLES.items() if any(line.startswith(f"shoal {verb}") for verb in verbs)}
    for line, what in shown.items():
        out.append(f"  {line:<24}", "cyan").append(f"{what}\n", "dim")
    out.append("\n'shoal VERB --help' explains a verb and its options; 'shoal --version' tells the version.", "dim")
    console().print(out)
    return 0


def console(stderr: bool = False) -> Any:
    """A rich console that colours only what we colour, and looks right on light and dark terminals."""
    from rich.console import Console
    from rich.theme import Theme

    return Console(stderr=stderr, highlight=False, markup=False, theme=Theme({"markdown.code": "cyan"}))


def suggest(out: Any, hints: dict[str, str]) -> None:
    """Ends a verb's output: what to type next, and what for."""
    from rich.text import Text

    indent = max(map(len, hints)) + 3
    for k, (line, what) in enumerate(hints.items()):
        head = "Next: " if k == 0 else "      "
        out.print(Text.assemble(head, (f"{line:<{indent}}", "cyan"), (what, "dim")), soft_wrap=True)


def report(error: ShoalError) -> None:
    """Prints an error as one block on stderr, in its own line breaks."""
    from rich.text import Text

    text = f"unknown env {error}" if isinstance(error, UnknownEnv) else str(error)
    out = console(stderr=True)
    # a terminal gets whole words; a file, and a compiler's message, their own lines
    out.print(Text.assemble(("error: ", "bold red"), text), soft_wrap=not out.is_terminal or "\n" in text)


def _unknown(argv: list[str], group: list[str]) -> str:
    if group:  # `shoal bench cartpole`
        return f"'shoal {' '.join(argv[:2])}' is not a verb. Did you mean 'shoal {group[0]} {' '.join(argv[1:])}'?"
    kind = "an option" if argv[0].startswith("-") else "a verb"
    near = did_you_mean(argv[0], ["--version", "--help"] if kind == "an option" else VERBS)
    return f"'{argv[0]}' is not {kind} of shoal.{near} 'shoal --help' lists what there is."


if __name__ == "__main__":
    raise SystemExit(main())
