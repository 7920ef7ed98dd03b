"""AdamW: the same numbers as torch.optim.AdamW with `fused=True`."""

from __future__ import annotations

from typing import Any

from shoal.algos.optimizers.adam import Adam


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019)."""

    decoupled = True

    @staticmethod
    def weight_decay(config: Any) -> float:
        """The value of `--train.weight-decay`."""
        return float(getattr(config, "weight_decay", 0.0))


OPTIMIZER = AdamW
