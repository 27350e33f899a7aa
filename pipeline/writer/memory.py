"""Gives memory back that was used for a block.

Message bodies of some hundred kilobytes are freed out of order, and glibc keeps the holes:
without this a writer that holds 100 MB of messages grew to 700 MB (docs/performance.md).
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any


@cache
def _trim() -> Any:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None  # not glibc: its allocator has other habits


def give_back() -> None:
    """Return free memory to the system; some milliseconds."""
    trim = _trim()
    if trim is not None:
        trim(0)
