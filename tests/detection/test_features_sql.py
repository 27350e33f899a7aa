"""The SQL of the detectors on rows whose answers can be worked out by hand."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from clickhouse_connect.driver.client import Client

from pipeline.detection.frame import Frame, read_frame
from pipeline.detection.spec import load_specs
from tests.detection.conftest import START, at, put_rows

SPECS = load_specs()
EMPTY = ("gpu", "coolant", "component", "event", "ib_port")


@pytest.fixture(autouse=True)
def _empty(store: Client) -> None:
    for name in EMPTY:
        store.command(f"TRUNCATE TABLE telemetry.{name}")


def frame(store: Client, detector: str, minutes: int = 2) -> Frame:
    return read_frame(store, SPECS[detector], "main", START, START + timedelta(minutes=minutes))


def gpu(seconds: float, **values: Any) -> dict[str, Any]:
    return {
        "gpu_uuid": "GPU-a", "sampled_at": at(seconds), "rack": "rack-01", "power_w": 1000.0,
        **values,
    }  # fmt: skip


@pytest.mark.parametrize("detector", list(SPECS))
def test_every_detector_runs_on_empty_tables_and_gives_its_columns(
    store: Client, detector: str
) -> None:
    spec = SPECS[detector]
    table = store.query_arrow(
        spec.sql,
        parameters={"cluster": "main", "start": START, "end": START + timedelta(minutes=1)},
    )
    assert table.num_rows == 0
    names = set(table.column_names)
    wanted = {f.name for f in spec.feature} | set(spec.location) | set(spec.gate.settle)
    wanted |= {name for group in spec.peer_group for name in group.by}
    wanted |= {rule.parsed[0] for rule in (*spec.rule, *spec.static)}
    wanted |= {"window_end", "entity_id", "entity_name", "samples", "moving", "fingerprint"}
    assert wanted <= names


def test_a_counter_becomes_the_share_of_time_that_it_counted(store: Client) -> None:
    # 5 s of thermal slowdown in each 10 s.
    put_rows(
        store, "gpu",
        [gpu(10 * i, sw_thermal_slowdown_ns=int(i * 5e9)) for i in range(12)],
    )  # fmt: skip
    share = frame(store, "straggler_gpu").value("thermal_share")[:, 0]
    np.testing.assert_allclose(share, [0.5, 0.5])


def test_a_reset_counter_gives_no_rate_and_never_a_negative_one(store: Client) -> None:
    # The driver restarts between 50 s and 60 s: 25 s counted before, 1 s after.
    counts = [0, 5, 10, 15, 20, 25, 1, 2, 3, 4, 5, 6]
    put_rows(
        store, "gpu",
        [gpu(10 * i, sw_thermal_slowdown_ns=int(n * 1e9)) for i, n in enumerate(counts)],
    )  # fmt: skip
    share = frame(store, "straggler_gpu").value("thermal_share")[:, 0]
    np.testing.assert_allclose(share, [0.5, 0.1])


def test_a_counter_that_only_resets_is_unknown_and_not_zero(store: Client) -> None:
    rows = [gpu(30, ecc_dbe_volatile=7), gpu(60, ecc_dbe_volatile=0)]
    put_rows(store, "gpu", rows)
    found = frame(store, "straggler_gpu")
    assert np.isnan(found.value("ecc_dbe")[1, 0])


def test_rates_are_made_in_time_order_whatever_the_order_of_arrival(store: Client) -> None:
    rows = [gpu(10 * i, nvlink_recovery_events=i) for i in range(6)]
    put_rows(store, "gpu", rows[::-1])
    rate = frame(store, "straggler_gpu").value("nvlink_recoveries_per_min")[0, 0]
    assert rate == pytest.approx(6.0)


def test_two_gpus_never_lend_each_other_counts(store: Client) -> None:
    rows = []
    for i in range(6):
        rows.append(gpu(10 * i, nvlink_recovery_events=1000))
        rows.append({**gpu(10 * i, nvlink_recovery_events=5), "gpu_uuid": "GPU-b"})
    put_rows(store, "gpu", rows)
    rates = frame(store, "straggler_gpu").value("nvlink_recoveries_per_min")[0]
    assert rates.tolist() == [0.0, 0.0]


def test_missing_readings_stay_missing(store: Client) -> None:
    put_rows(store, "gpu", [gpu(10 * i) for i in range(12)])
    found = frame(store, "straggler_gpu")
    for name in ("sm_clock_mhz", "tensor_active_ratio", "core_over_coolant_k", "thermal_share"):
        assert np.isnan(found.value(name)).all(), name
    assert found.value("power_w")[0, 0] == 1000.0


def test_heat_is_kelvin_above_the_racks_coolant(store: Client) -> None:
    put_rows(store, "gpu", [gpu(10 * i, gpu_temp_c=56.0) for i in range(12)])
    put_rows(
        store, "coolant",
        [
            {"manager_id": "rack-01", "component_id": "c", "component_type": "rack_connector",
             "rack": "rack-01", "supply_temp_c": 32.0, "sampled_at": at(10 * i)}
            for i in range(12)
        ],
    )  # fmt: skip
    found = frame(store, "straggler_gpu").value("core_over_coolant_k")[:, 0]
    np.testing.assert_allclose(found, 24.0)


def test_heat_is_not_judged_while_power_moves(store: Client) -> None:
    put_rows(
        store, "gpu",
        [gpu(10 * i, gpu_temp_c=56.0, power_w=400.0 if i < 3 else 1000.0) for i in range(24)],
    )  # fmt: skip
    put_rows(
        store, "coolant",
        [
            {"manager_id": "rack-01", "component_id": "c", "component_type": "rack_connector",
             "rack": "rack-01", "supply_temp_c": 32.0, "sampled_at": at(10 * i)}
            for i in range(24)
        ],
    )  # fmt: skip
    found = frame(store, "straggler_gpu", 4).value("core_over_coolant_k")[:, 0]
    # The first minute holds the step; the two after it still have it in sight.
    assert np.isnan(found[:3]).all()
    assert found[3] == pytest.approx(24.0)


def test_the_clock_of_an_idle_gpu_is_not_its_working_clock(store: Client) -> None:
    rows = [gpu(10 * i, sm_clock_mhz=1900.0) for i in range(3)]
    rows += [
        gpu(30 + 10 * i, sm_clock_mhz=120.0, power_w=170.0, clocks_event_reasons=1)
        for i in range(3)
    ]
    put_rows(store, "gpu", rows)
    assert frame(store, "straggler_gpu").value("sm_clock_mhz")[0, 0] == 1900.0


def test_a_minute_in_which_the_job_changed_belongs_to_none(store: Client) -> None:
    rows = [gpu(10 * i, job_id="one" if i < 3 else "two", job_role="dp") for i in range(12)]
    put_rows(store, "gpu", rows)
    jobs = frame(store, "straggler_gpu").labels["job"]
    assert [jobs.text(i, 0) for i in range(2)] == [None, "two"]


def port(seconds: float, **values: Any) -> dict[str, Any]:
    return {
        "guid": "0x9c05910000000001", "port": 73, "side": "switch", "level": "leaf",
        "direction": "up", "sampled_at": at(seconds), "rate_gbps": 800.0,
        "peer_guid": "0x9c05910000000002", "peer_port": 5, **values,
    }  # fmt: skip


def test_xmit_wait_becomes_the_share_of_the_line_that_was_lost(store: Client) -> None:
    # A tick is the line time of 8 bytes: 12.5e9 ticks a second are the whole 800 Gb/s.
    put_rows(
        store, "ib_port",
        [port(10 * i, xmit_wait_ticks=int(i * 12.5e9), xmit_data_bytes=int(i * 2.5e11))
         for i in range(12)],
    )  # fmt: skip
    found = frame(store, "congested_link")
    # 12.5e9 ticks in 10 s: a tenth. 2.5e11 bytes in 10 s of 1e12: a quarter.
    np.testing.assert_allclose(found.value("wait_share")[:, 0], 0.1)
    np.testing.assert_allclose(found.value("util_share")[:, 0], 0.25)
    np.testing.assert_allclose(found.value("wait_ratio")[:, 0], 0.1 / 0.35)
    assert found.entities == ["0x9c05910000000001/73"]
    assert found.labels["peer"].latest(0) == "0x9c05910000000002/5"


def test_a_port_that_is_down_says_so_and_has_no_shares(store: Client) -> None:
    put_rows(
        store, "ib_port",
        [port(10 * i, port_state="down", phys_state="polling", rate_gbps=None,
              xmit_wait_ticks=5, xmit_data_bytes=5) for i in range(6)],
    )  # fmt: skip
    found = frame(store, "congested_link")
    assert found.value("link_up")[0, 0] == 0.0
    assert np.isnan(found.value("wait_share")[0, 0])


def test_a_port_without_states_is_down_when_rate_and_bytes_are_gone(store: Client) -> None:
    rows = [port(10 * i, xmit_data_bytes=i, xmit_wait_ticks=i) for i in range(12)]
    # The second port dies after the first minute: infiniband_exporter prints no rate for it.
    rows += [
        port(10 * i, port=74, xmit_data_bytes=min(i, 5), xmit_wait_ticks=0,
             rate_gbps=800.0 if i < 6 else None)
        for i in range(12)
    ]  # fmt: skip
    put_rows(store, "ib_port", rows)
    np.testing.assert_allclose(
        frame(store, "congested_link").value("link_up"), [[1.0, 1.0], [1.0, 0.0]]
    )


def test_a_source_that_gives_no_rates_says_nothing_about_links_being_up(store: Client) -> None:
    put_rows(store, "ib_port", [port(10 * i, rate_gbps=None, xmit_data_bytes=7) for i in range(6)])
    assert np.isnan(frame(store, "congested_link").value("link_up")).all()


def test_a_saturated_register_gives_no_rate(store: Client) -> None:
    # The reader stores NULL for a register at its end: unknown, not zero.
    put_rows(store, "ib_port", [port(10 * i, xmit_wait_ticks=None) for i in range(6)])
    assert np.isnan(frame(store, "congested_link").value("wait_share")).all()


def test_heat_balance_of_the_public_exemplar_rack(store: Client) -> None:
    # facts of the DSX exemplar: a rack at about 50 L/min and 10 K carries about its 35 kW.
    rows = []
    for i in range(24):
        rows.append({
            "manager_id": "rack-01", "component_id": "c", "component_type": "rack_connector",
            "rack": "rack-01", "cdu": "cdu-1", "supply_temp_c": 32.0, "return_temp_c": 42.2,
            "flow_lpm": 50.0, "sampled_at": at(10 * i),
        })  # fmt: skip
    put_rows(store, "coolant", rows)
    put_rows(
        store, "component",
        [
            {"manager_id": "rack-01", "component_id": "rack", "entity_type": "rack",
             "rack": "rack-01", "power_w": 35_000.0, "sampled_at": at(10 * i)}
            for i in range(24)
        ],
    )  # fmt: skip
    put_rows(store, "gpu", [gpu(10 * i) for i in range(24)])
    found = frame(store, "hot_rack", 4)
    # 50 L/min x 10.2 K x 1.03 kg/L x 3.974 kJ/(kg K) / 60 s = 34.8 kW.
    assert found.value("heat_balance_ratio")[3, 0] == pytest.approx(34.79 / 35, rel=1e-3)
    assert found.value("flow_lpm_per_kw")[3, 0] == pytest.approx(50 / 35, rel=1e-6)
    assert np.isnan(found.value("heat_balance_ratio")[0, 0])  # not yet steady for three minutes


def test_what_all_loops_do_is_no_difference_between_them(store: Client) -> None:
    rows = []
    for i in range(12):
        for loop, extra in (("cdu-1", 0.0), ("cdu-2", 1.0)):
            warmer = 5.0 if i >= 6 else 0.0
            rows.append({
                "manager_id": loop, "component_id": "s", "component_type": "secondary_connector",
                "cdu": loop, "supply_temp_c": 32.0 + extra + warmer, "sampled_at": at(10 * i),
            })  # fmt: skip
            rows.append({
                "manager_id": f"rack of {loop}", "component_id": "c",
                "component_type": "rack_connector", "rack": f"rack of {loop}", "cdu": loop,
                "supply_temp_c": 32.3 + extra + warmer, "sampled_at": at(10 * i),
            })  # fmt: skip
    put_rows(store, "coolant", rows)
    found = frame(store, "hot_rack")
    over = found.value("loop_over_others_k")
    np.testing.assert_allclose(over, [[-1.0, 1.0], [-1.0, 1.0]], atol=1e-4)
    np.testing.assert_allclose(found.value("supply_over_loop_k"), 0.3, atol=1e-4)
