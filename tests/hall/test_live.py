"""A hall that goes with the clock: it resumes, keeps its faults, and never steps back."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from pipeline.clock import ManualClock
from pipeline.errors import ConfigError
from pipeline.hall.fleet import build_fleet
from pipeline.hall.jobs import Schedule
from pipeline.hall.live import LiveHall
from pipeline.hall.snapshot import hall_to_serve, read_snapshot
from tests.hall.helpers import counters_of

_NOW = datetime(2026, 3, 2, 8, 0, 3, tzinfo=UTC)
_ALL = slice(None)


def _hall(tmp_path: Path, clock: ManualClock, *, racks: int = 2, seed: int = 5) -> LiveHall:
    live = LiveHall(build_fleet(racks, seed), clock, tmp_path / "state.npz")
    live.catch_up()
    return live


def _go(live: LiveHall, clock: ManualClock, seconds: float) -> None:
    for _ in range(round(seconds)):
        clock.advance(1)
        live.step()


def test_a_restart_is_as_if_there_had_been_none(tmp_path: Path) -> None:
    clock_a, clock_b = ManualClock(_NOW), ManualClock(_NOW)
    a, b = _hall(tmp_path / "a", clock_a), _hall(tmp_path / "b", clock_b)
    for live in (a, b):
        live.add("degrading_cold_plate", "rack-01/tray-02/slot-0")
    _go(a, clock_a, 300)
    _go(b, clock_b, 150)
    b = _hall(tmp_path / "b", clock_b)
    assert b.resumed
    _go(b, clock_b, 150)
    for part, columns in counters_of(a.observation()).items():
        for name, values in columns.items():
            np.testing.assert_array_equal(
                values, getattr(b.observation(), part)[name], err_msg=f"{part}.{name}"
            )
    assert [f.entity for f in b.faults()] == [f.entity for f in a.faults()]


def test_counters_go_on_after_a_stop_of_any_length(tmp_path: Path) -> None:
    clock = ManualClock(_NOW)
    live = _hall(tmp_path, clock)
    _go(live, clock, 60)
    last = live.view().counter("gpu", "energy_mj", _ALL)
    for stopped_s in (3, 95, 4000, 7 * 86400):
        clock.advance(stopped_s)
        live = _hall(tmp_path, clock)
        _go(live, clock, 15)
        energy = live.view().counter("gpu", "energy_mj", _ALL)
        assert (energy > last).all(), stopped_s
        # At most 1,400 W over the time that can have passed in the hall.
        passed = min(stopped_s, 6 * 3600) + 40
        assert (energy - last).max() <= passed * 1400 * 1000
        assert live.hall.at >= clock.now().timestamp() - 10
        last = energy


def test_a_long_stop_shifts_what_was_going_on(tmp_path: Path) -> None:
    clock = ManualClock(_NOW)
    live = _hall(tmp_path, clock)
    _go(live, clock, 30)
    live.add("capped_clocks", "rack-01/tray-02/slot-0", minutes=30)
    _go(live, clock, 60)
    clock.advance(3 * 86400)
    live = _hall(tmp_path, clock)
    now = clock.now().timestamp()
    assert live.faults()[0].level(now) > 0
    assert live.hall.now.effects.clock_cap.min() < 1


def test_the_same_seed_draws_once(tmp_path: Path) -> None:
    clock = ManualClock(_NOW)
    live = _hall(tmp_path, clock, racks=8)
    first = live.draw(4)
    _go(live, clock, 60)
    live = _hall(tmp_path, clock, racks=8)
    again = live.draw(4)
    assert [(f.cause, f.entity, f.start) for f in first] == [
        (f.cause, f.entity, f.start) for f in again
    ]
    assert len(live.faults()) == 3
    assert {f.detector for f in again} == {"straggler_gpu", "hot_rack", "congested_link"}
    assert live.draw(5)[0].entity not in {f.entity for f in first}
    assert len(live.faults()) == 6


@pytest.mark.parametrize("racks", [4, 8])
def test_twenty_seeds_all_draw_faults_that_can_be_seen(tmp_path: Path, racks: int) -> None:
    clock = ManualClock(_NOW)
    live = _hall(tmp_path, clock, racks=racks)
    causes = set()
    for seed in range(20):
        for fault in live.draw(seed):
            causes.add(fault.cause)
            assert fault.start >= clock.now().timestamp()
            assert fault.visible_from - fault.start < 150
    assert causes == {
        "capped_clocks", "degrading_cold_plate", "host_interference",
        "blocked_quick_disconnect", "tired_pump", "supply_drift",
        "bad_cable", "downed_uplink", "slow_receiver",
    }  # fmt: skip


def test_a_drawn_fault_does_not_start_beside_a_checkpoint_of_its_job(tmp_path: Path) -> None:
    """A checkpoint hides what heat tells for four minutes: the fault would be found late."""
    clock = ManualClock(_NOW)
    live = _hall(tmp_path, clock, racks=8)
    fleet = live.fleet
    for seed in range(40):
        clock.advance(300)
        live.step()
        for fault in live.draw(seed):
            schedule = Schedule(fleet, live.hall.epoch)
            schedule.move_to(fault.start - 60)
            # None waits for long, and others than these need not wait.
            assert fault.start < clock.now().timestamp() + 360
            if fault.cause == "degrading_cold_plate":
                gpus = np.array([fault.index])
            elif fault.cause == "blocked_quick_disconnect":
                gpus = np.flatnonzero(fleet.gpu_rack == fault.index)
            else:
                continue
            saving = schedule.phases(fault.start, fault.start + 360)[2]
            assert not saving[schedule.gpu_partition[gpus]].any(), (seed, fault)


def test_another_halls_state_is_refused(tmp_path: Path) -> None:
    clock = ManualClock(_NOW)
    _hall(tmp_path, clock).save()
    with pytest.raises(ConfigError, match="another hall"):
        _hall(tmp_path, clock, racks=3)
    with pytest.raises(ConfigError, match="seed 6"):
        _hall(tmp_path, clock, seed=6)


def test_a_second_start_takes_the_hall_that_is_there(tmp_path: Path) -> None:
    path = tmp_path / "state.npz"
    assert hall_to_serve(path, None, None) == (8, 1)
    assert hall_to_serve(path, 3, None) == (3, 1)
    hall = _hall(tmp_path, ManualClock(_NOW), seed=6)
    hall.save()
    assert hall_to_serve(path, None, None) == (hall.fleet.racks, 6)
    # What is asked for is never changed silently.
    assert hall_to_serve(path, None, 7) == (hall.fleet.racks, 7)


def test_a_damaged_state_is_named_and_left_alone(tmp_path: Path) -> None:
    clock = ManualClock(_NOW)
    live = _hall(tmp_path, clock)
    live.save()
    file = tmp_path / "state.npz"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(ConfigError, match="make clean"):
        _hall(tmp_path, clock)
    assert file.exists()


def test_a_save_is_whole_or_not_there(tmp_path: Path) -> None:
    clock = ManualClock(_NOW)
    live = _hall(tmp_path, clock)
    live.save()
    assert read_snapshot(tmp_path / "state.npz") is not None
    assert [path.name for path in tmp_path.iterdir()] == ["state.npz"]


def test_a_fault_can_be_ended(tmp_path: Path) -> None:
    clock = ManualClock(_NOW)
    live = _hall(tmp_path, clock)
    number, fault = live.add("capped_clocks", "rack-01/tray-02/slot-0", severity=0.3, ramp_s=0)
    _go(live, clock, 40)
    assert live.observation().gpu["sm_clock_mhz"][fault.index] < 1500
    live.end(number)
    _go(live, clock, 40)
    assert live.observation().gpu["sm_clock_mhz"][fault.index] > 1700
    with pytest.raises(ConfigError, match="no fault 7"):
        live.end(7)
