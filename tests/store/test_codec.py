"""Compression: each coding there and back, cut short, and made to blow up."""

from __future__ import annotations

import gzip
import lzma
import zlib
from collections.abc import Callable
from pathlib import Path

import brotli
import lz4.frame
import pytest
import zstandard
from clickhouse_connect.driver.client import Client
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.store.server import codec
from pipeline.store.server.failure import StoreError
from tests.store.conftest import Http
from tests.support.store import RunningStore

ENCODE: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "lz4": lz4.frame.compress,
    "zstd": zstandard.ZstdCompressor().compress,
    "xz": lzma.compress,
}
DECODE: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.decompress,
    "deflate": zlib.decompress,
    "br": brotli.decompress,
    "lz4": lz4.frame.decompress,
    "zstd": lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data),
}


def _decoded(decoder: codec.Decoder, data: bytes, step: int) -> bytes:
    found = b"".join(
        piece for at in range(0, len(data), step) for piece in decoder.feed(data[at : at + step])
    )
    decoder.finish()
    return found


@settings(deadline=None, max_examples=60)
@given(
    name=st.sampled_from(sorted(ENCODE)),
    data=st.binary(max_size=3000),
    times=st.integers(1, 2000),
    step=st.sampled_from([7, 1000, 1 << 16]),
)
def test_decoders_give_back_what_was_encoded(name: str, data: bytes, times: int, step: int) -> None:
    decoder = codec.decoder(name, own_blocks=False)
    assert decoder is not None
    plain = data * min(times, 1 + 1_000_000 // max(1, len(data)))
    assert _decoded(decoder, ENCODE[name](plain), step) == plain


@settings(deadline=None, max_examples=40)
@given(data=st.binary(max_size=5000), times=st.integers(1, 500), step=st.integers(1, 5000))
def test_own_blocks_round_trip(data: bytes, times: int, step: int) -> None:
    _, encoder = codec.encoder(None, own_blocks=True)
    decoder = codec.decoder(None, own_blocks=True)
    assert encoder is not None
    assert decoder is not None
    sent = encoder.feed(data * times) + encoder.finish()
    assert _decoded(decoder, sent, step) == data * times


def test_own_blocks_are_those_of_the_engine(client: Client, store: RunningStore) -> None:
    """A column's file on disk is made of the same blocks, checksums and all."""
    client.command("DROP TABLE IF EXISTS telemetry.blocks")
    client.command(
        "CREATE TABLE telemetry.blocks (a UInt64 CODEC(LZ4)) ENGINE = MergeTree ORDER BY a"
        " SETTINGS min_bytes_for_wide_part = 0"
    )
    client.command("INSERT INTO telemetry.blocks SELECT number FROM numbers(1000)")
    path = client.query(
        "SELECT path FROM system.parts WHERE table = 'blocks' AND active"
    ).result_rows[0][0]
    decoder = codec.decoder(None, own_blocks=True)
    assert decoder is not None
    stored = _decoded(decoder, (Path(path) / "a.bin").read_bytes(), 4096)
    assert stored == b"".join(number.to_bytes(8, "little") for number in range(1000))


@pytest.mark.parametrize("name", sorted(ENCODE))
def test_truncated_and_garbled_input_is_refused(name: str) -> None:
    sent = ENCODE[name](bytes(range(256)) * 200)
    for bad in (sent[:-5], sent[: len(sent) // 2], b"not " + sent):
        decoder = codec.decoder(name, own_blocks=False)
        assert decoder is not None
        with pytest.raises(StoreError) as caught:
            _decoded(decoder, bad, 1000)
        assert caught.value.code == 271


@pytest.mark.parametrize("at", [0, 17, 30])
def test_a_flipped_bit_in_own_blocks_is_refused(at: int) -> None:
    _, encoder = codec.encoder(None, own_blocks=True)
    assert encoder is not None
    sent = bytearray(encoder.feed(b"some rows" * 100))
    sent[at] ^= 1
    decoder = codec.decoder(None, own_blocks=True)
    assert decoder is not None
    with pytest.raises(StoreError):
        _decoded(decoder, bytes(sent), 1000)


@pytest.mark.parametrize("name", sorted(ENCODE))
def test_no_piece_is_large_however_small_the_request(name: str) -> None:
    bomb = ENCODE[name](bytes(64 << 20))
    decoder = codec.decoder(name, own_blocks=False)
    assert decoder is not None
    total = largest = 0
    for at in range(0, len(bomb), 1 << 16):
        for piece in decoder.feed(bomb[at : at + (1 << 16)]):
            total += len(piece)
            largest = max(largest, len(piece))
    decoder.finish()
    assert total == 64 << 20
    assert largest <= 17 << 20


@pytest.mark.parametrize("name", sorted(ENCODE))
def test_compressed_insert(http_owner: Http, client: Client, table: str, name: str) -> None:
    data = b"".join(b"%d\tn%d\n" % (i, i) for i in range(1000))
    reply = http_owner(
        ENCODE[name](data),
        headers={"Content-Encoding": name},
        query=f"INSERT INTO {table} (id, name) FORMAT TabSeparated",
    )
    assert reply.status == 200
    assert client.query(f"SELECT count(), sum(id) FROM {table}").result_rows == [(1000, 499500)]


def test_compressed_insert_cut_short_stores_nothing(
    http_owner: Http, client: Client, table: str
) -> None:
    data = gzip.compress(b"".join(b"%d\tn%d\n" % (i, i) for i in range(100_000)))
    reply = http_owner(
        data[:-100],
        headers={"Content-Encoding": "gzip"},
        query=f"INSERT INTO {table} (id, name) FORMAT TabSeparated",
    )
    assert reply.code == 271
    assert client.query(f"SELECT count() FROM {table}").result_rows == [(0,)]


def test_statement_is_compressed_too_with_decompress(http_owner: Http) -> None:
    _, encoder = codec.encoder(None, own_blocks=True)
    assert encoder is not None
    assert http_owner(encoder.feed(b"SELECT 7"), decompress="1").text == "7\n"


@pytest.mark.parametrize("name", sorted(DECODE))
@pytest.mark.parametrize("wait", ["0", "1"])
def test_answers_are_compressed_by_accept_encoding(http_owner: Http, name: str, wait: str) -> None:
    reply = http_owner(
        "SELECT number FROM numbers(200000)",
        headers={"Accept-Encoding": name},
        wait_end_of_query=wait,
    )
    assert reply.headers["content-encoding"] == name
    expected = b"".join(b"%d\n" % i for i in range(200_000))
    assert DECODE[name](reply.body) == expected
    assert len(reply.body) < len(expected)


def test_compression_can_be_turned_off(http_owner: Http) -> None:
    reply = http_owner("SELECT 1", headers={"Accept-Encoding": "gzip"}, enable_http_compression="0")
    assert (reply.text, reply.headers.get("content-encoding")) == ("1\n", None)


def test_answer_in_own_blocks(http_owner: Http) -> None:
    reply = http_owner("SELECT number FROM numbers(100000)", compress="1")
    decoder = codec.decoder(None, own_blocks=True)
    assert decoder is not None
    assert _decoded(decoder, reply.body, 999) == b"".join(b"%d\n" % i for i in range(100_000))


def test_an_error_is_compressed_as_well(http_owner: Http) -> None:
    reply = http_owner("SELECT no_such_column", headers={"Accept-Encoding": "gzip"})
    assert reply.code == 47
    assert gzip.decompress(reply.body).startswith(b"Code: 47. DB::")
