"""An action head as the kernels see it (head_kernels.py): constants, and tables on the device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from shoal.nn.distributions import ActionHead


class HeadTables:
    """Constants and tables of an ActionHead for `columns` outputs of a network (a power of two)."""

    def __init__(self, head: ActionHead, columns: int, device: torch.device) -> None:
        choices = [part for part in head.parts if part.count]
        self.numbers = head.num_params - head.num_noise
        self.constants: dict[str, Any] = {
            "A": head.num_noise,
            "SIZE": head.size,
            "PARTS": len(choices),
            "NUMBERS": self.numbers,
            "SQUASH": head.squash and head.has_box,
        }
        table = [end for part in choices for end in (part.logits.start, part.logits.stop, part.actions.start)]
        to, std_at = [-1] * columns, [-1] * columns
        bounds = torch.zeros((5, columns))
        bounds[2], bounds[3] = -torch.inf, torch.inf
        for part in head.parts:
            if part.count:
                continue
            for k in range(part.logits.stop - part.logits.start):
                column, number = part.logits.start + k, part.log_stds.start + k
                to[column], std_at[column] = part.actions.start + k, head.num_noise + number
                bounds[0, column] = float(head._scale[number])
                bounds[1, column] = float(head._center[number])
                bounds[2, column], bounds[3, column] = (float(end[number]) for end in head._ends)
                bounds[4, column] = float(head._log_scale[number])
        self.table: Tensor | None = torch.tensor([*table, *to, *std_at], dtype=torch.int32, device=device)
        self.bounds: Tensor | None = bounds.to(device)
        # the mean's column of each log standard deviation
        self.std_columns = [column for _, column in sorted((at, k) for k, at in enumerate(std_at) if at >= 0)]
        if head.is_one_choice:
            self.table = self.bounds = None
