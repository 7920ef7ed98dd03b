"""BabyAI: `babyai:GoToRedBall`. Instructions in a small language, in MiniGrid's worlds."""

from __future__ import annotations

from shoal.integrations.minigrid import MiniGrid


class BabyAI(MiniGrid):
    """MiniGrid's envs with instructions. Its network has no memory: with one, and missions, nothing was measured."""

    options = {
        "train": {"total_steps": 2_000_000, "normalize_obs": False, "gamma": 0.98, "gae_lambda": 0.9},
        "nn": {"hidden": 128, "activation": "relu", "separate": False},
        "eval": {"greedy": False},
    }
    network = "layers of 128; missions as embedded words, convolved"
    references = ()


FRAMEWORK = BabyAI("babyai", "instructions in a small language, in MiniGrid's worlds", "BabyAI-", "GoToLocal")
