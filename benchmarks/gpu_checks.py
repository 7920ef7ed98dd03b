"""The parts of gpu.py that compare: GPU kernels with the plain path, runs with their repetition."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from shoal.algos import pqn
from shoal.algos.algorithm import ALGORITHMS
from shoal.train import Trainer, options_for
from shoal.train import train as train_run

ROOT = Path(__file__).resolve().parent.parent
PROBLEMS: list[str] = []  # differences that checks found: the command then exits with 1


# ---- kernels against the plain path ----

KERNELS: dict[str, tuple[str, dict[str, Any]]] = {
    "tanh, normalized": ("cartpole", {"nn": {"hidden": 64, "activation": "tanh"}, "train": {"normalize_obs": True}}),
    "118 numbers, 128 units": ("breakout", {}),
    "small minibatches": ("breakout", {"train": {"minibatches": 16}}),
    "Muon": ("breakout", {"nn": {"activation": "tanh"}, "train": {"optimizer": "muon", "learning_rate": 3e-3}}),
    "Muon in three steps": ("breakout", {"train": {"optimizer": "muon", "learning_rate": 3e-3, "muon_steps": 3}}),
    "masks, agents that die": ("vacuum", {"nn": {"hidden": 32}}),
    "MinGRU": ("breakout", {"nn": {"core": "mingru"}, "train": {"segment": 16}}),
    "LSTM": ("breakout", {"nn": {"core": "lstm"}, "train": {"segment": 16}}),
    "LSTM, Muon, small": (
        "cartpole",
        {"nn": {"core": "lstm", "hidden": 32}, "train": {"optimizer": "muon", "segment": 8, "learning_rate": 3e-3}},
    ),
    "MinGRU, masks, agents that die": ("vacuum", {"nn": {"core": "mingru", "hidden": 64}}),
    "value clip, AdamW": ("pong", {"train": {"value_clip": 0.2, "optimizer": "adamw", "weight_decay": 0.1}}),
    "numbers": ("pendulum", {"nn": {"hidden": 64, "activation": "tanh"}}),
    "several choices, agents": ("forage", {"nn": {"encoder": "mlp"}}),
    "CNN": ("maze", {}),
    "CNN, Muon": ("maze", {"train": {"optimizer": "muon", "learning_rate": 3e-3}}),
    "CNN, LSTM": ("maze", {"nn": {"core": "lstm"}, "train": {"segment": 16}}),
    "PQN": ("breakout", {"algo": "pqn"}),
    "PQN, masks, agents that die": ("vacuum", {"algo": "pqn", "nn": {"hidden": 64}}),
    "DQN": ("cartpole", {"algo": "dqn", "nn": {"hidden": 64}, "train": {"layer_norm": True, "n_step": 3}}),
}
ODD: dict[str, tuple[str, dict[str, Any]]] = {
    "37 envs, 5 minibatches": (
        "cartpole",
        {"vec": {"num_envs": 37}, "train": {"horizon": 7, "minibatches": 5}, "nn": {"hidden": 64}},
    ),
    "1 env": ("breakout", {"vec": {"num_envs": 1}, "train": {"horizon": 64}}),
    "5,001 envs, 7 minibatches": ("breakout", {"vec": {"num_envs": 5001}, "train": {"minibatches": 7}}),
    "1 layer of 7 units": ("cartpole", {"nn": {"layers": 1, "hidden": 7}}),
    "3 layers of 100 units, Muon": (
        "cartpole",
        {"nn": {"layers": 3, "hidden": 100}, "train": {"optimizer": "muon", "learning_rate": 3e-3}},
    ),
    "3 layers of 512 units": ("breakout", {"nn": {"layers": 3, "hidden": 512}, "vec": {"num_envs": 333}}),
    "2,006 numbers": ("breakout", {"wrap": ("stack=17",), "vec": {"num_envs": 500}}),
    "1,345 numbers, 17 choices": ("craftax_classic", {"vec": {"num_envs": 300}}),
    "1,345 numbers, 3 layers of 512 units, Muon": (
        "craftax_classic",
        {
            "env": {"flat": 1},
            "nn": {"hidden": 512, "layers": 3},
            "train": {"optimizer": "muon", "muon_steps": 3, "learning_rate": 3e-3},
            "vec": {"num_envs": 300},
        },
    ),
    "tall matrices, Muon": (
        "breakout",
        {
            "nn": {"hidden": 512, "layers": 3},
            "train": {"optimizer": "muon", "learning_rate": 3e-3},
            "vec": {"num_envs": 333},
        },
    ),
    "masks": ("connect4", {"vec": {"num_envs": 129}}),
    "masks, agents that die, 48 units": ("vacuum", {"nn": {"hidden": 48}, "vec": {"num_envs": 100}}),
    "agents, CNN, 3 minibatches": (
        "forage",
        {"nn": {"encoder": "grid"}, "vec": {"num_envs": 333}, "train": {"minibatches": 3}},
    ),
    "agents, 7 units, 3 layers": ("forage", {"nn": {"encoder": "mlp", "hidden": 7, "layers": 3}}),
    "squashed numbers, std by state": ("pendulum", {"nn": {"squash": "tanh", "std": "state", "hidden": 24}}),
    "numbers, LSTM": ("pendulum", {"nn": {"core": "lstm", "hidden": 32}, "vec": {"num_envs": 77}}),
    "mixed actions": (str(ROOT / "tests/mixture.h"), {"nn": {"hidden": 40}}),
    "CNN, MinGRU, 130 envs": ("maze", {"nn": {"core": "mingru"}, "vec": {"num_envs": 130}}),
    "PQN, 37 envs, no norm": (
        "breakout",
        {"algo": "pqn", "vec": {"num_envs": 37}, "train": {"layer_norm": False, "horizon": 9, "minibatches": 4}},
    ),
    "PQN, 65 envs": ("vacuum", {"algo": "pqn", "nn": {"hidden": 64}, "vec": {"num_envs": 65}}),
    "DQN, batches of 101, Huber": (
        "vacuum",
        {"algo": "dqn", "nn": {"hidden": 64}, "train": {"batch_size": 101, "loss": "huber"}, "vec": {"num_envs": 65}},
    ),
    "PQN, 3 layers of 512 units": (
        "breakout",
        {"algo": "pqn", "nn": {"hidden": 512, "layers": 3}, "vec": {"num_envs": 333}},
    ),
    "PQN, 4 layers of 140 units, no norm": (
        "breakout",
        {"algo": "pqn", "nn": {"hidden": 140, "layers": 4}, "train": {"layer_norm": False, "minibatches": 3}},
    ),
    "PQN, 1 layer of 7 units, normalized": (
        "cartpole",
        {"algo": "pqn", "nn": {"hidden": 7, "layers": 1, "activation": "tanh"}, "train": {"normalize_obs": True}},
    ),
    "PQN, 1,345 numbers, 17 choices": (
        "craftax_classic",
        {"algo": "pqn", "env": {"flat": 1}, "nn": {"hidden": 512}, "vec": {"num_envs": 300}},
    ),
    "PQN, masks, agents that die, 48 units": (
        "vacuum",
        {"algo": "pqn", "nn": {"hidden": 48}, "vec": {"num_envs": 100}},
    ),
    "PQN, CNN": ("maze", {"algo": "pqn", "vec": {"num_envs": 333}}),
    "DQN, 3 layers of 512 units": (
        "breakout",
        {"algo": "dqn", "nn": {"hidden": 512, "layers": 3}, "train": {"layer_norm": True}},
    ),
    "DQN, 256 units, not double, masks": (
        "vacuum",
        {"algo": "dqn", "nn": {"hidden": 256}, "train": {"batch_size": 101, "double": False}, "vec": {"num_envs": 65}},
    ),
}
# Actions that are numbers are mean + deviation x noise. Noise and free deviations are the same on both sides, so that
# they differ as the means do: by as much as logits may.
LOGITS_APART = 0.05


def kernels(names: list[str] | None = None) -> dict[str, Any]:
    """Compares the fused kernels (bfloat16) with the plain path (float32), from the same rollout."""
    return {name: compare(name, *KERNELS[name]) for name in names or KERNELS}


def odd_settings(names: list[str] | None = None) -> dict[str, Any]:
    """As `kernels`, for sizes that no tuned config has."""
    return {name: compare(name, *ODD[name]) for name in names or ODD}


def compare(name: str, env: str, tables: dict[str, Any]) -> dict[str, Any]:
    """Compares the logits of the first step, the gradient of the last minibatch, and the direction in which the weights
    moved. (The tests compare them in float32, in Triton's interpreter.)

    Where values are near their targets, the norm of the gradient is that of a small difference, which bfloat16 moves by
    several percent: by 3.3 % for forage and 7 units, in the kernels and in torch's autocast. (In maze the values are
    -0.27 and their mean error 0.02: there bfloat16 moves the norm by 0.4 %, and tf32, which cuts numbers off instead
    of rounding them, by 5 %.) So a norm that is 2 % from that in float32 must be within 2 % of autocast's.
    """
    algo = tables.get("algo", "ppo")
    if algo == "dqn":
        train: dict[str, Any] = {"train_frequency": 32, "gradient_steps": 1, "batch_size": 4096, "replay_start": 1}
        train["replay_size"] = 1 << 20
    else:
        train = {"horizon": 32, "minibatches": 1, "epochs": 1}
    train |= {"total_steps": 10**7, **tables.get("train", {})}
    sides = []
    for precision in ("fp32", "auto"):
        own = {"vec": {"num_envs": 2048}, **tables, "train": {**train, "precision": precision}}
        trainer = Trainer(env, options_for("", {"device": "cuda", "algo": algo}, own))
        trainer.start()
        sides.append(trainer)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    plain, fast = (side.learners[0] for side in sides)
    assert plain.fused is None
    if fast.fused is None:
        PROBLEMS.append(f"kernels {env}, {name}: the plain path")
        return {"plain path": True}
    for side in sides:
        side.collector.collect()
    logits_difference = float((plain.rollout.logits[0] - fast.rollout.logits[0]).abs().max())
    allowed = LOGITS_APART if plain.actor.head.has_box else 0.0
    apart = (plain.rollout.actions[0].double() - fast.rollout.actions[0].double()).abs()
    same = float((apart <= allowed).double().mean())
    for mine, theirs in zip(fast.rollout.tensors(), plain.rollout.tensors()):
        mine.copy_(theirs)
    if algo == "pqn":  # the plain path stores no values: it takes the highest Q-values
        fast.rollout.values.copy_(pqn.best_values(plain))
    for key, stream in fast.streams.items():
        stream.set_state(plain.streams[key].get_state())
    before, norms = plain.weights.detach().clone(), list[float]()
    state = {key: value.clone() for key, value in plain.optimizer.state.items()}
    for learner in (plain, fast):
        norms.append(float(ALGORITHMS.find(algo).update(learner)["grad_norm"]))
    moved = [(learner.weights.detach() - before).flatten() for learner in (plain, fast)]
    row: dict[str, Any] = {
        "logits_apart": logits_difference,
        "actions_same": same,
        "gradients": _cosine(plain.weights.grad, fast.weights.grad),
        "norms": norms,
        "weights": _cosine(*moved),
    }
    # Muon orthogonalizes in bfloat16, which amplifies differences in a matrix's small components
    is_muon = train.get("optimizer") == "muon"
    good = logits_difference < LOGITS_APART and same > 0.97 and row["weights"] > (0.95 if is_muon else 0.98)
    if train.get("minibatches", 1) == 1:  # otherwise the weights differ before the last minibatch
        if abs(norms[1] / norms[0] - 1) >= 0.02:
            norms.append(norm_by_autocast(plain, algo, before, state))
        good = good and row["gradients"] > 0.995 and abs(norms[1] / norms[-1 if len(norms) > 2 else 0] - 1) < 0.02
    PROBLEMS.extend([] if good else [f"kernels {env}, {name}: {row}"])
    print(
        f"kernels {Path(env).stem:9} {name:32} {'agrees' if good else 'DIFFERS'}: logits within "
        f"{logits_difference:.4f}, {same:.2%} of actions the same, cosine of gradients {row['gradients']:.5f}, of "
        f"weight changes {row['weights']:.4f}, norms {', '.join(f'{norm:.5f}' for norm in norms)}",
        flush=True,
    )
    for side in sides:
        side.close()
    torch.cuda.empty_cache()
    return row


def norm_by_autocast(learner: Any, algo: str, weights: Any, state: dict[str, Any]) -> float:
    """The norm of the gradient by the plain path with torch's bfloat16 products, from these weights."""
    learner.weights.data.copy_(weights)
    for key, value in state.items():
        learner.optimizer.state[key].copy_(value)
    with torch.autocast("cuda", torch.bfloat16):
        return float(ALGORITHMS.find(algo).update(learner)["grad_norm"])


