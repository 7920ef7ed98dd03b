"""Your own training loop: shoal.make and torch, nothing else of Shoal's. PPO learns cartpole in a few seconds."""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.distributions import Categorical

import shoal

ENVS, HORIZON, EPOCHS, GAMMA, LAMBDA, CLIP = 64, 32, 10, 0.98, 0.8, 0.2


def main(total_steps: int) -> float:
    """Trains and returns the mean return of the last episodes."""
    torch.manual_seed(1)
    torch.set_num_threads(1)  # the batches are small
    envs = shoal.make("cartpole", ENVS)
    net = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3))  # 2 logits, value
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    obs, actions = torch.zeros(HORIZON, ENVS, 4), torch.zeros(HORIZON, ENVS, dtype=torch.int64)
    logprobs, rewards, continues, values, advantages = torch.zeros(5, HORIZON + 1, ENVS)
    mean, now = 0.0, torch.from_numpy(envs.reset(seed=1)[0].copy())
    for update in range(1, total_steps // (HORIZON * ENVS) + 1):
        with torch.no_grad():
            for t in range(HORIZON):
                out, obs[t] = net(now), now
                policy = Categorical(logits=out[:, :2])
                actions[t] = policy.sample()
                logprobs[t], values[t] = policy.log_prob(actions[t]), out[:, 2]
                next_obs, reward, terminated, truncated, infos = envs.step(actions[t].numpy())
                rewards[t], continues[t] = torch.from_numpy(reward), torch.from_numpy(~(terminated | truncated))
                if truncated.any():  # the time limit ended it: bootstrap from the last observation
                    rewards[t, truncated] += GAMMA * net(torch.from_numpy(infos["final_obs"][truncated]))[:, 2]
                now = torch.from_numpy(next_obs.copy())
            values[HORIZON] = net(now)[:, 2]
            for t in reversed(range(HORIZON)):
                error = rewards[t] + GAMMA * continues[t] * values[t + 1] - values[t]
                advantages[t] = error + GAMMA * LAMBDA * continues[t] * advantages[t + 1]
        flat = [x[:HORIZON].flatten(0, 1) for x in (obs, actions, logprobs, advantages, advantages + values)]
        for index in torch.cat([torch.randperm(HORIZON * ENVS) for _ in range(EPOCHS)]).split(HORIZON * ENVS // 4):
            seen_obs, taken, before, gain, returns = (x[index] for x in flat)
            out = net(seen_obs)
            policy = Categorical(logits=out[:, :2])
            ratio, gain = (policy.log_prob(taken) - before).exp(), (gain - gain.mean()) / (gain.std() + 1e-8)
            loss = -torch.minimum(gain * ratio, gain * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
            loss = loss + 0.05 * (out[:, 2] - returns).square().mean() - 0.005 * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if update % 10 == 0 and (stats := envs.drain_stats())["episodes"]:
            print(f"{update * HORIZON * ENVS:8,} steps  return {(mean := stats['return']['mean']):6.1f}", flush=True)
    return mean


if __name__ == "__main__":
    print(f"return {main(int(sys.argv[1]) if sys.argv[1:] else 150_000):.1f} of 500")
