"""A scripted player of pgx's connect four: wins or blocks at once, or moves at random."""

from __future__ import annotations

import torch
from torch import Tensor

ROWS, COLUMNS = 6, 7
STEPS = ((0, 1), (1, 0), (1, 1), (1, -1))
LINES = torch.tensor(
    [
        [(row + k * down) * COLUMNS + column + k * right for k in range(4)]
        for row in range(ROWS)
        for column in range(COLUMNS)
        for down, right in STEPS
        if row + 3 * down < ROWS and 0 <= column + 3 * right < COLUMNS
    ]
)  # (69, 4): the cells of every four in a row


class OnePly:
    """Plays the column that wins; else the one in which the other player would win; else any that is allowed."""

    def __init__(self, seed: int) -> None:
        self.random = torch.Generator().manual_seed(seed)

    def act(self, obs: Tensor, mask: Tensor) -> Tensor:
        """(rows, 6, 7, 3) own pieces, the other's, turn; the top row first; (rows, 7) allowed -> (rows,) columns."""
        cells = obs.reshape(-1, ROWS * COLUMNS, obs.shape[-1])[..., :2].to("cpu", torch.int64)
        allowed = mask.to("cpu", torch.bool)
        is_full = cells.sum(2).reshape(-1, ROWS, COLUMNS).bool()
        # the lowest empty cell of each column
        row = (ROWS - 1 - is_full.sum(1)).clamp(min=0)
        place = row * COLUMNS + torch.arange(COLUMNS)
        chance = torch.rand(allowed.shape, generator=self.random)
        value = chance + 4.0 * wins(cells[..., 0], place) + 2.0 * wins(cells[..., 1], place)
        return value.masked_fill(~allowed, -1.0).argmax(1).to(obs.device)


def wins(pieces: Tensor, place: Tensor) -> Tensor:
    """(rows, 7): whether a piece in each column's place makes four in a row."""
    found = torch.zeros(place.shape)
    for column in range(COLUMNS):
        after = pieces.clone()
        after.scatter_(1, place[:, column : column + 1], 1)
        found[:, column] = (after[:, LINES].sum(2) == 4).any(1).float()
    return found
