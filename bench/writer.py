"""The measurements of the writer; docs/performance.md says what each means."""

from __future__ import annotations

import json
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from kafka import TopicPartition
from pydantic import create_model

from bench.fleet import Encoded, Fleet
from bench.stage import Sampler, Stage, stage
from pipeline.bus.codec import decode
from pipeline.bus.consumer import make_consumer
from pipeline.store import connect
from pipeline.streams import Contracts
from pipeline.streams.ddl import DATABASE
from pipeline.writer.block import Block, Scratch, Taken
from pipeline.writer.insert import INSERT_SETTINGS
from pipeline.writer.options import Options
from tests.writer.running import RunningWriter

OPTIONS = Options()


@dataclass(frozen=True)
class Result:
    """One run of one measurement.

    Attributes:
        values: readings that are not NULL.
        wall_s: from start to the last row.
        cpu: CPU seconds by process, from its start until the store has merged what came in.
        peak_mb: peak resident memory by process.
        note: what is to be said about it.
    """

    case: str
    rows: int
    values: int
    wall_s: float
    cpu: dict[str, float]
    peak_mb: dict[str, float]
    note: str = ""

    @property
    def store_and_writer(self) -> float:
        """CPU seconds of all but the broker."""
        return sum(seconds for name, seconds in self.cpu.items() if name != "broker")

    @property
    def rows_per_cpu_s(self) -> float:
        """Rows per CPU second of writer and store."""
        return self.rows / self.store_and_writer

    @property
    def values_per_cpu_s(self) -> float:
        """Values per CPU second of all processes, the broker included."""
        return self.values / sum(self.cpu.values())


@contextmanager
def _fresh(contracts: Contracts) -> Iterator[Stage]:
    with (
        tempfile.TemporaryDirectory(prefix="rackpulse-bench-") as folder,
        stage(Path(folder), contracts) as made,
    ):
        yield made


def _seconds(fleet: Fleet, count: int) -> Iterator[Encoded]:
    for number in range(count):
        yield from fleet.second(number)


def from_full_topic(contracts: Contracts, seconds: int, size: float = 1.0) -> Result:
    """(a) The writer alone, from topics that are full when it starts."""
    with _fresh(contracts) as on:
        rows, values = on.send(_seconds(Fleet(contracts, size), seconds))
        on.writer = RunningWriter(on.folder, on.settings).start()
        with Sampler(on) as seen:
            wall = on.wait_stored(rows, 60 + seconds * 20)
            on.wait_merged()
        names = ("writer", "store", "broker")
        return Result(
            "a", rows, values, wall,
            {name: seen.cpu(name) for name in names},
            {name: seen.peak_mb(name) for name in names},
        )  # fmt: skip


def from_memory(contracts: Contracts, seconds: int) -> Result:
    """(c) The same blocks from memory, without Kafka and without a fence: the limit.

    Blocks are made beforehand; what is measured is sending them and storing them.
    """
    with _fresh(contracts) as on:
        bodies, rows, values = _bodies(contracts, _seconds(Fleet(contracts), seconds))
        before = _own_cpu()
        with Sampler(on) as seen, connect(on.settings) as client:
            start = time.monotonic()
            for body in bodies:
                client.raw_insert("", insert_block=cast("bytes", body),
                                  settings=dict(INSERT_SETTINGS))  # fmt: skip
            wall = time.monotonic() - start
            own = _own_cpu() - before
            assert on.stored() == rows
            on.wait_merged()
        return Result(
            "c", rows, values, wall,
            {"client": own, "store": seen.cpu("store")}, {"store": seen.peak_mb("store")},
        )  # fmt: skip


def _bodies(contracts: Contracts, messages: Iterator[Encoded]) -> tuple[list[memoryview], int, int]:
    """Whole inserts of blocks as the writer makes them."""
    waiting: dict[str, list[Taken]] = {}
    bodies: list[memoryview] = []
    rows = values = 0

    def flush(name: str) -> None:
        block = Block(contracts[name], "bench", tuple(waiting.pop(name)))
        table = block.table()
        stamp = pa.array([int(datetime.now(UTC).timestamp() * 1000)]).cast(
            pa.timestamp("ms", "UTC")
        )
        table = table.append_column("ingested_at", pa.repeat(stamp[0], table.num_rows))
        label = pa.array(["bench"]).dictionary_encode()
        zeros = pa.array([0] * table.num_rows, pa.int32())
        table = table.append_column(
            "kafka_topic_id", pa.DictionaryArray.from_arrays(zeros, label.dictionary)
        ).combine_chunks()
        names = ", ".join(f"`{column}`" for column in table.column_names)
        head = f"INSERT INTO {DATABASE}.{name} ({names}) FORMAT ArrowStream\n".encode()
        bodies.append(Scratch().write(head, table))

    held_rows: dict[str, int] = {}
    held_bytes: dict[str, int] = {}
    for offset, each in enumerate(messages):
        decoded = decode(contracts, each.message.headers, each.message.value)
        taken = Taken(0, offset, 0, each.message.key.decode(), decoded.header, decoded.batch,
                      len(each.message.value), 0.0)  # fmt: skip
        waiting.setdefault(each.stream, []).append(taken)
        held_rows[each.stream] = held_rows.get(each.stream, 0) + each.rows
        held_bytes[each.stream] = held_bytes.get(each.stream, 0) + len(each.message.value)
        rows += each.rows
        values += each.values
        # Cut as the writer cuts when there is enough to read.
        if (
            held_rows[each.stream] >= OPTIONS.max_rows
            or held_bytes[each.stream] >= OPTIONS.max_bytes
        ):
            flush(each.stream)
            held_rows[each.stream] = held_bytes[each.stream] = 0
    for name in list(waiting):
        flush(name)
    return bodies, rows, values