def _cosine(one: Any, two: Any) -> float:
    return float(torch.nn.functional.cosine_similarity(one.flatten().double(), two.flatten().double(), dim=0))


# ---- runs against their repetition ----

LEAGUE: dict[str, Any] = {"on": True, "pool": 6, "snapshot": 8192, "every": 1}
EXACT: dict[str, tuple[str, dict[str, Any]]] = {
    "fused": ("breakout", {}),
    "fused, Muon": ("breakout", {"train": {"optimizer": "muon"}}),
    "normalizers, truncation": (
        "pendulum",
        {"env": {"max_steps": 10}, "train": {"normalize_reward": True, "normalize_obs": True}},
    ),
    "LSTM": ("memory", {"nn": {"core": "lstm"}}),
    "LSTM, plain path, bf16": ("memory", {"nn": {"core": "lstm", "layers": 1}, "train": {"precision": "bf16"}}),
    "MinGRU, Muon": ("memory", {"nn": {"core": "mingru"}, "train": {"optimizer": "muon"}}),
    "MinGRU, plain path": ("memory", {"nn": {"core": "mingru"}, "train": {"precision": "tf32"}}),
    "LSTM, truncation": ("cartpole", {"nn": {"core": "lstm"}, "env": {"max_steps": 7}, "train": {"segment": 4}}),
    "agents, masks": ("forage", {"nn": {"encoder": "mlp"}}),
    "CNN": ("maze", {}),
    "priority": ("cartpole", {"train": {"priority": 0.5}}),
    "a policy for each agent": ("vacuum", {"nn": {"policies": "per_agent"}}),
    "scripted opponents": ("vacuum", {"opponents": "1=seek,2=flee,3=random"}),
    "DQN": ("vacuum", {"algo": "dqn"}),
    "DQN, priority, C51, truncation": (
        "cartpole",
        {"algo": "dqn", "env": {"max_steps": 7}, "train": {"priority": 0.5, "distribution": "c51", "n_step": 3}},
    ),
    "DQN, a network for each agent, opponents": (
        "vacuum",
        {"algo": "dqn", "opponents": "3=seek", "train": {"policy": "per-agent", "replay": "per-agent"}},
    ),
    "PQN": ("breakout", {"algo": "pqn"}),
    "PQN, plain path": ("breakout", {"algo": "pqn", "train": {"precision": "fp32"}}),
    "PQN, agents, masks": ("vacuum", {"algo": "pqn", "nn": {"hidden": 64}}),
    "DQN, cartpole": ("cartpole", {"algo": "dqn", "nn": {"hidden": 64}, "train": {"layer_norm": True}}),
    "PQN, wide, truncation": (
        "breakout",
        {"algo": "pqn", "nn": {"hidden": 512, "layers": 3}, "env": {"max_steps": 20}},
    ),
    "DQN, wide, masks": (
        "vacuum",
        {"algo": "dqn", "nn": {"hidden": 256}, "train": {"layer_norm": True, "precision": "auto"}},
    ),
    "numbers": ("pendulum", {"nn": {"hidden": 64}}),
    "agents, CNN": ("forage", {"nn": {"encoder": "grid"}}),
    "CNN, Muon, LSTM": ("maze", {"nn": {"core": "lstm"}, "train": {"segment": 8, "optimizer": "muon"}}),
    "CNN, MinGRU": ("maze", {"nn": {"core": "mingru"}, "train": {"segment": 8}}),
    "wide, Muon in three steps": (
        "breakout",
        {"nn": {"hidden": 256, "layers": 3}, "train": {"optimizer": "muon", "muon_steps": 3}},
    ),
    "envs on the host, DQN, scripted opponents": (
        "vacuum",
        {"algo": "dqn", "opponents": "1=seek,2=seek,3=seek", "vec": {"backend": "threads", "num_groups": 2}},
    ),
    "envs on the host": ("breakout", {"vec": {"backend": "threads", "num_groups": 2}}),
    "envs on the host, MinGRU, truncation": (
        "cartpole",
        {"nn": {"core": "mingru"}, "env": {"max_steps": 10}, "vec": {"backend": "threads", "num_groups": 2}},
    ),
    "envs on the host, LSTM, truncation": (
        "pendulum",
        {"nn": {"core": "lstm"}, "env": {"max_steps": 10}, "vec": {"backend": "threads", "num_groups": 2}},
    ),
    "stacked frames, sticky actions": ("cartpole", {"wrap": ("stack=4", "sticky=0.25"), "env": {"max_steps": 20}}),
    "schedules": (
        "cartpole",
        {
            "env": {"gravity": "linear(5, 15)", "max_steps": 20},
            "train": {"entropy_coef": "linear(0.1, 0)", "learning_rate": "cosine(1e-2, 1e-3)"},
        },
    ),
    "drawn params": ("cartpole", {"env": {"dt": "loguniform(0.005, 0.08)", "max_steps": 20}}),
    "DQN, schedules, wrappers": (
        "cartpole",
        {"algo": "dqn", "env": {"max_steps": 20}, "train": {"epsilon": "exp(1, 0.01)"}, "wrap": ("skip=2", "stack=2")},
    ),
    "own reward": ("cartpole", {"reward": f"{ROOT / 'examples/own_by_name/mine.py'}:Thrifty"}),
    "a Python opponent in the graph": ("midrange", {"opponents": f"1={ROOT / 'examples/train_midrange.py'}:Chaser"}),
    "a Python opponent without a graph": ("forage", {"opponents": "1=random", "nn": {"encoder": "mlp"}}),
    "groups with a policy each": (str(ROOT / "examples/chase/chase.h"), {"nn": {"hidden": 64}}),
    "unlike agents": (str(ROOT / "tests/unlike.h"), {"nn": {"hidden": 64}}),
    "mixed actions": (str(ROOT / "tests/mixture.h"), {"nn": {"hidden": 64}}),
    "league, robots, fused": (
        "vacuum",
        {"env": {"preset": "duel-stun", "max_steps": 20}, "league": {**LEAGUE, "members": ("seek", "random")}},
    ),
    "league, LSTM": (
        "vacuum",
        {"env": {"preset": "duel-stun", "max_steps": 20}, "league": LEAGUE, "nn": {"core": "lstm"}},
    ),
    "league, masks": ("connect4", {"league": LEAGUE}),
    "league, multi-discrete, exploiters": (
        "midrange",
        {"env": {"time_limit": 10.0}, "league": {**LEAGUE, "exploiters": 1}},
    ),
}


