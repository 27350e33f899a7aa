"""The store dies at exact system calls, and the power goes: what was answered must be there."""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.store import connect
from tests.faults.disk import Disk, Kept
from tests.faults.ledger import times
from tests.faults.proxy import Request, StoreProxy
from tests.faults.scene import Load, Scene
from tests.faults.traced import POINTS, Call, calls, killing, need_strace, recording, wait_traced
from tests.support.store import RunningStore
from tests.support.wait import wait_until
from tests.writer.running import settings_of, stored


@pytest.fixture
def own_store(tmp_path: Path) -> Iterator[RunningStore]:
    """A store of the test's own with its tables, stopped."""
    need_strace()
    store = RunningStore(tmp_path / "own")
    with store:
        store.migrate()
    yield store
    store.stop()


def _data(store: RunningStore) -> Path:
    return store.settings.state_dir / "store" / "data"


def _table_folder(store: RunningStore, table: str) -> Path:
    with connect(store.settings) as client:
        client.query(f"SELECT 1 FROM telemetry.{table} LIMIT 0")  # a store that starts loads it
        paths = client.query(
            "SELECT data_paths[1] FROM system.tables WHERE database = 'telemetry'"
            " AND name = {table:String}", parameters={"table": table},
        ).result_rows  # fmt: skip
    return Path(str(paths[0][0]))


def _wait_ended(store: RunningStore, log: Path) -> None:
    """Wait until the store is dead and its tracer has written the last line."""
    wait_until(lambda: store.ended, f"the store to die ({log.name})", 60, every_s=0.02)
    store.kill9()
    wait_traced(log)


# ---------------------------------------------------------------- killed at exact calls


def _points(log: Path, table: Path) -> list[tuple[str, str, int]]:
    """Calls of the first insert into a table: name, path below the part, and its number among
    the calls of this name on this path."""
    seen: Counter[tuple[str, str]] = Counter()
    points = []
    part = ""
    for call in calls(log):
        path = call.path.rstrip("/")
        if call.name not in POINTS or not path.startswith(f"{table}/"):
            continue
        name, _, below = path.removeprefix(f"{table}/").partition("/")
        if name.startswith("tmp_insert_") and not part:
            part = name.removeprefix("tmp_insert_")
        if not part or name not in (f"tmp_insert_{part}", part):
            continue
        kind = "part" if name == part else "tmp"
        where = f"{kind}/{below}" if below else kind
        seen[call.name, where] += 1
        points.append((call.name, where, seen[call.name, where]))
    return points


def _next_part(table: Path, kind: str) -> list[Path]:
    """The folder that the first insert after a start makes, today or, at midnight, tomorrow.

    Args:
        kind: ``tmp`` while it is written, ``part`` when it has its name.
    """
    numbers = [
        int(each.name.split("_")[2])
        for each in table.iterdir()
        if each.is_dir() and each.name[:8].isdigit()
    ]
    today = datetime.now(UTC)
    days = [f"{day:%Y%m%d}" for day in (today, today + timedelta(days=1))]
    if kind == "tmp":
        return [table / f"tmp_insert_{day}_1_1_0" for day in days]
    number = max(numbers, default=0) + 1
    return [table / f"{day}_{number}_{number}_0" for day in days]


@pytest.mark.slow
def test_store_killed_at_every_call_of_an_insert(scene: Scene, own_store: RunningStore) -> None:
    log = scene.folder / "calls.log"
    with scene.using(own_store), scene.writer():
        own_store.wrapper = recording(log)
        with own_store:
            table = _table_folder(own_store, "gpu")
            scene.produce("gpu", 1, partition=0)
            scene.wait_stored()
            own_store.kill9()
        wait_traced(log)
        points = _points(log, table)
        names = [name for name, *_ in points]
        assert "rename" in names, names
        assert names.count("write") > 5, names
        # After the rename is before what comes next, and so on: each call has both sides.
        chosen = _chosen(points)
        for number, (name, where, count) in enumerate(chosen):
            log = scene.folder / f"kill-{number}.log"
            kind, _, below = where.partition("/")
            paths = [part / below for part in _next_part(table, kind)]
            own_store.wrapper = killing(name, count, paths, log)
            own_store.start()
            scene.produce("gpu", 1, partition=0)
            _wait_ended(own_store, log)
        own_store.wrapper = []
        own_store.start()
        scene.produce("gpu", 1, partition=0)
        scene.check(
            "store killed -9 before and after each write, sync and rename of an insert",
            len(chosen), f"an insert makes {len(points)} calls",
        )  # fmt: skip


