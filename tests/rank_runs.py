"""Processes that train one run together, forked from the tests: they need not import everything again."""

from __future__ import annotations

import multiprocessing
import os
import socket
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import Any

import torch


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def run_ranks(size: int, function: Callable[..., Any], *arguments: Any, timeout_s: float = 120.0) -> list[Any]:
    """What the function returned in each of `size` processes, by rank; (text,) of the error where it raised."""
    context = multiprocessing.get_context("fork")
    port, pipes, processes = free_port(), [], []
    for rank in range(size):
        ours, theirs = context.Pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            process = context.Process(target=_run, args=(rank, size, port, theirs, function, arguments))
            process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    results: list[Any] = [None] * size
    try:
        open_pipes = dict(zip(pipes, range(size)))
        while open_pipes:
            ready = wait(list(open_pipes), timeout_s)
            assert ready, "the processes do not end"
            for pipe in ready:
                rank = open_pipes.pop(pipe)
                try:
                    results[rank] = pipe.recv()
                except EOFError:
                    results[rank] = ("died",)
    finally:
        for process in processes:
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()
    return results


def _run(rank: int, size: int, port: int, pipe: Any, function: Callable[..., Any], arguments: Any) -> None:
    names = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size}
    os.environ |= {name: str(value) for name, value in names.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    torch.set_num_threads(1)
    code = 0
    try:
        pipe.send(function(*arguments))
    except BaseException:
        code = 1
        pipe.send((traceback.format_exc(),))
    finally:
        pipe.close()
        os._exit(code)
