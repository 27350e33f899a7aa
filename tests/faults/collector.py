"""A collector's end of the way, as a process of its own: spool, publisher, Kafka.

``python -m tests.faults.collector BOOTSTRAP SPOOL FIRST COUNT DIES_AT`` puts messages FIRST to
FIRST + COUNT - 1 and prints the number of each that was taken. At the DIES_AT-th
acknowledgement of Kafka, before the spool is trimmed, it kills itself; 0 is never.
"""

from __future__ import annotations

import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

from pipeline.bus.publisher import Publisher
from pipeline.bus.spool import Spool
from pipeline.bus.spool_file import Record
from pipeline.clock import SystemClock
from pipeline.errors import SlowDownError
from pipeline.settings import Settings
from pipeline.streams import load_contracts
from tests.writer.rows import START, sample

ROWS = 3
_SPOOL_BYTES = 4_000_000  # small segments: a full disk is soon felt
_PAUSE_S = 0.01


def _die_at(limit: int) -> None:
    ack, acknowledged = Spool.ack, 0

    def dies(self: Spool, record: Record) -> None:
        nonlocal acknowledged
        acknowledged += 1
        if acknowledged == limit:
            os.kill(os.getpid(), signal.SIGKILL)
        ack(self, record)

    Spool.ack = dies  # type: ignore[method-assign]


def main(bootstrap: str, spool: str, first: int, count: int, dies_at: int) -> None:
    """Put the messages, wait until Kafka has them."""
    contracts = load_contracts()
    if dies_at:
        _die_at(dies_at)
    settings = Settings(bootstrap_servers=bootstrap)
    clock = SystemClock()  # the pace of the load
    publisher = Publisher(settings, contracts, "col", Path(spool), max_bytes=_SPOOL_BYTES)
    for number in range(first, first + count):
        rows = sample(contracts["gpu"], ROWS, rack=f"rack-{number % 4:02d}",
                      at=START + timedelta(seconds=number))  # fmt: skip
        while True:
            try:
                publisher.put("gpu", rows)
                break
            except SlowDownError as exc:
                print(f"refused {exc.reason}", flush=True)
                clock.wait(0.05)
        print(number, flush=True)
        clock.wait(_PAUSE_S)
    assert publisher.flush(90)
    print(f"dropped {publisher.stats.dropped_rows}", flush=True)
    publisher.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *(int(each) for each in sys.argv[3:6]))
