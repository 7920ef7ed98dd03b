"""Shoal steps thousands of environments as one and trains on them at the speed of the hardware.

    envs = shoal.make("breakout", num_envs=4096)
    obs, infos = envs.reset(seed=0)
    obs, rewards, terminated, truncated, infos = envs.step(envs.action_space.sample())

Importing makes the stock envs known to Gymnasium (`gymnasium.make("shoal/Breakout-v0")`) and does nothing else.
"""

from shoal.distributions import choice, integers, loguniform, normal, uniform
from shoal.entry import make
from shoal.errors import ShoalError
from shoal.integrations.gymnasium import register, register_stock
from shoal.schedules import cosine, exp, linear, piecewise, steps
from shoal.spec import unflatten
from shoal.tune import autotune
from shoal.vector.base import VecEnv

__all__ = [
    "ShoalError",
    "VecEnv",
    "__version__",
    "autotune",
    "choice",
    "cosine",
    "exp",
    "integers",
    "linear",
    "loguniform",
    "make",
    "normal",
    "piecewise",
    "register",
    "steps",
    "unflatten",
    "uniform",
]
__version__ = "0.2.0.dev0"

register_stock()
