"""How fast PPO trains, against Stable-Baselines3, CleanRL's PPO, and the bare matrix products.

    pip install -e ".[dev]"
    python benchmarks/train_speed.py [--only rate time floor] [--rounds 5] [--quick] [--profile]

rate    Gymnasium's CartPole-v1, 8 envs, the same network and hyperparameters (CleanRL's): env steps per second.
time    CartPole, each at its best: seconds until the last 100 training episodes have a mean return of 475.
floor   breakout, 4096 envs, a 128x128 MLP: seconds per iteration, divided by those of its matrix products alone.

Competitors take turns, one round each. Each runs in its own process, whose peak memory is reported. In `rate` and
`time` all use one torch thread: the batches are small, and a second thread makes each competitor slower. Each run of
this file appends machine, commit and every round to benchmarks/results/train_speed.jsonl.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from shoal.measure import describe_machine

# Nothing heavy is imported up here: the time from a process's start counts.

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results" / "train_speed.jsonl"
MARK = 475.0
NUM_ENVS, NUM_STEPS = 8, 128  # of `rate`
Result = dict[str, Any]


# ---- rate: the same work ----


def rate_ours(options: argparse.Namespace, backend: str) -> Result:
    trainer = ours_like_cleanrl(backend)
    for _ in range(2):
        trainer.iterate()
    trainer.drain()
    start = time.perf_counter()
    if options.profile:
        profile_python(lambda: repeat(trainer.iterate, options.iterations))
    else:
        repeat(trainer.iterate, options.iterations)
    took = time.perf_counter() - start
    record = trainer.drain()
    memory = peak_mb()
    trainer.close()
    return {"rate": options.iterations * NUM_ENVS * NUM_STEPS / took, "memory_mb": memory, "split": split(record, took)}


def ours_like_cleanrl(backend: str) -> Any:
    from shoal.train import Options, Trainer, merge

    train = {"total_steps": "10M", "horizon": NUM_STEPS, "epochs": 4, "minibatches": 4, "learning_rate": 2.5e-4}
    train |= {"value_clip": 0.2, "entropy_coef": 0.01}
    vec = {"num_envs": NUM_ENVS, "backend": backend, "torch_threads": 1}
    net = {"hidden": 64, "layers": 2, "activation": "tanh", "separate": True}
    return Trainer("gymnasium:CartPole-v1", merge(Options(), {"train": train, "vec": vec, "nn": net}, "benchmark"))


def rate_sb3(options: argparse.Namespace) -> Result:
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    one_thread()
    settings: dict[str, Any] = {"n_steps": NUM_STEPS, "batch_size": NUM_ENVS * NUM_STEPS // 4, "n_epochs": 4}
    settings |= {"learning_rate": 2.5e-4, "clip_range": 0.2, "clip_range_vf": 0.2, "ent_coef": 0.01}
    model = PPO("MlpPolicy", make_vec_env("CartPole-v1", NUM_ENVS), seed=1, device="cpu", **settings)
    model.learn(2 * NUM_ENVS * NUM_STEPS)
    start, before = time.perf_counter(), model.num_timesteps
    model.learn(options.iterations * NUM_ENVS * NUM_STEPS, reset_num_timesteps=False)
    took = time.perf_counter() - start
    return {"rate": (model.num_timesteps - before) / took, "memory_mb": peak_mb()}


def rate_cleanrl(options: argparse.Namespace) -> Result:
    train, envs = cleanrl(NUM_ENVS)
    train(envs, total_steps=2 * NUM_ENVS * NUM_STEPS, num_steps=NUM_STEPS)
    start = time.perf_counter()
    steps, _ = train(envs, total_steps=options.iterations * NUM_ENVS * NUM_STEPS, num_steps=NUM_STEPS)
    return {"rate": steps / (time.perf_counter() - start), "memory_mb": peak_mb()}


def cleanrl(num_envs: int) -> tuple[Callable[..., tuple[int, list[float]]], Any]:
    """The loop and its envs."""
    import gymnasium

    sys.path.insert(0, str(ROOT))
    from tests.cleanrl_ppo import train

    def make() -> Any:
        return gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make("CartPole-v1"))

    one_thread()
    mode = gymnasium.vector.AutoresetMode.SAME_STEP
    return train, gymnasium.vector.SyncVectorEnv([make] * num_envs, autoreset_mode=mode)


# ---- time: each at its best ----


def time_ours(options: argparse.Namespace) -> Result:
    """The same as `shoal train cartpole`, without logs and checkpoints."""
    from shoal.train import Trainer, options_for

    imported = time.time()
    chosen = options_for("cartpole", {"seed": options.seed})
    trainer, recent = Trainer("cartpole", chosen), deque[tuple[int, float]]()
    mean = 0.0
    limit = options.time_steps or chosen.train.total_steps
    while trainer.step < limit and mean < MARK:
        trainer.iterate()
        record = trainer.drain()
        if record["episode/n"]:
            recent.append((int(record["episode/n"]), record["episode/return"]))
            while sum(n for n, _ in recent) - recent[0][0] >= 100:
                recent.popleft()
            count = sum(n for n, _ in recent)
            mean = sum(n * value for n, value in recent) / count if count >= 100 else 0.0
    trainer.close()
    return reached(imported, trainer.step, mean)


def time_sb3(options: argparse.Namespace) -> Result:
    """With RL Baselines3 Zoo's settings for CartPole."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    # repeated in interop_learning.py, so that each benchmark is one file to read
    def mean_return(model: Any) -> float:
        returns: list[float] = [info["r"] for info in model.ep_info_buffer]
        return sum(returns) / max(1, len(returns))

    class Solved(BaseCallback):  # type: ignore[misc]
        def _on_step(self) -> bool:
            return len(self.model.ep_info_buffer) < 100 or mean_return(self.model) < MARK

    imported = time.time()
    one_thread()
    settings: dict[str, Any] = {"n_steps": 32, "batch_size": 256, "n_epochs": 20, "gae_lambda": 0.8, "gamma": 0.98}
    settings |= {"learning_rate": lambda left: left * 1e-3, "clip_range": lambda left: left * 0.2, "ent_coef": 0.0}
    model = PPO("MlpPolicy", make_vec_env("CartPole-v1", 8), seed=options.seed, device="cpu", **settings)
    model.learn(options.time_steps or 200_000, callback=Solved())
    return reached(imported, model.num_timesteps, mean_return(model))


