"""A request's body as it comes in: the statement is taken off, data is put aside.

A statement starts only when its body is complete, so a body that was cut short has stored
nothing. Data is held in memory while small and goes to a file of the store's folder beyond
that, so an insert of any size takes bounded memory.
"""

from __future__ import annotations

import errno
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from pipeline.store.server.failure import StoreError
from pipeline.store.sql_text import Insert, find_insert, first_word, reads_input

PIECE = 1 << 20
# How much of a body is looked at to find where an INSERT's data begins.
FIRST_LOOK = 1 << 16
LAST_LOOK = 1 << 20
MAX_STATEMENT = 16 << 20


class Scratch:
    """Where data is put aside, and how much of it may stand in memory.

    Args:
        folder: a folder of our own.
        each: bytes that one request may hold in memory.
        together: bytes that all requests may hold in memory.
    """

    def __init__(self, folder: Path, each: int = 64 << 20, together: int = 256 << 20) -> None:
        self.folder = folder
        self.each = each
        self._left = together
        self._lock = threading.Lock()

    def take(self, count: int) -> bool:
        """Ask for memory; False means: use the disk."""
        with self._lock:
            if count > self._left:
                return False
            self._left -= count
            return True

    def give_back(self, count: int) -> None:
        """Give memory back."""
        with self._lock:
            self._left += count


class Data:
    """An INSERT's data.

    Args:
        as_file: the engine will read it by file descriptor, not in pieces from us.
    """

    def __init__(self, scratch: Scratch, *, as_file: bool) -> None:
        self._scratch = scratch
        self._pieces: list[bytes] = []
        self._taken = 0
        self._on_disk = False
        self.descriptor: int | None = None
        self.size = 0
        if as_file:
            self.descriptor = os.memfd_create("insert", os.MFD_CLOEXEC)

    def write(self, piece: bytes) -> None:
        """Add what came in.

        Raises:
            StoreError: 243, the disk is full.
        """
        if not piece:
            return
        if not self._on_disk:
            fits = self.size + len(piece) <= self._scratch.each
            if fits and self._scratch.take(len(piece)):
                self._taken += len(piece)
            else:
                self._move_to_disk()
        self.size += len(piece)
        if self.descriptor is None:
            self._pieces.append(piece)
        else:
            self._write(self.descriptor, piece)

    def _move_to_disk(self) -> None:
        with tempfile.TemporaryFile(dir=self._scratch.folder) as file:
            target = os.dup(file.fileno())
        try:
            for piece in self.pieces():
                self._write(target, piece)
        except BaseException:
            os.close(target)
            raise
        self._let_go()
        self.descriptor = target
        self._on_disk = True

    @staticmethod
    def _write(descriptor: int, piece: bytes) -> None:
        view = memoryview(piece)
        try:
            while view:
                view = view[os.write(descriptor, view) :]
        except OSError as exc:
            if exc.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StoreError(243, "No space left on the disk for an insert's data") from exc
            raise

    def pieces(self) -> Iterator[bytes]:
        """All of it in pieces."""
        if self.descriptor is None:
            yield from self._pieces
            return
        offset = 0
        while piece := os.pread(self.descriptor, PIECE, offset):
            offset += len(piece)
            yield piece

    def _let_go(self) -> None:
        self._pieces.clear()
        self._scratch.give_back(self._taken)
        self._taken = 0
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None

    def close(self) -> None:
        """Let go of memory and file."""
        self._let_go()


class Incoming:
    """A statement and, where it is an INSERT that brings its rows, its data.

    Args:
        prefix: the statement of the URL, or its beginning.
        formats: names of input formats.

    Attributes:
        sql: the statement; complete after :meth:`finish`.
        insert: what is known of an INSERT with data.
        data: its data.
    """

    def __init__(self, prefix: bytes, formats: frozenset[str], scratch: Scratch) -> None:
        self._formats = formats
        self._scratch = scratch
        self._held = bytearray(prefix)
        self._next_look = FIRST_LOOK
        self.sql = b""
        self.insert: Insert | None = None
        self.data: Data | None = None

    def feed(self, piece: bytes) -> None:
        """Add bytes of the body.

        Raises:
            StoreError: the statement is too long, or the disk is full.
        """
        if self.data is not None:
            self.data.write(piece)
            return
        self._held += piece
        if len(self._held) >= self._next_look:
            self._look()
        if self.data is None and len(self._held) > MAX_STATEMENT:
            raise StoreError(62, f"The statement is longer than {MAX_STATEMENT} bytes")

    def _look(self) -> None:
        self._next_look = self._next_look * 4 if self._next_look < LAST_LOOK else MAX_STATEMENT + 1
        head = bytes(self._held[:LAST_LOOK])
        if first_word(head) not in ("INSERT", "WITH"):
            self._next_look = MAX_STATEMENT + 1
            return
        found = find_insert(head, self._formats)
        if found is None:
            return
        self.insert = found
        self.sql = found.head
        self.data = Data(self._scratch, as_file=reads_input(found.head) is not None)
        self.data.write(bytes(self._held[found.data_start :]))
        self._held.clear()

    def finish(self) -> None:
        """The body is complete.

        Raises:
            StoreError: there is no statement.
        """
        if self.data is None:
            self._look()
        if self.data is None:
            self.sql = bytes(self._held)
            if not self.sql.strip():
                raise StoreError(62, "Syntax error: Empty query")

    def close(self) -> None:
        """Let go of memory and file."""
        if self.data is not None:
            self.data.close()
