"""Compression of requests and answers: HTTP's content codings and ClickHouse's own blocks.

Decoders give out bounded pieces, so that a small request cannot blow up memory.
"""

from __future__ import annotations

import bz2
import lzma
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import brotli  # type: ignore[import-untyped]  # has no types
import lz4.block
import lz4.frame
import zstandard
from clickhouse_cityhash.cityhash import CityHash128

from pipeline.store.server.failure import StoreError

PIECE = 1 << 20
# A block of ClickHouse's native compression is at most 1 GB there; writers use 1 MB.
MAX_BLOCK = 128 << 20
_CHECKSUM = 16
_HEADER = 9
_NONE, _LZ4, _ZSTD = 0x02, 0x82, 0x90


class Decoder(Protocol):
    """Turns what was received into what was meant."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Decoded bytes, in pieces of about a megabyte at most.

        Raises:
            StoreError: 271, the bytes are not what they are said to be.
        """
        ...

    def finish(self) -> None:
        """The last byte came.

        Raises:
            StoreError: 271, something is missing.
        """
        ...


class Encoder(Protocol):
    """Turns an answer into what is sent."""

    def feed(self, data: bytes) -> bytes:
        """What can be sent now."""
        ...

    def finish(self) -> bytes:
        """The rest."""
        ...


def _broken(what: str) -> StoreError:
    return StoreError(271, f"The request is not {what} throughout")


class _StreamDecoder:
    """A content coding by a decompressor that can be told to stop at a length."""

    def __init__(self, name: str, make: Callable[[], Any]) -> None:
        self._name = name
        self._make = make
        self._current = make()
        self._started = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        try:
            while data:
                if self._current.eof:
                    # Another frame follows: all of these codings may be concatenated.
                    self._current = self._make()
                self._started = True
                yield from self._drain(data)
                data = self._current.unused_data if self._current.eof else b""
        except (zlib.error, lzma.LZMAError, OSError, RuntimeError, EOFError, ValueError) as exc:
            raise _broken(self._name) from exc

    def _drain(self, data: bytes) -> Iterator[bytes]:
        piece = self._current.decompress(data, max_length=PIECE)
        if piece:
            yield piece
        while not self._current.eof and not self._current.needs_input:
            piece = self._current.decompress(b"", max_length=PIECE)
            if not piece:
                break
            yield piece

    def finish(self) -> None:
        if self._started and not self._current.eof:
            raise _broken(f"complete {self._name}")


class _Zlib:
    """zlib with the interface of the other decompressors."""

    def __init__(self, window: int) -> None:
        self._inner = zlib.decompressobj(window)

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, max_length)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data


class _BrotliDecoder:
    def __init__(self) -> None:
        self._inner = brotli.Decompressor()

    def feed(self, data: bytes) -> Iterator[bytes]:
        try:
            piece = self._inner.process(data, output_buffer_limit=PIECE)
            # What it says of itself is not enough: the very end may wait behind a full piece.
            while piece or not self._inner.can_accept_more_data():
                if piece:
                    yield piece
                if self._inner.is_finished():
                    return
                piece = self._inner.process(b"", output_buffer_limit=PIECE)
        except brotli.error as exc:
            raise _broken("brotli") from exc

    def finish(self) -> None:
        if not self._inner.is_finished():
            raise _broken("complete brotli")


class _ZstdDecoder:
    """zstd: fed in small cuts, since this decompressor cannot be told to stop at a length.

    A block of 4 bytes can mean 128 kB, so a cut gives out 16 MB at most.
    """

    _CUT = 1 << 9

    def __init__(self) -> None:
        self._inner = self._make()
        self._started = False

    @staticmethod
    def _make() -> Any:
        return zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj()

    def feed(self, data: bytes) -> Iterator[bytes]:
        view = memoryview(data)
        try:
            for start in range(0, len(view), self._CUT):
                cut = bytes(view[start : start + self._CUT])
                while cut:
                    if self._inner.eof:
                        self._inner = self._make()
                    self._started = True
                    piece = self._inner.decompress(cut)
                    cut = self._inner.unused_data if self._inner.eof else b""
                    if piece:
                        yield piece
        except zstandard.ZstdError as exc:
            raise _broken("zstd") from exc

    def finish(self) -> None:
        if self._started and not self._inner.eof:
            raise _broken("complete zstd")


