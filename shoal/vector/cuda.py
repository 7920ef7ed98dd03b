"""The `cuda` backend: native envs on a GPU, one thread per env, with the same bytes as `serial`.

State, buffers and statistics are torch tensors on the device. reset and step return these tensors, which the next call
overwrites (see `VecEnv`). Calls start kernels on torch's current stream and do not wait for them, except that `step`
reads once whether an action was out of range. `launch_step` does not: it is for learners, whose actions come from a
kernel, and for CUDA graphs.

This is the only file of this folder that uses torch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from shoal.distributions import Distribution
from shoal.errors import ActionError, ConfigError, SnapshotError, UsageError
from shoal.native import cuda
from shoal.native.batch import Memory, check_sizes, describe_episodes, extra_names, num_metrics, set_wrap
from shoal.native.lib import Batch, Module
from shoal.native.params import PARAM_STREAM, ParamTable, side_streams
from shoal.spec import Array
from shoal.vector.actions import as_array, choices_of
from shoal.vector.backends import Backend
from shoal.vector.base import AUTORESET, check_reset_mask
from shoal.vector.native_base import NativeVecBase, check_ids, check_params
from shoal.vector.serial import SerialVec
from shoal.vector.snapshot import check_records, pack_snapshot, read_snapshot
from shoal.wrappers import Wrap


class CudaVec(NativeVecBase):
    """Envs of one kind on one GPU."""

    backend, is_on_gpu = "cuda", True

    def __init__(
        self,
        module: Module,
        num_envs: int,
        *,
        seed: int | None = None,
        copy: bool = False,
        autoreset: str = "same_step",
        render_mode: str | None = None,
        params: dict[str, Any] | None = None,
        wrap: Wrap | None = None,
        device: int = 0,
    ) -> None:
        cuda.require_gpu()
        import torch

        super().__init__(
            module, num_envs, seed=seed, copy=copy, autoreset=autoreset, render_mode=render_mode, wrap=wrap
        )
        checked = check_params(self.native_spec, params or {}, self.num_envs)
        spec, self._torch, self.device = module.spec, torch, torch.device("cuda", device)
        needed, (free, _) = Memory.bytes_needed(module, self.num_envs, self.wrap), torch.cuda.mem_get_info(device)
        if needed > free:
            raise ConfigError(
                f"num_envs={num_envs} needs {needed:,} bytes of GPU memory, {free:,} are free. Use fewer envs."
            )
        row_bytes = int(np.prod(spec.obs_shape)) * spec.obs_dtype.itemsize * spec.agents
        assert module.source.header is not None
        self._load = partial(cuda.load, module.source.header, tuple(module.source.consts), device, row_bytes)
        self.kernels = self._load(bool(self.wrap) or autoreset != "same_step")
        layout = Memory._layout(module, self.num_envs, self.wrap)
        if self.wrap.changes_obs:  # a step may write `obs` into a rollout: the frames to come are stacked on these
            layout["history"] = layout["obs"]
        self.tensors = {name: self._zeros(shape, dtype) for name, (shape, dtype) in layout.items()}
        self.struct = Batch(num_envs=self.num_envs, autoreset=list(AUTORESET).index(autoreset))
        set_wrap(self.struct, module, self.wrap)
        for name, tensor in self.tensors.items():
            setattr(self.struct, name, tensor.data_ptr())
        self.table = ParamTable(module, self.num_envs)
        self.actions, self.alive = self.tensors["actions"], self.tensors["alive"]
        self._bad = torch.zeros((), dtype=torch.int64, device=self.device)
        self._every = torch.ones(self.num_rows, dtype=torch.bool, device=self.device)
        self._sent = False
        self._params_tensor: Any = None
        self._rules: tuple[Any, Any] | None = None
        self._may_capture = torch.cuda.is_available()
        self._is_captured = False  # whether a CUDA graph holds a step: then addresses stay as they are
        self.table.set(checked)
        self._push_params()
        self.table.made = self.table.fingerprint()

    def _zeros(self, shape: Any, dtype: Any) -> Any:
        torch, kind = self._torch, np.dtype(dtype)
        plain = {np.dtype(np.uint32): np.dtype(np.int32)}.get(kind, kind)  # torch has few operations for uint32
        return torch.zeros(shape, dtype=torch.from_numpy(np.zeros(0, plain)).dtype, device=self.device)

    # ---- the Gymnasium API ----

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Starts episodes in all envs, or in those of `options["reset_mask"]`. See `VecEnv.reset`."""
        self._refuse_closed()
        mask = None
        for key, value in (options or {}).items():
            if key != "reset_mask":
                raise ConfigError(f"options has '{key}'; the only option of reset is 'reset_mask'.")
            host = value.cpu().numpy() if isinstance(value, self._torch.Tensor) else value
            mask = self._to_device(check_reset_mask(host, self.num_envs))
        if mask is not None and not self._started:
            raise UsageError("reset(options={'reset_mask': …}) before a full reset(): the other envs have no state.")
        seeds = self._seeds_for_reset(seed)
        self._next_seeds = None
        numbers = None if seeds is None else self._to_device(seeds.view(np.int64))
        self.struct.seeds = 0 if numbers is None else numbers.data_ptr()
        self.struct.reset_mask = 0 if mask is None else mask.data_ptr()
        self.kernels.launch("reset", self.num_envs, self.struct)
        self.struct.seeds = self.struct.reset_mask = 0  # torch reuses their memory only after the kernel
        self._started = True
        return self._out(self.tensors["obs"]), self._infos(ended=False)

    def step(self, actions: Any) -> tuple[Any, ...]:
        """One transition of every env: tensors on the device."""
        self._refuse_before("step")
        if self._sent:
            raise UsageError("step() while the envs are in flight. Call recv() first.")
        self._take(actions)
        self.launch_step()
        return self._result()

    def async_reset(self, *, seed: int | Sequence[int] | None = None) -> None:
        """Starts episodes; `recv` returns the first observations."""
        self.reset(seed=seed)
        self._sent = True

    def send(self, actions: Any, env_id: Any = None) -> None:
        """Starts a step of all envs."""
        self._refuse_before("send")
        if self._sent:
            raise UsageError("send() to envs that are in flight. Call recv() first.")
        self._take(actions)
        self.launch_step()
        self._sent = True

    def recv(self) -> tuple[Any, ...]:
        """The result of the last send or async_reset, for all envs."""
        self._refuse_closed()
        if not self._sent:
            raise UsageError("recv() with nothing in flight. Call async_reset() or send() first.")
        self._sent = False
        result = self._result()
        result[4]["env_id"] = np.arange(self.num_envs, dtype=np.int32)
        if self.has_dead_rows:
            result[4]["alive"] = self._alive_now()
        return result

    def launch_step(self, **places: Any) -> None:
        """Starts a step with the actions in `vec.actions`, unchecked.

        `places` are tensors that replace the env's own for this step: `obs`, `actions`, `rewards`, `terminated`,
        `truncated`, `done`, `final_obs` and so on. With them a step writes directly into a rollout.
        """
        struct = self.struct
        if self._may_capture and not self._is_captured:
            self._is_captured = self._torch.cuda.is_current_stream_capturing()
        if places:
            struct = Batch.from_buffer_copy(self.struct)
            for name, tensor in places.items():
                setattr(struct, name, tensor.data_ptr())
        shape = cuda.Shape(128, 0, 0) if struct.wraps else self.kernels.step_shape(self.num_envs)
        numbers = ctypes.c_int32(shape.stage_bytes > 0), ctypes.c_int32(shape.spread)
        threads = self.num_envs << shape.spread
        self.kernels.launch("step", threads, struct, *numbers, block=shape.block, shared=shape.stage_bytes)
        if self.kernels.finishes and not struct.wraps:  # a wrapped step has finished them itself
            self.kernels.launch_finish(self.num_envs, struct)

    def render(self) -> tuple[Array, ...]:
        """A frame of every env. `frame(env)` draws one."""
        return tuple(self.frame(env) for env in range(self.num_envs))

    # ---- beyond Gymnasium ----

    def drain_stats(self) -> dict[str, Any]:
        """`{"episodes": n, "return": {"mean", "min", "max"}, …}` since the last call. Waits for the device."""
        torch, metrics = self._torch, num_metrics(self.module)
        sums = torch.zeros(metrics, dtype=torch.float64, device=self.device)
        ends = torch.zeros(2, metrics, device=self.device)
        counts = torch.zeros(metrics, dtype=torch.int64, device=self.device)
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in (sums, ends[0], ends[1], counts)]
        self.kernels.launch("drain", 256 * metrics, self.struct, *pointers, block=256)
        self.tensors["episodes"].zero_()
        episodes = int(counts[0])
        if not episodes:
            self.agent_stats = {}
            return {"episodes": 0}
        lows, highs = ends.tolist()
        stats, self.agent_stats = describe_episodes(self.module, episodes, sums.tolist(), lows, highs)
        return stats

    def set_params(self, **params: Any) -> None:
        """Changes params from the next step on: one value for all envs, or one for each.

        A distribution such as `shoal.uniform(1, 2)` is drawn from at the start of each episode.
        """
        values = check_params(self.native_spec, params, self.num_envs)
        drawn = [name for name, value in values.items() if isinstance(value, Distribution)]
        each = [name for name, value in values.items() if not isinstance(value, Distribution) and value.shape]
        new = (drawn if not self.struct.num_rules else []) or (each if not self.table.is_per_env else [])
        if self._is_captured and new and self.num_envs > 1:
            raise UsageError(
                f"set_params({new[0]}=…) needs a value for each env, but a CUDA graph of the envs' steps was captured "
                f"with one for all. Make the envs with a distribution or an array of {new[0]}, or with --device cpu."
            )
        self._pull_params()
        self.table.set(values)
        self.table.is_changed = True
        self._push_params()

    def give_params(self, names: Sequence[str]) -> dict[str, Any]:
        """Tensors of an entry for each env, from which every new episode takes these params. Write into them."""
        self._pull_params()
        host = self.table.give(names)
        self._push_params()
        assert self._rules is not None
        values, first = self._rules[1].view(self._torch.float64), self.table.rule_values.ctypes.data
        starts = {name: (array.ctypes.data - first) // 8 for name, array in host.items()}
        return {name: values[start : start + self.num_envs] for name, start in starts.items()}

    def get_params(self) -> dict[str, Array]:
        """Every param as an array of one value for each env; of a distribution, the value that was drawn last."""
        self._pull_params()
        return self.table.read()

    def _pull_params(self) -> None:
        """Reads the params that kernels have drawn."""
        if self.table.is_drawn and self._params_tensor is not None:
            self.table.values[:] = self._params_tensor.cpu().numpy().view(self.module.params_dtype)

    def _push_params(self) -> None:
        """Copies params and rules to the device; in place if they are there already: CUDA graphs hold addresses."""
        table, struct = self.table, self.struct
        self._params_tensor = self._put(self._params_tensor, table.values)
        struct.params, struct.params_stride = self._params_tensor.data_ptr(), int(table.is_per_env)
        if not (table.is_drawn or self._rules):
            return
        before = self._rules or (None, None)
        if self._rules is None:
            self.kernels = self._load(True)
            streams = side_streams(self.tensors["rng"].cpu().numpy().view(np.uint32), PARAM_STREAM)
            self.tensors["param_rng"] = self._to_device(streams.view(np.int32))
            struct.param_rng = self.tensors["param_rng"].data_ptr()
        rules, numbers = self._rules = (self._put(before[0], table.rules), self._put(before[1], table.rule_values))
        struct.rules, struct.rule_values = rules.data_ptr(), numbers.data_ptr()
        struct.num_rules = len(table.rules)

    def _put(self, tensor: Any, array: Array) -> Any:
        """The bytes of an array on the device: in the tensor, if it has room for exactly them."""
        new = self._to_device(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        return new if tensor is None or tensor.shape != new.shape else tensor.copy_(new)

    def snapshot(self, env_ids: Sequence[int] | Array | None = None) -> bytes:
        """The state of some envs as bytes, which any backend can `restore`."""
        if not self._started:
            raise UsageError("snapshot() before reset(): the envs have no state.")
        chosen = check_ids(env_ids, self.num_envs)
        ids = self._to_device(chosen)
        records = self._torch.zeros((len(ids), self.module.record_bytes), dtype=self._torch.uint8, device=self.device)
        self._launch_records("save", ids, records)
        extras = {name: self._by_env(name)[ids].cpu().numpy() for name in extra_names(self.wrap, self.table)}
        self._pull_params()
        extras |= self.table.extras(chosen)
        return pack_snapshot(self.module, records.cpu().numpy(), self.wrap, self.table, extras)

    def restore(self, blob: bytes, env_ids: Sequence[int] | Array | None = None) -> Any:
        """Restores a snapshot into the envs `env_ids`, in order, and returns the observations."""
        self._refuse_closed()
        ids = check_ids(env_ids, self.num_envs)
        if not self._started and len(ids) < self.num_envs:
            raise UsageError("restore() of some envs before reset(): the other envs have no state.")
        saved = read_snapshot(self.module, blob, len(ids), self.wrap)
        self._pull_params()
        before, table = self.table.state(), self.table
        try:
            if saved.params is not None and saved.has_params_for(table):
                table.put(ids, saved.params, saved.distributions)
            on_host = Batch(num_envs=self.num_envs, params_stride=int(table.is_per_env))
            on_host.params = table.values.ctypes.data
            check_records(self.module, saved.records, ids, ctypes.addressof(on_host))
            check_sizes(saved.extras, {name: self._by_env(name) for name in extra_names(self.wrap, table)})
        except SnapshotError:
            table.set_state(*before)
            raise
        self._push_params()
        on_device = self._to_device(ids)
        for name in extra_names(self.wrap, table):
            if name in saved.extras:
                self._by_env(name)[on_device] = self._to_device(saved.extras[name])
        if self.wrap.changes_obs:
            self.tensors["obs"].copy_(self.tensors["history"])
        self._launch_records("load", on_device, self._to_device(saved.records))
        if "param_rng" in self.tensors and "param_rng" not in saved.extras:
            own = self.tensors["rng"][on_device].cpu().numpy().view(np.uint32)
            self.tensors["param_rng"][on_device] = self._to_device(side_streams(own, PARAM_STREAM).view(np.int32))
        self._started = True
        return self._out(self.tensors["obs"])

    def current_infos(self) -> dict[str, Any]:
        """The "alive" and "action_mask" of all rows."""
        infos = {"alive": self._alive_now()}
        return infos | ({"action_mask": self._out(self.tensors["masks"])} if self.mask_size else {})

    def draw(self, env: int = 0) -> dict[str, Any]:
        """A picture of an env as a display list."""
        return self._on_host(env).draw(0)

    def frame(self, env: int = 0, width: int = 480) -> Array:
        """A picture of an env as (height, width, 3) uint8 pixels."""
        return self._on_host(env).frame(0, width)

    def curves(self, env: int = 0, agent: int = 0) -> dict[str, Array]:
        """The curves that an env's header exports for viewers, each (curves, points, 4): x, y, time, value."""
        return self._on_host(env).curves(0, agent)

    def close_extras(self, **kwargs: Any) -> None:
        """Frees the memory."""
        self.tensors.clear()

    # ---- actions, results and checks ----

    def _on_host(self, env: int) -> SerialVec:
        if not isinstance(env, (int, np.integer)) or not 0 <= env < self.num_envs:
            raise ConfigError(f"env={env} must be one of 0 .. {self.num_envs - 1}.")
        if not hasattr(self, "_twin"):
            self._twin = SerialVec(self.module, 1, wrap=self.wrap)
        self._twin.set_params(**{name: values[env].item() for name, values in self.get_params().items()})
        self._twin.restore(self.snapshot([env]))
        return self._twin

    def _by_env(self, name: str) -> Any:
        """(envs, bytes) view of a tensor."""
        return self.tensors[name].reshape(self.num_envs, -1).view(self._torch.uint8)

    def _launch_records(self, name: str, ids: Any, records: Any) -> None:
        count = ctypes.c_int64(len(ids))
        self.kernels.launch(
            name, len(ids), self.struct, ctypes.c_void_p(ids.data_ptr()), count, ctypes.c_void_p(records.data_ptr())
        )

    def _take(self, actions: Any) -> None:
        torch = self._torch
        if self.native_spec.action_kind == "mix" and isinstance(actions, tuple):
            parts = [torch.as_tensor(part, device=self.device) for part in actions]
            actions = torch.cat([part.reshape(len(part), -1).float() for part in parts], 1)
        tensor = actions if isinstance(actions, torch.Tensor) else torch.as_tensor(as_array(actions))
        shape, is_box = tuple(self.actions.shape), self.native_spec.has_float_actions
        if tuple(tensor.shape) != shape:
            raise ActionError(f"actions have shape {tuple(tensor.shape)}, expected {shape}.")
        wanted = (torch.float32,) if is_box else (torch.int64, torch.int32)
        if tensor.dtype not in wanted:
            if tensor.dtype.is_floating_point and not is_box:
                raise ActionError(f"actions have dtype {tensor.dtype}, expected int64 or int32.")
            tensor = tensor.to(wanted[0])
        tensor = tensor.to(self.device).contiguous()
        kernel = {torch.float32: "take_f32", torch.int64: "take_i64", torch.int32: "take_i32"}[tensor.dtype]
        self._bad.fill_(2**62)
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in (tensor, self._bad)]
        self.kernels.launch(kernel, tensor.numel(), self.struct, *pointers, block=256)
        bad = int(self._bad)
        if bad < 2**62:
            row, element = divmod(bad, self.module.action_size)
            env, agent = divmod(row, self.agents_per_env)
            where = f"env {env}" + (f", agent {agent}" if self.agents_per_env > 1 else "")
            value = tensor.reshape(-1)[bad].item()
            what = "not finite"
            if np.isfinite(value):
                what = f"out of range 0 .. {choices_of(self.native_spec, element, agent) - 1}"
            raise ActionError(f"action {value} of {where} is {what}. Nothing was stepped.")

    def _result(self) -> tuple[Any, ...]:
        names = ("obs", "rewards", "terminated", "truncated")
        return (*(self._out(self.tensors[name]) for name in names), self._infos(ended=True))

    def _infos(self, ended: bool) -> dict[str, Any]:
        """As on the CPU, but always with the keys of ended episodes: the host does not know whether any ended."""
        t, infos = self.tensors, dict[str, Any]()
        if self.agents_per_env > 1:
            infos |= {"alive": self._out(t["alive"]), "_alive": self._every}
        if self.native_spec.mask_size:
            infos |= {"action_mask": self._out(t["masks"]), "_action_mask": self._every}
        if ended:
            done = self._out(t["done"])
            episode = {"r": self._out(t["final_return"]), "l": self._out(t["final_length"]), "_r": done, "_l": done}
            infos |= {"final_info": {"episode": episode, "_episode": done}, "_final_info": done}
            infos |= {"final_obs": self._out(t["final_obs"]), "_final_obs": done}
            for number, stat in enumerate(self.native_spec.stats):
                values = t["final_stats"][number].repeat_interleave(self.agents_per_env)
                infos["final_info"] |= {stat.name: values, f"_{stat.name}": done}
        return infos

    def _alive_now(self) -> Any:
        """(rows,) whether a row's next step is a transition."""
        if self.autoreset_mode != AutoresetMode.NEXT_STEP:
            return self._out(self.tensors["alive"])
        return self.tensors["alive"] & ~self.tensors["ended"].repeat_interleave(self.agents_per_env)

    def _out(self, tensor: Any) -> Any:
        return tensor.clone() if self.copy else tensor

    def _to_device(self, array: Array) -> Any:
        return self._torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def _refuse_before(self, call: str) -> None:
        self._refuse_closed()
        if not self._started:
            raise UsageError(f"{call} before reset. Call reset() once after making the env.")


BACKEND = Backend("all envs at once on a GPU, one thread each; returns torch tensors", native=CudaVec)
