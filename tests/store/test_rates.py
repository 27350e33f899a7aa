"""Rates: in time order, safe against resets, never across identities."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from clickhouse_connect.driver.client import Client

from tests.support.store import RunningStore

TABLES = ("gpu", "nvlink", "ib_port")


@pytest.fixture(scope="module")
def rates(store: RunningStore) -> Iterator[Client]:
    store.migrate()
    with store.client() as client:
        for table in TABLES:
            client.command(f"TRUNCATE TABLE telemetry.{table}")
        yield client
        for table in TABLES:
            client.command(f"TRUNCATE TABLE telemetry.{table}")


def _at(second: int) -> datetime:
    return datetime.fromtimestamp(1_800_000_000 + second, UTC)


def _port(client: Client, rows: list[tuple[object, ...]], guid: str = "0x01", **more: str) -> None:
    """Rows of (second, bytes sent, wait ticks) of one port at 400 Gb/s."""
    columns = [
        "cluster", "source", "sampled_at", "guid", "port", "rack", "rate_gbps",
        "xmit_data_bytes", "xmit_wait_ticks", "ingested_at",
    ]  # fmt: skip
    row = {"cluster": "c", "source": "ufm", "rack": "r1", **more}
    client.insert(
        "telemetry.ib_port",
        [
            [row["cluster"], row["source"], _at(second),
             guid, 1, row["rack"], 400.0, sent, wait, datetime.now(UTC)]
            for second, sent, wait in rows
        ],
        column_names=columns,
    )  # fmt: skip


def _read(client: Client, guid: str, columns: str) -> list[tuple[object, ...]]:
    return list(
        client.query(
            f"SELECT {columns} FROM telemetry.ib_port_rates WHERE guid = {{guid:String}}"
            " ORDER BY source, sampled_at",
            parameters={"guid": guid},
        ).result_rows
    )


def test_lost_bandwidth_and_utilisation(rates: Client) -> None:
    # In 10 s: 250 GB sent are 200 Gb/s, half the line rate. 6.25e9 ticks of 8 bytes are
    # 50 GB, or 40 Gb/s, that could not be sent: a tenth of the line rate.
    _port(rates, [(0, 0, 0), (10, 250_000_000_000, 6_250_000_000)], "0xa1")
    first, second = _read(
        rates,
        "0xa1",
        "interval_s, xmit_gbps, xmit_utilisation_percent, lost_gbps, lost_percent,"
        " round(congestion_percent, 3)",
    )
    assert first == (None,) * 6
    assert second == (10.0, 200.0, 50.0, 40.0, 10.0, 16.667)


def test_rows_that_came_in_late_take_their_place_in_time(rates: Client) -> None:
    _port(rates, [(20, 3_000_000_000, 0), (0, 1_000_000_000, 0)], "0xa2")
    _port(rates, [(10, 2_000_000_000, 0)], "0xa2")
    found = _read(rates, "0xa2", "interval_s, xmit_gbps")
    assert found == [(None, None), (10.0, 0.8), (10.0, 0.8)]


def test_a_reset_counts_from_zero_and_a_misreading_not_at_all(rates: Client) -> None:
    sent = [100_000_000_000, 1_000_000_000, 999_999_999, 2_000_000_000, None, 3_000_000_000]
    _port(rates, [(10 * i, value, 0) for i, value in enumerate(sent)], "0xa3")
    found = [row[0] for row in _read(rates, "0xa3", "round(xmit_gbps, 6)")]
    assert found == [None, 0.8, None, 0.8, None, None]


@pytest.mark.parametrize("more", [{"source": "ib_exporter"}, {"rack": "r2"}, {"cluster": "d"}])
def test_never_across_a_change_of_identity(rates: Client, more: dict[str, str]) -> None:
    guid = "0xb" + "".join(more.values())
    _port(rates, [(0, 1_000_000_000, 0), (10, 2_000_000_000, 0)], guid)
    _port(rates, [(11, 900_000_000_000, 0), (21, 901_000_000_000, 0)], guid, **more)
    found = sorted(str(row[0]) for row in _read(rates, guid, "round(xmit_gbps, 3)"))
    assert found == ["0.8", "0.8", "None", "None"]


def test_a_rate_of_the_source_stands_where_there_is_no_counter(rates: Client) -> None:
    rates.command(
        "INSERT INTO telemetry.ib_port (cluster, source, sampled_at, guid, port, rate_gbps,"
        " xmit_bytes_per_s, congested_gbps, ingested_at) VALUES"
        " ('c', 'ufm', '2027-01-01 00:00:00', '0xa4', 1, 400, 25e9, 40, now())"
    )
    found = _read(rates, "0xa4", "xmit_gbps, xmit_utilisation_percent, lost_gbps, lost_percent")
    assert found == [(200.0, 50.0, 40.0, 10.0)]


def test_what_was_away_for_minutes_comes_back_without_a_spike(rates: Client) -> None:
    seconds = [0, 10, 20, 620, 630]
    _port(rates, [(at, 100_000_000 * at, 0) for at in seconds], "0xa8")
    found = [row[0] for row in _read(rates, "0xa8", "round(xmit_gbps, 6)")]
    assert found == [None, 0.8, 0.8, 0.8, 0.8]


def test_a_roce_port_has_no_rates_of_the_fabric(rates: Client) -> None:
    rates.command(
        "INSERT INTO telemetry.ib_port (cluster, source, sampled_at, guid, port, link_layer,"
        " xmit_bytes_per_s, ingested_at) VALUES"
        " ('c', 'ib_sysfs', '2027-01-01 00:00:00', '0xa6', 1, 'Ethernet', 25e9, now()),"
        " ('c', 'ib_sysfs', '2027-01-01 00:00:00', '0xa7', 1, 'InfiniBand', 25e9, now())"
    )
    assert _read(rates, "0xa6", "xmit_gbps") == []
    assert _read(rates, "0xa7", "xmit_gbps") == [(200.0,)]


def test_a_span_of_time_takes_its_first_increase_from_before(rates: Client) -> None:
    _port(rates, [(10 * i, 1_000_000_000 * i, 0) for i in range(20)], "0xa5")
    since = f"{_at(100):%F %T}"
    until = f"{_at(150):%F %T}"
    found = rates.query(
        f"SELECT count(), countIf(xmit_gbps = 0.8) FROM telemetry.ib_port_rates_between("
        f"since = '{since}', until = '{until}') WHERE guid = '0xa5'"
    ).result_rows
    assert found == [(5, 5)]


def test_a_condition_on_the_entity_reaches_the_table(rates: Client) -> None:
    plan = rates.query(
        "EXPLAIN actions = 1 SELECT lost_percent FROM telemetry.ib_port_rates"
        " WHERE cluster = 'c' AND guid = '0xa5' AND rack = 'r1'"
    ).result_rows
    text = "\n".join(row[0] for row in plan)
    below_window = text[text.index("Window") :]
    assert "0xa5" in below_window
    assert "r1" in below_window


def test_gpu_rates(rates: Client) -> None:
    rates.command(
        "INSERT INTO telemetry.gpu (cluster, source, sampled_at, gpu_uuid, gpu_instance_id,"
        " energy_mj, thermal_violation_ns, ecc_dbe_aggregate, ingested_at) VALUES"
        " ('c', 'dcgm', '2027-01-01 00:00:00', 'GPU-1', '', 0, 0, 0, now()),"
        " ('c', 'dcgm', '2027-01-01 00:00:10', 'GPU-1', '', 12000000, 2500000000, 1, now())"
    )
    # 12 kJ in 10 s are 1.2 kW; 2.5 s of 10 s are 25 %; one error in 10 s is 360 an hour.
    found = rates.query(
        "SELECT energy_power_w, thermal_violation_percent, ecc_dbe_per_h, hw_power_brake_percent"
        " FROM telemetry.gpu_rates WHERE gpu_uuid = 'GPU-1' ORDER BY sampled_at"
    ).result_rows
    assert found == [(None,) * 4, (1200.0, 25.0, 360.0, None)]


def test_nvlink_rates(rates: Client) -> None:
    rates.command(
        "INSERT INTO telemetry.nvlink (cluster, source, sampled_at, device_id, link, side,"
        " speed_gbps, tx_bytes, recovery_events, ingested_at) VALUES"
        " ('c', 'dcgm', '2027-01-01 00:00:00', 'GPU-1', 3, 'gpu', 400, 0, 5, now()),"
        " ('c', 'dcgm', '2027-01-01 00:00:10', 'GPU-1', 3, 'gpu', 400, 125000000000, 6, now()),"
        " ('c', 'dcgm', '2027-01-01 00:00:10', 'GPU-1', 4, 'gpu', 400, 999, 0, now())"
    )
    found = rates.query(
        "SELECT link, tx_gbps, tx_utilisation_percent, recoveries_per_h"
        " FROM telemetry.nvlink_rates WHERE device_id = 'GPU-1' ORDER BY link, sampled_at"
    ).result_rows
    assert found == [(3, None, None, None), (3, 100.0, 25.0, 360.0), (4, None, None, None)]


def test_analysts_may_read_them(rates: Client, store: RunningStore) -> None:
    with store.client(role="analyst") as analyst:
        for table in TABLES:
            assert analyst.query(f"SELECT count() FROM {table}_rates").row_count == 1
            assert analyst.query(
                f"SELECT count() FROM {table}_rates_between("
                "since = '2027-01-01 00:00:00', until = '2027-01-02 00:00:00')"
            ).row_count == 1  # fmt: skip
