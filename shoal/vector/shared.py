"""Shared memory for processes. It has no name, so that a process that dies leaves nothing behind."""

from __future__ import annotations

import mmap
import os
import tempfile

from shoal.errors import ConfigError
from shoal.memory import free_bytes


def allocate(size: int) -> int:
    """A file descriptor of `size` bytes of shared memory, zeroed; ConfigError if that is not free.

    The memory has no name in any file system: it is freed with its last descriptor, and the size of /dev/shm does not
    matter. Its pages are reserved now, so that a later access cannot raise SIGBUS.
    """
    free = free_bytes()
    if free is not None and size > free:
        raise ConfigError(
            f"these envs need {size:,} bytes of shared memory, {free:,} are free. "
            "Use fewer envs, or smaller observations."
        )
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("shoal", getattr(os, "MFD_CLOEXEC", 1))
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    try:
        os.ftruncate(fd, size)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size)
    except (OSError, OverflowError) as error:
        os.close(fd)
        raise _refused(size, error) from None
    return fd


def attach(fd: int, size: int) -> mmap.mmap:
    """Maps the memory of a descriptor, which may then be closed."""
    try:
        return mmap.mmap(fd, size)
    except (OSError, ValueError) as error:
        raise _refused(size, error) from None


def _refused(size: int, error: Exception) -> ConfigError:
    why = getattr(error, "strerror", None) or error
    return ConfigError(
        f"the system refused {size:,} bytes of shared memory: {why}. Use fewer envs, or smaller observations."
    )
