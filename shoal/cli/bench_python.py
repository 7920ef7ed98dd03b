"""Rows of `shoal bench env` for Python envs: `gymnasium:CartPole-v1`, `mine:Env`. In this process and in workers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shoal.cli.bench_env import Config
from shoal.cores import available_cores
from shoal.measure import Stepper

NATIVE_DEFAULT = (4096,)  # of --num-envs; Python envs step too slowly for so many
DEFAULT_ENVS = 64


@dataclass(frozen=True)
class PythonConfig(Config):
    """One row of the table. `num_threads` are worker processes."""

    def make(self) -> Stepper:
        """Resets the envs and draws random actions to step them with."""
        from shoal.tune import make_stepper

        options = {} if self.num_threads is None else {"num_workers": self.num_threads}
        return make_stepper(self.env, self.num_envs, {"backend": self.backend, **options})


def python_rows(
    envs: Iterable[str], num_envs: Sequence[int], backends: Sequence[str], num_threads: Sequence[int]
) -> list[Config]:
    """A row for each combination of the options. Envs that cannot be made raise here, before anything is measured."""
    from shoal.entry import make

    counts = (DEFAULT_ENVS,) if tuple(num_envs) == NATIVE_DEFAULT else num_envs
    rows: list[Config] = []
    for env in envs:
        probe = make(env, 1, backend="serial")
        agents = probe.agents_per_env
        probe.close()
        for count in counts:
            if "serial" in backends:
                rows.append(PythonConfig(env, count, "serial", None, agents))
            if "threads" in backends:  # Python envs have worker processes in place of threads
                workers = num_threads or (max(w for w in range(1, available_cores() + 1) if count % w == 0),)
                rows += [PythonConfig(env, count, "process", number, agents) for number in workers]
    return rows
