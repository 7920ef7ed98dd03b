"""The `shoal` program: finds the command (shoal/cli/command.py), parses its flags with `tyro`, returns its exit code.

Exit codes: 0 success; 1 a check or a run failed; 2 a mistake in the command line; 130, 143 and 138: a run was stopped
by SIGINT, SIGTERM or SIGUSR1 and saved a checkpoint.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import tyro

import shoal
from shoal.cli.command import Command, find, find_all, verbs
from shoal.cli.interrupts import second_interrupt_ends
from shoal.cli.screen import columns, console, make_printable, report, show_help, suggest
from shoal.cores import let_openmp_sleep
from shoal.errors import ConfigError, ShoalError, did_you_mean

__all__ = ["console", "main", "report", "suggest"]

HELP = ("-h", "--help", "help")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line (default: this process's) and returns its exit code."""
    let_openmp_sleep()  # before a command imports torch
    make_printable()
    try:
        with second_interrupt_ends():
            return dispatch(list(sys.argv[1:] if argv is None else argv))
    except ShoalError as error:
        report(error)
        return 2
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `shoal envs | head`: print nothing at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except SystemExit as exit:  # tyro has printed the help (0) or the mistake in a flag (2)
        return exit.code if isinstance(exit.code, int) else 0 if exit.code is None else 1


def dispatch(argv: list[str]) -> int:
    """Runs the command that the first words name, with the rest as its flags."""
    if not argv or argv == ["help"] or argv[0] in HELP[:2]:
        return overview()
    if argv[0] in ("--version", "-V"):
        print(f"shoal {shoal.__version__}")
        return 0
    if argv[0] == "help":  # `shoal help envs`
        return dispatch([*argv[1:], "--help"])
    known = verbs()
    for count in range(max(len(verb.split()) for verb in known), 0, -1):
        verb = " ".join(argv[:count])
        if verb in known:
            return call(verb, find(verb), argv[count:])
    group = [verb for verb in known if verb.startswith(f"{argv[0]} ")]
    if group and (len(argv) == 1 or argv[1] in HELP):
        return overview(f"{argv[0]} ")
    raise ConfigError(_unknown(argv, group, list(known)))


def call(verb: str, command: Command, words: list[str]) -> int:
    """Parses the flags by the function's signature and runs it. Help and bad flags raise SystemExit."""
    if command.parses_words:
        return command.run(words)
    if any(word in words for word in HELP[:2]):
        words = ["--help"]  # without the other words, or tyro omits the arguments that they give
        show_help(command.help.split("\nArgs:\n")[0])
    return tyro.cli(
        command.run, prog=f"shoal {verb}", args=words, description="", config=(tyro.conf.FlagCreatePairsOff,)
    )


def overview(prefix: str = "") -> int:
    """Prints the verbs with this prefix, the first line of their help, and examples."""
    from rich.text import Text

    commands, broken = find_all()
    commands = {verb: command for verb, command in commands.items() if verb.startswith(prefix)}
    screen = console()
    out = Text()
    out.append(f"Shoal {shoal.__version__}", "bold cyan").append(": thousands of environments stepped as one.\n\n")
    out.append("Usage: ", "bold").append("shoal VERB [options]\n\n")
    out.append("Verbs\n", "bold")
    summaries = {verb: command.summary for verb, command in commands.items()}
    summaries |= {verb: reason for verb, reason in broken.items() if verb.startswith(prefix)}
    out.append_text(columns(summaries, screen.width))
    examples = {line: what for command in commands.values() for line, what in command.examples.items()}
    if examples:
        out.append("\nExamples\n", "bold")
        out.append_text(columns(examples, screen.width, "dim"))
    out.append("\n'shoal VERB --help' explains a verb and its options. 'shoal --version' prints the version.", "dim")
    screen.print(out)
    return 0


def _unknown(argv: list[str], group: list[str], known: list[str]) -> str:
    if group:  # `shoal bench cartpole`
        return f"'shoal {' '.join(argv[:2])}' is not a verb. Did you mean 'shoal {group[0]} {' '.join(argv[1:])}'?"
    kind = "an option" if argv[0].startswith("-") else "a verb"
    near = did_you_mean(argv[0], ["--version", "--help"] if kind == "an option" else known)
    return f"'{argv[0]}' is not {kind} of shoal.{near} 'shoal --help' lists all."


if __name__ == "__main__":
    raise SystemExit(main())
