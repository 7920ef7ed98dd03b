"""Multi-agent DQN on robot vacuums, with the flags of the original script.

    python examples/train_vacuum.py --num-envs 8 --train-frequency 4 --env-n 5 --charger-positions 2,2 \\
        --robot-0-energy 1000 --robot-1-energy 100 --e-collision 20 --e-charge 20 --use-epsilon-decay \\
        --epsilon-decay 0.998 --num-episodes 5000 --n-step 2 --save-frequency 500 --wandb-mode disabled

Every robot learns with its own network. --opponents 1=seek,2=flee seats scripted robots instead.
"""

from __future__ import annotations

import argparse
from typing import Any

from shoal.train import train

ROBOTS = 4
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
number, whole = {"type": float}, {"type": int}
for name, default, kind, text in [
    ("num-envs", 8, whole, "number of envs"),
    ("num-episodes", 5000, whole, "games to train for"),
    ("max-steps", 500, whole, "steps of a game"),
    ("train-frequency", 4, whole, "steps of each env between two updates"),
    ("gradient-steps", 1, whole, "optimizer steps per update"),
    ("batch-size", 128, whole, "transitions of a gradient step"),
    ("memory-size", 100_000, whole, "transitions in the shared replay"),
    ("replay-start-size", 1000, whole, "transitions to collect before learning begins"),
    ("n-step", 1, whole, "n-step return: rewards summed before bootstrapping"),
    ("lr", 1e-4, number, "learning rate"),
    ("gamma", 0.99, number, "discount factor"),
    ("target-update-frequency", 1000, whole, "gradient steps between two copies to the target network"),
    ("epsilon-decay", 0.998, number, "with --use-epsilon-decay: multiply epsilon by this after each game"),
    ("epsilon-start", 1.0, number, "probability of a random action at the start"),
    ("epsilon-end", 0.05, number, "lowest probability of a random action"),
    ("save-frequency", 500, whole, "games between two checkpoints, at full length"),
    ("env-n", 5, whole, "cells per side of the grid"),
    ("num-robots", ROBOTS, whole, "robots"),
    ("e-move", 1.0, number, "energy that a step costs"),
    ("e-charge", 20.0, number, "energy that a charger gives"),
    ("e-collision", 20.0, number, "energy that a hit takes"),
    ("e-boundary", 50.0, number, "energy lost by bumping into the wall"),
    ("seed", 1, whole, "the same seed gives the same run"),
]:
    parser.add_argument(f"--{name}", default=default, help=f"{text} ({default})", **kind)
for robot in range(8):
    energy = 1000.0 if robot == 0 else 100.0
    parser.add_argument(f"--robot-{robot}-energy", type=float, default=energy, help=f"energy at the start ({energy:g})")
parser.add_argument("--charger-positions", default="2,2", help="row,column of each charger: 0,0;4,4 (2,2)")
parser.add_argument("--use-epsilon-decay", action="store_true", help="exponential decay instead of linear")
parser.add_argument("--opponents", default="", help="players of the robots that do not learn: 1=seek,2=RUN")
parser.add_argument("--wandb-mode", default="disabled", choices=["online", "offline", "disabled"])
parser.add_argument("--runs", default="runs", help="folder of all runs")
flags = parser.parse_args()

places = [tuple(int(x) for x in place.split(",")) for place in flags.charger_positions.split(";")]
env: dict[str, Any] = {"side": flags.env_n, "robots": flags.num_robots, "chargers": len(places)}
env |= {"max_steps": flags.max_steps, "e_move": flags.e_move, "e_charge": flags.e_charge}
env |= {"e_boundary": flags.e_boundary}
for k, (y, x) in enumerate(places):
    env |= {f"charger_y_{k}": y, f"charger_x_{k}": x}
for k in range(flags.num_robots):
    env |= {f"energy_{k}": getattr(flags, f"robot_{k}_energy"), f"attack_{k}": flags.e_collision}

steps = flags.max_steps * flags.num_robots  # of a game, at most
options = {
    "total_steps": flags.num_episodes * steps,
    "num_episodes": flags.num_episodes,
    "train_frequency": flags.train_frequency,
    "gradient_steps": flags.gradient_steps,
    "batch_size": flags.batch_size,
    "learning_rate": flags.lr,
    "gamma": flags.gamma,
    "n_step": flags.n_step,
    "target_every": flags.target_update_frequency,
    "target_tau": 0.0,
    "replay_size": flags.memory_size,
    "replay_start": flags.replay_start_size,
    "epsilon_start": flags.epsilon_start,
    "epsilon_end": flags.epsilon_end,
    "epsilon_decay": flags.epsilon_decay if flags.use_epsilon_decay else 0.0,
    "policy": "per-agent",
}
run = train(
    "vacuum",
    algo="dqn",
    seed=flags.seed,
    opponents=flags.opponents,
    env=env,
    train=options,
    vec={"num_envs": flags.num_envs},
    save={"every": flags.save_frequency * steps},
    runs_folder=flags.runs,
    log=() if flags.wandb_mode == "disabled" else ("wandb",),
    log_options={} if flags.wandb_mode == "disabled" else {"wandb": {"mode": flags.wandb_mode}},
)
print(f"mean return of the robots that learned: {run.summary['eval']['return']:.1f}; shoal eval {run.folder} shows it")
