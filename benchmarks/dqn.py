"""How much faster Shoal's DQN is than a plain one and than Stable-Baselines3, and what each of four ideas gains.

    python benchmarks/dqn.py [--seconds 3] [--repeats 3] [--only vacuum]

**Plain** (in this file): one game of vacuum; each robot has a network, a deque, an optimizer and its own network call;
training after every step. Then the ideas are added one after the other, still in plain PyTorch: several games at a
time, one replay and one network for all robots, training every fourth step, one network call for all. The last rows are
Shoal, with the same settings and with more games. All play at random (epsilon 1), so that games are equally long, and
all learn. Figure: games per minute.

**Stable-Baselines3**: its DQN and Shoal's on Gymnasium's CartPole, in one process each, with the same network, batch,
train frequency and target updates, without double Q-learning, which SB3 does not have. Figure: steps per second. The
row "as much learning" takes one gradient step for every four steps, as SB3 does with one env; the others take one for
every four steps of each env. SB3 counts target updates in steps of all envs, so its interval grows with their number.

**Memory**: the predicted and the measured memory of a replay of ten million transitions.

Rows take turns, `repeats` times. Figures are medians, with minimum and maximum. Each uses one torch thread. Appends to
benchmarks/results/dqn.jsonl and writes the tables of docs/dqn.md.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from gymnasium import spaces
from rich.console import Console
from rich.table import Table
from torch import nn

import shoal
from shoal.algos.replay import Replay
from shoal.algos.roles import Role
from shoal.measure import describe_machine
from shoal.train import Trainer, make_actor, options_for

ROOT = Path(__file__).parent.parent
RESULTS, PAGE = ROOT / "benchmarks" / "results" / "dqn.jsonl", ROOT / "docs" / "dqn.md"
MARKS = r"(<!-- Written by benchmarks/dqn.py.*?-->\n).*?(<!-- The end of what dqn.py writes. -->)"
HIDDEN, BATCH, START, GAMMA, RATE, MEMORY, TARGET = 128, 128, 1000, 0.99, 1e-4, 100_000, 1000
ROBOTS, OBS, ACTIONS, GAMES, FREQUENCY = 4, 18, 5, 8, 4


# ---- the plain one ----


class Agent:
    """A network with its target, optimizer and replay, as in a tutorial."""

    def __init__(self) -> None:
        self.net, self.target = self.make(), self.make()
        self.target.load_state_dict(self.net.state_dict())
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=RATE)
        self.memory: deque[tuple[Any, ...]] = deque(maxlen=MEMORY)
        self.trained = 0

    def make(self) -> nn.Module:
        """The same network as Shoal's."""
        layers = [nn.Linear(OBS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, ACTIONS)]
        return nn.Sequential(*layers)

    def act(self, obs: Any) -> Any:
        """A random action; the network is called too, as it would be with a lower epsilon."""
        with torch.no_grad():
            best = self.net(torch.as_tensor(obs)).argmax(-1).numpy()
        return np.where(np.random.random(best.shape) < 1.0, np.random.randint(ACTIONS, size=best.shape), best)

    def learn(self) -> None:
        """One step of double DQN."""
        if len(self.memory) < START:
            return
        parts = zip(*random.sample(self.memory, BATCH))
        obs, actions, rewards, later, over = (torch.as_tensor(np.stack(part)) for part in parts)
        with torch.no_grad():
            best = self.net(later).argmax(1, keepdim=True)
            goal = rewards + GAMMA * ~over * self.target(later).gather(1, best).squeeze(1)
        chosen = self.net(obs).gather(1, actions.unsqueeze(1)).squeeze(1)
        loss = nn.functional.mse_loss(chosen, goal.float())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.trained += 1
        if self.trained % TARGET == 0:
            self.target.load_state_dict(self.net.state_dict())


