"""A folder of a process that holds little: a memory file system in a name space of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

_MOUNT = 'mount -t tmpfs -o size="$1" tmpfs "$2" && shift 2 && exec "$@"'


def on_small_disk(folder: Path, size: str) -> list[str]:
    """Command prefix that lets this folder, and only for that process, be a small disk."""
    folder.mkdir(parents=True, exist_ok=True)
    return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", _MOUNT, "sh", size,
            str(folder)]  # fmt: skip


def need_small_disk(folder: Path) -> None:
    """Skip, saying so, where such a name space cannot be made."""
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare (util-linux) to make a disk full")
    tried = subprocess.run([*on_small_disk(folder, "1m"), "true"], capture_output=True, check=False)
    if tried.returncode:
        pytest.skip("a small disk cannot be mounted here: the kernel or the container forbids it")


class Filler:
    """Fills the small disk of a running process, from outside."""

    def __init__(self, pid: int, folder: Path) -> None:
        self._path = Path(f"/proc/{pid}/root{folder}/filler")

    def fill(self) -> None:
        """Take all that is left."""
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            for piece in (1 << 20, 1 << 12, 1):
                with contextlib.suppress(OSError):  # no space left
                    while True:
                        os.write(descriptor, b"x" * piece)
        finally:
            os.close(descriptor)

    def free(self) -> None:
        """Give it back."""
        self._path.unlink(missing_ok=True)
