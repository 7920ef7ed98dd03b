"""Faults of a run in several processes, again and again: does it end, or continue, as docs/distributed.md says?

    python benchmarks/faults.py                   every fault once
    python benchmarks/faults.py --times 20        as often as a release needs
    python benchmarks/faults.py killed restarted  some of them

killed      a rank gets SIGKILL: the run ends within 30 s, and names the rank
hangs       a rank is stopped (SIGSTOP): the run ends after --rank-timeout-s, and names the rank
memory      a rank raises MemoryError in its env: the run ends within 30 s, with its traceback
restarted   a rank gets SIGKILL under torchrun --max-restarts: the run continues from its checkpoint to the same weights
                as without the fault
node        a whole node (torchrun's agent and its rank) gets SIGKILL, and is started again: the run continues from its
                checkpoint to the same weights. The nodes are two agents on this machine
launcher    the launcher gets SIGKILL: all ranks end within 30 s

Afterwards no process, no file in /dev/shm and no folder in the temporary folder may be left.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from shoal.runs import Run, all_runs

ENV = """
import os
import time
import gymnasium
import numpy as np


class Walk(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.np_random.random(3, dtype=np.float32), {}

    def step(self, action):
        self.steps += 1
        time.sleep(0.001)
        if os.path.exists(os.environ["FAULT_FILE"]) and os.environ.get("RANK") == "1":
            raise MemoryError("cannot allocate 64 GiB")
        return self.np_random.random(3, dtype=np.float32), float(action), False, self.steps >= 20, {}
"""
WORDS = ["--device", "cpu", "--vec.num-envs", "8", "--vec.backend", "serial", "--train.horizon", "16", "--nn.hidden"]
WORDS += ["16", "--train.minibatches", "2", "--train.epochs", "2", "--train.shards", "2", "--eval.episodes", "0"]
WORDS += ["--save.every-s", "0", "--save.every", "1", "--save.keep", "3", "--console", "lines"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
TIMEOUT_S = 6  # --rank-timeout-s of `hangs`
ENDS_S = 30.0
KILLED_AFTER_S = 32.0  # a stopped process is killed by the launcher (SHUTDOWN_S), not by itself


class Job:
    """One run in two processes."""

    seen: tuple[psutil.Process, ...] = ()  # that must be gone at the end

    def __init__(self, folder: Path, program: list[str], words: list[str]) -> None:
        self.folder, self.fault_file = folder, folder / "fault"
        (folder / "walk.py").write_text(textwrap.dedent(ENV))
        words = ["train", *words, "--runs", str(folder / "runs")]
        environment: dict[str, str] = {**os.environ, "FAULT_FILE": str(self.fault_file), "TMPDIR": str(folder)}
        environment |= {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if "--nnodes" in program else {}
        environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(Path.cwd()), str(folder)])}
        self.log, self.environment = folder / "log.txt", environment
        with self.log.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, *program, *words],
                cwd=folder,
                env=environment,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def ranks(self) -> dict[int, psutil.Process]:
        """The processes by rank."""
        found: dict[int, psutil.Process] = {}
        if self.process.poll() is not None:
            return found
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                rank = child.environ().get("RANK")
                parent = child.parent()
                if rank is not None and parent is not None and parent.pid == self.process.pid:
                    found[int(rank)] = child
        return found

    def wait_for_checkpoints(self, count: int, limit_s: float = 240.0) -> Run:
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            for run in all_runs(self.folder / "runs"):
                if len(run.checkpoints()) >= count:
                    return run
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        raise AssertionError(f"no {count} checkpoints; the log ends with\n{self.text()[-2000:]}")

    def text(self) -> str:
        return self.log.read_text(errors="replace")


@contextlib.contextmanager
def job(
    words: list[str], env: str = "./walk.py:Walk", steps: int = 10**9, program: list[str] | None = None
) -> Iterator[Job]:
    """A job whose processes and files are checked at its end."""
    with tempfile.TemporaryDirectory(prefix="shoal-faults-") as name:
        shared = in_shared_memory()
        own = [env, *WORDS, "--train.total-steps", str(steps), *words]
        made = Job(Path(name), program or SHOAL, own)
        try:
            yield made
            _, alive = psutil.wait_procs(made.seen, 10.0)
            assert not alive, f"processes are left: {alive}\n{made.text()[-2000:]}"
            assert in_shared_memory() <= shared, f"left in shared memory: {in_shared_memory() - shared}"
            left = [path.name for path in Path(name).glob("shoal-ranks-*")]
            assert not left, f"left: {left}"
        finally:
            for process in (*made.seen, *made.ranks().values()):
                with contextlib.suppress(psutil.Error):
                    process.kill()
            made.process.kill()
            made.process.wait()


def in_shared_memory() -> set[str]:
    """Files of ours in /dev/shm: memory of envs and exchanges."""
    folder = Path("/dev/shm")
    return {p.name for p in folder.iterdir() if p.stat().st_uid == os.getuid()} if folder.is_dir() else set()


def processes_of(made: Job) -> dict[int, psutil.Process]:
    ranks = made.ranks()
    assert set(ranks) == {0, 1}, ranks
    made.seen = (*ranks.values(), *(child for p in ranks.values() for child in p.children(recursive=True)))
    return ranks


def ended_within(made: Job, limit_s: float) -> float:
    began = time.monotonic()
    try:
        made.process.wait(limit_s)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"still running after {limit_s} s:\n{made.text()[-3000:]}") from None
    return time.monotonic() - began


SHOAL = ["-m", "shoal"]


def killed(victim: int) -> str:
    with job(["--processes", "2"]) as made:
        made.wait_for_checkpoints(2)
        processes_of(made)[victim].send_signal(signal.SIGKILL)
        seconds = ended_within(made, ENDS_S)
        text = made.text()
        assert made.process.returncode == 1, (made.process.returncode, text[-2000:])
        assert f"rank {victim}" in text, text[-2000:]
        assert "killed" in text, text[-2000:]
        return f"ended after {seconds:.1f} s"


def hangs(victim: int) -> str:
    with job(["--processes", "2", "--rank-timeout-s", str(TIMEOUT_S)]) as made:
        made.wait_for_checkpoints(2)
        processes_of(made)[victim].send_signal(signal.SIGSTOP)
        seconds = ended_within(made, TIMEOUT_S + ENDS_S + KILLED_AFTER_S)
        text = made.text()
        assert made.process.returncode == 1, (made.process.returncode, text[-2000:])
        assert f"rank {victim}" in text, text[-2000:]
        assert "hangs" in text, text[-2000:]
        return f"ended after {seconds:.1f} s, of which {TIMEOUT_S} s are --rank-timeout-s"


def memory(victim: int) -> str:
    with job(["--processes", "2"]) as made:
        made.wait_for_checkpoints(2)
        processes_of(made)
        made.fault_file.touch()
        seconds = ended_within(made, ENDS_S)
        text = made.text()
        assert made.process.returncode == 1, (made.process.returncode, text[-2000:])
        assert "rank 1" in text, text[-2000:]
        assert "cannot allocate 64 GiB" in text, text[-2000:]
        assert "walk.py" in text, text[-2000:]  # the traceback
        return f"ended after {seconds:.1f} s"


def launcher(victim: int) -> str:
    with job(["--processes", "2"]) as made:
        made.wait_for_checkpoints(2)
        processes = processes_of(made)
        made.process.kill()
        made.process.wait()
        began = time.monotonic()
        _, alive = psutil.wait_procs(list(processes.values()), ENDS_S)
        assert not alive, alive
        return f"ended after {time.monotonic() - began:.1f} s"


def restarted(victim: int) -> str:
    steps = 8 * 16 * 200  # of a native env: a Python env cannot give its state
    with job([], "cartpole", steps, [*TORCHRUN, "--max-restarts", "2", *SHOAL]) as made:
        run = made.wait_for_checkpoints(3)
        processes_of(made)[victim].send_signal(signal.SIGKILL)
        seconds = ended_within(made, 240.0)
        text = made.text()
        assert made.process.returncode == 0, (made.process.returncode, text[-3000:])
        assert (run.summary or {}).get("status") == "finished", (run.summary, text[-2000:])
        assert len(all_runs(made.folder / "runs")) == 1, "another run was started"
        own = weights_of(run)
    assert own == undisturbed(steps), "other weights than without the fault"
    return f"continued, {seconds:.1f} s to the end, same weights"


def node(victim: int) -> str:
    """Always the second agent: the first one hosts torchrun's store, and its loss ends the run."""
    steps, port = 8 * 16 * 200, free_port()
    program, words = agent(port, is_host=True), ["--resume", "auto"]
    with contextlib.ExitStack() as stack, job(words, "cartpole", steps, program) as made:
        others = [second_agent(made, port)]
        stack.callback(end_all, others)
        run = made.wait_for_checkpoints(3)
        end(others[0])
        others.append(second_agent(made, port))
        seconds = ended_within(made, 240.0)
        text = made.text()
        assert made.process.returncode == 0, (made.process.returncode, text[-3000:])
        assert others[1].wait(60) == 0, text[-3000:]
        assert (run.summary or {}).get("status") == "finished", (run.summary, text[-2000:])
        assert len(all_runs(made.folder / "runs")) == 1, "another run was started"
        own = weights_of(run)
    assert own == undisturbed(steps), "other weights than without the fault"
    return f"continued, {seconds:.1f} s to the end, same weights"


def agent(port: int, *, is_host: bool) -> list[str]:
    """torchrun on one of two nodes, with one rank."""
    words = ["-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "3"]
    words += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}", "--rdzv-id", f"faults-{port}"]
    return [*words, "--rdzv-conf", f"is_host={int(is_host)}", *SHOAL]


def second_agent(made: Job, port: int) -> subprocess.Popen[bytes]:
    """The other node: the same command."""
    first = made.process.args
    assert isinstance(first, list)
    own = [sys.executable, *agent(port, is_host=False), *first[first.index("train") :]]
    with (made.folder / "second.txt").open("a") as file:
        return subprocess.Popen(own, cwd=made.folder, env=made.environment, stdout=file, stderr=subprocess.STDOUT)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kills a node: the agent and all that it has started, at once."""
    family = [process]
    with contextlib.suppress(psutil.Error):
        family += psutil.Process(process.pid).children(recursive=True)
    for one in family:
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            one.kill()
    process.wait()


def end_all(processes: list[subprocess.Popen[bytes]]) -> None:
    """Ends what is left."""
    for process in processes:
        end(process)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def weights_of(run: Run) -> str:
    assert run.last is not None
    return hashlib.sha256((run.last / "weights.safetensors").read_bytes()).hexdigest()


_undisturbed: dict[int, str] = {}


def undisturbed(steps: int) -> str:
    """The weights of the same run in one process, without a fault."""
    if steps not in _undisturbed:
        with job([], "cartpole", steps) as made:
            assert made.process.wait(240) == 0, made.text()[-3000:]
            _undisturbed[steps] = weights_of(all_runs(made.folder / "runs")[0])
    return _undisturbed[steps]


FAULTS: dict[str, Any] = {f.__name__: f for f in (killed, hangs, memory, restarted, node, launcher)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("faults", nargs="*", help=f"which: {', '.join(FAULTS)}; default: all")
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1, help="of the choice of the rank")
    asked = parser.parse_args()
    if unknown := [name for name in asked.faults if name not in FAULTS]:
        parser.error(f"unknown: {', '.join(unknown)}. Known: {', '.join(FAULTS)}")
    rng, failures = random.Random(asked.seed), 0
    for name in asked.faults or FAULTS:
        for k in range(asked.times):
            victim = rng.randrange(2)
            try:
                print(f"{name:10} {k + 1:3}/{asked.times}  rank {victim}  {FAULTS[name](victim)}", flush=True)
            except AssertionError as error:
                failures += 1
                print(f"{name:10} {k + 1:3}/{asked.times}  rank {victim}  FAILED: {error}", flush=True)
    print(f"{failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