class Plain:
    """Plain DQN on vacuum with some of the ideas. `play` runs for some seconds and returns games per minute."""

    def __init__(self, games: int = 1, shared: bool = False, frequency: int = 1, batched: bool = False) -> None:
        self.envs = [shoal.make("vacuum", 1, seed=k, backend="serial") for k in range(games)]
        self.shared, self.frequency, self.batched = shared, frequency, batched
        self.agents = [Agent() for _ in range(1 if shared else ROBOTS)]
        self.obs = [env.reset()[0].copy() for env in self.envs]
        self.alive = [np.ones(ROBOTS, bool) for _ in self.envs]
        self.steps = 0

    def play(self, seconds: float) -> float:
        """Games per minute."""
        ended, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            actions = self.act()
            for k, env in enumerate(self.envs):
                obs, rewards, terminated, truncated, infos = env.step(actions[k])
                for robot in np.flatnonzero(self.alive[k]):
                    over = bool(terminated[robot])
                    what = self.obs[k][robot], actions[k][robot], rewards[robot], obs[robot].copy(), over
                    self.agents[0 if self.shared else robot].memory.append(what)
                done = terminated | truncated
                ended += bool((done | ~self.alive[k]).all())
                self.obs[k], self.alive[k] = obs.copy(), np.array(infos["alive"])
            self.steps += 1
            if self.steps % self.frequency == 0:
                for agent in self.agents:
                    agent.learn()
        return 60 * ended / (time.perf_counter() - began)

    def act(self) -> Any:
        """(games, robots)."""
        if self.batched:
            return self.agents[0].act(np.stack(self.obs))
        actions = np.zeros((len(self.envs), ROBOTS), np.int64)
        for k, obs in enumerate(self.obs):
            for robot in range(ROBOTS):
                actions[k, robot] = self.agents[0 if self.shared else robot].act(obs[robot])
        return actions


# ---- Shoal and Stable-Baselines3 ----


class Shoal:
    """Runs a trainer for some seconds."""

    def __init__(self, env: str, count: str, **tables: Any) -> None:
        self.count = count
        self.trainer = Trainer(env, options_for(env, {"algo": "dqn", "device": "cpu"}, tables))
        while not self.trainer.step > 4 * START:  # then it learns
            self.trainer.iterate()
        self.trainer.drain()

    def play(self, seconds: float) -> float:
        """Games per minute, or steps per second."""
        first, began = self.trainer.step, time.perf_counter()
        while time.perf_counter() - began < seconds:
            self.trainer.iterate()
        taken = time.perf_counter() - began
        games = float(self.trainer.drain()["episode/n"])
        return 60 * games / taken if self.count == "games" else (self.trainer.step - first) / taken


def shoal_on_vacuum(num_envs: int, gradient_steps: int = 1, policy: str = "shared") -> Shoal:
    """Shoal with the settings of the plain one."""
    train: dict[str, Any] = {"train_frequency": FREQUENCY, "gradient_steps": gradient_steps, "batch_size": BATCH}
    train["gamma"] = GAMMA
    train |= {"learning_rate": RATE, "replay_size": MEMORY, "replay_start": START, "target_every": TARGET}
    train |= {"loss": "mse", "epsilon_start": 1.0, "epsilon_end": 1.0, "total_steps": 10**9, "target_tau": 0.0}
    train |= {"n_step": 1, "policy": policy, "reward_scale": 1.0, "max_grad_norm": 0.0}
    vec = {"num_envs": num_envs, "torch_threads": 1}
    return Shoal("vacuum", "games", train=train, vec=vec, nn={"hidden": HIDDEN, "layers": 2, "activation": "relu"})


def shoal_on_cartpole(num_envs: int, gradient_steps: int = 1) -> Shoal:
    """Shoal with the settings of SB3's."""
    train: dict[str, Any] = {"train_frequency": FREQUENCY, "gradient_steps": gradient_steps}
    train |= {"batch_size": BATCH, "gamma": GAMMA, "double": False}
    train |= {"learning_rate": RATE, "replay_size": MEMORY, "replay_start": START, "target_every": TARGET}
    train |= {"epsilon_end": 0.05, "epsilon_start": 0.05, "total_steps": 10**9, "max_grad_norm": 10.0}
    vec = {"num_envs": num_envs, "torch_threads": 1, "backend": "serial"}
    return Shoal(
        "gymnasium:CartPole-v1", "steps", train=train, vec=vec, nn={"hidden": HIDDEN, "layers": 2, "activation": "relu"}
    )


