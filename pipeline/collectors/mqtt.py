"""Points over MQTT: a subscription that holds what was published last.

The client's own thread takes messages; a read of the target gives all that is held. paho-mqtt
is imported when such a target is there.
"""

from __future__ import annotations

import json
import ssl
import threading
from typing import Any
from urllib.parse import urlsplit

from pipeline.clock import Clock
from pipeline.collectors.fetch import Fetched, FetchError
from pipeline.collectors.readers.bms import MAX_POINTS, STALE_S
from pipeline.collectors.targets import Target, read_credentials
from pipeline.errors import ConfigError, missing_extra

MAX_PAYLOAD = 65_536
TOPICS = "BMS/v1/+/Value/#", "BMS/v1/PUB/Metadata/#"


class MqttFetcher:
    """Subscribes at the first read and holds the last message of each topic.

    Args:
        target: ``mqtt://host:port`` or ``mqtts://…``; a path names other topics than the
            building management's, separated by commas.
    """

    def __init__(self, target: Target, clock: Clock, tls: ssl.SSLContext | None = None) -> None:
        try:
            from paho.mqtt import client as mqtt
            from paho.mqtt.enums import CallbackAPIVersion
        except ModuleNotFoundError as exc:
            raise missing_extra("paho-mqtt", "mqtt") from exc
        assert target.url is not None
        parts = urlsplit(target.url)
        if target.kind != "bms":
            raise ConfigError(f'{target.name}: only the kind "bms" is read over MQTT')
        self._address = (parts.hostname or "", parts.port or (8883 if tls else 1883))
        self._topics = [t for t in parts.path.strip("/").split(",") if t] or list(TOPICS)
        self._clock = clock
        self._timeout_s = target.timeout_s
        self._lock = threading.Lock()
        self._held: dict[str, tuple[Any, float]] = {}
        self._why = "not connected yet"
        self._connected = threading.Event()
        self._heard_at: float | None = None
        self._running = False
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2)
        self._client.on_connect = self._on_connect
        self._client.on_disconnect = self._on_disconnect
        self._client.on_message = self._on_message
        self._client.reconnect_delay_set(1, 30)
        if tls is not None:
            self._client.tls_set_context(tls)
        if target.credentials_file is not None:
            self._client.username_pw_set(*read_credentials(target.credentials_file))

    # ------------------------------------------------------------ the client's thread

    def _on_connect(self, client: Any, _data: Any, _flags: Any, code: Any, _props: Any) -> None:
        if code.is_failure:
            self._why = f"refused: {code}"
            return
        self._heard_at = self._clock.monotonic()
        client.subscribe([(topic, 0) for topic in self._topics])
        self._connected.set()

    def _on_disconnect(self, _client: Any, _data: Any, _flags: Any, code: Any, _p: Any) -> None:
        self._why = f"connection lost: {code}"
        self._connected.clear()

    def _on_message(self, _client: Any, _data: Any, message: Any) -> None:
        now = self._clock.monotonic()
        self._heard_at = now
        if len(message.payload) > MAX_PAYLOAD:
            return
        try:
            payload = json.loads(message.payload)
        except (ValueError, RecursionError):
            payload = {"value": None}
        at_ms = None if "/Metadata/" in message.topic else round(
            self._clock.now().timestamp() * 1000
        )  # fmt: skip
        with self._lock:
            if message.topic in self._held or len(self._held) < MAX_POINTS:
                self._held[message.topic] = (
                    {"topic": message.topic, "payload": payload, "at_ms": at_ms}, now,
                )  # fmt: skip

    # ------------------------------------------------------------ the collector

    async def fetch(self) -> Fetched:
        """All that is held now.

        Raises:
            FetchError: there is no connection, or nothing was published for long.
        """
        if not self._running:
            self._running = True
            self._client.connect_async(*self._address, keepalive=30)
            self._client.loop_start()
        if not self._connected.is_set():
            await _wait_for(self._connected, self._timeout_s)
        if not self._connected.is_set():
            raise FetchError("not_connected", self._why)
        now = self._clock.monotonic()
        if self._heard_at is not None and now - self._heard_at > STALE_S:
            raise FetchError("silent", f"nothing was published for {now - self._heard_at:.0f} s")
        with self._lock:
            self._held = {
                topic: (message, at)
                for topic, (message, at) in self._held.items()
                # Values that are too old are let go; metadata is retained for good.
                if now - at <= STALE_S or "/Metadata/" in topic
            }
            messages = [message for message, _ in self._held.values()]
        return Fetched("\n".join(map(json.dumps, messages)).encode(), "application/jsonl")

    async def close(self) -> None:
        """Leave the broker."""
        if self._running:
            self._client.disconnect()
            self._client.loop_stop()
            self._running = False


async def _wait_for(event: threading.Event, seconds: float) -> None:
    import asyncio

    deadline = asyncio.get_running_loop().time() + seconds
    while not event.is_set() and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0.02)
