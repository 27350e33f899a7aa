"""Become an Airflow component that ends when the process that started it is gone.

``python -m pipeline.airflow_local.launch PARENT_PID ARGUMENT…`` runs ``airflow ARGUMENT…``.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int, when_gone: signal.Signals = signal.SIGTERM) -> None:
    """Ask the kernel to signal this process once its parent has ended, however it ended.

    Args:
        parent: process id of the parent, to notice that it was gone before we asked.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, when_gone, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(0)


def main() -> None:
    """Set up signals and turn into ``airflow``."""
    end_with_parent(int(sys.argv[1]))
    # A shell that starts us in the background hands on an ignored SIGINT, and an ignored
    # signal stays ignored over exec: Airflow would never hear it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    os.execv(sys.executable, [sys.executable, "-m", "airflow", *sys.argv[2:]])  # noqa: S606  # a list, no shell


if __name__ == "__main__":
    main()
