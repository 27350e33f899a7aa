"""kafka-python's consumer, without a stall after ``pause`` and ``resume``."""

from __future__ import annotations

from typing import Any

from kafka import KafkaConsumer


class SteadyConsumer(KafkaConsumer):  # type: ignore[misc]  # kafka-python is not typed
    """A consumer whose resumed partitions are always read on.

    kafka-python 3.0.12 parks records that were fetched before a ``pause`` and takes them up
    again only while its place for the partition in turn is ``None``. That place usually holds
    records that are used up instead, so the parked ones stay, and what is parked is never
    fetched again: the partition stands still for ever. Emptying the place before each poll
    lets the parked ones in.
    """

    def poll(self, *args: Any, **kwargs: Any) -> Any:
        """As :meth:`KafkaConsumer.poll`."""
        fetcher = self._fetcher
        waiting = fetcher._next_partition_records
        if waiting is not None and not waiting:
            fetcher._next_partition_records = None
        return super().poll(*args, **kwargs)
