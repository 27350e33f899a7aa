"""Many targets at once: the healthy keep their time, the sick are called by their names."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from pipeline.collectors.service import Collector
from pipeline.errors import ConfigError
from pipeline.metrics import Metrics
from tests.collectors_service.helpers import MemorySink, run_service, until, write_targets
from tests.support.exporters import Exporters, exporters


def target(server: Exporters, mode: str, host: str, **more: Any) -> dict[str, Any]:
    return {
        "name": f"dcgm/{host}",
        "kind": "dcgm",
        "url": f"http://127.0.0.1:{server.port}/{mode}/{host}",
        "host": host,
        "interval_s": 0.2,
        "timeout_s": 0.15,
        **more,
    }


def events(sink: MemorySink, kind: str) -> list[dict[str, Any]]:
    return [row for row in sink.rows("event") if row["kind"] == kind]


def test_sick_targets_are_named_and_delay_no_other(tmp_path: Path) -> None:
    sick = {"hang": "timed_out", "500": "http_500", "cut": "truncated", "frozen": "frozen",
            "cutline": "truncated", "drip": "timed_out", "garbage": "no_readings"}  # fmt: skip
    sink = MemorySink()
    with exporters() as server:
        slow = {"interval_s": 0.6, "timeout_s": 0.5}
        rows = [target(server, mode, f"sick-{mode}", **slow) for mode in sick]
        rows += [target(server, "ok", f"well-{n}", **slow) for n in range(20)]
        rows.append({**target(server, "ok", "nobody"), "url": "http://127.0.0.1:9/metrics"})
        files = [write_targets(tmp_path / "targets.json", rows)]

        async def script(service: Collector) -> None:
            await until(
                lambda: service.targets["dcgm/sick-frozen"].state == "frozen", "the frozen one"
            )
            # The frozen one was read four times at least; a target that had to
            # wait for the sick ones could not have been read as often.
            asked = {n: server.asked[f"/ok/well-{n}"] for n in range(20)}
            frozen = server.asked["/frozen/sick-frozen"]
            assert all(abs(count - frozen) <= 2 for count in asked.values()), (frozen, asked)
            states = {name: health.state for name, health in service.targets.items()}
            for mode, name in sick.items():
                assert states[f"dcgm/sick-{mode}"] == name, mode
            assert states["dcgm/nobody"] == "refused"
            assert all(states[f"dcgm/well-{n}"] == "ok" for n in range(20))

        run_service(files, sink, script)
    gpu_hosts = {row["host"] for row in sink.rows("gpu")}
    assert {f"well-{n}" for n in range(20)} <= gpu_hosts
    assert not {"sick-hang", "sick-500", "sick-cut", "sick-drip"} & gpu_hosts
    assert sink.flushed
    assert sink.closed


def test_every_read_is_a_row_about_the_target(tmp_path: Path) -> None:
    sink = MemorySink()
    with exporters() as server:
        files = [
            write_targets(
                tmp_path / "t.json", [target(server, "ok", "a"), target(server, "500", "b")]
            )
        ]

        async def script(service: Collector) -> None:
            await until(lambda: server.asked["/500/b"] >= 3 and server.asked["/ok/a"] >= 3, "reads")

        run_service(files, sink, script)
    rows = [row for row in sink.rows("component") if row["entity_type"] == "target"]
    well = [row for row in rows if row["name"] == "dcgm/a"]
    broken = [row for row in rows if row["name"] == "dcgm/b"]
    assert all((row["up"], row["state"], row["entities_reporting"]) == (True, "ok", 4)
               for row in well)  # fmt: skip
    assert all((row["up"], row["state"], row["entities_reporting"]) == (False, "http_500", None)
               for row in broken)  # fmt: skip
    assert well
    assert broken
    assert all(row["scrape_ms"] >= 0 for row in rows)
    # A target that was never seen working tells nothing by being down: no change happened.
    assert events(sink, "target_down") == []


def test_changes_are_events_once(tmp_path: Path) -> None:
    sink = MemorySink()
    with exporters() as server:
        files = [write_targets(tmp_path / "t.json", [target(server, "ok", "a")])]

        async def script(service: Collector) -> None:
            health = service.targets["dcgm/a"]
            await until(lambda: health.state == "ok", "the first read")
            for mode, state, kind in (
                ("500", "http_500", "target_down"),
                ("ok", "ok", "target_up"),
                ("missing", "partial", "series_absent"),
                ("ok", "ok", "series_returned"),
                ("frozen", "frozen", "target_frozen"),
                ("ok", "ok", "target_moving"),
            ):
                server.modes["a"] = mode
                await until(lambda: health.state == state, f"{mode}: {state}")  # noqa: B023
                await until(lambda: events(sink, kind), kind)  # noqa: B023
            count = server.asked["/ok/a"]
            await until(lambda: server.asked["/ok/a"] > count + 3, "more reads")

        run_service(files, sink, script)
    kinds = [
        "target_down", "target_up", "series_absent", "series_returned", "target_frozen",
        "target_moving",
    ]  # fmt: skip
    for kind in kinds:
        assert len(events(sink, kind)) == 1, kind
    (absent,) = events(sink, "series_absent")
    assert (absent["entity_kind"], absent["entity_id"]) == ("gpu", "GPU-a-0")
    (down,) = events(sink, "target_down")
    assert (down["entity_kind"], down["entity_id"], down["current"]) == (
        "target", "dcgm/a", "http_500",
    )  # fmt: skip


def test_topology_says_how_many_there_should_be(tmp_path: Path) -> None:
    topology = tmp_path / "topology.json"
    gpus = [{"kind": "gpu", "id": f"GPU-a-{n}", "host": "a", "rack": "rack-07"} for n in range(8)]
    topology.write_text(json.dumps({"cluster": "test", "entities": gpus}))
    sink = MemorySink()
    with exporters() as server:
        files = [write_targets(tmp_path / "t.json", [target(server, "ok", "a")])]

        async def script(service: Collector) -> None:
            health = service.targets["dcgm/a"]
            await until(lambda: health.state == "partial", "4 of 8")
            assert (health.reporting, health.expected) == (4, 8)
            await until(lambda: sink.rows("gpu"), "rows")
            # The file changes while the service runs.
            for gpu in gpus:
                gpu["rack"] = "rack-08"
            topology.write_text(json.dumps({"cluster": "test", "entities": gpus[:4]}))
            await until(lambda: health.state == "ok", "4 of 4")
            await until(lambda: sink.rows("gpu")[-1]["rack"] == "rack-08", "the new place")
            topology.write_text("{")
            count = server.asked["/ok/a"]
            await until(lambda: server.asked["/ok/a"] > count + 2, "more reads")

        run_service(files, sink, script, topology=topology)
    assert sink.rows("gpu")[0]["rack"] == "rack-07"
    assert sink.rows("gpu")[-1]["rack"] == "rack-08"


def test_target_file_is_reloaded(tmp_path: Path) -> None:
    sink, metrics = MemorySink(), Metrics()
    with exporters() as server:
        path = write_targets(tmp_path / "t.json", [target(server, "ok", "a")])

        async def script(service: Collector) -> None:
            await until(lambda: server.asked["/ok/a"], "a")
            write_targets(path, [target(server, "ok", "b")])
            await until(lambda: server.asked["/ok/b"] > 2, "b")
            assert set(service.targets) == {"dcgm/b"}
            count = server.asked["/ok/a"]
            path.write_text("not JSON at all")
            asked = server.asked["/ok/b"]
            await until(lambda: server.asked["/ok/b"] > asked + 2, "b goes on")
            # A write that is caught in the middle, or a mistake, keeps what was there.
            assert set(service.targets) == {"dcgm/b"}
            assert server.asked["/ok/a"] == count
            shown = metrics.registry.get_sample_value
            assert shown("rackpulse_target_up", {"target": "dcgm/b", "kind": "dcgm"}) == 1
            assert shown("rackpulse_target_up", {"target": "dcgm/a", "kind": "dcgm"}) is None

        run_service([path], sink, script, metrics=metrics)


def test_a_target_with_wrong_credentials_is_named_and_tried_again(tmp_path: Path) -> None:
    sink, metrics = MemorySink(), Metrics()
    secret = tmp_path / "bmc.json"
    secret.write_text('{"user": "u", "password": "p"}')
    secret.chmod(0o644)
    row = {"name": "redfish/b", "kind": "redfish", "url": "http://127.0.0.1:9/",
           "credentials_file": str(secret), "interval_s": 0.1, "timeout_s": 1.0}  # fmt: skip
    path = write_targets(tmp_path / "t.json", [row])

    async def script(service: Collector) -> None:
        def state() -> str:
            return service.targets["redfish/b"].state

        await until(lambda: state() == "misconfigured", "the wrong file")
        shown = metrics.registry.get_sample_value
        labels = {"target": "redfish/b", "kind": "redfish"}
        await until(lambda: shown("rackpulse_target_up", labels) == 0, "the gauge")
        secret.chmod(0o600)
        await until(lambda: state() != "misconfigured", "the next read")

    run_service([path], sink, script, metrics=metrics)


def test_wrong_files_at_start_say_what_to_do(tmp_path: Path) -> None:
    async def script(service: Collector) -> None:
        await asyncio.sleep(0)

    with pytest.raises(ConfigError, match=r"none\.json is missing"):
        run_service([tmp_path / "none.json"], MemorySink(), script)
    good = write_targets(tmp_path / "t.json", [])
    with pytest.raises(ConfigError, match="topology"):
        run_service([good], MemorySink(), script, topology=tmp_path / "none.json")


def test_pages_of_one_window_share_messages(tmp_path: Path) -> None:
    sink = MemorySink()
    with exporters() as server:
        rows = [target(server, "ok", f"h{n}", manager_id="rack-1", interval_s=1.0)
                for n in range(10)]  # fmt: skip
        files = [write_targets(tmp_path / "t.json", rows)]

        async def script(service: Collector) -> None:
            await until(lambda: len(sink.rows("gpu")) >= 40, "all of them")

        run_service(files, sink, script, window_s=0.5)
    assert len(sink.rows("gpu")) >= 40
    assert len(sink.tables["gpu"]) <= 4


def test_what_the_sink_refuses_waits_and_is_not_lost(tmp_path: Path) -> None:
    sink = MemorySink()
    sink.broken = OSError("disk full")
    with exporters() as server:
        files = [write_targets(tmp_path / "t.json", [target(server, "ok", "a")])]

        async def script(service: Collector) -> None:
            await until(lambda: server.asked["/ok/a"] >= 5, "reads")
            assert sink.rows("gpu") == []
            sink.broken = None

        run_service(files, sink, script)
    times = [row["sampled_at"] for row in sink.rows("gpu") if row["gpu_uuid"] == "GPU-a-0"]
    assert len(times) >= 4
    assert times == sorted(times)
    assert len(set(times)) == len(times)


def test_ready_when_all_were_tried(tmp_path: Path) -> None:
    sink = MemorySink()
    with exporters() as server:
        files = [
            write_targets(
                tmp_path / "t.json", [target(server, "ok", "a"), target(server, "hang", "b")]
            )
        ]

        async def script(service: Collector) -> None:
            assert not service._health.is_ready()[0]
            await until(lambda: service._health.is_ready()[0], "ready though one hangs")

        run_service(files, sink, script)


class SlowSink(MemorySink):
    """Takes its time, as a disk does."""

    def put(self, stream_name: str, table: Any) -> None:
        threading.Event().wait(0.05)
        super().put(stream_name, table)


def test_the_end_loses_no_row_that_was_read(tmp_path: Path) -> None:
    sink, metrics = SlowSink(), Metrics()
    with exporters() as server:
        files = [
            write_targets(
                tmp_path / "t.json",
                [target(server, "ok", f"h{n}", interval_s=0.1, timeout_s=2) for n in range(10)],
            )
        ]

        async def script(service: Collector) -> None:
            await until(lambda: len(sink.rows("gpu")) > 100, "rows")

        run_service(files, sink, script, metrics=metrics)
    labels = {"kind": "dcgm", "outcome": "ok"}
    reads = metrics.registry.get_sample_value("rackpulse_collector_scrapes_total", labels)
    assert reads is not None
    assert len(sink.rows("gpu")) == 4 * reads
