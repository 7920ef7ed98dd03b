"""How many threads torch computes with on a CPU: measured at the start of a run, because more is not always faster.

Products of small matrices often take longer with two threads than with one, and how much longer depends on the CPU, its
vector instructions and the version of torch. So a few products of the run's own shape are timed with 1, 2, 4, ...
threads. The times are stored in the cache folder, so that a machine measures each shape once.

Other processes are respected: threads beyond the idle cores would only wait for each other, and on a busy machine the
times would mean little. So a run takes at most as many threads as there are idle cores, and one on a busy machine.

The order of sums depends on the number of threads. So the chosen number is saved with the run (`vec.torch_threads`),
and a resumed run uses it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import torch

from shoal.cores import available_threads, cpu_model, idle_cores
from shoal.native.build import cache_dir

SMALL_WORK = 1 << 18  # rows of a minibatch times width: below, one thread is always faster than several
MAX_WORK = 1 << 27  # rows times weights of the measured products: about 10 ms on one core
ROUNDS = 3
# a doubling of the threads must take the time down to this factor: the cores may have other uses
MIN_GAIN = 0.8
HOPELESS = 4.0  # times as long as one thread: measured no further
MIN_CPU_SHARE = 0.9  # a thread that gets less of its core competes with other processes
# variables that choose the instructions of torch's products and how its threads wait
VARIABLES = (
    *("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS"),
    *("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_PROC_BIND", "KMP_BLOCKTIME"),
)


@dataclass(frozen=True)
class Shape:
    """The products of one minibatch: (rows, inputs) x (inputs, outputs)."""

    rows: int
    inputs: int
    outputs: int
    steps: int = 1  # a recurrent core computes rows / steps at a time, one step after the other

    @property
    def is_small(self) -> bool:
        """Whether one thread is fastest without a measurement."""
        return self.rows // self.steps * max(self.inputs, self.outputs) < SMALL_WORK

    def rounded(self) -> Shape:
        """The shape that is measured for this one: powers of two, and at most MAX_WORK."""
        inputs, outputs = (1 << round(math.log2(max(8, size))) for size in (self.inputs, self.outputs))
        rows = 1 << round(math.log2(max(1, self.rows // self.steps)))
        return Shape(max(64, min(rows, MAX_WORK // (inputs * outputs))), inputs, outputs)


def choose_threads(shape: Shape, cache: Path | None = None) -> int:
    """The number of threads for a run whose minibatches have this shape."""
    most = available_threads()
    if most == 1 or shape.is_small:
        return 1
    shape = shape.rounded()
    file = (cache or cache_dir()) / f"torch-threads-{_key(shape, most)}.json"
    limit = min(most, median_idle_cores())
    if limit <= 1:
        return 1
    times = _read(file)
    if times is None:
        times, is_reliable = measure(shape, counts_up_to(limit))
        if not is_reliable:
            return 1
        if limit == most:
            _write(file, shape, times)
    return fastest({count: seconds for count, seconds in times.items() if count <= limit})


def counts_up_to(most: int) -> list[int]:
    """1, 2, 4, ... and `most`."""
    return sorted({1 << k for k in range(most.bit_length()) if 1 << k <= most} | {most})


def fastest(times: dict[int, float]) -> int:
    """The number of threads to use, from the seconds of each. Each doubling must pay off (MIN_GAIN)."""
    chosen = 1
    for count in sorted(times):
        if times[count] <= times[chosen] * MIN_GAIN ** math.log2(count / chosen):
            chosen = count
    return chosen


def median_idle_cores(samples: int = 5, pause_s: float = 0.0005) -> int:
    """The idle cores of the machine, over a few milliseconds."""
    counts = []
    for _ in range(samples):
        counts.append(idle_cores())
        time.sleep(pause_s)
    return int(median(counts))


def measure(shape: Shape, counts: list[int]) -> tuple[dict[int, float], bool]:
    """Seconds of the work with each number of threads, and whether this process had its cores for itself."""
    shares = []
    times = dict.fromkeys(counts, math.inf)
    with _threads_restored():
        work = _work(shape)
        work()
        for _ in range(ROUNDS):
            for count in counts:  # in turns, so that a busy moment of the machine affects all
                if math.inf > times[count] > HOPELESS * times[1]:
                    break  # threads that fight for a core: more of them are worse
                torch.set_num_threads(count)
                cpu, start = time.thread_time(), time.perf_counter()
                work()  # the first one of a round also starts the threads: the least time of all rounds counts
                took = time.perf_counter() - start
                times[count] = min(times[count], took)
                if count == 1:
                    shares.append((time.thread_time() - cpu) / max(took, 1e-9))
    return times, median(shares) >= MIN_CPU_SHARE


def _work(shape: Shape) -> Callable[[], None]:
    """Forward and backward of a layer: three products, and operations on each element. Draws no random numbers."""
    x = torch.linspace(-1.0, 1.0, shape.rows * shape.inputs).view(shape.rows, shape.inputs)
    weight = torch.linspace(-1.0, 1.0, shape.inputs * shape.outputs).view(shape.inputs, shape.outputs)

    def work() -> None:
        with torch.no_grad():
            y = torch.tanh(x @ weight)
            grad = y * (1.0 - y * y)
            torch.mm(x.t(), grad)
            torch.mm(grad, weight.t())
            grad.sum(0)

    return work


@contextlib.contextmanager
def _threads_restored() -> Iterator[None]:
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


# ---- the cache ----


def _facts(shape: Shape, most: int) -> dict[str, object]:
    """All that the times depend on."""
    variables = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    machine = {"cpu": cpu_model(), "threads": most, "torch": torch.__version__, "variables": variables}
    return {**machine, "shape": asdict(shape)}


def _key(shape: Shape, most: int) -> str:
    text = json.dumps(_facts(shape, most), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _read(file: Path) -> dict[int, float] | None:
    """The stored times; None if there are none, or if the file is damaged."""
    try:
        times = {int(count): float(seconds) for count, seconds in json.loads(file.read_text())["seconds"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return times if 1 in times and all(seconds > 0 for seconds in times.values()) else None


def _write(file: Path, shape: Shape, times: dict[int, float]) -> None:
    """Stores the times. A cache folder that cannot be written means that each run measures."""
    part = file.with_suffix(f".{os.getpid()}.part")
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps({**_facts(shape, max(times)), "seconds": times}, indent=1) + "\n")
        part.replace(file)  # several runs may start at once
