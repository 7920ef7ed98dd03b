"""MAgent: `magent:battle`. Grid worlds with hundreds of agents in teams."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
import sys
from collections.abc import Mapping
from typing import Any

from shoal.errors import ConfigError, did_you_mean
from shoal.integrations.framework import Framework
from shoal.names import arguments


class MAgent(Framework):
    """The envs of magent2, which have PettingZoo's API."""

    title = "grid worlds with hundreds of agents in teams"
    packages = {"magent2": "magent2>=0.3.3", "pettingzoo": "pettingzoo>=1.24"}
    extra = "magent"
    example = "battle"
    pattern = "NAME or NAME_vN"
    preprocessing = "none: 13x13 grids of what is near"
    network = "layers of 64; one policy for all agents"
    options = {"train": {"total_steps": 20_000_000, "horizon": 64}, "vec": {"num_envs": 2}}
    notes = ("A step of an env counts one step for each of its agents: battle has 162.",)

    def names(self) -> list[str]:
        """Names without version."""
        return sorted(self._modules())

    def params(self, name: str) -> dict[str, str] | None:
        """Those of magent2's function, and the rewards, which it takes as any keywords."""
        maker = self._module(self.canonical(name)).parallel_env
        rewards = getattr(sys.modules[maker.__module__], "default_reward_args", {})
        return arguments(maker) | {key: repr(value) for key, value in rewards.items()}

    def check_params(self, name: str, given: Mapping[str, Any]) -> None:
        """Raises for a param that the env does not have."""
        known = self.params(name) or {}
        for key in given:
            if key not in known:
                raise ConfigError(
                    f"magent:{name} has no param '{key}'.{did_you_mean(key, known)} It has {', '.join(known)}."
                )

    def make(self, name: str, **params: Any) -> Any:
        """One env; params are those of magent2."""
        return self._module(name).parallel_env(**params)

    def _module(self, name: str) -> Any:
        return importlib.import_module(f"magent2.environments.{self._modules()[name]}")

    def _modules(self) -> dict[str, str]:
        spec = importlib.util.find_spec("magent2.environments")
        places = list(spec.submodule_search_locations or ()) if spec is not None else []
        modules = sorted(module.name for module in pkgutil.iter_modules(places))
        return {re.sub(r"_v\d+$", "", name): name for name in modules if re.search(r"_v\d+$", name)}


FRAMEWORK = MAgent("magent")
