"""What all lanes of a writer share."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from queue import SimpleQueue
from uuid import uuid4

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError

from pipeline.clock import Clock
from pipeline.errors import RackpulseError, SlowDownError
from pipeline.metrics import Metrics
from pipeline.settings import Settings
from pipeline.store import Outcome, classify, connect
from pipeline.streams import Contracts
from pipeline.writer.block import Scratch
from pipeline.writer.events import Event
from pipeline.writer.insert import INSERT_SETTINGS, REPLICATED_SETTINGS
from pipeline.writer.options import Options
from pipeline.writer.topics import Topics

log = logging.getLogger(__name__)

STORE_TIMEOUT_S = 120
_CLOCK_TOLERANCE_S = 60.0


@dataclass
class Shared:
    """Settings and connections of one writer.

    Attributes:
        writer_id: random, new at each start: a writer that was killed is never taken for
            the one that came back.
        events: from the lanes to the loop.
    """

    settings: Settings
    contracts: Contracts
    options: Options
    clock: Clock
    metrics: Metrics
    topics: Topics
    writer_id: str = field(default_factory=lambda: uuid4().hex)
    events: SimpleQueue[Event] = field(default_factory=SimpleQueue)
    scratches: SimpleQueue[Scratch] = field(default_factory=SimpleQueue)

    def __post_init__(self) -> None:
        for _ in range(self.options.inserts_at_once):
            self.scratches.put(Scratch())

    @contextmanager
    def scratch(self) -> Iterator[Scratch]:
        """Memory for one insert; waits while all of it is in use."""
        taken = self.scratches.get()
        try:
            yield taken
        finally:
            self.scratches.put(taken)

    @property
    def replicated(self) -> bool:
        """Whether tables have copies on other servers."""
        return self.settings.table_engine.startswith("Replicated")

    @property
    def insert_settings(self) -> dict[str, str]:
        """Settings of every fenced insert."""
        return {**INSERT_SETTINGS, **(REPLICATED_SETTINGS if self.replicated else {})}

    @property
    def read_settings(self) -> dict[str, str]:
        """Settings of every question about what is stored."""
        return {"select_sequential_consistency": "1"} if self.replicated else {}


class StoreClient:
    """A client of the store that comes back after the store did; one per thread."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._client: Client | None = None
        self._ahead = timedelta(0)

    def __call__(self) -> Client:
        """The client, connected.

        Raises:
            SlowDownError: the store is away.
            RackpulseError: it does not let us in.
        """
        if self._client is None:
            self._client = self._connect()
        return self._client

    def _connect(self) -> Client:
        try:
            client = connect(
                self._shared.settings,
                connect_timeout=5,
                send_receive_timeout=STORE_TIMEOUT_S,
                query_retries=0,
            )
        except RackpulseError as exc:
            cause = exc.__cause__
            if isinstance(cause, ClickHouseError) and classify(cause) is Outcome.FATAL:
                raise
            raise SlowDownError("store_away", 1.0) from exc
        self._compare_clocks(client)
        return client

    def _compare_clocks(self, client: Client) -> None:
        # Retention counts from the ingest time: a writer whose clock is days behind the
        # store's would write rows that are dropped at once.
        theirs = client.command("SELECT toUnixTimestamp64Milli(now64(3))")
        ahead = float(str(theirs)) / 1000 - self._shared.clock.now().timestamp()
        self._ahead = timedelta(0)
        if abs(ahead) > _CLOCK_TOLERANCE_S:
            self._ahead = timedelta(seconds=ahead)
            log.warning(
                "this machine's clock and the store's are %.0f s apart: ingest times follow the"
                " store's",
                ahead,
            )

    def now(self) -> datetime:
        """The time that rows are stored under."""
        return self._shared.clock.now() + self._ahead

    def drop(self) -> None:
        """Connect again before the next use."""
        client, self._client = self._client, None
        if client is not None:
            client.close()