def weights_after(env: str, tables: dict[str, Any], iterations: int, stop_at: int = 0) -> dict[str, Any]:
    """All tensors of a checkpoint after `iterations` iterations; with `stop_at`, stopped there and resumed."""
    if tables.get("algo") == "dqn":
        train = {"train_frequency": 8, "gradient_steps": 4, "replay_size": 200_000, "replay_start": 5000}
    else:
        train = {"horizon": 16, "minibatches": 4}
    common = {"device": "cuda", "algo": tables.get("algo", "ppo")}
    own = {"train": {**train, "total_steps": 10**7}, "vec": {"num_envs": 512}}
    options = options_for("", common, own, tables)
    trainer = Trainer(env, options)
    for _ in range(stop_at or iterations):
        trainer.iterate()
    if stop_at:
        state = {name: {k: v.cpu().clone() for k, v in part.items()} for name, part in trainer.state().items()}
        meta = {**trainer.counters(), "step": trainer.step}
        trainer.close()
        trainer = Trainer(env, options)
        trainer.restore(state, meta)
        for _ in range(iterations - stop_at):
            trainer.iterate()
    results = {f"{name}.{k}": v.cpu() for name, part in trainer.state().items() for k, v in part.items()}
    trainer.close()
    return results


def exact(names: list[str] | None = None) -> dict[str, Any]:
    """Compares a repeated and a resumed run with the first one, bit for bit."""
    results: dict[str, Any] = {}
    for name in names or EXACT:
        env, tables = EXACT[name]
        once, again, resumed = (weights_after(env, tables, 6, stop) for stop in (0, 0, 3))
        others = {"repeat": again, "resume": resumed}
        differ = {kind: [k for k in once if not torch.equal(once[k], other[k])] for kind, other in others.items()}
        results[name] = {kind: f"differs in {keys[:3]}" if keys else "same" for kind, keys in differ.items()}
        PROBLEMS.extend(f"exact {name}: {kind} {word}" for kind, word in results[name].items() if word != "same")
        words = ", ".join(f"{kind} {word}" for kind, word in results[name].items())
        print(f"exact {Path(env).stem:9} {name:40} {words}", flush=True)
    return results


