"""How a process of ours keeps memory: large pieces that come and go all the time.

Message bodies and blocks of some hundred kilobytes to some ten megabytes are taken and freed
many times a second, out of order. By default glibc asks the system for each large one and
gives it back at once, so that a third of a writer's time went into clearing pages; and of the
smaller ones it keeps the holes, so that a writer that holds 100 MB of messages grew to 700 MB
(docs/performance.md).
"""

from __future__ import annotations

import ctypes
import resource
from functools import cache
from pathlib import Path
from typing import Any

# From glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_KEEP_UPTO_BYTES = 64 << 20  # of one piece
_KEEP_FREE_BYTES = 512 << 20
_FROM_BYTES = 400_000_000


@cache
def _glibc(name: str) -> Any:
    try:
        return getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return None  # not glibc: its allocator has other habits


def keep_large_pieces() -> None:
    """Use freed memory again in place of asking the system anew; for a whole process, once."""
    mallopt = _glibc("mallopt")
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _KEEP_UPTO_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEEP_FREE_BYTES)
        mallopt(_M_ARENA_MAX, 2)


def give_back() -> None:
    """Return free memory to the system where the process holds much; tens of milliseconds, and
    as much again when the memory is next needed."""
    trim = _glibc("malloc_trim")
    if trim is not None and _resident_bytes() > _FROM_BYTES:
        trim(0)


def _resident_bytes() -> int:
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    except OSError:
        return _FROM_BYTES + 1  # not Linux: rather too often
    return int(pages) * resource.getpagesize()
