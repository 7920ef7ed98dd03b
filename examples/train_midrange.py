"""PPO on midrange air combat, with the flags of midrangeRL's training script.

    python examples/train_midrange.py                                 # learns to shoot down a drone
    python examples/train_midrange.py --opponent shooter --reward pointing --max-steps 40000 --checkpoint last
    python examples/train_midrange.py --agent chaser --opponent drone # plays with a scripted agent; nothing is learned

--opponent is a robot of the env (drone, shooter, weaver, random, pursuit, crank, nez, mix), `self` (both sides learn),
a run, or an agent of your own: `chaser` below, mine:Agent, ./mine.py:Agent. --reward takes the same names.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import torch
from torch import Tensor

import shoal
from shoal.errors import ShoalError
from shoal.train import evaluate_agent, evaluate_run, start

RANGE, SIN, COS = 7, 8, 9  # of the enemy in the observation: range / 50 km, sin and cos of its bearing


@shoal.opponent("chaser")
class Chaser:
    """Turns towards the enemy, and fires when it is ahead and within 15 km."""

    capturable = True  # tensor operations alone: a CUDA graph can hold them

    def act(self, obs: Tensor, mask: Tensor | None) -> Tensor:
        """Rudder (0 right, 1 straight, 2 left) and trigger of every row."""
        is_ahead = obs[:, COS] > 0.98
        turn = torch.where(obs[:, SIN] > 0, 2, 0)
        rudder = torch.where(is_ahead & (obs[:, SIN].abs() < 0.05), 1, turn)
        return torch.stack([rudder, (is_ahead & (obs[:, RANGE] < 0.3)).long()], 1)


@shoal.reward("pointing")
class Pointing:
    """The env's reward, and 0.05 times the change of the cosine of the enemy's bearing: it pays to turn towards it."""

    def compute(self, before: Tensor, after: Tensor, action: Tensor, done: Tensor, info: dict[str, Tensor]) -> Tensor:
        """One number for each row."""
        change = torch.where(done, 0.0, after[:, COS] - before[:, COS])
        return info["reward"] + 0.05 * change


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Reads the flags."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    number, whole, text = {"type": float}, {"type": int}, {"type": str}
    for name, default, kind, about in [
        ("agent", "ppo", text, "ppo learns; the name of an agent only plays"),
        ("opponent", "drone", text, "who plays the other side"),
        ("reward", "env", text, "the env's, or the name of a reward: pointing, mine:Reward"),
        ("num-envs", 32, whole, "number of games at a time"),
        ("time-scale", 1.0, number, "seconds between two decisions; the physics stay the same"),
        ("device", "auto", text, "auto, cpu or cuda"),
        ("max-steps", 10_000, whole, "decisions of each env to train for"),
        ("lr", 3e-4, number, "learning rate"),
        ("n-steps", 2048, whole, "decisions of each env in a rollout"),
        ("batch-size", 64, whole, "decisions in a minibatch"),
        ("n-epochs", 10, whole, "passes over each rollout"),
        ("gamma", 0.99, number, "discount factor"),
        ("gae-lambda", 0.95, number, "GAE lambda"),
        ("clip-epsilon", 0.2, number, "clip range of the probability ratio"),
        ("entropy-coef", 0.01, number, "weight of the entropy bonus"),
        ("episode-max-steps", 3600, whole, "decisions after which a game is cut off"),
        ("seed", 1, whole, "the same seed gives the same run"),
        ("checkpoint", "", text, "run whose weights training starts from: a folder, an id, last"),
        ("log-interval", 1, whole, "rollouts between two printed lines"),
        ("eval-games", 100, whole, "games that are played at the end"),
        ("runs", "runs", text, "folder of all runs"),
    ]:
        parser.add_argument(f"--{name}", default=default, help=f"{about} ({default or 'none'})", **kind)
    parser.add_argument("--render", action="store_true", help="film a game at the end: videos/ in the run's folder")
    return parser.parse_args(words)


def describe(result: Any) -> str:
    """The results of an evaluation, of side 0."""
    stats = {name: 100 * sum(values) / len(values) for name, values in result.score.stats.items()}
    won, lost, drawn = (stats[name] for name in ("wins_0", "wins_1", "draws"))
    games = len(result.score.returns)
    return f"{won:.0f} % won, {lost:.0f} % lost, {drawn:.0f} % drawn of {games} games; return {result.score.mean:.2f}"


def main(flags: argparse.Namespace) -> None:
    """Trains, or plays with a scripted agent."""
    env = {"time_scale": flags.time_scale, "max_steps": flags.episode_max_steps}
    opponents = "" if flags.opponent == "self" else f"1={flags.opponent}"
    if flags.agent != "ppo":
        result = evaluate_agent(
            "midrange", flags.agent, params=env, opponents=opponents, episodes=flags.eval_games, seed=flags.seed
        )
        print(f"{flags.agent} against {flags.opponent}: {describe(result)}")
        return
    sides = 2 if flags.opponent == "self" else 1  # that learn
    rollout = flags.n_steps * flags.num_envs * sides
    options = {
        "total_steps": flags.max_steps * flags.num_envs * sides,
        "horizon": flags.n_steps,
        "minibatches": max(1, rollout // flags.batch_size),
        "epochs": flags.n_epochs,
        "learning_rate": flags.lr,
        "schedule": "constant",
        "optimizer": "adam",  # the env's tuned options are for larger batches
        "max_grad_norm": 0.5,
        "normalize_advantage": "minibatch",
        "gamma": flags.gamma,
        "gae_lambda": flags.gae_lambda,
        "clip": flags.clip_epsilon,
        "entropy_coef": flags.entropy_coef,
    }
    training = start(
        "midrange",
        seed=flags.seed,
        device=flags.device,
        opponents=opponents,
        reward=None if flags.reward == "env" else flags.reward,
        env=env,
        train=options,
        vec={"num_envs": flags.num_envs},
        eval={"episodes": 0},
        init=flags.checkpoint or None,
        callbacks=[f"video(every={options['total_steps']})"] if flags.render else [],
        runs_folder=flags.runs,
        console="off",
    )
    with training as trainer:
        for metrics in trainer:
            if trainer.iteration % flags.log_interval == 0:
                won, value = metrics.get("episode/wins_0", 0.0), metrics.get("episode/return", float("nan"))
                print(f"step {trainer.step:>10,}  won {won:4.0%}  return {value:6.2f}  {metrics['sps']:,.0f} steps/s")
    result = evaluate_run(trainer.run, episodes=flags.eval_games, runs_folder=flags.runs)
    print(f"ppo against {flags.opponent}: {describe(result)}")
    print(f"shoal eval {trainer.run.folder} shows it")


if __name__ == "__main__":
    try:
        main(parse())
    except ShoalError as error:
        sys.exit(f"error: {error}")
