"""Schedules: the learning rate and the entropy bonus fall during the run, and the pole of cartpole grows.

    python examples/schedules.py                  # ten seconds
    python examples/schedules.py --steps 20k      # a short try

It prints the scheduled values and the return from time to time. The evaluation plays with the last pole.
"""

from __future__ import annotations

import argparse
import math

import shoal
from shoal.train import train

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--steps", default="300k")
parser.add_argument("--runs", default="runs")
words = parser.parse_args()

run = train(
    "cartpole",
    train={
        "total_steps": words.steps,
        "learning_rate": shoal.cosine(5e-3, 1e-4),
        "entropy_coef": "exp(0.01, 0.001)",  # the notation of flags and TOML files
    },
    env={"half_pole": shoal.piecewise({0: 0.5, 0.6: 2.0})},  # meters
    vec={"num_envs": 64},
    eval={"episodes": 20},
    runs_folder=words.runs,
    console="off",
)

records = [record for record in run.metrics() if "schedule/env.half_pole" in record]
print("    step  learning rate  entropy coef  half pole  return")
for record in records[:: max(1, len(records) // 8)]:
    rate, coef, pole = (record[name] for name in ("learning_rate", "schedule/entropy_coef", "schedule/env.half_pole"))
    episodes = record.get("episode/return", math.nan)  # nan: none ended since the last record
    print(f"{record['step']:8,}  {rate:13.5f}  {coef:12.5f}  {pole:9.2f}  {episodes:6.1f}")
print(f"return {run.summary['eval']['return']:.0f} of 500 with half_pole 2")