def _own_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def json_and_pydantic(contracts: Contracts, seconds: int, batch_rows: int = 10_000) -> Result:
    """(d) What one would write by hand: JSON messages, a pydantic model per row,
    ``client.insert`` in batches."""
    with _fresh(contracts) as on:
        rows, values = on.send(_as_json(contracts, _seconds(Fleet(contracts), seconds)))
        names = {name: [c.name for c in contracts[name].wire_columns] for name in contracts}
        models = {
            name: create_model(name, **dict.fromkeys(columns, (Any, None)))  # type: ignore[call-overload]  # fields by name
            for name, columns in names.items()
        }
        consumer = make_consumer(on.settings, None)
        ends = _assign_all(consumer, contracts)
        before = _own_cpu()
        with Sampler(on) as seen, connect(on.settings) as client:
            start = time.monotonic()
            held: dict[str, list[list[Any]]] = {name: [] for name in contracts}

            def flush(name: str) -> None:
                extra = [datetime.now(UTC), "bench", 0, 0, 0, "k", "c", 0]
                client.insert(
                    f"{DATABASE}.{name}", [row + extra for row in held[name]],
                    column_names=[*names[name], "ingested_at", "kafka_topic_id",
                                  "kafka_partition", "kafka_offset", "kafka_leader_epoch",
                                  "kafka_key", "collector_id", "collector_seq"],
                    settings={"async_insert": "0"},
                )  # fmt: skip
                held[name].clear()

            while any((consumer.position(tp) or 0) < end for tp, end in ends.items()):
                for tp, records in consumer.poll(500).items():
                    for record in records:
                        for raw in json.loads(record.value):
                            row = models[tp.topic].model_validate(raw)
                            made = [getattr(row, column) for column in names[tp.topic]]
                            at = names[tp.topic].index("sampled_at")
                            made[at] = datetime.fromisoformat(made[at])
                            held[tp.topic].append(made)
                        if len(held[tp.topic]) >= batch_rows:
                            flush(tp.topic)
            for name in contracts:
                if held[name]:
                    flush(name)
            wall = time.monotonic() - start
            own = _own_cpu() - before
            assert on.stored() == rows
            on.wait_merged()
        consumer.close(autocommit=False)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return Result(
            "d", rows, values, wall,
            {"writer": own, "store": seen.cpu("store"), "broker": seen.cpu("broker")},
            {"writer": peak, "store": seen.peak_mb("store")},
        )  # fmt: skip


def _as_json(contracts: Contracts, messages: Iterator[Encoded]) -> Iterator[Encoded]:
    for each in messages:
        batch = decode(contracts, each.message.headers, each.message.value).batch
        for start in range(0, batch.num_rows, 200):  # a message holds at most 1 MB
            part = batch.slice(start, 200)
            body = json.dumps(part.to_pylist(), default=str).encode()
            message = type(each.message)(each.message.key, body, [])
            share = each.values if start == 0 else 0
            yield Encoded(each.stream, message, part.num_rows, share)


def _assign_all(consumer: Any, contracts: Contracts) -> dict[TopicPartition, int]:
    places = [
        TopicPartition(name, partition)
        for name in contracts
        for partition in consumer.partitions_for_topic(name) or ()
    ]
    consumer.assign(places)
    for tp in places:
        consumer.seek(tp, 0)
    ends: dict[TopicPartition, int] = consumer.end_offsets(places)
    return ends


def in_child(case: Callable[..., Result], *args: Any) -> Result:
    """Run a case in a process of its own, so that its CPU and memory are its own."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        try:
            result = case(*args)
            with os.fdopen(writing, "w") as out:
                json.dump(asdict(result), out)
            os._exit(0)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    os.waitpid(pid, 0)
    if not text:
        raise AssertionError(f"{case.__name__} failed")
    return Result(**json.loads(text))


def median(results: list[Result], of: Callable[[Result], float]) -> tuple[float, float, float]:
    """Median, lowest and highest."""
    numbers = [of(result) for result in results]
    return statistics.median(numbers), min(numbers), max(numbers)
