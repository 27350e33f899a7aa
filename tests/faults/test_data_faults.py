"""Messages that can not be read, repeats, clocks, midnight, other versions of a contract."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from pipeline.bus.codec import Message, encode, split
from pipeline.streams.arrow import wire_schema
from tests.faults.scene import Load, Scene
from tests.support.wait import wait_until
from tests.writer.rows import START, sample
from tests.writer.running import producer, send, stored


def rows_of(scene: Scene, stream: str = "gpu") -> int:
    return sum(stored(scene.settings, stream).values())


def poisons(scene: Scene) -> list[tuple[str, Message]]:
    """One message of each kind that can not be read, with the reason that is expected."""
    good = scene.message("gpu", 4)
    other = scene.message("event", 2)
    headers = dict(good.headers)

    def with_headers(**changes: bytes) -> list[tuple[str, bytes]]:
        renamed = {name.replace("_", "-"): value for name, value in changes.items()}
        return list({**headers, **renamed}.items())

    table = pa.table({"a": [1, 2]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    wrong = sink.getvalue().to_pybytes()
    sink = pa.BufferOutputStream()
    schema = wire_schema(scene.contracts["gpu"])
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_pylist([], schema))
    empty = sink.getvalue().to_pybytes()
    return [
        ("truncated", Message(good.key, good.value[: len(good.value) // 2], good.headers)),
        ("not_arrow", Message(good.key, b"\x00\x01 not arrow at all", good.headers)),
        ("wrong_contract", Message(good.key, wrong, good.headers)),
        ("wrong_topic", Message(other.key, other.value, other.headers)),
        ("no_header", Message(b"k", b"{}", [])),
        ("bad_header", Message(good.key, good.value, with_headers(rackpulse_seq=b"x"))),
        ("unknown_stream", Message(good.key, good.value, with_headers(rackpulse_stream=b"zzz"))),
        ("oversize", Message(good.key, b"\x00" * 900_000, good.headers)),
        ("no_rows", Message(good.key, empty, good.headers)),
    ]


def test_poison_messages_are_set_aside_whole_and_replayed_once(scene: Scene) -> None:
    bad = poisons(scene)
    sender = producer(scene.settings)
    with scene.writer():
        for _, each in bad:
            scene.produce("gpu", 2, partition=0, sender=sender)
            send(sender, "gpu", [each], partition=0)
        scene.produce("gpu", 2, partition=0, sender=sender)
        send(sender, "gpu", [bad[1][1]] * 3, partition=1)  # the last ones of their partition
        wait_until(lambda: len(scene.letters()) >= len(bad) + 3, "dead letters", 60)
        scene.check("poison messages", len(bad) + 3, f"{len(bad) + 3} set aside, whole")
        report = scene.verify()
    sender.close()
    assert sorted(scene.letters()) == sorted([reason for reason, _ in bad] + ["not_arrow"] * 3)
    assert report.ok, report.as_json()
    assert sum(each.dead_lettered for each in report.streams) == len(bad) + 3
    # A new start reads none of them again: the place behind them was written down.
    with scene.writer(name="-again"):
        scene.produce("gpu", 1, partition=1)
        scene.wait_stored()
    assert len(scene.letters()) == len(bad) + 3

    from pipeline.store import connect
    from pipeline.writer.replay import read_letters, replay

    found = {letter.reason: letter for letter in read_letters(scene.settings)}
    for reason, each in bad[:-1]:
        letter = found[reason]
        if reason != "not_arrow":
            assert (letter.key, letter.value) == (each.key, each.value)
            assert list(letter.headers) == each.headers
    said: list[str] = []
    with connect(scene.settings) as client:
        assert replay(scene.settings, client, lambda x: x.reason == "truncated", said.append) == 1
        assert replay(scene.settings, client, lambda x: x.reason == "truncated", said.append) == 0
    with scene.writer(name="-replay"):
        wait_until(lambda: scene.letters().count("truncated") == 2, "it to fail again", 30)


def test_too_much_poison_stops_the_writer(scene: Scene) -> None:
    sender = producer(scene.settings)
    bad = Message(b"k", b"nothing", [])
    scene.produce("gpu", 5, partition=0, sender=sender)
    send(sender, "gpu", [bad] * 400, partition=0)
    writer = scene.writer().start()
    wait_until(lambda: not writer.running, "the writer to stop", 60)
    assert writer.exit_code == 1
    assert "in a row could not be read" in scene.log()
    assert "rackpulse dead-letters list" in scene.log()
    assert len(scene.letters()) <= 201
    sender.close()


def test_repeats_of_a_collector_are_dropped_by_number(scene: Scene) -> None:
    stream = scene.contracts["gpu"]
    sender = producer(scene.settings)

    def numbered(seq: int) -> Message:
        at = START + timedelta(seconds=seq)
        ((_, batch),) = split(stream, sample(stream, 3, at=at))
        return encode(stream, batch, collector_id="c~1", seq=seq, sent_at=at)

    with scene.writer():
        # 5 and 6 twice after a crash; 9 before 8; 12 is never sent.
        order = [1, 2, 3, 4, 5, 6, 5, 6, 7, 9, 8, 10, 11, 13, 13]
        places = send(sender, "gpu", [numbered(seq) for seq in order], partition=0)
        seen: set[int] = set()
        for seq, place in zip(order, places, strict=True):
            if seq not in seen:
                scene.ledger.add("gpu", *place, 3)
            seen.add(seq)
        scene.check("a collector sends again what is stored", 3)
        # The same again, from the start, in another partition: as after partitions were added.
        send(sender, "gpu", [numbered(seq) for seq in order], partition=1)
        wait_until(lambda: scene.verify(["gpu"], 5).streams[0].waiting == 0, "the rest", 30)
        report = scene.verify(["gpu"])
    assert report.ok, report.as_json()
    assert report.streams[0].repeats == 3 + len(order)
    assert rows_of(scene) == 3 * len(seen)
    kinds = {(kind, first, last) for kind, _, first, last in scene.gaps()}
    assert ("sequence", 8, 8) in kinds
    assert ("sequence_filled", 8, 8) in kinds
    assert ("sequence", 12, 12) in kinds
    sender.close()


@pytest.mark.parametrize("days", [-400, -30, 3, 365])
def test_samples_with_a_clock_that_is_days_off(scene: Scene, days: int) -> None:
    stream = scene.contracts["gpu"]
    sender = producer(scene.settings)
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(days=days)
    ((_, batch),) = split(stream, sample(stream, 5, at=at))
    made = encode(stream, batch, collector_id="c1", seq=1, sent_at=at)
    with scene.writer():
        for place in send(sender, "gpu", [made], partition=0):
            scene.ledger.add("gpu", *place, 5)
        scene.check(f"samples {days:+d} days off", 1)
    sender.close()


@pytest.mark.slow
def test_midnight_in_the_midst_of_writing(scene: Scene) -> None:
    """Parts of two ingest days, and a writer that is killed and comes back in between."""
    now = datetime.now(UTC)
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    ahead_s = (midnight - now).total_seconds() - 25  # a writer starts within that
    days = (
        "SELECT groupUniqArray(toDate(ingested_at)) FROM telemetry.gpu"
        f" WHERE ingested_at >= '{midnight - timedelta(days=1):%Y-%m-%d %H:%M:%S}'"
    )
    with scene.store.client() as client, Load(scene, ["gpu", "event"], per_s=50):

        def written_on(day: datetime) -> bool:
            return day.date() in client.query(days).result_rows[0][0]

        with scene.writer(ahead_s=ahead_s) as first:
            wait_until(lambda: written_on(midnight - timedelta(days=1)), "rows before it", 30)
            wait_until(lambda: written_on(midnight), "rows after it", 60)
            first.kill9()
        with scene.writer(ahead_s=ahead_s):
            before = rows_of(scene)
            wait_until(lambda: rows_of(scene) > before, "rows of the next writer", 60)
    with scene.writer(ahead_s=ahead_s):
        scene.check("midnight, and a kill after it", 1)


def _changed(scene: Scene, stream: str, **columns: pa.Array) -> Message:
    """A message whose batch has other columns than the contract."""
    made = scene.message(stream, 2)
    with pa.ipc.open_stream(made.value) as reader:
        (batch,) = list(reader)
    names = list(batch.schema.names)
    arrays = list(batch.columns)
    for name, array in columns.items():
        if name in names:
            arrays[names.index(name)] = array
        else:
            names.append(name)
            arrays.append(array)
    changed = pa.RecordBatch.from_arrays(arrays, names)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, changed.schema) as writer:
        writer.write_batch(changed)
    headers = [
        (name, b"2" if name == "rackpulse-version" else value) for name, value in made.headers
    ]
    return Message(made.key, sink.getvalue().to_pybytes(), headers)


def test_a_newer_contract_is_taken_as_far_as_it_is_known(scene: Scene) -> None:
    sender = producer(scene.settings)
    with scene.writer():
        scene.produce("gpu", 2, partition=0, sender=sender)
        newer = _changed(scene, "gpu", brand_new_w=pa.array([1.0, 2.0], pa.float32()))
        for place in send(sender, "gpu", [newer], partition=0):
            scene.ledger.add("gpu", *place, 2)
        scene.produce("gpu", 2, partition=0, sender=sender)
        scene.check("a newer contract: unknown columns are left out", 1)
    assert scene.letters() == []
    sender.close()


def test_a_changed_type_stops_its_partition_and_nothing_else(scene: Scene) -> None:
    sender = producer(scene.settings)
    with scene.writer() as writer:
        scene.produce("gpu", 2, partition=0, sender=sender)
        scene.wait_stored()
        other = _changed(scene, "gpu", power_w=pa.array(["much", "more"]))
        send(sender, "gpu", [other], partition=0)
        send(sender, "gpu", [scene.message("gpu", 1)], partition=0)  # waits behind it
        scene.produce("gpu", 3, partition=1, sender=sender)
        scene.check("a changed type: its partition waits, the others go on", 1)
        wait_until(lambda: "waits: Stream gpu, column power_w" in scene.log(), "the reason", 20)
        assert writer.running
    assert (0, 3) not in stored(scene.settings, "gpu")
    assert scene.letters() == []
    sender.close()
