"""A training script as PufferLib's guides have it: make an env, make a policy, loop. Change what you like.

    python examples/train_template.py --env-name gym-CartPole-v1 --num-envs 16 --num-iterations 50
    python examples/train_template.py --env-name puffer_breakout --num-envs 1024 --num-steps 64 --seed 3
    python examples/train_template.py --resume checkpoints/final_model.pt

Its flags are those of the guides; `--train.learning-rate` is `--learning-rate`. `shoal train ENV` does all this and
more.
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
    """Two layers for any array of observations, and logits for one choice or several."""

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
        """(logits of each choice, value)."""
        features = self.encoder(observations.float())
        return [actor(features) for actor in self.actors], self.critic(features)


def make_policy(env):
    """The policy above where it fits, else one for any spaces."""
    seen, done = env.single_observation_space, env.single_action_space
    if isinstance(seen, spaces.Box) and isinstance(done, (spaces.Discrete, spaces.MultiDiscrete)):
        return Policy(seen, done)
    return pufferlib.models.Default(env)


def make_logger(args):
    """By --logger."""
    if args.logger == "wandb" or args.wandb:
        return pufferlib.WandbLogger(project=args.project, entity=args.entity, name=args.exp_name, config=vars(args))
    if args.logger == "neptune":
        return pufferlib.NeptuneLogger(project=args.project, name=args.exp_name, api_token=args.neptune_token)
    return pufferlib.NoLogger()


def train(args):
    """Collect, learn, log; save now and then."""
    torch.manual_seed(args.seed)  # of the policy's weights
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
    """The flags. `--compile`, `--compile True` and `--compile False` mean what they say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])

    def flag(name, kind, default, text, *more, **options):
        names = [f"--{name}", f"--train.{name}", *more]
        parser.add_argument(*names, dest=name.replace("-", "_"), type=kind, default=default, help=text, **options)

    flag("env-name", str, "gym-CartPole-v1", "what pufferlib.make takes", "--env")
    flag("num-envs", int, 16, "envs at a time")
    flag("num-workers", int, None, "processes that step them; default: what fits")
    flag("num-iterations", int, 100, "rollouts to learn from")
    flag("learning-rate", float, 3e-4, "step size")
    flag("batch-size", int, None, "steps of a rollout over all envs; default: 128 for each")
    flag("num-steps", int, None, "steps of each env in a rollout; instead of batch-size")
    flag("n-epochs", int, 4, "passes over each rollout", "--update-epochs")
    flag("device", str, "cpu", "where the policy lives", choices=["cpu", "cuda"])
    flag("gamma", float, 0.99, "discount")
    flag("gae-lambda", float, 0.95, "0 trusts the critic, 1 the returns")
    flag("clip-coef", float, 0.2, "how far a probability may move")
    flag("ent-coef", float, 0.01, "weight of the entropy")
    flag("vf-coef", float, 0.5, "weight of the critic's loss")
    flag("max-grad-norm", float, 0.5, "gradients are scaled down to this norm")
    flag("logger", str, "none", "where numbers go", choices=["wandb", "neptune", "none"])
    flag("wandb", truth, False, "the same as --logger wandb", nargs="?", const=True)
    flag("project", str, "shoal", "of the logger")
    flag("entity", str, None, "of W&B")
    flag("exp-name", str, None, "name of the run")
    flag("neptune-token", str, None, "of Neptune, which is no more")
    flag("log-freq", int, 10, "iterations between lines")
    flag("checkpoint-dir", str, "checkpoints", "where checkpoints go")
    flag("save-freq", int, 100, "iterations between checkpoints")
    flag("resume", str, None, "a checkpoint to go on from")
    flag("seed", int, 42, "of weights, actions and envs")
    flag("compile", truth, False, "torch.compile the policy", nargs="?", const=True)
    return parser.parse_args(words)


def truth(word):
    """True or False, by what the word says."""
    if word.lower() in ("true", "yes", "on", "1"):
        return True
    if word.lower() in ("false", "no", "off", "0"):
        return False
    raise argparse.ArgumentTypeError(f"'{word}' is neither True nor False")


def main():
    """Trains, or says in one line what to change."""
    args = parse()
    try:
        train(args)
    except ShoalError as error:
        if os.environ.get("RANK", "0") == "0":  # of torchrun: one of them speaks
            print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
