"""Free memory of this machine, of its container, or of a GPU; and huge pages."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path
from typing import Any

CGROUP = Path("/sys/fs/cgroup")


def free_bytes(device: Any = "cpu") -> int | None:
    """Bytes that can still be allocated on a device (as torch names it); None if unknown."""
    if str(device).startswith("cuda"):
        import torch

        return int(torch.cuda.mem_get_info(device)[0])
    known = [size for size in (_of_the_system(), _of_the_container()) if size is not None]
    if not known and hasattr(os, "sysconf"):  # an upper limit: the installed memory
        known.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return max(min(known), 0) if known else None


def use_huge_pages(address: int, size: int) -> None:
    """Asks Linux to back existing memory with pages of 2 MB: rows at random places are then found faster."""
    page, huge_page, collapse = 2 << 20, 14, 25  # MADV_HUGEPAGE, MADV_COLLAPSE
    first, last = -(-address // page) * page, (address + size) // page * page
    with contextlib.suppress(OSError, AttributeError):
        for advice in (huge_page, collapse) if first < last else ():
            ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), advice)


def _of_the_system() -> int | None:
    with contextlib.suppress(OSError, KeyError, ValueError):
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return int(fields["MemAvailable"].split()[0]) * 1024
    return None


def _of_the_container() -> int | None:
    with contextlib.suppress(OSError, ValueError):  # "max" means no limit
        limit, used = ((CGROUP / name).read_text() for name in ("memory.max", "memory.current"))
        return int(limit) - int(used)
    return None