def time_cleanrl(options: argparse.Namespace) -> Result:
    """With the settings of CleanRL's ppo.py."""
    train, envs = cleanrl(4)
    imported = time.time()
    total = options.time_steps or 500_000
    steps, returns = train(envs, seed=options.seed, total_steps=total, solved_at=MARK)
    return reached(imported, steps, sum(returns[-100:]) / max(1, len(returns[-100:])))


def reached(imported: float, steps: int, mean: float) -> Result:
    return {"imported": imported, "ended": time.time(), "steps": steps, "mean": mean, "memory_mb": peak_mb()}


# ---- floor: what the matrix products alone take ----


def floor(options: argparse.Namespace) -> Result:
    """Iterations of ours and of the bare products, in turns."""
    from shoal.train import Trainer, options_for

    net = {"hidden": 128, "layers": 2, "activation": "relu", "core": "none", "separate": False}
    vec = {"num_envs": 4096}
    chosen = options_for("breakout", {"vec": vec, "nn": net, "train": {"total_steps": "1B"}})
    trainer = Trainer("breakout", chosen)
    for _ in range(2):
        trainer.iterate()
    trainer.drain()
    memory, products = peak_mb(), Products(trainer)
    products.iterate()
    ours, alone = [], []
    for _ in range(options.floor_iterations):
        start = time.perf_counter()
        trainer.iterate()
        middle = time.perf_counter()
        products.iterate()
        ours.append(middle - start)
        alone.append(time.perf_counter() - middle)
    facts = {"ours_s": ours, "floor_s": alone, "memory_mb": memory, "split": split(trainer.drain(), sum(ours))}
    config = chosen.train
    facts |= {"horizon": config.horizon, "epochs": config.epochs, "minibatches": config.minibatches}
    facts |= {"threads": trainer.threads, "ranges": len(trainer.collector.ranges)}
    if options.profile:
        profile_torch(trainer)
    trainer.close()
    return facts


