"""Identities made from the seed: the same seed gives the same hall."""

from __future__ import annotations

import hashlib
import uuid

_NAMESPACE = uuid.UUID("6f0c2c5e-5a3c-5d0e-9a39-7b6d1f6e2a10")


def gpu_uuid(cluster: str, seed: int, number: int) -> str:
    """A GPU UUID such as the driver gives."""
    return f"GPU-{uuid.uuid5(_NAMESPACE, f'{cluster}/{seed}/gpu/{number}')}"


def guid(cluster: str, seed: int, kind: str, number: int) -> str:
    """An InfiniBand GUID: ``0x``, a vendor prefix and ten digits of a hash."""
    digest = hashlib.sha256(f"{cluster}/{seed}/{kind}/{number}".encode()).hexdigest()
    return f"0x9c0591{digest[:10]}"


def chance(*parts: object) -> int:
    """A 64-bit number that follows from ``parts`` alone; seeds the random generators."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big")
