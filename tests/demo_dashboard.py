"""Shows the dashboard with made-up records in a terminal: `python -m tests.demo_dashboard [seconds] [style]`."""

from __future__ import annotations

import math
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from shoal.log.base import RunFacts, open_all


def facts(folder: str | Path, **changes) -> RunFacts:
    """A run of breakout on two cores."""
    known = RunFacts(
        Path(folder), "20261115-121500", "breakout", "ppo", "threads", "cpu", seed=1, num_envs=4096, num_rows=4096,
        horizon=64, num_threads=2, total_steps=20_000_000, num_params=35_076,
    )  # fmt: skip
    return replace(known, **changes)


def records(count: int, interval_s: float = 0.1, steps: int = 262_144, seed: int = 0) -> Iterator[dict[str, float]]:
    """What a run that learns would log."""
    rng = random.Random(seed)
    for k in range(1, count + 1):
        share = k / count
        score = 400 / (1 + math.exp(6 - 12 * share)) + rng.uniform(-1, 1) * 20 * share
        split = [0.22, 0.17, 0.02, 0.55, 0.04]
        split = [part * rng.uniform(0.8, 1.2) for part in split]
        split = [interval_s * part / sum(split) for part in split]
        yield {
            "iteration": k, "step": k * steps, "wall_s": k * interval_s, "time": 1.7e9 + k * interval_s,
            "sps": steps / interval_s * rng.uniform(0.9, 1.1),
            **{f"time/{phase}": s for phase, s in zip(("env", "inference", "copy", "learn", "other"), split)},
            "time/total": interval_s,
            "loss/policy": -0.012 * rng.random(), "loss/value": 0.8 * (1 - share) + 0.1, "loss/total": 0.2,
            "entropy": 1.09 * (1 - 0.7 * share), "kl": 0.006 * rng.random(), "clip_fraction": 0.11 * rng.random(),
            "explained_variance": min(0.97, 2 * share), "grad_norm": 0.4 + rng.random(),
            "learning_rate": 2.5e-3 * (1 - share),
            "episode/n": rng.randint(200, 400), "episode/return": score, "episode/return_min": 0.0,
            "episode/return_max": score * 1.6, "episode/length": 300 + score, "episode/length_min": 71,
            "episode/length_max": 2000, "episode/bricks": score / 4, "episode/bricks_min": 0,
            "episode/bricks_max": score / 3, "episode/lives": 2.1,
            "cpu_percent": 187.0, "memory_mb": 412.0,
        }  # fmt: skip


def main() -> None:
    """Plays a run in real time."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 8.0
    style = sys.argv[2] if len(sys.argv) > 2 else "auto"
    with tempfile.TemporaryDirectory() as folder:
        count = int(seconds / 0.1)
        known = facts(Path(folder) / "runs", total_steps=count * 262_144)
        loggers = open_all(known, console=style)
        for k, record in enumerate(records(count)):
            time.sleep(0.1)
            loggers.log(record)
            if k % 20 == 19:
                loggers.note(f"checkpoint saved at {record['step'] / 1e6:.1f}M")
            if k == count // 3:
                loggers.warn("logger wandb is switched off: ConnectionError: no route to host; metrics.jsonl continues")
            if k == count // 2:
                print("a line that an env printed")
        screen = loggers._loggers.get("console")
        evaluation = {"return": 401.2, "ci95": 7.3, "min": 12, "max": 640, "episodes": 100, "length": 702}
        end = {"status": "finished", "step": record["step"], "wall_s": seconds, "sps": 2.62e6, "eval": evaluation}
        loggers.close(end)
        if hasattr(screen, "spent"):
            print(f"drawing took {screen.spent / seconds:.2%} of the time, {1000 * screen.cost:.1f} ms per frame")


if __name__ == "__main__":
    main()