class Products:
    """The matrix products of one iteration, on batches of the trainer's sizes, and nothing else."""

    def __init__(self, trainer: Any) -> None:
        import torch

        self.torch, config, self.threads = torch, trainer.options.train, trainer.threads
        self.horizon, self.updates = config.horizon, config.epochs * config.minibatches
        matrices = [p.detach().clone() for p in trainer.actors[0].policy.parameters() if p.ndim == 2]
        *self.body, self.actor, self.critic = matrices  # (outputs, inputs)
        self.ranges = [self.buffers(envs.hi - envs.lo) for envs in trainer.collector.ranges.values()]
        self.last = self.buffers(trainer.num_rows)
        self.part = self.buffers(config.horizon * trainer.num_rows // config.minibatches)
        self.gradients = [torch.empty_like(part) for part in self.part]
        self.grads = [torch.empty_like(weight) for weight in matrices]

    def buffers(self, rows: int) -> list[Any]:
        """Inputs, the output of each layer, logits, values."""
        sizes = [self.body[0].shape[1], *(len(weight) for weight in self.body), len(self.actor), len(self.critic)]
        return [self.torch.randn(rows, size) for size in sizes]

    def forward(self, parts: list[Any]) -> None:
        mm, body = self.torch.mm, len(self.body)
        for k, weight in enumerate(self.body):
            mm(parts[k], weight.t(), out=parts[k + 1])
        mm(parts[body], self.actor.t(), out=parts[-2])
        mm(parts[body], self.critic.t(), out=parts[-1])

    def backward(self) -> None:
        mm, body, parts, gradients, grads = self.torch.mm, len(self.body), self.part, self.gradients, self.grads
        mm(gradients[-1].t(), parts[body], out=grads[-1])
        mm(gradients[-2].t(), parts[body], out=grads[-2])
        mm(gradients[-1], self.critic, out=gradients[body])
        mm(gradients[-2], self.actor, out=gradients[body])
        for k in range(body - 1, -1, -1):
            mm(gradients[k + 1].t(), parts[k], out=grads[k])
            if k:  # observations need no gradient
                mm(gradients[k + 1], self.body[k], out=gradients[k])

    def iterate(self) -> None:
        self.torch.set_num_threads(self.threads)
        with self.torch.inference_mode():
            for _ in range(self.horizon):
                for envs in self.ranges:
                    self.forward(envs)
            self.forward(self.last)
            for _ in range(self.updates):
                self.forward(self.part)
                self.backward()


# ---- inside a competitor's process ----


def one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def repeat(step: Callable[[], object], count: int) -> None:
    for _ in range(count):
        step()


def split(record: dict[str, float], total: float) -> dict[str, float]:
    """The share of each activity in the time."""
    shares = {kind: record[f"time/{kind}"] / total for kind in ("env", "inference", "copy", "learn")}
    return {**shares, "other": 1.0 - sum(shares.values())}


def peak_mb() -> float:
    """The peak memory of this process, plus the current memory of its workers. Shared pages count twice."""
    import psutil

    try:
        status = Path("/proc/self/status").read_text()
        used = 1024 * int(status.split("VmHWM:")[1].split()[0])
    except (OSError, IndexError):
        used = psutil.Process().memory_info().rss
    return float(used + sum(child.memory_info().rss for child in psutil.Process().children(recursive=True))) / 1e6


def profile_python(work: Callable[[], object]) -> None:
    import cProfile
    import pstats

    profile = cProfile.Profile()
    profile.runcall(work)
    pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(40)


def profile_torch(trainer: Any) -> None:
    from torch.profiler import ProfilerActivity, profile

    for name, work in (("collect", trainer.collect), ("learn", trainer.learn)):
        with profile(activities=[ProfilerActivity.CPU]) as recorded:
            work()
        print(
            name, recorded.key_averages().table(sort_by="self_cpu_time_total", row_limit=25), sep="\n", file=sys.stderr
        )


CHILDREN: dict[str, Callable[[argparse.Namespace], Result]] = {
    "rate/shoal serial": lambda options: rate_ours(options, "serial"),
    "rate/shoal process": lambda options: rate_ours(options, "process"),
    "rate/Stable-Baselines3": rate_sb3,
    "rate/CleanRL-style": rate_cleanrl,
    "time/shoal": time_ours,
    "time/Stable-Baselines3": time_sb3,
    "time/CleanRL-style": time_cleanrl,
    "floor/shoal": floor,
}


# ---- the rounds ----


def play_rounds(kind: str, rounds: int, args: list[str], console: Console) -> dict[str, list[Result]]:
    """Runs every competitor once in each round, in its own process."""
    by_name: dict[str, list[Result]] = {name: [] for name in CHILDREN if name.startswith(f"{kind}/")}
    for number in range(rounds):
        for name in by_name:
            with console.status(f"{name}, round {number + 1} of {rounds}"):
                began = time.time()
                asked = [sys.executable, __file__, "--child", name, "--seed", str(number + 1), *args]
                done = subprocess.run(asked, stdout=subprocess.PIPE, text=True)
            if done.returncode:
                sys.exit(f"{name} failed with {done.returncode}")
            by_name[name].append({"began": began, **json.loads(done.stdout.splitlines()[-1])})
    return {name.partition("/")[2]: results for name, results in by_name.items()}


def show_rate(console: Console, by_name: dict[str, list[Result]]) -> Result:
    rates = {name: [result["rate"] for result in results] for name, results in by_name.items()}
    best = max(("shoal serial", "shoal process"), key=lambda name: median(rates[name]))
    ratios = {name: median(a / b for a, b in zip(rates[best], rates[name])) for name in rates}
    table = new_table(
        "rate: CartPole-v1, 8 envs, the same work", "steps/s", "least .. most", "peak MB", "ours is faster"
    )
    for name, values in rates.items():
        spread = f"{min(values):,.0f} .. {max(values):,.0f}"
        ratio_text = f"{ratios[name]:.2f}x" if not name.startswith("shoal") else "ours" if name == best else ""
        table.add_row(name, f"{median(values):,.0f}", spread, f"{peak(by_name[name]):,.0f}", ratio_text)
    console.print(table)
    bars = {"Stable-Baselines3": 3.0, "CleanRL-style": 2.5}
    passed = verdict(console, {name: (ratios[name], bar) for name, bar in bars.items()})
    if not passed:
        show_split(console, by_name[best][-1]["split"])
    return {"rates": rates, "ours": best, "ratios": ratios, "memory_mb": peaks(by_name), "passed": passed}


def show_time(console: Console, by_name: dict[str, list[Result]]) -> Result:
    seconds = {name: [result["ended"] - result["began"] for result in results] for name, results in by_name.items()}
    later = {name: [result["ended"] - result["imported"] for result in results] for name, results in by_name.items()}
    ratios = {name: median(seconds[name]) / median(seconds["shoal"]) for name in by_name}
    plain = {name: median(later[name]) / median(later["shoal"]) for name in by_name}
    columns = ("seconds", "least .. most", "less imports", "steps", "reached", "peak MB", "ours is faster")
    table = new_table(f"time: CartPole until the last 100 episodes have a mean return of {MARK:g}", *columns)
    for name, results in by_name.items():
        steps, means = (median(result[key] for result in results) for key in ("steps", "mean"))
        ratio_text = "" if name == "shoal" else f"{ratios[name]:.1f}x ({plain[name]:.1f}x less imports)"
        spread = f"{min(seconds[name]):.1f} .. {max(seconds[name]):.1f}"
        solved = sum(result["mean"] >= MARK for result in results)
        told_mean = f"{means:.0f} ({solved} of {len(results)})"
        texts = f"{median(seconds[name]):.1f}", spread, f"{median(later[name]):.1f}", f"{steps:,.0f}", told_mean
        table.add_row(name, *texts, f"{peak(results):,.0f}", ratio_text)
    console.print(table)
    passed = verdict(console, {name: (ratios[name], 20.0) for name in by_name if name != "shoal"})
    facts = {"seconds": seconds, "seconds_less_imports": later, "ratios": ratios, "ratios_less_imports": plain}
    facts |= {"steps": {name: [result["steps"] for result in results] for name, results in by_name.items()}}
    facts |= {"means": {name: [result["mean"] for result in results] for name, results in by_name.items()}}
    return {**facts, "memory_mb": peaks(by_name), "passed": passed}


def show_floor(console: Console, by_name: dict[str, list[Result]]) -> Result:
    rounds = by_name["shoal"]
    ours, alone = ([median(result[key]) for result in rounds] for key in ("ours_s", "floor_s"))
    ratio = median(median(a / b for a, b in zip(result["ours_s"], result["floor_s"])) for result in rounds)
    facts = {key: rounds[0][key] for key in ("horizon", "epochs", "minibatches", "threads", "ranges")}
    ratio_text = ", ".join(f"{key} {value}" for key, value in facts.items())
    table = new_table(
        f"floor: breakout, 4096 envs, 128x128, {ratio_text}", "ms/iteration", "least .. most", "peak MB", ""
    )
    for name, values in (("shoal", ours), ("matrix products", alone)):
        spread = f"{1e3 * min(values):,.0f} .. {1e3 * max(values):,.0f}"
        memory, over = (f"{peak(rounds):,.0f}", f"{ratio:.2f}x the floor") if name == "shoal" else ("", "")
        table.add_row(name, f"{1e3 * median(values):,.0f}", spread, memory, over)
    console.print(table)
    passed = ratio <= 2.0
    console.print(f"{'passes' if passed else 'fails'}: {ratio:.2f}x the floor, the bar is 2x at most")
    if not passed:
        show_split(console, rounds[-1]["split"])
    console.print()
    rest = {"ours_s": ours, "floor_s": alone, "ratio": ratio, "split": rounds[-1]["split"]}
    return {**facts, **rest, "memory_mb": peaks(by_name), "passed": passed}


def new_table(title: str, *columns: str) -> Table:
    table = Table(title=title, box=None, title_justify="left")
    for column in ("", *columns):
        table.add_column(column, justify="left" if not column else "right")
    return table


def verdict(console: Console, bars: dict[str, tuple[float, float]]) -> bool:
    for name, (ratio, bar) in bars.items():
        console.print(f"{'passes' if ratio >= bar else 'fails'}: {ratio:.2f}x {name}, the bar is {bar:g}x")
    console.print()
    return all(ratio >= bar for ratio, bar in bars.values())


def show_split(console: Console, shares: dict[str, float]) -> None:
    console.print("where Shoal spends its time: " + ", ".join(f"{kind} {share:.0%}" for kind, share in shares.items()))


def peak(results: list[Result]) -> float:
    return max(float(result["memory_mb"]) for result in results)


def peaks(by_name: dict[str, list[Result]]) -> dict[str, float]:
    return {name: round(peak(results), 1) for name, results in by_name.items()}


def main() -> None:
    shows = {"rate": show_rate, "time": show_time, "floor": show_floor}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(shows), default=list(shows), metavar="PART")
    parser.add_argument("--rounds", type=int, default=5, help="rounds (default 5)")
    parser.add_argument("--quick", action="store_true", help="one short round, to check that it runs; not recorded")
    parser.add_argument("--profile", action="store_true", help="profile Shoal in rate and floor; not recorded")
    parser.add_argument("--iterations", type=int, default=30, help="iterations of 1024 steps in rate (default 30)")
    parser.add_argument("--floor-iterations", type=int, default=5, help="iterations in floor (default 5)")
    parser.add_argument("--time-steps", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--child", choices=list(CHILDREN), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(CHILDREN[options.child](options)), flush=True)
        return
    rounds, passed = options.rounds, ["--iterations", str(options.iterations)]
    passed += ["--floor-iterations", str(options.floor_iterations), *(["--profile"] if options.profile else [])]
    if options.quick:
        rounds, passed = 1, [*passed, "--iterations", "3", "--floor-iterations", "1", "--time-steps", "5000"]
    console, summary = Console(width=120), {}
    for kind in options.only:
        summary[kind] = shows[kind](console, play_rounds(kind, rounds, passed, console))
    if not options.quick and not options.profile:
        RESULTS.parent.mkdir(exist_ok=True)
        with RESULTS.open("a") as file:
            file.write(json.dumps({"machine": describe_machine(), "rounds": rounds, **summary}) + "\n")


if __name__ == "__main__":
    main()
