"""`shoal bench env`: its entry among the commands. The measuring and the table are in bench.py."""

from __future__ import annotations

from shoal.cli.bench import command
from shoal.cli.command import Command

COMMAND = Command(command, order=60, examples={"shoal bench env all": "how fast the envs are on this machine"})
