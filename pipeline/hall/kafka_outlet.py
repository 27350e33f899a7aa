"""Outlet (b): rows straight to Kafka as Arrow messages, for history and for load."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from pipeline.bus.codec import Header, epoch_ms, write_header
from pipeline.bus.endpoint import producer_options, warn_without_crc32c
from pipeline.clock import Clock
from pipeline.errors import RackpulseError
from pipeline.settings import Settings
from pipeline.streams import Contracts

_NEVER_MS = 2**31 - 1
# Stream, key, rows, body.
Body = tuple[str, str, int, bytes]


class KafkaOutlet:
    """Sends message bodies, numbered per stream and key, with an idempotent producer.

    There is no spool: what sends here can make its rows again. It starts again with the
    numbers of its last save, makes the same messages, and the writer drops those it has.

    Args:
        collector_id: stands on the rows; never used by two halls.
        numbers: last number sent, by ``stream/key``; goes on from there.
    """

    def __init__(
        self,
        settings: Settings,
        contracts: Contracts,
        collector_id: str,
        clock: Clock,
        numbers: Mapping[str, int] | None = None,
    ) -> None:
        from kafka import KafkaProducer

        warn_without_crc32c()
        # It warns of each send that a busy machine delays by a tenth of a second.
        logging.getLogger("kafka.net.selector").setLevel(logging.ERROR)
        self._contracts = contracts
        self._collector_id = collector_id
        self._clock = clock
        self.numbers = dict(numbers or {})
        self.rows = 0
        self.messages = 0
        self.bytes = 0
        self._failed: BaseException | None = None
        self._lock = threading.Lock()
        self._producer = KafkaProducer(
            **producer_options(settings),
            client_id=f"rackpulse-{collector_id}",
            acks="all",
            enable_idempotence=True,
            compression_type="zstd",
            linger_ms=20,
            max_request_size=4_000_000,
            max_block_ms=60_000,
            delivery_timeout_ms=_NEVER_MS,
            allow_auto_create_topics=False,
        )

    def send(self, bodies: Iterable[Body]) -> None:
        """Hand messages over; they travel in the background.

        Raises:
            RackpulseError: an earlier message was refused.
        """
        self._check()
        now = epoch_ms(self._clock.now())
        for stream, key, rows, body in bodies:
            number = self.numbers.get(f"{stream}/{key}", 0) + 1
            header = Header(
                stream, self._contracts[stream].version, self._collector_id, number, now
            )
            self._producer.send(
                stream, key=key.encode(), value=body, headers=write_header(header)
            ).add_errback(self._note)
            self.numbers[f"{stream}/{key}"] = number
            self.rows += rows
            self.messages += 1
            self.bytes += len(body)

    def flush(self, timeout_s: float = 120.0) -> None:
        """Wait until Kafka has acknowledged everything.

        Raises:
            RackpulseError: it has not, in time.
        """
        from kafka.errors import KafkaTimeoutError

        try:
            self._producer.flush(timeout=timeout_s)
        except KafkaTimeoutError as exc:
            raise RackpulseError(
                f"Kafka did not acknowledge the hall's rows within {timeout_s:.0f} s: is the "
                "broker running?  Starting the hall again goes on where it stopped"
            ) from exc
        self._check()

    def close(self) -> None:
        """End the producer; what was not flushed may be lost."""
        self._producer.close(timeout=5)

    def _note(self, exc: BaseException, *_: Any) -> None:
        with self._lock:
            self._failed = self._failed or exc

    def _check(self) -> None:
        with self._lock:
            if self._failed is not None:
                raise RackpulseError(
                    f"Kafka refused rows of the hall ({self._failed}): are the topics there?  "
                    "Make them with  rackpulse topics create"
                ) from self._failed
