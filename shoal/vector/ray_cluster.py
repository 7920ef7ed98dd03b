"""The Ray cluster of the `ray` backend: how this process connects to it, and the CPUs that it has.

Ray is an extra. It is imported here, on first use, and nowhere else.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.config import opt
from shoal.cores import available_cores
from shoal.errors import ConfigError

ANSWER_S = 10.0  # for the head of a cluster to take a connection
RELEASE_S = 10.0  # time for CPUs of other actors to be released
SMALLEST_STORE_MB = 80  # Ray's own limit is 75 MiB


@dataclass(frozen=True)
class RayOptions:
    """The options of `--backend.*` with `--vec.backend ray`."""

    address: str = opt(
        "",
        "address of the cluster: HOST:PORT, or local for one on this machine alone; default: RAY_ADDRESS, a cluster "
        "that runs here, or local",
    )
    cpus_per_worker: float = opt(1.0, "CPUs that Ray reserves for each actor; may be below 1", low=0.0)
    wait_s: float = opt(0.0, "seconds to wait for CPUs that the cluster does not have yet (an autoscaler)", low=0.0)
    working_dir: str = opt("", "folder with the code of your env, which Ray copies to every node", metavar="FOLDER")
    object_store_mb: int = opt(0, "local: size of Ray's object store in MB; 0: Ray's default", low=0)


def load(needs: str = "backend='ray'") -> Any:
    """The package ray, or a ConfigError that says how to install it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Ray's own code
            import ray
            import ray.exceptions
    except ImportError as error:
        raise ConfigError(f'{needs} needs the package ray ({error}). Install it: pip install "shoal[ray]"') from None
    return ray


def connect(options: RayOptions, num_workers: int | None = None, needs: str = "backend='ray'") -> Any:
    """Connects this process to a cluster, unless it is connected, and returns the package ray.

    `needs` is what an error names if Ray is not installed. A local cluster has a CPU for each core, or more if
    `num_workers` asks for them: it divides the cores as the system divides them among processes.
    """
    _check(options)
    ray = load(needs)
    if ray.is_initialized():
        return ray
    address = options.address or os.environ.get("RAY_ADDRESS", "")
    common: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if address != "local":
            _require_answer(address)
            try:
                ray.init(address=address or "auto", **common)
                return ray
            except ConnectionError as error:
                if address:
                    raise ConfigError(
                        f"there is no Ray cluster at {address}: {_first_line(error)}. Start one with 'ray start "
                        "--head', or leave the address out."
                    ) from None
            except (ValueError, RuntimeError) as error:
                raise ConfigError(f"Ray refused the address {address!r}: {_first_line(error)}.") from None
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        wanted = math.ceil((num_workers or 0) * options.cpus_per_worker)
        store = options.object_store_mb * 10**6 or None
        cpus = max(available_cores(), wanted)
        ray.init(address="local", num_cpus=cpus, object_store_memory=store, include_dashboard=False, **common)
    return ray


def _require_answer(address: str) -> None:
    """Raises ConfigError if nobody listens at HOST:PORT: Ray would try for minutes. Other addresses are left to Ray."""
    host, _, port = address.rpartition("//")[2].rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_S).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"there is no Ray cluster at {address}: {error}. Start one with 'ray start --head', or leave the address "
            "out."
        ) from None


def _check(options: RayOptions) -> None:
    if not math.isfinite(options.cpus_per_worker) or options.cpus_per_worker < 0:
        raise ConfigError(f"cpus_per_worker={options.cpus_per_worker!r} must be a number of at least 0.")
    if options.working_dir and not Path(options.working_dir).expanduser().is_dir():
        raise ConfigError(f"working_dir={options.working_dir!r} is not a folder.")
    if 0 < options.object_store_mb < SMALLEST_STORE_MB:
        raise ConfigError(f"object_store_mb={options.object_store_mb} is too small. Use {SMALLEST_STORE_MB} or more.")


def total_cpus(ray: Any) -> float:
    """The CPUs of all nodes that are alive."""
    return sum(cpus_of_nodes(ray))


def cpus_of_nodes(ray: Any) -> list[float]:
    """The CPUs of each node that is alive."""
    return [float(node["Resources"].get("CPU", 0.0)) for node in ray.nodes() if node["Alive"]]


def free_cpus(ray: Any) -> float:
    """The CPUs that no actor or task has reserved."""
    return float(ray.available_resources().get("CPU", 0.0))


def has_places(ray: Any, workers: int, cpus_per_worker: float) -> bool:
    """Whether the nodes have the CPUs for so many actors, if nothing else ran. An actor is on one node."""
    if not cpus_per_worker:
        return True
    return sum(int((cpus + 1e-6) / cpus_per_worker) for cpus in cpus_of_nodes(ray)) >= workers


def most_workers(ray: Any, cpus_per_worker: float) -> int:
    """How many actors the cluster has free CPUs for, at least one; all CPUs count if an actor reserves none."""
    cpus = free_cpus(ray) / cpus_per_worker if cpus_per_worker else total_cpus(ray)
    return max(1, int(cpus + 1e-6))


def require_cpus(ray: Any, workers: int, options: RayOptions) -> None:
    """Raises unless the cluster has free CPUs for all workers, after `wait_s` at the latest.

    CPUs that are reserved now have a moment to be released: those of actors that were closed just before.
    """
    share, began = options.cpus_per_worker, time.monotonic()
    needed = workers * share
    while share:
        has_all = has_places(ray, workers, share)
        if has_all and free_cpus(ray) + 1e-6 >= needed:
            return
        if time.monotonic() - began >= max(options.wait_s, RELEASE_S if has_all else 0.0):
            break
        time.sleep(0.2)
    if not share:
        return
    nodes, total, free = cpus_of_nodes(ray), total_cpus(ray), free_cpus(ray)
    fits = int(free / share)
    ways = [f"num_workers {fits}"] if fits else []
    ways += [f"cpus_per_worker {int(100 * free / workers) / 100:g}"] if free >= 0.01 * workers else []
    raise ConfigError(
        f"{workers} workers of {share:g} CPUs need {needed:g}. The Ray cluster has {len(nodes)} "
        f"{'node' if len(nodes) == 1 else 'nodes'} with {total:g} CPUs, of which {free:g} are free. "
        f"Use {' or '.join([*ways, 'cpus_per_worker 0 to share CPUs'])}, or add nodes (wait_s waits for them)."
    )


def remote_class(ray: Any, kind: type[Any], options: RayOptions) -> Any:
    """A class as Ray actors that are spread over the nodes and never restarted by Ray itself."""
    settings: dict[str, Any] = {"max_restarts": 0, "max_task_retries": 0, "scheduling_strategy": "SPREAD"}
    if options.working_dir:
        settings["runtime_env"] = {"working_dir": str(Path(options.working_dir).expanduser().resolve())}
    return ray.remote(**settings)(kind)


def kill(ray: Any, actor: Any) -> None:
    """Ends an actor, whatever it does."""
    with contextlib.suppress(Exception):  # it is dead already, or Ray was shut down
        ray.kill(actor, no_restart=True)


def reason_of(error: BaseException) -> str:
    """What Ray says of a death, without its advice and its ids."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = next((line for line in lines if "died" in line or "killed" in line or "lost" in line or "exit" in line), "")
    return (told or " ".join(lines[:1]) or type(error).__name__)[:300]


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".")
