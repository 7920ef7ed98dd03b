"""A training script in the style of PufferLib's guides: make an env, make a policy, loop.

    python examples/train_template.py --env-name gym-CartPole-v1 --num-envs 16 --num-iterations 50
    python examples/train_template.py --env-name puffer_breakout --num-envs 1024 --num-steps 64 --seed 3
    python examples/train_template.py --resume checkpoints/final_model.pt

Its flags are those of the guides; `--train.learning-rate` is `--learning-rate`. `shoal train ENV` does the same
and more.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import numpy as np
import torch
from gymnasium import spaces
from torch import nn

import shoal.puffer as pufferlib
from shoal.errors import ShoalError
from shoal.puffer import PuffeRL
from shoal.puffer.pytorch import layer_init


class Policy(nn.Module):
    """Two layers for array observations, and logits for one or several discrete actions."""

    def __init__(self, observation_space, action_space, hidden_size=128):
        super().__init__()
        choices = action_space.nvec if isinstance(action_space, spaces.MultiDiscrete) else [action_space.n]
        self.encoder = nn.Sequential(
            nn.Flatten(),
            layer_init(nn.Linear(int(np.prod(observation_space.shape)), hidden_size)),
            nn.ReLU(),
            layer_init(nn.Linear(hidden_size, hidden_size)),
            nn.ReLU(),
        )
        self.actors = nn.ModuleList([layer_init(nn.Linear(hidden_size, int(n)), std=0.01) for n in np.ravel(choices)])
        self.critic = layer_init(nn.Linear(hidden_size, 1), std=1.0)

    def forward(self, observations):
        """Returns (logits of each choice, value)."""
        features = self.encoder(observations.float())
        return [actor(features) for actor in self.actors], self.critic(features)


def make_policy(env):
    """Makes the policy above if it fits the spaces, otherwise the default policy."""
    seen, done = env.single_observation_space, env.single_action_space
    if isinstance(seen, spaces.Box) and isinstance(done, (spaces.Discrete, spaces.MultiDiscrete)):
        return Policy(seen, done)
    return pufferlib.models.Default(env)


def make_logger(args):
    """Makes the logger of --logger."""
    if args.logger == "wandb" or args.wandb:
        return pufferlib.WandbLogger(project=args.project, entity=args.entity, name=args.exp_name, config=vars(args))
    if args.logger == "neptune":
        return pufferlib.NeptuneLogger(project=args.project, name=args.exp_name, api_token=args.neptune_token)
    return pufferlib.NoLogger()


def train(args):
    """Collects, learns and logs; saves a checkpoint every --save-freq iterations."""
    torch.manual_seed(args.seed)  # for the weights of the policy
    env = pufferlib.make(args.env_name, num_envs=args.num_envs, num_workers=args.num_workers, seed=args.seed)
    trainer = PuffeRL(
        env=env,
        policy=make_policy(env),
        device=args.device,
        learning_rate=args.learning_rate,
        batch_size=args.batch_size,
        num_steps=args.num_steps,
        n_epochs=args.n_epochs,
        gamma=args.gamma,
        gae_lambda=args.gae_lambda,
        clip_coef=args.clip_coef,
        ent_coef=args.ent_coef,
        vf_coef=args.vf_coef,
        max_grad_norm=args.max_grad_norm,
        compile=args.compile,
        seed=args.seed,
        logger=make_logger(args),
    )
    folder = Path(args.checkpoint_dir)
    with trainer:
        if args.resume:
            trainer.load_checkpoint(args.resume)
        for iteration in range(trainer.epoch + 1, args.num_iterations + 1):
            rollout = trainer.evaluate()
            trainer.train()
            trainer.mean_and_log()
            if iteration % args.save_freq == 0:
                trainer.save_checkpoint(folder / f"checkpoint_{iteration}.pt", metadata={"iteration": iteration})
            if iteration % args.log_freq == 0 or iteration == args.num_iterations:
                reward, sps = rollout["mean_reward"], rollout["sps"]
                print(f"iteration {iteration}/{args.num_iterations}  reward {reward:.2f}  sps {sps:,.0f}", flush=True)
        print("saved", trainer.save_checkpoint(folder / "final_model.pt"))


def parse(words=None):
    """Parses the flags. `--compile` and `--compile True` are the same."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])

    def flag(name, kind, default, text, *others, **options):
        names = [f"--{name}", f"--train.{name}", *others]
        parser.add_argument(*names, dest=name.replace("-", "_"), type=kind, default=default, help=text, **options)

    flag("env-name", str, "gym-CartPole-v1", "name of the env, as pufferlib.make takes it", "--env")
    flag("num-envs", int, 16, "number of envs")
    flag("num-workers", int, None, "worker processes; default: one per core")
    flag("num-iterations", int, 100, "number of rollouts")
    flag("learning-rate", float, 3e-4, "learning rate")
    flag("batch-size", int, None, "steps of a rollout over all envs; default: 128 per env")
    flag("num-steps", int, None, "steps of each env in a rollout; instead of batch-size")
    flag("n-epochs", int, 4, "passes over each rollout", "--update-epochs")
    flag("device", str, "cpu", "device of the policy", choices=["cpu", "cuda"])
    flag("gamma", float, 0.99, "discount factor")
    flag("gae-lambda", float, 0.95, "GAE lambda")
    flag("clip-coef", float, 0.2, "clip range of the probability ratio")
    flag("ent-coef", float, 0.01, "weight of the entropy bonus")
    flag("vf-coef", float, 0.5, "weight of the value loss")
    flag("max-grad-norm", float, 0.5, "clip gradients to this norm")
    flag("logger", str, "none", "logger", choices=["wandb", "neptune", "none"])
    flag("wandb", truth, False, "the same as --logger wandb", nargs="?", const=True)
    flag("project", str, "shoal", "project of the logger")
    flag("entity", str, None, "entity of W&B")
    flag("exp-name", str, None, "name of the run")
    flag("neptune-token", str, None, "token of Neptune (its service has ended)")
    flag("log-freq", int, 10, "iterations between printed lines")
    flag("checkpoint-dir", str, "checkpoints", "folder of checkpoints")
    flag("save-freq", int, 100, "iterations between checkpoints")
    flag("resume", str, None, "checkpoint to resume from")
    flag("seed", int, 42, "seed of weights, actions and envs")
    flag("compile", truth, False, "torch.compile the policy", nargs="?", const=True)
    return parser.parse_args(words)


def truth(word):
    """Converts a word such as yes or False to a bool."""
    if word.lower() in ("true", "yes", "on", "1"):
        return True
    if word.lower() in ("false", "no", "off", "0"):
        return False
    raise argparse.ArgumentTypeError(f"'{word}' is neither True nor False")


def main():
    """Trains. A mistake of the user is printed as one line."""
    args = parse()
    try:
        train(args)
    except ShoalError as error:
        if os.environ.get("RANK", "0") == "0":  # torchrun: only the first process prints
            print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
