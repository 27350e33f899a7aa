"""Which targets there are now: files that may change, and names that may resolve anew."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

from pipeline.collectors.targets import DnsName, Target, TargetFile, load_targets, resolve
from pipeline.errors import ConfigError

log = logging.getLogger("rackpulse.collect")
RESOLVE_EVERY_S = 30.0


class Discovery:
    """Targets of one or more target files.

    A file that becomes wrong keeps the targets that it had, and says so; a name that cannot
    be resolved keeps its addresses.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = tuple(files)
        self._marks: dict[Path, tuple[int, int, int]] = {}
        self._read: dict[Path, TargetFile] = {}
        self._resolved: dict[DnsName, list[Target]] = {}
        self._resolve_at = 0.0
        self._last: dict[str, Target] = {}

    async def first(self) -> dict[str, Target]:
        """The targets at start.

        Raises:
            ConfigError: a file is missing or wrong.
        """
        for path in self._files:
            self._marks[path] = mark_of(path)
            self._read[path] = load_targets(path)
        await self._resolve()
        self._last = self._all()
        return self._last

    async def changed(self) -> dict[str, Target] | None:
        """The targets now; None when they are the same as before."""
        for path in self._files:
            mark = mark_of(path)
            if mark == self._marks.get(path):
                continue
            self._marks[path] = mark
            try:
                self._read[path] = load_targets(path)
                log.info("%s: %d targets", path, len(self._read[path].targets))
            except ConfigError as exc:
                log.warning("keeping the targets read before: %s", exc)
        await self._resolve()
        found = self._all()
        if found == self._last:
            return None
        self._last = found
        return found

    async def _resolve(self) -> None:
        names = [name for file in self._read.values() for name in file.dns]
        loop = asyncio.get_running_loop()
        due = loop.time() >= self._resolve_at
        for name in names:
            if name in self._resolved and not due:
                continue
            try:
                self._resolved[name] = await asyncio.to_thread(resolve, name)
            except (OSError, ValueError) as exc:  # ValueError: it can be no name
                self._resolved.setdefault(name, [])
                log.warning("%s cannot be resolved now: %s", name.name, exc)
        if due:
            self._resolve_at = loop.time() + RESOLVE_EVERY_S
        self._resolved = {name: self._resolved[name] for name in names}

    def _all(self) -> dict[str, Target]:
        found: dict[str, Target] = {}
        for file in self._read.values():
            resolved = [target for name in file.dns for target in self._resolved[name]]
            for target in [*file.targets, *resolved]:
                if target.name in found and found[target.name] != target:
                    log.warning("two targets are called %s: the first is read", target.name)
                found.setdefault(target.name, target)
        return found


def mark_of(path: Path) -> tuple[int, int, int]:
    """What changes when a file is written or replaced; zeros where there is none."""
    try:
        status = path.stat()
    except OSError:
        return (0, 0, 0)
    return (status.st_mtime_ns, status.st_size, status.st_ino)
