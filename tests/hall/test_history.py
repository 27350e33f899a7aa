"""History is whole and single, whenever its writing is killed."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pipeline.bus.codec import Header, decode, write_header
from pipeline.clock import ManualClock
from pipeline.hall.fleet import build_fleet
from pipeline.hall.history import History
from pipeline.hall.live import LiveHall
from pipeline.streams import Contracts

_NOW = datetime(2026, 3, 2, 8, 0, 3, tzinfo=UTC)
_HOURS = 0.4


class _KilledError(Exception):
    pass


class _Kafka:
    """What Kafka holds: bodies by collector, stream, key and number, in the order of arrival.

    Args:
        killed_at: message at which the process dies, once.
    """

    def __init__(self, killed_at: int | None = None) -> None:
        self.log: list[tuple[str, str, str, int, bytes]] = []
        self.killed_at = killed_at

    def outlet(self, collector_id: str, numbers: dict[str, int]) -> _Outlet:
        return _Outlet(self, collector_id, numbers)

    def stored(self) -> dict[tuple[str, str, str, int], bytes]:
        """What the writer keeps: the first message of each number."""
        found: dict[tuple[str, str, str, int], bytes] = {}
        for collector, stream, key, number, body in self.log:
            found.setdefault((collector, stream, key, number), body)
        return found


class _Outlet:
    def __init__(self, kafka: _Kafka, collector_id: str, numbers: dict[str, int]) -> None:
        self._kafka, self._collector = kafka, collector_id
        self.numbers = numbers
        self.rows = 0

    def send(self, bodies: Iterable[tuple[str, str, int, bytes]]) -> None:
        for stream, key, rows, body in bodies:
            if self._kafka.killed_at is not None and len(self._kafka.log) >= self._kafka.killed_at:
                self._kafka.killed_at = None
                raise _KilledError
            number = self.numbers.get(f"{stream}/{key}", 0) + 1
            self.numbers[f"{stream}/{key}"] = number
            self._kafka.log.append((self._collector, stream, key, number, body))
            self.rows += rows

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


def _start(tmp_path: Path, clock: ManualClock) -> LiveHall:
    return LiveHall(build_fleet(1, 5), clock, tmp_path / "state.npz", history_s=_HOURS * 3600)


def _rows(contracts: Contracts, kafka: _Kafka) -> dict[str, list[tuple[object, ...]]]:
    """Identities of all stored rows, by stream."""
    found: dict[str, list[tuple[object, ...]]] = {}
    for (_, name, _, _), body in kafka.stored().items():
        stream = contracts[name]
        batch = decode(contracts, write_header(Header(name, 1, "t.1", 1, 1)), body).batch
        columns = [batch.column(column).to_pylist() for column in stream.row_identity]
        found.setdefault(name, []).extend(zip(*columns, strict=True))
    return found


def test_history_holds_each_sample_once(tmp_path: Path, contracts: Contracts) -> None:
    clock, kafka = ManualClock(_NOW), _Kafka()
    live = _start(tmp_path, clock)
    assert History(live, contracts, clock, kafka.outlet).write()
    rows = _rows(contracts, kafka)
    steps = round(_HOURS * 360)
    assert len(rows["gpu"]) == 72 * steps
    for name, found in rows.items():
        assert len(set(found)) == len(found), name
    times = sorted({row[-1] for row in rows["gpu"]})
    end = datetime(2026, 3, 2, 8, 0, 0, tzinfo=UTC)
    assert times == [end - timedelta(seconds=10 * back) for back in range(steps - 1, -1, -1)]
    # NVLinks are thinned to a minute.
    assert len({row[-1] for row in rows["nvlink"]}) == round(_HOURS * 60)


@pytest.mark.parametrize("killed_at", [0, 7, 90, 200])
def test_a_start_that_was_killed_neither_doubles_nor_leaves_a_hole(
    tmp_path: Path, contracts: Contracts, killed_at: int
) -> None:
    clock, whole, broken = ManualClock(_NOW), _Kafka(), _Kafka(killed_at)
    assert History(_start(tmp_path / "a", clock), contracts, clock, whole.outlet).write()
    assert killed_at < len(whole.log)
    with pytest.raises(_KilledError):
        History(_start(tmp_path / "b", clock), contracts, clock, broken.outlet).write()
    again = _start(tmp_path / "b", clock)
    history = History(again, contracts, clock, broken.outlet)
    assert history.needed
    assert history.write()
    assert len(broken.log) > len(whole.log) or killed_at == 0
    # The same number always carries the same bytes: the writer may drop either.
    by_number: dict[tuple[str, str, str, int], bytes] = {}
    for *number, body in broken.log:
        assert by_number.setdefault(tuple(number), body) == body  # type: ignore[arg-type]
    assert {key[1:]: body for key, body in broken.stored().items()} == {
        key[1:]: body for key, body in whole.stored().items()
    }


def test_a_stop_in_between_is_resumed(tmp_path: Path, contracts: Contracts) -> None:
    clock, kafka = ManualClock(_NOW), _Kafka()
    asked = iter([False] * 9 + [True])
    live = _start(tmp_path, clock)
    stopped = History(live, contracts, clock, kafka.outlet, stopped=lambda: next(asked, True))
    assert not stopped.write()
    resumed = History(_start(tmp_path, clock), contracts, clock, kafka.outlet)
    assert resumed.write()
    rows = _rows(contracts, kafka)
    assert len(set(rows["gpu"])) == len(rows["gpu"]) == 72 * round(_HOURS * 360)


def test_history_is_written_once(tmp_path: Path, contracts: Contracts) -> None:
    clock, kafka = ManualClock(_NOW), _Kafka()
    assert History(_start(tmp_path, clock), contracts, clock, kafka.outlet).write()
    clock.advance(3600)
    again = History(_start(tmp_path, clock), contracts, clock, kafka.outlet)
    assert not again.needed


def test_live_goes_on_where_history_ends(tmp_path: Path, contracts: Contracts) -> None:
    clock, kafka = ManualClock(_NOW), _Kafka()
    live = _start(tmp_path, clock)
    assert History(live, contracts, clock, kafka.outlet).write()
    newest = max(kafka.stored(), key=lambda key: (key[1] == "gpu", key[3]))
    batch = decode(
        contracts, write_header(Header("gpu", 1, "t.1", 1, 1)), kafka.stored()[newest]
    ).batch
    last = max(batch.column("energy_mj").to_pylist())
    live.catch_up()
    live.step()
    clock.advance(5)
    view = live.view()
    energy = view.counter("gpu", "energy_mj", slice(None))
    # Less than a minute at 1,400 W above the last sample of the history.
    assert last <= energy.max() < last + 60 * 1400 * 1000
