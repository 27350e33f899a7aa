"""The first question of clickhouse-go, answered in the encoding that it expects.

It asks for the server's revision and reads even that answer as Native of its own protocol
version, which chDB cannot write. Told that the revision is 0, it reads plain Native from then on.
"""

from __future__ import annotations

from collections.abc import Mapping

QUESTION = b"SELECT displayName(), version(), revision(), timezone()"
# Of ClickHouse's protocol: from these versions on a block begins with information about itself,
# and each column says whether its encoding is a special one.
_BLOCK_INFO = 1
_CUSTOM_SERIALIZATION = 54454
# Field 1, not an overflow; field 2, bucket -1; no more fields.
_INFO = b"\x01\x00\x02\xff\xff\xff\xff\x00"


def answer(sql: bytes, own: Mapping[str, str], version: str, timezone: str) -> bytes | None:
    """The answer in Native, or None where this is another question.

    Args:
        own: parameters of the HTTP interface.
    """
    if sql.strip().rstrip(b";") != QUESTION or own.get("default_format") != "Native":
        return None
    try:
        protocol = int(own.get("client_protocol_version", "0"))
    except ValueError:
        return None
    if protocol < _BLOCK_INFO:
        return None
    columns = (
        ("displayName()", "String", _text("rackpulse")),
        ("version()", "String", _text(version)),
        ("revision()", "UInt32", bytes(4)),
        ("timezone()", "String", _text(timezone)),
    )
    block = _INFO + bytes([len(columns), 1])
    custom = b"\x00" if protocol >= _CUSTOM_SERIALIZATION else b""
    for name, kind, value in columns:
        block += _text(name) + _text(kind) + custom + value
    return block


def _text(text: str) -> bytes:
    raw = text.encode()
    assert len(raw) < 0x80, "a length of one byte"
    return bytes([len(raw)]) + raw
