"""How processes signal each other, with ctypes: the functions of core/wait.c and the struct that they share.

Needs the standard library alone: worker processes under another interpreter load it (vector/remote.py).
"""

from __future__ import annotations

import ctypes
from ctypes import c_char, c_int32, c_int64, c_uint32, c_void_p
from typing import Any


class Channel(ctypes.Structure):
    """`Channel` in core/wait.c: commands to one worker process, and their results."""

    _fields_ = [
        ("posted", c_uint32),
        ("command", c_int32),
        ("worker_sleeps", c_uint32),
        ("padding", c_char * 52),
        ("finished", c_uint32),
        ("status", c_int32),
        ("ticket", c_uint32),
        ("current", c_int32),
        ("step", c_int32),
    ]


class Channels:
    """The part of the core library that parent and workers signal each other with."""

    def __init__(self, lib: Any) -> None:
        self.channels_bytes = declare(lib.shoal_channels_bytes, c_int64, c_int32)
        self.channel = declare(lib.shoal_channel, c_void_p, c_void_p, c_int32)
        self.post = declare(lib.shoal_post, None, c_void_p, c_void_p, c_int32, c_int32)
        ready = [c_void_p, c_void_p, c_int32, c_int32, c_void_p, c_int64, c_int64]
        self.wait_ready = declare(lib.shoal_wait_ready, c_int32, *ready)
        self.wait_command = declare(lib.shoal_wait_command, c_int32, c_void_p, c_int32, c_int64, c_int64)
        self.settle = declare(lib.shoal_settle, None, c_void_p, c_int32)
        self.finish = declare(lib.shoal_finish, None, c_void_p, c_int32, c_int32)


def declare(function: Any, result: Any, *arguments: Any) -> Any:
    """Sets the result and argument types of a library's function, and returns it."""
    function.restype, function.argtypes = result, list(arguments)
    return function
