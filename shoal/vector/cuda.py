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
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from shoal.errors import ActionError, ConfigError, UsageError
from shoal.native import cuda
from shoal.native.batch import Memory, describe_episodes, num_metrics
from shoal.native.lib import Batch, Module
from shoal.spec import Array
from shoal.vector.actions import as_array, choices_of
from shoal.vector.backends import Backend
from shoal.vector.base import AUTORESET, check_reset_mask
from shoal.vector.native_base import NativeVecBase, check_ids, check_params
from shoal.vector.serial import SerialVec
from shoal.vector.snapshot import check_records, pack_snapshot, read_snapshot


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
        device: int = 0,
    ) -> None:
        cuda.require_gpu()
        import torch

        super().__init__(module, num_envs, seed=seed, copy=copy, autoreset=autoreset, render_mode=render_mode)
        spec, self._torch, self.device = module.spec, torch, torch.device("cuda", device)
        needed, (free, _) = Memory.bytes_needed(module, self.num_envs), torch.cuda.mem_get_info(device)
        if needed > free:
            raise ConfigError(
                f"num_envs={num_envs} needs {needed:,} bytes of GPU memory, {free:,} are free. Use fewer envs."
            )
        row_bytes = int(np.prod(spec.obs_shape)) * spec.obs_dtype.itemsize * spec.agents
        consts = tuple(module.source.consts)
        assert module.source.header is not None
        self.kernels = cuda.load(module.source.header, consts, device, row_bytes)
        layout = Memory._layout(module, self.num_envs)
        self.tensors = {name: self._zeros(shape, dtype) for name, (shape, dtype) in layout.items()}
        self.struct = Batch(num_envs=self.num_envs, autoreset=list(AUTORESET).index(autoreset))
        for name, tensor in self.tensors.items():
            setattr(self.struct, name, tensor.data_ptr())
        self._params = np.zeros(1, module.params_dtype)
        module.default_params(self._params.ctypes.data)
        self.actions, self.alive = self.tensors["actions"], self.tensors["alive"]
        self._bad = torch.zeros((), dtype=torch.int64, device=self.device)
        self._every = torch.ones(self.num_rows, dtype=torch.bool, device=self.device)
        self._sent = False
        self._params_tensor: Any = None
        self.set_params(**(params or {}))

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
        if places:
            struct = Batch.from_buffer_copy(self.struct)
            for name, tensor in places.items():
                setattr(struct, name, tensor.data_ptr())
        stage = ctypes.c_int32(1 if self.kernels.stage_bytes else 0)
        self.kernels.launch("step", self.num_envs, struct, stage, shared=self.kernels.stage_bytes)

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
        """Changes params from the next step on: one value for all envs, or one for each."""
        values = check_params(self.native_spec, params, self.num_envs)
        if len(self._params) < self.num_envs and any(value.shape for value in values.values()):
            self._params = np.repeat(self._params, self.num_envs)
        for name, value in values.items():
            self._params[name] = value
        tensor = self._to_device(self._params.view(np.uint8))
        if self._params_tensor is not None and self._params_tensor.shape == tensor.shape:
            self._params_tensor.copy_(tensor)  # in place: CUDA graphs hold its address
        else:
            self._params_tensor = tensor
        self.struct.params = self._params_tensor.data_ptr()
        self.struct.params_stride = int(len(self._params) > 1)

    def get_params(self) -> dict[str, Array]:
        """Every param as an array of one value for each env."""
        return {p.name: np.broadcast_to(self._params[p.name], self.num_envs).copy() for p in self.native_spec.params}

    def snapshot(self, env_ids: Sequence[int] | Array | None = None) -> bytes:
        """The state of some envs as bytes, which any backend can `restore`."""
        if not self._started:
            raise UsageError("snapshot() before reset(): the envs have no state.")
        ids = self._to_device(check_ids(env_ids, self.num_envs))
        records = self._torch.zeros((len(ids), self.module.record_bytes), dtype=self._torch.uint8, device=self.device)
        self._launch_records("save", ids, records)
        return pack_snapshot(self.module, records.cpu().numpy())

    def restore(self, blob: bytes, env_ids: Sequence[int] | Array | None = None) -> Any:
        """Restores a snapshot into the envs `env_ids`, in order, and returns the observations."""
        self._refuse_closed()
        ids = check_ids(env_ids, self.num_envs)
        if not self._started and len(ids) < self.num_envs:
            raise UsageError("restore() of some envs before reset(): the other envs have no state.")
        records = read_snapshot(self.module, blob, len(ids))
        on_host = Batch(num_envs=self.num_envs, params_stride=self.struct.params_stride)
        on_host.params = self._params.ctypes.data
        check_records(self.module, records, ids, ctypes.addressof(on_host))
        self._launch_records("load", self._to_device(ids), self._to_device(records))
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

    def close_extras(self, **kwargs: Any) -> None:
        """Frees the memory."""
        self.tensors.clear()

    # ---- actions, results and checks ----

    def _on_host(self, env: int) -> SerialVec:
        if not isinstance(env, (int, np.integer)) or not 0 <= env < self.num_envs:
            raise ConfigError(f"env={env} must be one of 0 .. {self.num_envs - 1}.")
        if not hasattr(self, "_twin"):
            self._twin = SerialVec(self.module, 1)
        self._twin.set_params(**{name: values[env].item() for name, values in self.get_params().items()})
        self._twin.restore(self.snapshot([env]))
        return self._twin

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
