"""PufferLib's `[sweep]` settings as ours: method, metric, goal, max_runs. shoal/sweep/ranges.py reads its ranges."""

from __future__ import annotations

from typing import Any

from shoal.errors import ConfigError

METHODS = {"protein": "protein", "paretogenetic": "protein", "carbs": "protein", "random": "random"}
SCORES = ("score", "return", "reward", "episode_return", "mean_reward", "perf")
IGNORED = ("downsample", "use_gpu", "prune_pareto", "gpus", "early_stop_ratio")  # they tune PufferLib's own search
COUNTS = ("max_runs", "num_trials")


def setting(name: str, value: Any) -> dict[str, Any]:
    """One setting of PufferLib's `[sweep]` as settings of ours. An unknown one raises ConfigError."""
    text = str(value)
    if name == "method":
        if text.lower() not in METHODS:
            raise ConfigError(f"sweep.method = {text}: PufferLib's methods are Protein, ParetoGenetic and Random.")
        return {"sampler": METHODS[text.lower()]}
    if name == "metric":
        if text.rpartition("/")[2] not in SCORES:
            raise ConfigError(f"sweep.metric = {text}: sweeps compare the score, the return in the final evaluation.")
        return {}
    if name in ("goal", "metric_distribution"):
        if name == "goal" and text != "maximize":
            raise ConfigError(f"sweep.goal = {text}: the score is maximized. Give the env a reward to maximize.")
        return {}
    if name in COUNTS:
        return {"trials": value}
    if name == "early_stop_quantile":
        return {"early_stop": value}
    if name in IGNORED:
        return {}
    raise ConfigError(f"sweep.{name}: name an option with its table: sweep.train.{name} = 'log(1e-4, 1e-2)'.")
