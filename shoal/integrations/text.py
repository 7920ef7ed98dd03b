"""Text as ids of words, so that observations have one size: a (1, words) MultiDiscrete, which encoders embed."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from shoal.errors import ConfigError
from shoal.spec import Array

BUCKETS = 64  # ids of words that a vocabulary does not have, by their hash


class Vocabulary:
    """Words and their ids: 0 is no word, then those given, then BUCKETS ids that all other words share."""

    def __init__(self, words: Iterable[str] = (), buckets: int = BUCKETS) -> None:
        self.ids = {word: k for k, word in enumerate(dict.fromkeys(words), 1)}
        self.buckets = buckets
        self.size = 1 + len(self.ids) + buckets

    def encode(self, text: str, length: int) -> Array:
        """(1, length) int16: the ids of the first words, then zeros.

        >>> Vocabulary(["go", "to"]).encode("Go to: go", 5).tolist()
        [[1, 2, 1, 0, 0]]
        """
        words = re.findall(r"[a-z0-9]+", text.lower())[:length]
        ids: Array = np.zeros((1, length), np.int16)
        ids[0, : len(words)] = [self.id(word) for word in words]
        return ids

    def id(self, word: str) -> int:
        """The id of one word, the same in every process."""
        known = self.ids.get(word)
        return known if known is not None else 1 + len(self.ids) + zlib.crc32(word.encode()) % self.buckets

    def space(self, length: int) -> spaces.MultiDiscrete:
        """The space of `encode`."""
        dtype: Any = np.int16
        return spaces.MultiDiscrete(np.full((1, length), self.size, dtype), dtype)


class EncodeText(gymnasium.ObservationWrapper[Any, Any, Any]):
    """An env with one text in its Dict observations encoded. Texts rarely change, so each is encoded once."""

    def __init__(self, env: Any, key: str, vocabulary: Vocabulary, length: int) -> None:
        super().__init__(env)
        inner = env.observation_space
        if not isinstance(inner, spaces.Dict) or key not in inner.spaces:
            raise ConfigError(f"observations of {env} have no text {key!r}: they are {inner}.")
        self.key, self.vocabulary, self.length = key, vocabulary, length
        self.observation_space = spaces.Dict({**inner.spaces, key: vocabulary.space(length)})
        self._known: dict[str, Array] = {}

    def observation(self, observation: Any) -> Any:
        """The observation with ids in place of the text."""
        text = observation[self.key]
        ids = self._known.get(text)
        if ids is None:
            if len(self._known) > 10_000:
                self._known.clear()
            ids = self._known[text] = self.vocabulary.encode(text, self.length)
        return {**observation, self.key: ids}