class StableBaselines3:
    """SB3's DQN on `num_envs` CartPoles in one process."""

    def __init__(self, num_envs: int) -> None:
        from stable_baselines3 import DQN
        from stable_baselines3.common.env_util import make_vec_env

        self.num_envs = num_envs
        self.model = DQN(
            "MlpPolicy",
            make_vec_env("CartPole-v1", num_envs),
            learning_rate=RATE,
            buffer_size=MEMORY,
            learning_starts=START,
            batch_size=BATCH,
            gamma=GAMMA,
            train_freq=FREQUENCY,
            gradient_steps=1,
            target_update_interval=TARGET * FREQUENCY * num_envs,  # SB3 divides by the number of envs
            exploration_initial_eps=0.05,
            exploration_final_eps=0.05,
            policy_kwargs={"net_arch": [HIDDEN, HIDDEN]},
            device="cpu",
        )
        self.model.learn(4 * START)
        self.rate = 3000.0

    def play(self, seconds: float) -> float:
        """Steps per second."""
        began, first = time.perf_counter(), self.model.num_timesteps
        self.model.learn(max(1000, int(self.rate * seconds)), reset_num_timesteps=False)
        self.rate = (self.model.num_timesteps - first) / (time.perf_counter() - began)
        return self.rate


# ---- memory ----


def memory(size: int) -> dict[str, float]:
    """The predicted bytes of a replay of vacuum's transitions, and the measured bytes when it is full."""
    options = options_for("vacuum", {"algo": "dqn"})
    role = Role(None, (), spaces.Box(-1.0, 1.0, (OBS,), np.float32), spaces.Discrete(ACTIONS))
    actor = make_actor(role, options, 0)
    process = psutil.Process()
    before = process.memory_info().rss
    replay = Replay(actor, size, 1024, horizon=64, mask_size=ACTIONS, priority=0.5)
    for part in replay.tensors().values():
        part.fill_(1)
    return {"size": size, "predicted": replay.nbytes, "taken": process.memory_info().rss - before}


# ---- measuring ----


def measure(rows: dict[str, Callable[[], Any]], seconds: float, repeats: int) -> dict[str, list[float]]:
    """The figures of all rows, measured in turns."""
    players = {name: make() for name, make in rows.items()}
    for player in players.values():
        player.play(min(1.0, seconds))
    figures: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(repeats):
        for name, player in players.items():
            figures[name].append(player.play(seconds))
    return figures


