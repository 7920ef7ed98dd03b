"""IdGrid and IdText: grids and texts of ids (a MultiDiscrete of two dimensions), with one embedding for all places.

NetHack's glyphs are such a grid; a text is a grid of one row.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from shoal.nn.layers import features_of, layer_init

GLYPH, WORD = 16, 32  # sizes of embeddings
CHANNELS, NGRAMS = 32, 64


class IdGrid(nn.Module):
    """Ids (height, width), embedded, then two 3x3 convolutions. Sides of more than 8 cells are halved by each."""

    def __init__(self, shape: tuple[int, int], count: int, start: int) -> None:
        super().__init__()
        self.count, self.start = count, start
        self.table = nn.Embedding(count, GLYPH)
        parts: list[nn.Module] = []
        before, sides = GLYPH, list(shape)
        for _ in range(2):
            strides = [2 if side > 8 else 1 for side in sides]
            parts += [layer_init(nn.Conv2d(before, CHANNELS, 3, tuple(strides), padding=1)), nn.ReLU()]
            before, sides = CHANNELS, [-(-side // stride) for side, stride in zip(sides, strides)]
        self.layers = nn.Sequential(*parts, nn.Flatten())
        self.features = features_of(self.layers, (GLYPH, *shape))

    def forward(self, obs: Tensor) -> Tensor:
        """(rows, height, width) ints -> (rows, features)."""
        return self.layers(_embed(self.table, obs, self.count, self.start).permute(0, 3, 1, 2))


class IdText(nn.Module):
    """Ids of words (1, words), 0 for none: embedded, two convolutions over 3 words each, the maximum over the text."""

    def __init__(self, words: int, count: int, start: int) -> None:
        super().__init__()
        self.count, self.start = count, start
        self.table = nn.Embedding(count, WORD, padding_idx=0)
        self.layers = nn.Sequential(
            nn.Conv1d(WORD, NGRAMS, 3, padding=1), nn.ReLU(), nn.Conv1d(NGRAMS, NGRAMS, 3, padding=1), nn.ReLU()
        )
        self.features = NGRAMS

    def forward(self, obs: Tensor) -> Tensor:
        """(rows, 1, words) ints -> (rows, features)."""
        text = _embed(self.table, obs[:, 0], self.count, self.start)
        return self.layers(text.permute(0, 2, 1)).amax(2)


def _embed(table: nn.Embedding, obs: Tensor, count: int, start: int) -> Tensor:
    # clamped: an agent that is out of the game observes zeros, which may be outside the space
    return table((obs.to(torch.int64) - start).clamp(0, count - 1))
