"""PPO as CleanRL's ppo.py has it, in one function over any `gymnasium.vector.VectorEnv` with SAME_STEP autoreset.

It knows nothing of Shoal: the tests and benchmarks/interop_learning.py change only the line that makes `envs`.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributions.categorical import Categorical


def layer(inputs: int, outputs: int, std: float = 2**0.5) -> Any:
    linear = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(linear.weight, std)
    nn.init.constant_(linear.bias, 0.0)
    return linear


def network(inputs: int, outputs: int, std: float) -> Any:
    return nn.Sequential(layer(inputs, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, outputs, std))


def train(
    envs: Any,
    *,
    seed: int = 1,
    total_steps: int = 500_000,
    num_steps: int = 128,
    learning_rate: float = 2.5e-4,
    gamma: float = 0.99,
    gae_lambda: float = 0.95,
    num_minibatches: int = 4,
    epochs: int = 4,
    clip: float = 0.2,
    entropy_coef: float = 0.01,
    value_coef: float = 0.5,
    max_grad_norm: float = 0.5,
    solved_at: float = float("inf"),
) -> tuple[int, list[float]]:
    """Returns how many steps were taken and the return of every episode that ended, in order.

    Stops after `total_steps`, or when the last 100 episodes have a mean return of `solved_at`.
    """
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    num_envs = envs.num_envs
    batch_size = num_envs * num_steps
    obs_size, num_actions = int(np.prod(envs.single_observation_space.shape)), int(envs.single_action_space.n)
    actor, critic = network(obs_size, num_actions, 0.01), network(obs_size, 1, 1.0)
    parameters = [*actor.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=learning_rate, eps=1e-5)

    # (T, B, ...): dones[t] says whether obs[t] begins an episode
    obs = torch.zeros((num_steps, num_envs, obs_size))
    actions = torch.zeros((num_steps, num_envs))
    logprobs, rewards, dones, values = (torch.zeros((num_steps, num_envs)) for _ in range(4))

    steps, returns, recent = 0, [], deque[float](maxlen=100)
    first, _ = envs.reset(seed=seed)
    next_obs, next_done = torch.Tensor(first).reshape(num_envs, -1), torch.zeros(num_envs)
    num_updates = max(1, total_steps // batch_size)
    for update in range(num_updates):
        optimizer.param_groups[0]["lr"] = (1.0 - update / num_updates) * learning_rate
        for t in range(num_steps):
            steps += num_envs
            obs[t], dones[t] = next_obs, next_done
            with torch.no_grad():
                policy = Categorical(logits=actor(next_obs))
                action = policy.sample()
                values[t], actions[t], logprobs[t] = critic(next_obs).flatten(), action, policy.log_prob(action)
            stepped, reward, terminations, truncations, infos = envs.step(action.numpy())
            rewards[t] = torch.tensor(reward)
            next_obs = torch.Tensor(stepped).reshape(num_envs, -1)
            next_done = torch.Tensor(np.logical_or(terminations, truncations))
            if "final_info" in infos:
                ended = infos["final_info"]["episode"]["r"][infos["_final_info"]].tolist()
                returns += ended
                recent.extend(ended)

        with torch.no_grad():
            next_value = critic(next_obs).flatten()
            advantages, last = torch.zeros_like(rewards), torch.zeros(num_envs)
            for t in reversed(range(num_steps)):
                not_done = 1.0 - (next_done if t == num_steps - 1 else dones[t + 1])
                following = next_value if t == num_steps - 1 else values[t + 1]
                delta = rewards[t] + gamma * following * not_done - values[t]
                advantages[t] = last = delta + gamma * gae_lambda * not_done * last
            targets = advantages + values

        b_obs, b_actions, b_logprobs = obs.reshape(batch_size, -1), actions.flatten(), logprobs.flatten()
        b_advantages, b_targets, b_values = advantages.flatten(), targets.flatten(), values.flatten()
        for _ in range(epochs):
            for rows in np.array_split(rng.permutation(batch_size), num_minibatches):
                policy = Categorical(logits=actor(b_obs[rows]))
                ratio = (policy.log_prob(b_actions[rows]) - b_logprobs[rows]).exp()
                advantage = b_advantages[rows]
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                policy_loss = torch.max(-advantage * ratio, -advantage * ratio.clamp(1 - clip, 1 + clip)).mean()
                value = critic(b_obs[rows]).flatten()
                clipped = b_values[rows] + (value - b_values[rows]).clamp(-clip, clip)
                errors = torch.max((value - b_targets[rows]) ** 2, (clipped - b_targets[rows]) ** 2)
                loss = policy_loss - entropy_coef * policy.entropy().mean() + value_coef * 0.5 * errors.mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, max_grad_norm)
                optimizer.step()
        if len(recent) == 100 and sum(recent) / 100 >= solved_at:
            break
    return steps, returns
