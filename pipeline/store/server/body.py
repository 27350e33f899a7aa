"""A request's body: held in memory while small, in a file of the store's folder beyond.

A statement starts only when its body is complete, so a body that was cut short has stored
nothing, and an insert of any size takes bounded memory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

PIECE = 1 << 20


class Body:
    """Bytes that were received, in order.

    Args:
        folder: where a large body is put.
        memory: how many bytes are held in memory.
    """

    def __init__(self, folder: Path, memory: int) -> None:
        self._folder = folder
        self._memory = memory
        self._pieces: list[bytes] = []
        self._file: IO[bytes] | None = None
        self.size = 0

    def append(self, piece: bytes) -> None:
        """Add what came in.

        Raises:
            OSError: the disk is full.
        """
        if not piece:
            return
        self.size += len(piece)
        if self._file is None:
            self._pieces.append(piece)
            if self.size <= self._memory:
                return
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115  # closed by close()
            for held in self._pieces:
                self._file.write(held)
            self._pieces.clear()
        else:
            self._file.write(piece)

    def head(self, limit: int) -> bytes:
        """The first bytes, at most ``limit``."""
        if self._file is not None:
            self._file.seek(0)
            return self._file.read(limit)
        if len(self._pieces) == 1 and len(self._pieces[0]) <= limit:
            return self._pieces[0]
        found = bytearray()
        for piece in self._pieces:
            found += piece[: limit - len(found)]
            if len(found) >= limit:
                break
        return bytes(found)

    def pieces(self, skip: int = 0) -> Iterator[bytes]:
        """All bytes behind the first ``skip``, in pieces."""
        if self._file is not None:
            self._file.seek(skip)
            while piece := self._file.read(PIECE):
                yield piece
            return
        for piece in self._pieces:
            if skip >= len(piece):
                skip -= len(piece)
                continue
            yield piece[skip:] if skip else piece
            skip = 0

    def joined(self, skip: int = 0) -> bytes:
        """All bytes behind the first ``skip`` as one; only for bodies held in memory."""
        return b"".join(self.pieces(skip))

    @property
    def descriptor(self) -> int | None:
        """File descriptor of the file that holds the bytes; None while in memory."""
        if self._file is None:
            return None
        self._file.flush()
        return self._file.fileno()

    def close(self) -> None:
        """Let go of the bytes."""
        self._pieces.clear()
        if self._file is not None:
            self._file.close()
            self._file = None
