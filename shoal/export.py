"""Policies as files for other programs: ONNX, TorchScript and torch.export, without Shoal and without its env.

A file holds the whole policy: normalization, network, action mask, and the scaling of actions. Its inputs and outputs:

    obs, or obs.KEY for each part      raw observations (rows, ...), in the dtype of the space
    mask                               (rows, choices) int8, 1 where a choice is allowed; if the run had masks
    state_0, state_1, ...              the recurrent state (rows, ...); `initial_state` where an episode starts
    -> action, or action.KEY           the greedy action, as the env takes it
    -> logits                          (rows, n) float32, with forbidden choices at -1e9: see shoal/nn/distributions.py
    -> value                           (rows,) float32
    -> next_state_0, ...               the next recurrent state

`save` compares the file with the policy on random inputs before it is put in place.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from shoal.acting import Policy
from shoal.algos.actor import stored_dtype
from shoal.errors import ConfigError
from shoal.nn.env_actions import EnvActions
from shoal.nn.state import state_structure
from shoal.spec import Layout, structure

INSTALL = "pip install 'shoal[onnx]'"
STEPS = 8  # of the comparison, with the recurrent state carried on
ROWS = (1, 2, 7)  # batch sizes that are compared
TOLERANCE = 1e-4  # of the largest absolute value: float32 sums in another order
Run = Callable[[list[Tensor]], list[Any]]


class Signature(NamedTuple):
    """The names of a file's inputs and outputs, in order."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class Report(NamedTuple):
    """The result of a comparison of a file with its policy."""

    max_difference: float  # of logits, values, states and Box actions
    inputs: int  # observations that were compared
    runtime: str  # what ran the file


class Exported(nn.Module):
    """A policy as a module of tensors: `forward(*obs, [mask], *state) -> (*actions, logits, value, *next_state)`."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        actor, self._policy = policy.actor, policy
        self.actor, self.head, self.env_actions = actor, actor.head, EnvActions(actor.head)
        self.num_obs = len(actor.layout.leaves)
        self.has_mask = bool(policy.mask_size)
        self._structure = [state_structure(actor.policy)]
        for key, moments in actor.moments.items():  # in float32, as `RunningMoments.normalize` computes with them
            self.register_buffer(f"mean_{key}", moments.mean.to(torch.float32))
            self.register_buffer(f"scale_{key}", (moments.var + 1e-8).rsqrt().to(torch.float32))
        obs = _names("obs", actor.layout)
        states = len(actor.initial_state(1))
        inputs = [*obs, *(["mask"] if self.has_mask else []), *(f"state_{k}" for k in range(states))]
        outputs = [*_names("action", actor.head.layout), "logits", "value"]
        self.signature = Signature(tuple(inputs), (*outputs, *(f"next_state_{k}" for k in range(states))))

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The outputs of `signature` from its inputs."""
        leaves, rest = list(tensors[: self.num_obs]), tensors[self.num_obs :]
        for key in self.actor.moments:
            mean, scale = self.get_buffer(f"mean_{key}"), self.get_buffer(f"scale_{key}")
            leaf = leaves[int(key)].to(torch.float32)
            leaves[int(key)] = ((leaf - mean) * scale).clamp(-10.0, 10.0)
        obs, policy, nesting = structure(self.actor.space, iter(leaves)), self.actor.policy, self._structure[0]
        mask, state = (rest[0], rest[1:]) if self.has_mask else (None, rest)
        out = policy(obs, nesting.nest(tuple(state))) if state else policy(obs)
        logits, value = out[0], out[1].reshape(-1)
        next_state = nesting.flatten(out[2]) if state else ()
        if mask is not None:
            logits = self.head.mask(logits, mask)
        return (*self.env_actions(self.head.greedy(logits)), logits, value, *next_state)

    def describe(self) -> list[tuple[str, str, str, str]]:
        """(input or output, name, dtype, shape) of everything that goes in and out."""
        inputs = _inputs(self._policy, 2, 0)
        with torch.no_grad(), self.actor.evaluation_mode():
            outputs = self.forward(*inputs)
        sides = (("input", self.signature.inputs, inputs), ("output", self.signature.outputs, outputs))
        return [
            (side, name, str(tensor.dtype).removeprefix("torch."), ", ".join(["rows", *map(str, tensor.shape[1:])]))
            for side, names, tensors in sides
            for name, tensor in zip(names, tensors, strict=True)
        ]


