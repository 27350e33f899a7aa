"""The readers by kind: one line each. A reader is imported when it is first used."""

from __future__ import annotations

import functools
import importlib
from typing import Protocol, cast

from pipeline.collectors.page import Page, Reading
from pipeline.errors import ConfigError
from pipeline.streams import Contracts

_READERS = "pipeline.collectors.readers"

# Kind as it stands in targets.json and on the command line: module that reads it.
KINDS: dict[str, str] = {
    "dcgm": f"{_READERS}.dcgm",
    "dcgm_dmon": f"{_READERS}.dcgm_dmon",
    "nvml": f"{_READERS}.nvml",
    "nmxt": f"{_READERS}.nmxt",
    "ib_exporter": f"{_READERS}.ib_exporter",
    "node_exporter_ib": f"{_READERS}.node_exporter_ib",
    "ib_sysfs": f"{_READERS}.ib_sysfs",
    "ufm": f"{_READERS}.ufm",
    "perfquery": f"{_READERS}.perfquery",
    "ibstat": f"{_READERS}.ibstat",
    "ibswinfo": f"{_READERS}.ibswinfo",
    "sharp": f"{_READERS}.sharp",
    "redfish": f"{_READERS}.redfish",
    "kmsg": f"{_READERS}.kmsg",
    "bms": f"{_READERS}.bms",
}

# Kinds that ask the collector's own host: their module has ``read_host() -> bytes``.
OF_HOST = frozenset({"nvml"})


class Reader(Protocol):
    """What a module of :mod:`pipeline.collectors.readers` offers.

    ``read`` is a pure function of the page: it keeps no state, does no input or output, and
    raises nothing for bad input; what it cannot read it counts in the Reading.
    """

    KIND: str

    def read(self, page: Page, contracts: Contracts) -> Reading:
        """Rows of one page."""
        ...


class HostReader(Reader, Protocol):
    """A reader of :data:`OF_HOST`."""

    def read_host(self) -> bytes:
        """Ask the collector's own host."""
        ...


@functools.cache
def reader(kind: str) -> Reader:
    """The reader of a kind.

    Raises:
        ConfigError: there is no such kind; the text lists those that there are.
    """
    if kind not in KINDS:
        raise ConfigError(f'There is no reader "{kind}"; there are: {", ".join(sorted(KINDS))}')
    return cast(Reader, importlib.import_module(KINDS[kind]))