def show(title: str, unit: str, figures: dict[str, list[float]]) -> None:
    """Prints a table, with each row compared with the first."""
    table = Table(title=title, box=None, header_style="bold", title_justify="left")
    for column in ("", unit, "min .. max", "against the first"):
        table.add_column(column, justify="left" if not column else "right")
    first = statistics.median(next(iter(figures.values())))
    for name, values in figures.items():
        middle = statistics.median(values)
        table.add_row(name, f"{middle:,.0f}", f"{min(values):,.0f} .. {max(values):,.0f}", f"{middle / first:,.1f}x")
    Console(width=120).print(table, "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds of each row in a turn (default 3)")
    parser.add_argument("--repeats", type=int, default=3, help="turns (default 3)")
    parser.add_argument("--only", choices=["vacuum", "cartpole", "memory"], default=None)
    flags = parser.parse_args()
    torch.set_num_threads(1)
    vacuum: dict[str, Callable[[], Any]] = {
        "plain": lambda: Plain(),
        f"+ {GAMES} games at a time": lambda: Plain(GAMES),
        "+ one replay and network": lambda: Plain(GAMES, shared=True),
        f"+ training every {FREQUENCY} steps": lambda: Plain(GAMES, shared=True, frequency=FREQUENCY),
        "+ one network call for all": lambda: Plain(GAMES, shared=True, frequency=FREQUENCY, batched=True),
        f"Shoal, {GAMES} games": lambda: shoal_on_vacuum(GAMES),
        f"Shoal, {GAMES} games, a network for each robot": lambda: shoal_on_vacuum(GAMES, policy="per-agent"),
        "Shoal, 256 games": lambda: shoal_on_vacuum(256),
        "Shoal, 256 games, 8 gradient steps": lambda: shoal_on_vacuum(256, 8),
    }
    cartpole: dict[str, Callable[[], Any]] = {}
    for count in (1, 8, 64):
        cartpole[f"Stable-Baselines3, {count} envs"] = lambda count=count: StableBaselines3(count)  # type: ignore[misc]
        cartpole[f"Shoal, {count} envs"] = lambda count=count: shoal_on_cartpole(count)  # type: ignore[misc]
    cartpole["Shoal, 64 envs, as much learning"] = lambda: shoal_on_cartpole(64, 64)
    figures: dict[str, Any] = {}
    if flags.only in (None, "memory"):
        figures["memory"] = memory(10_000_000)
        print(
            "replay of {size:,} transitions: predicted {predicted:,} bytes, taken {taken:,}".format(**figures["memory"])
        )
    if flags.only in (None, "vacuum"):
        figures["vacuum"] = measure(vacuum, flags.seconds, flags.repeats)
        show("vacuum, four robots: games per minute", "games/min", figures["vacuum"])
    if flags.only in (None, "cartpole"):
        figures["cartpole"] = measure(cartpole, flags.seconds, flags.repeats)
        show("Gymnasium's CartPole: steps per second", "steps/s", figures["cartpole"])
    record = {**describe_machine(), "seconds": flags.seconds, "repeats": flags.repeats, "figures": figures}
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a") as file:
        file.write(json.dumps(record) + "\n")
    PAGE.write_text(re.sub(MARKS, lambda m: m[1] + page() + m[2], PAGE.read_text(), flags=re.DOTALL))


def against(name: str, rows: dict[str, list[float]]) -> str:
    """The speed-up over the first row, or over SB3 with as many envs (for "as much learning", with one env)."""
    count = "1 envs" if "as much learning" in name else ", ".join(name.split(", ")[1:2])
    peer = rows.get(f"Stable-Baselines3, {count}")
    if peer is None:
        return f"{statistics.median(rows[name]) / statistics.median(next(iter(rows.values()))):.1f}x"
    ratios = [mine / theirs for mine, theirs in zip(rows[name], peer)]
    return f"{statistics.median(ratios):.1f}x ({min(ratios):.1f} .. {max(ratios):.1f})"


def page() -> str:
    """The last figures of each table, as Markdown."""
    last: dict[str, Any] = {}
    for line in RESULTS.read_text().splitlines():
        last |= json.loads(line)["figures"]
    lines = []
    for kind, unit in (("vacuum", "games per minute"), ("cartpole", "steps per second")):
        if kind not in last:
            continue
        beside = "the first" if kind == "vacuum" else "Stable-Baselines3, turn by turn"
        lines += [f"\n| {kind} | {unit} | least .. most | against {beside} |", "|---|---|---|---|"]
        for name, values in last[kind].items():
            middle = statistics.median(values)
            spread = f"{min(values):,.0f} .. {max(values):,.0f}"
            lines.append(f"| {name} | {middle:,.0f} | {spread} | {against(name, last[kind])} |")
    if "memory" in last:
        sentence = (
            "A replay of {size:,} transitions of vacuum was predicted to take {predicted:,} bytes and took {taken:,}."
        )
        lines += ["", sentence.format(**last["memory"])]
    return "\n".join(lines) + "\n\n"


if __name__ == "__main__":
    main()
