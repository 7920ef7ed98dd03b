"""Adam for weights that are one piece of memory.

The same numbers as torch.optim.Adam and AdamW with `fused=True`. Theirs import torch's compiler when they are made,
which takes a second of every run's start.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


class Adam:
    """Kingma & Ba 2015; with decoupled weight decay, AdamW (Loshchilov & Hutter 2019)."""

    def __init__(
        self,
        parameter: Any,
        *,
        lr: Any,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float = 0.0,
        decoupled: bool = False,
    ) -> None:
        self.param_groups: list[dict[str, Any]] = [{"params": [parameter], "lr": lr}]
        self._fixed = {"beta1": betas[0], "beta2": betas[1], "eps": eps, "weight_decay": weight_decay}
        self._run = torch._fused_adamw_ if decoupled else torch._fused_adam_
        self._state: dict[str, Any] = {}

    @torch.no_grad()
    def step(self) -> None:
        """Moves the weights against their gradient."""
        parameter = self.param_groups[0]["params"][0]
        if not self._state:
            step = torch.zeros((), dtype=torch.float32, device=parameter.device)
            self._state = {
                "step": step,
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
        step, mean, square = self._state["step"], self._state["exp_avg"], self._state["exp_avg_sq"]
        step += 1
        more = {"amsgrad": False, "maximize": False, "grad_scale": None, "found_inf": None, **self._fixed}
        self._run([parameter], [parameter.grad], [mean], [square], [], [step], lr=self.param_groups[0]["lr"], **more)

    def state_dict(self) -> dict[str, Any]:
        """As torch's optimizers: `state` by the number of the parameter."""
        return {"state": {0: dict(self._state)} if self._state else {}, "param_groups": self.param_groups}

    def load_state_dict(self, whole: Mapping[str, Any]) -> None:
        """Takes over a state."""
        parameter = self.param_groups[0]["params"][0]
        found = whole["state"].get(0, {})
        self._state = {name: value.detach().clone().to(parameter.device) for name, value in found.items()}