def _chosen(points: list[tuple[str, str, int]]) -> list[tuple[str, str, int]]:
    """All of them, or those around the rename and some others."""
    rename = next(i for i, (name, *_) in enumerate(points) if name.startswith("rename"))
    around = {0, rename - 1, rename, min(rename + 1, len(points) - 1)}
    picked = random.Random(9).sample(range(len(points)), times(1, min(30, len(points))))  # noqa: S311
    return [points[i] for i in sorted(around | set(picked))]


# ---------------------------------------------------------------- the power goes

KINDS: tuple[Kept, ...] = ("journal", "strict", "torn")


class _Answers:
    """What the store answered to the writer's inserts, and when."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, str, set[tuple[int, int]]]] = []
        self._lock = threading.Lock()

    def rule(self, request: Request) -> None:
        """Pass an insert on and note it when it was stored."""
        status, headers, body = request.forward()
        if status == 200 and b'"written_rows":"0"' not in str(headers).encode():
            stream = request.sql.split("telemetry.")[1].split(" ")[0]
            data = request.body.partition(b"FORMAT ArrowStream\n")[2]
            with pa.ipc.open_stream(data) as reader:
                table = reader.read_all()
            partitions = table.column("kafka_partition").to_pylist()
            offsets = table.column("kafka_offset").to_pylist()
            with self._lock:
                self.seen.append((time.time(), stream, set(zip(partitions, offsets, strict=True))))
        request.answer(status, headers, body)

    def before(self, at: float) -> dict[str, set[tuple[int, int]]]:
        """Messages that were answered before a moment, by stream."""
        found: dict[str, set[tuple[int, int]]] = {}
        for answered, stream, places in self.seen:
            if answered < at:
                found.setdefault(stream, set()).update(places)
        return found


@pytest.mark.slow
def test_power_cut_of_the_store(scene: Scene, own_store: RunningStore) -> None:
    """Whatever was not synced is gone: all that was answered is there, nothing comes twice."""
    cuts = times(3, 18)
    log, at_start, answers = scene.folder / "power.log", scene.folder / "base", _Answers()
    shutil.copytree(_data(own_store), at_start, symlinks=True)
    own_store.wrapper = recording(log)
    moments = random.Random(13)  # noqa: S311
    with scene.using(own_store):
        with StoreProxy(own_store.settings) as proxy:
            proxy.rule = answers.rule
            own_store.start()
            through = settings_of(proxy.settings, scene.kafka.bootstrap)
            with (
                scene.writer("--linger", "0.05", settings=through, name="-before"),
                Load(scene, ["gpu", "event"], per_s=30, rows=(1, 40)),
            ):
                wanted = times(30, 150)
                wait_until(lambda: len(answers.seen) >= wanted, f"{wanted} inserts", 240)
            own_store.kill9()
        wait_traced(log)
        own_store.wrapper = []
        lost_first: Counter[str] = Counter()
        checked = 0
        chosen = sorted(moments.sample([at for at, *_ in answers.seen[5:]], cuts))
        for number, at in enumerate(chosen):
            kept = KINDS[number % len(KINDS)]
            _cut(at_start, _data(own_store), log, at, kept)
            own_store.start()
            for stream, places in answers.before(at).items():
                missing = places - set(stored(scene.settings, stream))
                lost_first[kept] += len(missing)
                checked += len(places)
            with scene.writer(name=f"-after-{number}"):
                scene.wait_stored()
            if number < cuts - 1:
                own_store.kill9()
        assert checked > 0
        scene.check("power cut of the store: only what was synced is left", cuts,
                    f"{checked} answered messages looked for")  # fmt: skip
        assert not +lost_first, f"answered, and gone after a power cut: {dict(lost_first)}"


def _cut(base: Path, data: Path, log: Path, at: float, kept: Kept) -> None:
    """Put into ``data`` what a power cut at this moment leaves."""
    shutil.rmtree(data)
    shutil.copytree(base, data, symlinks=True)
    disk = Disk(data)
    for call in _until(log, at):
        disk.apply(call)
    shutil.rmtree(data)
    disk.rebuild(data, kept)


def _until(log: Path, at: float) -> Iterator[Call]:
    for call in calls(log):
        if call.at >= at:
            return
        yield call
