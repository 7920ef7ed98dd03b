"""BabyAI: `babyai:GoToRedBall`. Instructions in a small language, in MiniGrid's worlds."""

from __future__ import annotations

from shoal.integrations.minigrid import MiniGrid

FRAMEWORK = MiniGrid("babyai", "instructions in a small language, in MiniGrid's worlds", "BabyAI-", "GoToLocal")
