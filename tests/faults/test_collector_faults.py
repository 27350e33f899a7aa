"""The collector is killed between acknowledgement and trimming; disks are full."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.store import connect
from tests.faults.collector import ROWS
from tests.faults.ledger import OUTCOMES, Outcome, times
from tests.faults.scene import Load, Scene
from tests.faults.small_disk import Filler, need_small_disk, on_small_disk
from tests.support.store import RunningStore
from tests.support.wait import wait_until


def _command(scene: Scene, spool: Path, first: int, count: int, dies_at: int = 0) -> list[str]:
    return [sys.executable, "-m", "tests.faults.collector", scene.kafka.bootstrap, str(spool),
            str(first), str(count), str(dies_at)]  # fmt: skip


def _numbers(output: str) -> set[int]:
    return {int(line) for line in output.splitlines() if line.isdigit()}


def _stored(scene: Scene) -> tuple[set[int], int]:
    """Numbers of the messages that are stored whole, and all rows."""
    with connect(scene.settings) as client:
        rows = client.query(
            "SELECT toUnixTimestamp(sampled_at) - toUnixTimestamp('2026-03-01 12:00:00', 'UTC'),"
            " count() FROM telemetry.gpu GROUP BY 1"
        ).result_rows
    return {int(number) for number, count in rows if count >= ROWS}, sum(int(n) for _, n in rows)


def _check(
    scene: Scene, fault: str, count: int, wanted: set[int], extra: set[int], dropped: int = 0,
    note: str = "",
) -> None:  # fmt: skip
    """All of ``wanted`` once, but for so many rows that were counted as dropped; of ``extra``,
    which nobody was told of, perhaps some."""

    def missing() -> int:
        return ROWS * len(wanted - _stored(scene)[0])

    with contextlib.suppress(AssertionError):  # the table tells
        wait_until(lambda: missing() <= dropped, "all messages to be stored", 90)
    found, rows = _stored(scene)
    lost = ROWS * len(wanted - found) - dropped
    doubled = rows - ROWS * len(found)
    OUTCOMES.append(Outcome(fault, count, ROWS * len(wanted), rows, lost, doubled, note))
    assert (lost, doubled) == (0, 0)
    assert found - wanted <= extra


@pytest.mark.slow
def test_collector_killed_between_acknowledgement_and_trim(scene: Scene, tmp_path: Path) -> None:
    kills = times(2, 12)
    wanted: set[int] = set()
    extra: set[int] = set()
    with scene.writer():
        for life in range(kills):
            first = life * 100
            command = _command(scene, tmp_path / "spool", first, 40, dies_at=1 + life * 7 % 40)
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
            assert done.returncode == -signal.SIGKILL, done.stderr
            taken = _numbers(done.stdout)
            wanted |= taken
            extra.add(max(taken, default=first - 1) + 1)  # it was being put
        done = subprocess.run(_command(scene, tmp_path / "spool", kills * 100, 10),
                              capture_output=True, text=True, timeout=120, check=True)  # fmt: skip
        wanted |= _numbers(done.stdout)
        _check(scene, "collector killed -9 between acknowledgement and trim", kills, wanted, extra)


@pytest.mark.slow
def test_disk_full_at_the_spool(scene: Scene, tmp_path: Path) -> None:
    """A put is refused while the disk is full; what was taken arrives, or is counted."""
    folder = tmp_path / "small"
    need_small_disk(folder)
    command = [*on_small_disk(folder, "8m"), *_command(scene, folder / "spool", 0, 600)]
    output = tmp_path / "output"
    with scene.writer(), output.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
        try:
            wait_until(lambda: "\n5\n" in output.read_text(), "the first messages", 60)
            filler = Filler(process.pid, folder)
            rounds = times(1, 4)
            for _ in range(rounds):
                seen = _troubles(output)

                def refused(seen: int = seen, filler: Filler = filler) -> bool:
                    filler.fill()  # again and again: what was sent leaves the spool
                    assert process.poll() is None, output.read_text()[-2000:]
                    return _troubles(output) > seen

                wait_until(refused, "a put to be refused", 120, every_s=0.02)
                filler.free()
            assert process.wait(120) == 0, output.read_text()[-2000:]
        finally:
            process.kill()
            process.wait(10)
        text = output.read_text()
        dropped = int(text.rpartition("dropped ")[2])
        _check(
            scene, "disk full at the spool", rounds, _numbers(text), set(), dropped,
            f"{_troubles(output)} puts refused, {dropped} rows counted as dropped",
        )  # fmt: skip


def _troubles(output: Path) -> int:
    return output.read_text().count("refused spool_disk")


def test_disk_full_at_the_store(scene: Scene, tmp_path: Path) -> None:
    """The writer waits, and loses nothing, while the store cannot write."""
    rounds = times(1, 5)
    own = RunningStore(tmp_path / "own")
    data = own.settings.state_dir / "store" / "data"
    need_small_disk(data)
    own.wrapper = on_small_disk(data, "96m")
    with own:
        own.migrate()
        filler = Filler(own.pid, data)
        with scene.using(own), scene.writer() as writer:
            with Load(scene, ["gpu", "event"], per_s=40):
                scene.produce("gpu", 5)
                scene.wait_stored()
                for _ in range(rounds):
                    before = _refused(scene)
                    filler.fill()
                    # Both streams: the second one comes to it a while after the first.
                    wait_until(lambda b=before: _refused(scene) > b + 1, "the store to refuse", 60)
                    filler.free()
                    scene.produce("gpu", 1)
                    scene.wait_stored()
            assert writer.running
            scene.check("disk full at the store", rounds)


def _refused(scene: Scene) -> int:
    return scene.log().count("disk_full") + scene.log().count("cannot_write")
