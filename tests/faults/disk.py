"""What a power cut leaves of a folder, from the calls that were made on it."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tests.faults.traced import Call

# strict: a name is kept when its own folder was synced. journal: as ext4 and XFS do, any sync
# keeps all names that were made before it; bytes are kept only where their file was synced.
# torn: names as in journal; of bytes that were not synced all, some or none are kept.
Kept = Literal["strict", "journal", "torn"]

_CHANCE = random.Random(17)  # noqa: S311


@dataclass(eq=False)
class _File:
    data: bytearray
    synced: bytes = b""


@dataclass(eq=False)
class _Link:
    target: str


@dataclass(eq=False)
class _Folder:
    entries: dict[str, _Node] = field(default_factory=dict)
    synced: dict[str, _Node] = field(default_factory=dict)
    journal: dict[str, _Node] = field(default_factory=dict)


_Node = _File | _Link | _Folder


class Disk:
    """A folder as it is in memory, and what of it is surely on the disk.

    Args:
        root: the folder; what it holds now counts as synced.
    """

    def __init__(self, root: Path) -> None:
        self._at = str(root)
        self._root = _load(root)
        self._changed: set[_Folder] = set()
        self._descriptors: dict[int, _Node] = {}
        self._positions: dict[int, int] = {}

    def apply(self, call: Call) -> None:
        """A call was made. Calls on other files are passed over.

        Raises:
            AssertionError: a call on this folder that is not understood.
        """
        act = getattr(self, f"_{call.name}", None)
        if act is not None:
            act(call)
        elif any(self._inside(path) for path in [*call.paths, *(p for _, p in call.descriptors)]):
            raise AssertionError(f"{call.name} is not understood")

    def rebuild(self, target: Path, kept: Kept) -> None:
        """Make a folder of what the power cut left."""
        _write(self._root, target, kept)

    # ------------------------------------------------------------ names

    def _inside(self, path: str) -> bool:
        return path == self._at or path.startswith(self._at + "/")

    def _find(self, path: str) -> _Node | None:
        node: _Node = self._root
        for part in self._parts(path):
            if not isinstance(node, _Folder) or part not in node.entries:
                return None
            node = node.entries[part]
        return node

    def _parts(self, path: str) -> list[str]:
        relative = os.path.normpath(path).removeprefix(self._at)
        return [part for part in relative.split("/") if part]

    def _place(self, path: str) -> tuple[_Folder, str] | None:
        if not self._inside(path):
            return None
        *above, name = self._parts(path)
        folder = self._find("/".join([self._at, *above]))
        assert isinstance(folder, _Folder), path
        self._changed.add(folder)
        return folder, name

    def _make(self, path: str, node: _Node) -> None:
        place = self._place(path)
        if place is not None:
            place[0].entries[place[1]] = node

    def _remove(self, path: str) -> None:
        place = self._place(path)
        if place is not None:
            place[0].entries.pop(place[1], None)

    def _mkdir(self, call: Call) -> None:
        self._make(call.path, _Folder())

    def _unlink(self, call: Call) -> None:
        self._remove(call.path)

    _mkdirat = _mkdir
    _unlinkat = _rmdir = _unlink

    def _symlink(self, call: Call) -> None:
        self._make(call.paths[1], _Link(call.texts[0].decode()))

    def _link(self, call: Call) -> None:
        node = self._find(call.paths[0])
        if node is not None:
            self._make(call.paths[1], node)

    _linkat = _link

    def _rename(self, call: Call) -> None:
        source, target = call.paths
        place = self._place(source)
        if place is None:
            assert not self._inside(target), target
            return
        if "RENAME_EXCHANGE" in str(call.others):
            one, two = self._find(source), self._find(target)
            assert one is not None
            assert two is not None
            self._make(source, two)
            self._make(target, one)
            return
        self._make(target, place[0].entries.pop(place[1]))

    _renameat = _renameat2 = _rename

    # ------------------------------------------------------------ bytes

    def _opened(self, call: Call) -> None:
        path, descriptor = call.path, call.result
        self._descriptors.pop(descriptor, None)
        self._positions[descriptor] = 0
        if not self._inside(path):
            return
        flags = " ".join(call.others)
        node = self._find(path)
        if node is None:
            if "O_CREAT" not in flags:
                return
            node = _File(bytearray())
            self._make(path, node)
        if isinstance(node, _File):
            if "O_TRUNC" in flags:
                node.data.clear()
            if "O_APPEND" in flags:
                self._positions[descriptor] = -1
        self._descriptors[descriptor] = node

    _open = _openat = _creat = _opened

    def _file(self, call: Call) -> _File | None:
        descriptor, path = call.descriptors[0] if call.descriptors else (-1, "")
        node = self._descriptors.get(descriptor) if self._inside(path) else None
        return node if isinstance(node, _File) else None

    def _write(self, call: Call) -> None:
        node = self._file(call)
        if node is None:
            return
        descriptor = call.descriptors[0][0]
        at = self._positions[descriptor]
        appends = at < 0
        at = len(node.data) if appends else at
        _put(node.data, at, call.texts[0][: call.result])
        self._positions[descriptor] = -1 if appends else at + call.result

    def _pwrite64(self, call: Call) -> None:
        node = self._file(call)
        if node is not None:
            _put(node.data, int(call.others[-1]), call.texts[0][: call.result])

    def _lseek(self, call: Call) -> None:
        if self._file(call) is not None:
            self._positions[call.descriptors[0][0]] = call.result

    def _ftruncate(self, call: Call) -> None:
        node = self._file(call)
        if node is not None:
            size = int(call.others[-1])
            del node.data[size:]
            node.data.extend(bytes(size - len(node.data)))

    # ------------------------------------------------------------ syncing

    def _fsync(self, call: Call) -> None:
        descriptor, path = call.descriptors[0] if call.descriptors else (-1, "")
        if not self._inside(path):
            return
        node = self._descriptors.get(descriptor)
        if isinstance(node, _File):
            node.synced = bytes(node.data)
        elif isinstance(node, _Folder):
            node.synced = dict(node.entries)
        for folder in self._changed:
            folder.journal = dict(folder.entries)
        self._changed.clear()

    _fdatasync = _fsync


def _put(data: bytearray, at: int, piece: bytes) -> None:
    if at > len(data):
        data.extend(bytes(at - len(data)))
    data[at : at + len(piece)] = piece


def _load(folder: Path) -> _Folder:
    made = _Folder()
    for each in folder.iterdir():
        node: _Node
        if each.is_symlink():
            node = _Link(str(each.readlink()))
        elif each.is_dir():
            node = _load(each)
        else:
            data = each.read_bytes()
            node = _File(bytearray(data), data)
        made.entries[each.name] = node
    made.synced, made.journal = dict(made.entries), dict(made.entries)
    return made


def _write(folder: _Folder, target: Path, kept: Kept) -> None:
    target.mkdir()
    for name, node in (folder.synced if kept == "strict" else folder.journal).items():
        path = target / name
        if isinstance(node, _Folder):
            _write(node, path, kept)
        elif isinstance(node, _Link):
            path.symlink_to(node.target)
        elif kept == "torn" and node.synced != node.data:
            sizes = (0, _CHANCE.randint(0, len(node.data)), len(node.data))
            path.write_bytes(node.data[: _CHANCE.choice(sizes)])
        else:
            path.write_bytes(node.synced)
