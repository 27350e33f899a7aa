"""Large pieces of memory that come and go are not asked of the system each time."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PAGES = 8 << 20 >> 12
_PROGRAM = """
import resource, sys
from pipeline import memory
if sys.argv[1] == "keep":
    memory.keep_large_pieces()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def blocks():
    held = []
    for _ in range(40):
        held.append(b"x" * (8 << 20))
        if len(held) > 3:
            held.pop(0)
blocks()
before = faults()
blocks()
print(faults() - before)
"""


def _faults(how: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, how], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator is what is set")
def test_freed_pieces_are_used_again() -> None:
    assert _faults("keep") < 2 * _PAGES  # of 40 pieces that came and went
