"""Translates PufferLib's command lines to Shoal's: `puffer_breakout --train.ent-coef 0.01`, `atari-pong`.

It does not import shoal.puffer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

FLAGS = {
    "--train.device": "--device",
    "--train.seed": "--seed",
    "--train.num-steps": "--train.horizon",
    "--train.bptt-horizon": "--train.horizon",
    "--train.n-epochs": "--train.epochs",
    "--train.update-epochs": "--train.epochs",
    "--train.clip-coef": "--train.clip",
    "--train.ent-coef": "--train.entropy-coef",
    "--train.vf-coef": "--train.value-coef",
    "--train.vf-clip-coef": "--train.value-clip",
    "--train.total-timesteps": "--train.total-steps",
}
FAMILIES = r"(atari|procgen|minigrid|minihack|griddly|pettingzoo)-(?=.)"  # frameworks of the same name here


def translate(words: Sequence[str]) -> list[str]:
    """The command line with PufferLib's flags and env names replaced by Shoal's."""
    translated = []
    for word in words:
        flag, sign, value = word.partition("=")
        name = flag.replace("_", "-") if flag.startswith("--") else flag
        translated.append(FLAGS.get(name, flag) + sign + value)
    if not translated:
        return []
    env = translated[0]
    if env.startswith("gym-"):
        translated[0] = f"gymnasium:{env.removeprefix('gym-')}"
    else:
        translated[0] = re.sub(f"^{FAMILIES}", r"\1:", env).removeprefix("puffer_")
    return translated
