"""`shoal export`: writes a run as a page (shoal/web), or its policy to a file for other programs (shoal/export.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from shoal.cli.command import Command

FileFlag = Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(default: no file)")]


def export(
    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")],
    /,
    *,
    out: Annotated[FileFlag, tyro.conf.arg(aliases=["-o"])] = None,
    onnx: FileFlag = None,
    torchscript: FileFlag = None,
    torch_export: FileFlag = None,
    checkpoint: Annotated[str, tyro.conf.arg(metavar="{best,last,STEP}")] = "best",
    agent: Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="(default: the only one)")] = None,
    opponents: Annotated[
        str, tyro.conf.arg(metavar="1=WHO,2=WHO", help_behavior_hint="(default: those of training)")
    ] = "",
    bits: Annotated[Literal["auto", "16", "32"], tyro.conf.arg(metavar="{auto,16,32}")] = "auto",
    seed: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="(default: from the run)")] = None,
    runs: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("runs"),
) -> int:
    """Export a run: the agent playing in one HTML file, or its policy to ONNX, TorchScript or torch.export.

    A page (-o agent.html) holds the env and the policies of all agents, and runs in any browser without a network: see
    docs/web.md. Its network is compared with the policy while it plays.

    A policy file takes raw observations and returns the greedy action, the logits and the value. Normalization, the
    action mask, the recurrent state and the scaling of actions are part of it. Before it is put in place, it is
    compared with the policy on random inputs, and the largest difference is printed.

    Try:
        shoal export last -o agent.html
        shoal export last --onnx policy.onnx
        shoal export cartpole --torchscript policy.pt --torch-export policy.pt2
        shoal export last --onnx prey.onnx --agent prey_0

    Args:
        run: The run: its folder, its id, the name of its env (its newest run), or last.
        out: Write a page: the agent plays in the browser, and a person can take a seat. Native envs only.
        onnx: Write an ONNX file. It needs the packages of 'pip install shoal[onnx]'.
        torchscript: Write a TorchScript file, for torch.jit.load and for C++.
        torch_export: Write a file for torch.export.load.
        checkpoint: The checkpoint: best, last, or a step.
        agent: The agent or group whose policy is exported, if the run has several.
        opponents: Pages: other players than in training, for the seats that it names: 1=seek,2=RUN.
        bits: Pages: the size of a weight. auto is 16 if the policy then plays the same, otherwise 32.
        seed: Pages: the seed of the first episode is this + 2^30, as in 'shoal eval'.
        runs: The folder of the runs.
    """
    from shoal.cli.screen import console
    from shoal.errors import ConfigError
    from shoal.export import Exported, check, save
    from shoal.loading import load

    wanted = {"onnx": onnx, "torchscript": torchscript, "torch-export": torch_export}
    files = {kind: path for kind, path in wanted.items() if path is not None}
    if out is not None:
        _write_page(run, out, checkpoint, opponents, bits, seed, runs)
    if not files:
        if out is not None:
            return 0
        raise ConfigError(
            f"no file is named. Give -o PAGE.html, --onnx FILE, --torchscript FILE or --torch-export FILE: "
            f"'shoal export {run} -o agent.html' writes a page in which the agent plays."
        )
    if len({path.resolve() for path in files.values()}) < len(files):
        raise ConfigError("two formats name the same file. Give each a file of its own.")
    for kind, path in files.items():
        check(path, kind)
    policy = _choose(load(run, checkpoint, runs=runs), agent)
    screen = console()
    screen.print(f"Policy of {', '.join(policy.agents)}, checkpoint of step {policy.step:,}\n", soft_wrap=True)
    _show_signature(screen, Exported(policy).describe())
    for kind, path in files.items():
        with screen.status(f"exporting to {kind}"):
            report = save(policy, path, kind)
        agreement = f"max difference {report.max_difference:.2g} from the policy on {report.inputs} random observations"
        screen.print(f"{path}: {kind}, {agreement} ({report.runtime})", soft_wrap=True)
    return 0


def _write_page(run: str, path: Path, checkpoint: str, opponents: str, bits: str, seed: int | None, runs: Path) -> None:
    """Writes a page and says how well it agrees with the policy."""
    from shoal.cli.screen import console
    from shoal.runs import find
    from shoal.web import game, page

    page.check(path)
    screen = console()
    with screen.status("comparing the page's network with the policy"):
        made = game.of_run(find(run, runs), checkpoint, opponents=opponents, seed=seed, bits=bits)
        size = page.write(path, made.facts)
    screen.print(f"{path}: {size / 1000:.0f} KB, {made.facts['env']}. Open it in a browser.", soft_wrap=True)
    if made.agreement is not None:
        found = made.agreement
        screen.print(
            f"{found.bits}-bit weights: max difference of logits {found.logits:.2g}, the same greedy actions in "
            f"{100 * found.same:.2f} % of {found.rows:,} observations",
            soft_wrap=True,
        )


def _choose(loaded: Any, agent: str | None) -> Any:
    """The policy to export: the only one, or that of the agent or group."""
    from shoal.acting import Policy
    from shoal.errors import ConfigError

    if agent is not None:
        return loaded[agent]
    if isinstance(loaded, Policy):
        return loaded
    names = ", ".join([*loaded.groups, *loaded.agents])
    raise ConfigError(f"the run has several policies, and a file holds one. Name one with --agent: {names}.")


def _show_signature(screen: Any, rows: list[tuple[str, str, str, str]]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for row in rows:
        table.add_row(*row)
    screen.print(table)
    screen.print()


COMMAND = Command(
    export, order=25, examples={"shoal export last -o agent.html": "the newest run's agent as one page for any browser"}
)