class _BlockDecoder:
    """ClickHouse's own blocks: checksum, method, sizes, data."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        self._held += data
        while len(self._held) >= _CHECKSUM + _HEADER:
            method, size, plain = struct.unpack_from("<BII", self._held, _CHECKSUM)
            if not _HEADER <= size <= MAX_BLOCK or plain > MAX_BLOCK:
                raise _broken("in ClickHouse's compressed blocks")
            end = _CHECKSUM + size
            if len(self._held) < end:
                return
            block = bytes(self._held[_CHECKSUM:end])
            if bytes(self._held[:_CHECKSUM]) != _checksum(block):
                raise _broken("in ClickHouse's compressed blocks: a checksum differs")
            del self._held[:end]
            yield self._plain(method, block[_HEADER:], plain)

    @staticmethod
    def _plain(method: int, data: bytes, size: int) -> bytes:
        try:
            if method == _LZ4:
                found: bytes = lz4.block.decompress(data, uncompressed_size=size)
            elif method == _ZSTD:
                found = zstandard.ZstdDecompressor().decompress(data, max_output_size=size)
            elif method == _NONE:
                found = data
            else:
                raise StoreError(271, f"Unknown compression method {method:#x}")
        except (lz4.block.LZ4BlockError, zstandard.ZstdError) as exc:
            raise _broken("in ClickHouse's compressed blocks") from exc
        if len(found) != size:
            raise _broken("in ClickHouse's compressed blocks: a size differs")
        return found

    def finish(self) -> None:
        if self._held:
            raise _broken("complete in ClickHouse's compressed blocks")


def _checksum(block: bytes) -> bytes:
    number: int = CityHash128(block)
    # The library's high word is ClickHouse's first.
    return struct.pack("<QQ", number >> 64, number & 0xFFFFFFFFFFFFFFFF)


class _Chained:
    """One coding inside another: HTTP's outside, ClickHouse's blocks inside."""

    def __init__(self, outer: Decoder, inner: Decoder) -> None:
        self._outer = outer
        self._inner = inner

    def feed(self, data: bytes) -> Iterator[bytes]:
        for piece in self._outer.feed(data):
            yield from self._inner.feed(piece)

    def finish(self) -> None:
        self._outer.finish()
        self._inner.finish()


_DECODERS: dict[str, Callable[[], Decoder]] = {
    "gzip": lambda: _StreamDecoder("gzip", lambda: _Zlib(31)),
    "deflate": lambda: _StreamDecoder("deflate", lambda: _Zlib(15)),
    "lz4": lambda: _StreamDecoder("lz4", lz4.frame.LZ4FrameDecompressor),
    "xz": lambda: _StreamDecoder("xz", lzma.LZMADecompressor),
    "bz2": lambda: _StreamDecoder("bz2", bz2.BZ2Decompressor),
    "br": _BrotliDecoder,
    "zstd": _ZstdDecoder,
}


def decoder(content_encoding: str | None, own_blocks: bool) -> Decoder | None:
    """The decoder for a request, or None where nothing is encoded.

    Args:
        content_encoding: the request's header.
        own_blocks: the client said ``decompress=1``.

    Raises:
        StoreError: the coding is unknown.
    """
    name = (content_encoding or "identity").strip().lower()
    outer: Decoder | None = None
    if name not in ("identity", ""):
        if name not in _DECODERS:
            raise StoreError(36, f"Unknown content encoding {name[:40]!r}")
        outer = _DECODERS[name]()
    if not own_blocks:
        return outer
    inner = _BlockDecoder()
    return _Chained(outer, inner) if outer else inner


class _StreamEncoder:
    def __init__(self, compressor: Any, start: bytes = b"") -> None:
        self._inner = compressor
        self._start = start

    def feed(self, data: bytes) -> bytes:
        start, self._start = self._start, b""
        return start + bytes(self._inner.compress(data))

    def finish(self) -> bytes:
        start, self._start = self._start, b""
        return start + bytes(self._inner.flush())


class _BrotliEncoder:
    def __init__(self) -> None:
        self._inner = brotli.Compressor(quality=1)

    def feed(self, data: bytes) -> bytes:
        return bytes(self._inner.process(data))

    def finish(self) -> bytes:
        return bytes(self._inner.finish())


class _BlockEncoder:
    def feed(self, data: bytes) -> bytes:
        return b"".join(
            self._block(data[start : start + PIECE]) for start in range(0, len(data), PIECE)
        )

    @staticmethod
    def _block(data: bytes) -> bytes:
        packed: bytes = lz4.block.compress(data, store_size=False)
        header = struct.pack("<BII", _LZ4, _HEADER + len(packed), len(data))
        block: bytes = header + packed
        return _checksum(block) + block

    def finish(self) -> bytes:
        return b""


def _lz4_encoder() -> Encoder:
    compressor = lz4.frame.LZ4FrameCompressor()
    return _StreamEncoder(compressor, compressor.begin())


# In the order in which they are chosen: the cheap ones first, the wire is this machine.
_ENCODERS: dict[str, Callable[[], Encoder]] = {
    "lz4": _lz4_encoder,
    "zstd": lambda: _StreamEncoder(zstandard.ZstdCompressor(level=1).compressobj()),
    "gzip": lambda: _StreamEncoder(zlib.compressobj(1, wbits=31)),
    "deflate": lambda: _StreamEncoder(zlib.compressobj(1, wbits=15)),
    "br": _BrotliEncoder,
}


def encoder(accept_encoding: str | None, own_blocks: bool) -> tuple[str | None, Encoder | None]:
    """The content coding of an answer and its encoder.

    Args:
        accept_encoding: the request's header; None where compression is off.
        own_blocks: the client said ``compress=1``.
    """
    if own_blocks:
        return None, _BlockEncoder()
    accepted = set()
    for part in (accept_encoding or "").split(","):
        name, _, weight = part.strip().partition(";")
        if weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000"):
            accepted.add(name.strip().lower())
    for name, make in _ENCODERS.items():
        if name in accepted:
            return name, make()
    return None, None
