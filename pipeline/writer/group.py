"""Looks whether some partition of the group belongs to nobody."""

from __future__ import annotations

import logging
import threading

from pipeline.errors import SlowDownError
from pipeline.writer.shared import Shared

log = logging.getLogger(__name__)

_EVERY_S = 4.0


class GroupWatch:
    """A thread that compares what the members have with what there is.

    A static member that comes back is given its old assignment, and kafka-python, unlike the
    Java client, then no longer notices that topics have changed: when the assignment was made
    before a topic was known, or partitions were added meanwhile, nobody would ever read them.
    """

    def __init__(self, shared: Shared, streams: tuple[str, ...]) -> None:
        self._shared = shared
        self._streams = streams
        self._stop = threading.Event()
        self._rejoin = threading.Event()
        self._thread = threading.Thread(target=self._run, name="group-watch", daemon=True)
        self.mine: frozenset[tuple[str, int]] = frozenset()

    def start(self) -> None:
        """Start looking."""
        self._thread.start()

    def stop(self) -> None:
        """End; does not wait."""
        self._stop.set()

    def should_rejoin(self) -> bool:
        """True once, when partitions were nobody's twice in a row."""
        if self._rejoin.is_set():
            self._rejoin.clear()
            return True
        return False

    def _run(self) -> None:
        before: set[tuple[str, int]] = set()
        while not self._stop.wait(_EVERY_S):
            try:
                found = self._shared.topics.unassigned(
                    self._shared.options.group, self._streams, self.mine
                )
            except SlowDownError:
                found = set()
            except Exception:
                log.exception("the group can not be described: added partitions may be missed")
                return
            if found & before:
                named = ", ".join(f"{topic}/{partition}" for topic, partition in sorted(found)[:5])
                log.warning("nobody reads %s: asking the group to assign anew", named)
                self._rejoin.set()
                found = set()
            before = found