def curriculum() -> dict[str, Any]:
    """Compares a run whose opponents change (robot, Python agent, frozen self) with its repetition and its resume."""
    iteration = 512 * 16
    chaser = f"1={ROOT / 'examples/train_midrange.py'}:Chaser"
    phases = [
        {"opponents": "1=drone", "env": {"time_limit": 20.0}, "until": {"steps": 16 * iteration}},
        {"opponents": chaser, "env": {"time_limit": 20.0}, "until": {"steps": 16 * iteration}},
        {"opponents": "1=self", "env": {"time_limit": 20.0}, "refresh": 8 * iteration},
    ]
    tables: dict[str, Any] = {
        "device": "cuda",
        "curriculum": phases,
        "console": "off",
        "train": {"total_steps": 64 * iteration, "horizon": 16, "minibatches": 4},
        "vec": {"num_envs": 512},
        "eval": {"episodes": 0},
        "save": {"every_s": 0, "every": 1, "keep": 100},
    }
    with tempfile.TemporaryDirectory() as folder:
        runs = [train_run("midrange", runs_folder=f"{folder}/{k}", **tables) for k in range(2)]
        expected, again = (checkpoints_of(run) for run in runs)
        for path in runs[1].checkpoints()[5:]:  # in the phase of the frozen self
            shutil.rmtree(path)
        resumed = checkpoints_of(train_run("midrange", resume=runs[1].folder, console="off"))
    words = ["same" if other == expected else "differs" for other in (again, resumed)]
    PROBLEMS.extend(f"curriculum: {what} {word}" for what, word in zip(("repeat", "resume"), words) if word != "same")
    print(f"curriculum: repeat {words[0]}, resume {words[1]}, {len(expected)} files", flush=True)
    return {"repeat": words[0], "resume": words[1]}


def checkpoints_of(run: Any) -> dict[str, bytes]:
    """All tensors of a run's checkpoints, by file."""
    return {f"{p.parent.name}/{p.name}": p.read_bytes() for p in sorted(run.folder.rglob("*.safetensors"))}