def save(policy: Policy, path: str | Path, kind: str) -> Report:
    """Writes a policy to a file of a kind (`onnx`, `torchscript` or `torch-export`), and compares the two.

    A file whose results differ from the policy's is not written: ConfigError says by how much.
    """
    if kind not in WRITERS:
        raise ConfigError(f"kind={kind!r} is none of {', '.join(WRITERS)}.")
    path = Path(path)
    check(path, kind)
    if policy.device.type != "cpu":
        raise ConfigError(f"the policy is on {policy.device}. Move it first: policy.to('cpu').")
    module = Exported(policy).eval()
    temporary = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        with torch.no_grad(), policy.actor.evaluation_mode(), _quiet():
            write, open_file = WRITERS[kind]
            try:
                write(module, _inputs(policy, 3, 0), temporary)
            except ConfigError:
                raise
            except Exception as error:  # a custom policy may do what a graph cannot hold
                reason = str(error).strip().partition("\n")[0]
                raise ConfigError(
                    f"the policy cannot be exported to {kind}: {type(error).__name__}: {reason} A graph holds tensor "
                    "operations only: no Python branches on values, and x.shape[0] in place of len(x)."
                ) from error
            run, runtime = open_file(temporary, module.signature)
            report = compare(policy, module, run, runtime)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return report


def initial_state(policy: Policy, rows: int = 1) -> list[Tensor]:
    """`state_0`, `state_1`, ... where an episode starts: zeros, unless a custom policy begins otherwise."""
    return [part.detach().clone() for part in policy.actor.initial_state(rows)]


def check(path: Path, kind: str) -> None:
    """Raises if a file cannot be written, or if packages are missing: before a run is loaded."""
    missing = [name for name in NEEDED.get(kind, ()) if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"the export to {kind} needs {' and '.join(missing)}. Install it: {INSTALL}")
    folder = path.parent
    if path.is_dir() or not folder.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise ConfigError(f"{path} cannot be written. Choose a file in an existing folder that you may write to.")


# ---- the comparison ----


def compare(policy: Policy, module: Exported, run: Run, runtime: str) -> Report:
    """Runs a file and its policy on the same random inputs, and returns the largest difference of their results."""
    worst, count = 0.0, 0
    names, actions = module.signature.outputs, len(policy.actor.head.layout.leaves)
    for rows in ROWS:
        state: tuple[Tensor, ...] = policy.actor.initial_state(rows)
        for step in range(STEPS):
            inputs = _inputs(policy, rows, step)
            observed = inputs[: len(inputs) - len(state)]
            try:
                got = [np.asarray(part) for part in run([*observed, *state])]
            except Exception as error:
                raise ConfigError(
                    f"the exported file does not run on {rows} rows: {str(error).strip().partition(chr(10))[0]} A "
                    "custom policy must not depend on the number of rows: use x.shape[0], not len(x)."
                ) from error
            expected, state = _expected(policy, module, observed, state)
            is_clear = _is_clear(policy, expected[actions])
            for number, (name, mine, other) in enumerate(zip(names, expected, got, strict=True)):
                is_choice = number < actions and mine.dtype.kind in "iu"
                worst = max(worst, 0.0 if is_choice else _difference(name, mine, other))
                if is_choice and (differs := (mine != other).reshape(rows, -1).any(1) & is_clear).any():
                    raise ConfigError(f"the exported policy chooses another {name} in {differs.sum()} of {rows} rows.")
            count += rows
    return Report(worst, count, runtime)


def _expected(policy: Policy, module: Exported, observed: list[Tensor], state: Any) -> tuple[list[Any], Any]:
    """The outputs as `Policy` computes them: by the network's own path, not that of the export."""
    leaves = observed[: module.num_obs]
    obs = structure(policy.observation_space, iter(leaves))
    mask = observed[module.num_obs] if module.has_mask else None
    decision = policy.actor.act(obs, state, mask=mask)
    actions = policy.actor.head.to_env(decision.actions.numpy())
    numbers = [decision.logits.numpy(), decision.values.numpy(), *(part.numpy() for part in decision.state)]
    return [*map(np.asarray, policy.actor.head.layout.leaves_of(actions)), *numbers], decision.state


def _is_clear(policy: Policy, logits: Any) -> Any:
    """(rows,): where the best choices are better than the second best by more than rounding."""
    clear = np.ones(len(logits), np.bool_)
    for part in policy.actor.head.parts:
        if part.count > 1:
            second, best = np.sort(logits[:, part.logits], 1)[:, -2:].T
            clear &= best - second > TOLERANCE * np.maximum(1.0, np.abs(best))
    return clear


