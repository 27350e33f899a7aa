"""Waiting in tests: polls until something holds, never for a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(
    check: Callable[[], T], what: str, timeout_s: float = 30.0, every_s: float = 0.05
) -> T:
    """Call ``check`` until it answers something true, and return that.

    Raises:
        AssertionError: it did not in time.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        found = check()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout_s:g} s for: {what}")
        time.sleep(every_s)
