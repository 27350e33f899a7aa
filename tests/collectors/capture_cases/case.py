"""One capture and what must be printed of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Says = tuple[dict[str, Any], dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """A capture.

    Attributes:
        kind: reader, as on the command line.
        rows: how many by stream.
        says: which rows (the columns that tell them), how many of them where it is not one
            (``"rows"``), and what each of them holds.
        lacks: columns that no row may have: a missing reading is never 0.
        refused: lines on stderr, without the word.
        args: more of the command line.
    """

    name: str
    kind: str
    rows: Mapping[str, int] = field(default_factory=dict)
    says: tuple[Says, ...] = ()
    lacks: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
