"""The hall's state on disk: one file, replaced as a whole, so that a restart resumes."""

from __future__ import annotations

import json
import math
import os
import zipfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import ConfigError
from pipeline.hall.faults import Fault
from pipeline.hall.fleet import Floats

_META = "meta"


def write_snapshot(path: Path, arrays: Mapping[str, Floats], meta: Mapping[str, Any]) -> None:
    """Replace the snapshot; a reader finds the old one or the new one, never half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    text = json.dumps(meta).encode()
    content: dict[str, Any] = {_META: np.frombuffer(text, dtype=np.uint8), **arrays}
    try:
        with part.open("wb") as out:
            np.savez(out, **content)
            out.flush()
            os.fsync(out.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def read_snapshot(path: Path) -> tuple[dict[str, Floats], dict[str, Any]] | None:
    """What was written last; None where there is none.

    Raises:
        ConfigError: the file cannot be read; the text says what to do.
    """
    try:
        with np.load(path, allow_pickle=False) as saved:
            arrays = {name: saved[name] for name in saved.files if name != _META}
            meta = json.loads(saved[_META].tobytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as exc:
        raise ConfigError(
            f"The hall's state {path} cannot be read ({exc}): remove it to start a new hall, or "
            "remove the whole state folder with  make clean"
        ) from exc
    return arrays, meta


def hall_to_serve(path: Path, racks: int | None, seed: int | None) -> tuple[int, int]:
    """Racks and seed: what was asked for, else those of the hall that was saved, else 8 and 1.

    Raises:
        ConfigError: the file cannot be read.
    """
    saved = read_snapshot(path)
    meta = saved[1] if saved is not None else {"racks": 8, "seed": 1}
    return (
        int(meta["racks"]) if racks is None else racks,
        int(meta["seed"]) if seed is None else seed,
    )


def fault_to_json(fault: Fault) -> dict[str, Any]:
    """A fault as JSON; a fault without end has ``null`` there."""
    entry = asdict(fault)
    entry["also"] = list(fault.also)
    if math.isinf(fault.end):
        entry["end"] = None
    return entry


def fault_from_json(entry: Mapping[str, Any]) -> Fault:
    """The fault that :func:`fault_to_json` wrote."""
    found = dict(entry)
    found["also"] = tuple(found["also"])
    found["end"] = math.inf if found["end"] is None else found["end"]
    return Fault(**found)
