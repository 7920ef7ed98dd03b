"""A curriculum in three phases: a short pole, a longer one, and then one whose length every game draws.

    python examples/curriculum.py --steps 400k
    shoal train cartpole --curriculum mine.toml       # the same phases as [[curriculum]] tables of a file

A phase ends when the mean return of its latest games is high enough, or after its steps.
"""

from __future__ import annotations

import argparse

from shoal.train import Phase, train

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--steps", default="400k", help="steps of the run (400k)")
parser.add_argument("--runs", default="runs", help="folder of all runs")
flags = parser.parse_args()

phases = [
    Phase("short", env={"half_pole": 0.3}, until={"return": 60, "games": 100, "steps": "100k"}),
    Phase("longer", env={"half_pole": 0.5}, until={"return": 100, "games": 100, "steps": "100k"}),
    Phase("any", env={"half_pole": "uniform(0.5, 1.5)"}),
]
run = train(
    "cartpole",
    curriculum=phases,
    env={"half_pole": 1.0},  # evaluations, and phases that name no other
    vec={"num_envs": 64},
    train={"total_steps": flags.steps},
    runs_folder=flags.runs,
)
for record in run.metrics():
    if "curriculum/return" in record:
        phase, value = record["curriculum/phase"], record["curriculum/return"]
        print(f"step {record['step']:>9,}  phase {phase:.0f} of {len(phases)}  return {value:.0f}")
print(f"return {run.summary['eval']['return']:.0f} with half_pole 1")
