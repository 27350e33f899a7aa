"""Points through a real Mosquitto."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.clock import SystemClock
from pipeline.collectors.fetch import FetcherFactory, FetchError
from pipeline.collectors.mqtt import MqttFetcher
from pipeline.collectors.service import Collector
from pipeline.collectors.targets import Target
from tests.collectors_service.helpers import MemorySink, run_service, until, write_targets
from tests.conftest import need_program
from tests.support.mosquitto import RunningMosquitto

paho = pytest.importorskip("paho.mqtt.client")


@pytest.fixture
def broker(tmp_path: Path, free_port: int) -> Iterator[RunningMosquitto]:
    need_program("mosquitto")
    with RunningMosquitto(tmp_path, free_port) as running:
        yield running


class Building:
    """A building management that publishes."""

    def __init__(self, port: int, password: str | None = None) -> None:
        from paho.mqtt.enums import CallbackAPIVersion

        self.client = paho.Client(CallbackAPIVersion.VERSION2)
        if password:
            self.client.username_pw_set("rackpulse", password)
        self.client.connect("127.0.0.1", port)
        self.client.loop_start()

    def say(self, kind: str, path: str, payload: Any, retain: bool = False) -> None:
        raw = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        done = self.client.publish(f"BMS/v1/PUB/{kind}/{path}", raw, qos=0, retain=retain)
        done.wait_for_publish(10)

    def flow(self, litres: float) -> None:
        payload = {"value": litres, "timestamp": round(time.time() * 1000), "quality": 1}
        self.say("Value", "Rack/RackLiquidFlow/s/r7/flow", payload)

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


def test_points_flow_and_the_last_value_is_carried_forward(
    tmp_path: Path, broker: RunningMosquitto
) -> None:
    building = Building(broker.port)
    # Metadata is retained: it was published before the collector came.
    about = {"rackLocationId": "rack-07", "engUnit": "LPM"}
    building.say("Metadata", "Rack/RackLiquidFlow/s/r7/flow", about, retain=True)
    sink = MemorySink()
    files = [
        write_targets(
            tmp_path / "t.json",
            [{"name": "bms", "kind": "bms", "url": f"mqtt://127.0.0.1:{broker.port}",
              "interval_s": 0.1, "timeout_s": 0.2}],
        )
    ]  # fmt: skip

    async def script(service: Collector) -> None:
        health = service.targets["bms"]
        # Connected, though no value has come yet.
        await until(lambda: health.state == "no_readings", "the connection")
        building.flow(50.0)
        await until(lambda: len(sink.rows("coolant")) >= 4, "rows of one value")
        building.say("Value", "Rack/RackLiquidFlow/s/r7/flow", b"\xff not JSON")
        building.flow(51.0)
        await until(lambda: sink.rows("coolant")[-1]["flow_lpm"] == 51.0, "the next value")
        broker.stop()
        await until(
            lambda: "target_down" in [row["kind"] for row in sink.rows("event")], "the loss"
        )
        assert health.state == "not_connected"
        broker.start()
        again = Building(broker.port)
        again.say("Metadata", "Rack/RackLiquidFlow/s/r7/flow", about, retain=True)
        await until(lambda: health.up, "the connection again", 30)
        again.flow(52.0)
        await until(lambda: sink.rows("coolant")[-1]["flow_lpm"] == 52.0, "a value again")
        again.close()

    run_service(files, sink, script)
    building.close()
    rows = sink.rows("coolant")
    assert {row["manager_id"] for row in rows} == {"rack-07"}
    assert rows[0]["flow_lpm"] == 50.0
    assert len({row["sampled_at"] for row in rows}) == len(rows)
    assert "target_up" in [row["kind"] for row in sink.rows("event")]


def test_password_from_a_file(tmp_path: Path, free_port: int) -> None:
    need_program("mosquitto_passwd")
    secret = tmp_path / "secret.json"
    secret.write_text(json.dumps({"user": "rackpulse", "password": "pw-1"}))
    secret.chmod(0o600)
    target = Target(
        name="bms", kind="bms", url=f"mqtt://127.0.0.1:{free_port}", timeout_s=1,
        credentials_file=secret,
    )  # fmt: skip

    async def read(which: Target) -> bytes:
        fetcher = FetcherFactory(SystemClock()).make(which)
        assert isinstance(fetcher, MqttFetcher)
        try:
            return (await fetcher.fetch()).body
        finally:
            await fetcher.close()

    with RunningMosquitto(tmp_path, free_port, password="pw-1"):
        assert asyncio.run(read(target)) == b""
        with pytest.raises(FetchError, match="not_connected") as caught:
            asyncio.run(read(target.model_copy(update={"credentials_file": None})))
    assert "pw-1" not in str(caught.value)
