"""Which lines of a log are new: kept per target, also over a restart of the collector.

A log is read as a tail, again and again; each line is an event once. Lines of the first read
are a baseline, unless they are young enough to have come while the collector was away.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path

from pipeline.collectors.readers.kmsg import LogEvent

log = logging.getLogger("rackpulse.collect")
KEEP = 4_096
CATCH_UP = timedelta(minutes=10)


class LogLines:
    """Lines seen before, by target.

    Args:
        path: where they are kept; None keeps them in memory only.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._seen: dict[str, dict[str, None]] = {}
        self._unkept = False
        if path is not None and path.exists():
            try:
                raw = json.loads(path.read_text(encoding="utf-8"))
                self._seen = {
                    str(target): dict.fromkeys(str(key) for key in keys)
                    for target, keys in raw.items()
                }
            except (OSError, ValueError, AttributeError, TypeError) as exc:
                log.warning("%s is not readable, lines may be told again: %s", path, exc)

    def new(self, target: str, events: Iterable[LogEvent], received: datetime) -> list[LogEvent]:
        """Those events that were not told before; they count as told from now on."""
        first = target not in self._seen
        seen = self._seen.setdefault(target, {})
        fresh = []
        for event in events:
            key = hashlib.blake2b(event.key.encode(), digest_size=8).hexdigest()
            known = key in seen
            seen.pop(key, None)
            seen[key] = None
            if known:
                continue
            young = event.time is not None and received - event.time <= CATCH_UP
            if not first or young:
                fresh.append(event)
        while len(seen) > KEEP:
            del seen[next(iter(seen))]
        self._unkept = self._unkept or bool(fresh) or first
        return fresh

    def forget(self, target: str) -> None:
        """Drop a target that is read no more."""
        self._unkept = self._seen.pop(target, None) is not None or self._unkept

    def keep(self) -> None:
        """Write them down: after their events are safe, so that none is lost in between."""
        if self._path is None or not self._unkept:
            return
        self._unkept = False
        new = self._path.with_suffix(".new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with new.open("w", encoding="utf-8") as stream:
                json.dump({target: list(keys) for target, keys in self._seen.items()}, stream)
                stream.flush()
                os.fsync(stream.fileno())
            new.replace(self._path)
        except OSError as exc:
            log.warning("%s cannot be written, lines may be told again: %s", self._path, exc)
