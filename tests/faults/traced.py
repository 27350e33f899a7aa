"""The store under strace: its calls that change files are written down, or one of them kills it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import need_program
from tests.support.wait import wait_until

# Everything that changes a file or a folder, or where the next write goes.
_CHANGES = (
    "open", "openat", "creat", "write", "pwrite64", "writev", "pwritev", "pwritev2", "ftruncate",
    "truncate", "fallocate", "lseek", "rename", "renameat", "renameat2", "link", "linkat",
    "symlink", "symlinkat", "unlink", "unlinkat", "mkdir", "mkdirat", "rmdir", "fsync",
    "fdatasync", "sync_file_range", "copy_file_range", "sendfile",
)  # fmt: skip
# At these a store is killed: after them the folder is another one, or is safer than before.
POINTS = frozenset({
    "write", "pwrite64", "rename", "renameat", "renameat2", "link", "unlink", "unlinkat", "mkdir",
    "rmdir", "fsync", "fdatasync",
})  # fmt: skip
_LINE = re.compile(r"^(\d+) +([\d.]+) (.*)$", re.S)
_RESUMED = re.compile(r"^<\.\.\. \w+ resumed>(.*)$", re.S)
_CALL = re.compile(r"^(\w+)\((.*)\) += (-?\d+)", re.S)
_UNFINISHED = " <unfinished ...>"
# A descriptor with its path, a text, or anything else up to a comma.
_ARGUMENT = re.compile(r'(-?\w+)<((?:\\x[0-9a-f]{2})*)>|"((?:\\x[0-9a-f]{2})*)"|([^,\s]+)')


def need_strace() -> None:
    """Skip, saying so, where strace is missing or may not trace."""
    need_program("strace")
    tried = subprocess.run(["strace", "-f", "true"], capture_output=True, check=False)
    if tried.returncode:
        pytest.skip("strace may not trace processes here: the kernel or the container forbids it")


def recording(log: Path) -> list[str]:
    """Command prefix that writes every change of a file down, with its bytes."""
    return [
        "strace", "-f", "-D", "-y", "-xx", "-ttt", "-s", str(1 << 28), "--seccomp-bpf",
        "-e", "signal=none", "-e", f"trace={','.join(_CHANGES)}", "-o", str(log),
    ]  # fmt: skip


def killing(call: str, number: int, paths: list[Path], log: Path) -> list[str]:
    """Command prefix that kills the process before the ``number``-th such call on a path."""
    # Not with --seccomp-bpf: the signal would be lost there.
    chosen = [part for path in paths for part in ("-P", str(path), "-P", f"{path}/")]
    return [
        "strace", "-f", "-D", "-e", "signal=none", *chosen,
        "-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={number}", "-o", str(log),
    ]  # fmt: skip


def wait_traced(log: Path) -> None:
    """Wait until the tracer that writes this file has ended, some moments after its process."""
    mark = str(log).encode()

    def ended() -> bool:
        for each in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                line = each.read_bytes()
            except OSError:
                continue
            if line.startswith(b"strace\0") and mark in line:
                return False
        return True

    wait_until(ended, "strace to end", 30)


@dataclass(frozen=True)
class Call:
    """One call that succeeded.

    Attributes:
        at: when it ended, seconds since 1970.
        texts: paths and data among its arguments, in order.
        descriptor, path: of its first argument where that is a descriptor; -100 is the folder
            that the process stands in.
        others: its other arguments as strace writes them.
    """

    at: float
    name: str
    texts: tuple[bytes, ...]
    descriptors: tuple[tuple[int, str], ...]
    others: tuple[str, ...]
    result: int

    @property
    def path(self) -> str:
        """The file or folder that it is about."""
        if self.name in ("write", "pwrite64", "fsync", "fdatasync", "ftruncate", "lseek"):
            return self.descriptors[0][1] if self.descriptors else ""
        return self.paths[0] if self.paths else ""

    @property
    def paths(self) -> list[str]:
        """Paths among its arguments, absolute."""
        folders = [path for _, path in self.descriptors]
        found = []
        for number, text in enumerate(self.texts):
            name = text.decode(errors="replace")
            under = folders[min(number, len(folders) - 1)] if folders else "/"
            found.append(name if name.startswith("/") else f"{under}/{name}")
        return found


def calls(log: Path) -> Iterator[Call]:
    """The calls of a recording, in the order in which they ended."""
    begun: dict[str, str] = {}
    with log.open(encoding="ascii", errors="replace") as lines:
        for line in lines:
            match = _LINE.match(line.rstrip("\n"))
            if match is None:
                continue
            thread, at, rest = match.groups()
            if rest.endswith(_UNFINISHED):
                begun[thread] = rest.removesuffix(_UNFINISHED)
                continue
            resumed = _RESUMED.match(rest)
            if resumed:
                rest = begun.pop(thread, "") + resumed[1]
            found = _CALL.match(rest)
            if found and int(found[3]) >= 0:
                yield _call(float(at), found[1], found[2], int(found[3]))


def _call(at: float, name: str, arguments: str, result: int) -> Call:
    texts: list[bytes] = []
    descriptors: list[tuple[int, str]] = []
    others: list[str] = []
    for number, path, text, other in _ARGUMENT.findall(arguments):
        if number:
            descriptors.append(
                (int(number) if number.isdigit() else -100, _bytes(path).decode(errors="replace"))
            )
        elif other:
            others.append(other)
        else:
            texts.append(_bytes(text))
    return Call(at, name, tuple(texts), tuple(descriptors), tuple(others), result)


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))