def _difference(name: str, mine: Any, other: Any) -> float:
    if mine.shape != other.shape:
        raise ConfigError(f"the exported {name} has shape {other.shape}, expected {mine.shape}.")
    difference = float(np.max(np.abs(mine - other), initial=0.0))
    limit = TOLERANCE * max(1.0, float(np.max(np.abs(mine), initial=0.0, where=np.abs(mine) < 1e8)))
    if not difference <= limit:
        raise ConfigError(f"the exported {name} differs from the policy's by {difference:.3g}, more than {limit:.3g}.")
    return difference


def _inputs(policy: Policy, rows: int, seed: int) -> list[Tensor]:
    """Random observations of the space, random masks, and states at the start of an episode."""
    space, layout = policy.observation_space, policy.actor.layout
    space.seed(seed)
    samples = [layout.leaves_of(space.sample()) for _ in range(rows)]
    leaves = [np.stack(parts) for parts in zip(*samples)]
    # wide bounds have samples that overflow in a network
    leaves = [np.clip(part, -1e6, 1e6) if part.dtype.kind == "f" else part for part in leaves]
    tensors = [
        torch.from_numpy(np.asarray(part)).to(stored_dtype(leaf.dtype)) for part, leaf in zip(leaves, layout.leaves)
    ]
    if policy.mask_size:
        mask = np.random.default_rng(seed).integers(0, 2, (rows, policy.mask_size)).astype(np.int8)
        for part in policy.actor.head.parts:
            mask[np.arange(rows), part.logits.start + np.arange(rows) % part.count] = 1
        tensors.append(torch.from_numpy(mask))
    return [*tensors, *initial_state(policy, rows)]


# ---- the formats ----


def _write_torchscript(module: Exported, inputs: list[Tensor], path: Path) -> None:
    traced = torch.jit.trace(module, tuple(inputs), check_trace=False)
    torch.jit.save(traced, str(path))


def _open_torchscript(path: Path, _: Signature) -> tuple[Run, str]:
    loaded = torch.jit.load(str(path))
    return lambda inputs: list(loaded(*inputs)), "torch.jit"


def _program(module: Exported, inputs: list[Tensor]) -> Any:
    dynamic = (tuple({0: torch.export.Dim.DYNAMIC} for _ in inputs),)
    return torch.export.export(module, tuple(inputs), dynamic_shapes=dynamic)


def _write_torch_export(module: Exported, inputs: list[Tensor], path: Path) -> None:
    with path.open("wb") as file:
        torch.export.save(_program(module, inputs), file)


def _open_torch_export(path: Path, _: Signature) -> tuple[Run, str]:
    with path.open("rb") as file:
        loaded = torch.export.load(file).module()
    return lambda inputs: list(loaded(*inputs)), "torch.export"


def _write_onnx(module: Exported, inputs: list[Tensor], path: Path) -> None:
    names = module.signature
    made = torch.onnx.export(
        _program(module, inputs),
        (),
        input_names=list(names.inputs),
        output_names=list(names.outputs),
        dynamo=True,
        verbose=False,
    )
    made.save(str(path), external_data=False)


def _open_onnx(path: Path, names: Signature) -> tuple[Run, str]:
    if importlib.util.find_spec("onnxruntime") is not None:
        import onnxruntime

        settings = onnxruntime.SessionOptions()
        settings.log_severity_level = 3
        session = onnxruntime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
        return lambda inputs: session.run(None, _feed(names, inputs)), f"onnxruntime {onnxruntime.__version__}"
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(str(path))
    return lambda inputs: evaluator.run(None, _feed(names, inputs)), "onnx's reference evaluator"


def _feed(names: Signature, inputs: list[Tensor]) -> dict[str, Any]:
    return {name: tensor.numpy() for name, tensor in zip(names.inputs, inputs, strict=True)}


NEEDED = {"onnx": ("onnx", "onnxscript")}
WRITERS: dict[str, tuple[Any, Any]] = {
    "onnx": (_write_onnx, _open_onnx),
    "torchscript": (_write_torchscript, _open_torchscript),
    "torch-export": (_write_torch_export, _open_torch_export),
}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's notes about deprecation, about traced constants, and about packages that are not needed."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _names(name: str, layout: Layout) -> list[str]:
    """`obs`, or `obs.camera` and `obs.gear.0`: one name for each leaf of a space."""
    return [".".join([name, *map(str, leaf.path)]) for leaf in layout.leaves]
