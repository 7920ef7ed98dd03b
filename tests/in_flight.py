"""Finds matrix products that a loop of a compiled Triton kernel leaves in flight, and whose operands it may overwrite.

On Hopper a product is asynchronous (`warp_group_dot`), and a wait leaves the last `pendings` of them in flight. Then
the loop loads the operands of the pass after the next one. An operand in shared memory needs a third buffer for that,
and one in registers must not be in flight at all: see `finished` of shoal/algos/fast/kernels.py.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

NAME = r"(%[\w#:]+)"
DOT = re.compile(rf"{NAME} = ttng\.warp_group_dot {NAME}, {NAME},.*: (\S+?)<.* \* (\S+?)<")
WAIT = re.compile(r"ttng\.warp_group_dot_wait .*\{pendings = (\d+)")
ALLOC = re.compile(rf"{NAME} = ttg\.local_alloc : \(\) -> !ttg\.memdesc<(\d+)x\d+x\d+x")
VIEW = re.compile(rf"{NAME} = ttg\.memdesc_\w+ {NAME}")
BUFFERS = 3  # one that is read, two that are loaded


def hazards(ttgir: str) -> list[str]:
    """The products of a kernel whose operands may be overwritten while they are computed."""
    lines = ttgir.splitlines()
    buffers = {found[1]: int(found[2]) for line in lines if (found := ALLOC.search(line))}
    for line in lines:
        if (found := VIEW.search(line)) and found[2] in buffers:
            buffers[found[1]] = buffers[found[2]]
    problems = []
    for number, line in enumerate(lines):
        found = DOT.search(line)
        if found is None or "isAsync = true" not in line or not _stays_in_flight(lines[number:]):
            continue
        for operand, kind in zip(found.groups()[1:3], found.groups()[3:]):
            if kind != "!ttg.memdesc":
                problems.append(f"{found[1]}: {operand} is in registers")
            elif buffers.get(operand, 1) < BUFFERS:
                problems.append(f"{found[1]}: {operand} has {buffers.get(operand, 1)} buffers")
    return problems


def _stays_in_flight(lines: list[str]) -> bool:
    """Whether the product of the first line may be unfinished at the end of the pass."""
    later, indent = 0, _indent(lines[0])
    for line in lines[1:]:
        if "scf.yield" in line and _indent(line) <= indent:
            return True
        if DOT.search(line):
            later += 1
        elif (found := WAIT.search(line)) and int(found[1]) <= later:
            return False
    return True


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def ptxas_says(ptx: str) -> str:
    """The registers of a kernel on a Hopper card, by Triton's ptxas; with `spilled` or `serialized` if it is so."""
    from triton.backends.nvidia.compiler import get_ptxas

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx)
        command = [get_ptxas(90).path, "-v", "--gpu-name=sm_90a", str(source), "-o", f"{folder}/kernel.cubin"]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    registers, spilled = (re.search(pattern, said) for pattern in (r"Used (\d+) registers", r"([1-9]\d*) bytes spill"))
    assert registers is not None, said
    words = [f"{registers[1]} registers", f"{spilled[1]} bytes spilled" if spilled else ""]
    words.append("products serialized" if "serialized" in said else "")
    return ", ".join(filter(None, words))
