"""Envs in Ray actors: Shoal's backend `ray` against RLlib's EnvRunners and against `process`, interleaved in one run.

    pip install -e ".[ray]" "ray[rllib]"
    python benchmarks/ray_envs.py [--workers 2] [--envs 16] [--seconds 4] [--repeats 3]

Both have the same env, the same number of actors and of envs in each, and a network of the same layers that acts:
Shoal's in this process, RLlib's in every actor. CartPole and an 84x84x3 image of floats (RLlib's networks take no
bytes). Env steps per second; appended to benchmarks/results/ray_envs.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

import shoal
from shoal.measure import describe_machine

RESULTS = Path(__file__).parent / "results" / "ray_envs.jsonl"
FRAGMENT = 64  # steps of each env in one call of RLlib's sample()


class Image(gymnasium.Env[Any, Any]):
    """An image that never changes, in episodes of 100 steps."""

    observation_space: gymnasium.Space[Any] = gymnasium.spaces.Box(0, 1, (84, 84, 3), np.float32)
    action_space: gymnasium.Space[Any] = gymnasium.spaces.Discrete(2)

    def __init__(self, config: Any = None) -> None:
        self.obs, self.ticks = np.full((84, 84, 3), 0.4, np.float32), 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.ticks = 0
        return self.obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.ticks += 1
        return self.obs, 0.0, self.ticks == 100, False, {}


def cartpole(config: Any = None) -> Any:
    return gymnasium.make("CartPole-v1")


def network(obs: tuple[int, ...], actions: int) -> Callable[[Any], Any]:
    """Observations to actions. Images go through the convolutions of Atari agents."""
    if len(obs) == 3:
        layers: list[Any] = [torch.nn.Conv2d(3, 16, 8, 4), torch.nn.ReLU(), torch.nn.Conv2d(16, 32, 4, 2)]
        layers += [torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(2592, 64)]
    else:
        layers = [torch.nn.Linear(obs[0], 64)]
    layers += [torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, actions)]
    net = torch.nn.Sequential(*layers)

    def act(batch: Any) -> Any:
        with torch.inference_mode():
            x = torch.from_numpy(batch)  # it is not overwritten before `send`
            logits = net(x.permute(0, 3, 1, 2) if x.ndim == 4 else x)
            return torch.distributions.Categorical(logits=logits).sample().numpy()

    return act


class Ours:
    """Shoal: one batch in flight for each worker, acted for in the order of arrival."""

    def __init__(self, maker: Callable[[], Any], workers: int, envs: int, backend: str) -> None:
        self.vec: Any = shoal.make(
            maker, workers * envs, backend=backend, num_workers=workers, batch_size=envs, zero_copy=True, seed=0
        )
        obs_space: Any = self.vec.single_observation_space
        action_space: Any = self.vec.single_action_space
        self.act = network(obs_space.shape, int(action_space.n))
        self.vec.async_reset()

    def run(self, seconds: float) -> float:
        """Env steps per second."""
        steps, began = 0, time.perf_counter()
        while (spent := time.perf_counter() - began) < seconds:
            obs, *_, infos = self.vec.recv()
            self.vec.send(self.act(obs), infos["env_id"])
            steps += len(infos["env_id"])
        return steps / spent


class RLlib:
    """RLlib: every EnvRunner plays a fragment with its copy of the policy."""

    def __init__(self, maker: Callable[[], Any], workers: int, envs: int) -> None:
        from ray.rllib.algorithms.ppo import PPOConfig
        from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
        from ray.rllib.env.env_runner_group import EnvRunnerGroup
        from ray.tune.registry import register_env

        register_env("benchmarked", maker)  # type: ignore[no-untyped-call,unused-ignore]
        runners = {"num_env_runners": workers, "num_envs_per_env_runner": envs, "rollout_fragment_length": FRAGMENT}
        model = DefaultModelConfig(
            fcnet_hiddens=[64, 64], conv_filters=[[16, 8, 4], [32, 4, 2]], head_fcnet_hiddens=[64, 64]
        )
        config = PPOConfig().environment("benchmarked").framework("torch").env_runners(**runners)
        config = config.rl_module(model_config=model)
        self.group: Any = EnvRunnerGroup(config=config)
        self.run(0.0)

    def run(self, seconds: float) -> float:
        """Env steps per second."""
        steps, began = 0, time.perf_counter()
        while True:
            parts = self.group.foreach_env_runner(lambda runner: runner.sample(), local_env_runner=False)
            steps += sum(len(episode) for part in parts for episode in part)
            if len(parts) < self.group.num_remote_env_runners():
                raise SystemExit("an EnvRunner of RLlib has failed: its log is in Ray's folder of this session")
            if (spent := time.perf_counter() - began) >= seconds:
                return steps / spent


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--envs", type=int, default=16, help="envs of each actor")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    warnings.simplefilter("ignore")
    import ray

    torch.set_num_threads(1)
    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    ray.init(num_cpus=4 * options.workers, object_store_memory=2 * 10**9, **quiet)
    for name, maker in (("CartPole", cartpole), ("Image", Image)):
        rivals: dict[str, Any] = {
            "shoal": Ours(maker, options.workers, options.envs, "ray"),
            "process": Ours(maker, options.workers, options.envs, "process"),
            "rllib": RLlib(maker, options.workers, options.envs),
        }
        rates: dict[str, list[float]] = {rival: [] for rival in rivals}
        for _ in range(options.repeats):
            for rival, stepper in rivals.items():
                rates[rival].append(stepper.run(options.seconds))
        ratios = sorted(ours / theirs for ours, theirs in zip(rates["shoal"], rates["rllib"]))
        ratio = max(rates["shoal"]) / max(rates["rllib"])
        print(
            f"{name}: shoal {max(rates['shoal']):,.0f} steps/s, RLlib {max(rates['rllib']):,.0f} steps/s, "
            f"ratio {ratio:.1f} (best of {options.repeats}; single ratios {ratios[0]:.1f} .. {ratios[-1]:.1f}); "
            f"backend process {max(rates['process']):,.0f} steps/s",
            flush=True,
        )
        record = {"env": name, "workers": options.workers, "envs": options.envs, "rates": rates, "ratio": ratio}
        RESULTS.parent.mkdir(exist_ok=True)
        with RESULTS.open("a") as file:
            file.write(json.dumps({**describe_machine(), "ray": ray.__version__, **record}) + "\n")
        rivals["shoal"].vec.close()
        rivals["process"].vec.close()
        rivals["rllib"].group.stop()
    ray.shutdown()


if __name__ == "__main__":
    main()
