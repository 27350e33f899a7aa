"""Messages in a destination's form, signed, on their way."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from pipeline.alerts import render
from pipeline.alerts.destinations import Destination, read_secret, signing_keys
from pipeline.alerts.model import Alert
from pipeline.alerts.post import Answer, post
from pipeline.alerts.signing import sign
from pipeline.clock import Clock


class Post(Protocol):
    """How a message goes out; see :func:`pipeline.alerts.post.post`."""

    def __call__(
        self,
        url: str,
        body: bytes,
        headers: dict[str, str],
        *,
        timeout_s: float,
        allow_private: bool,
        now: datetime,
    ) -> Answer: ...


class Sender:
    """Speaks to one destination.

    Args:
        default_secrets: file of the signing secrets where the destination names none.
        post: how a message goes out.
    """

    def __init__(
        self,
        destination: Destination,
        default_secrets: Path,
        clock: Clock,
        post: Post = post,
    ) -> None:
        self.destination = destination
        self._default_secrets = default_secrets
        self._clock = clock
        self._post = post

    def alert(self, alert: Alert) -> Answer:
        """Send an alert in the destination's form."""
        kind = self.destination.kind
        if kind == "webhook":
            return self._send_webhook(alert.transition_id, render.as_bytes(render.generic(alert)))
        if kind == "alertmanager":
            value: Any = render.alertmanager([alert], self._clock.now())
        elif kind == "pagerduty":
            assert self.destination.routing_key_file is not None
            value = render.pagerduty(alert, read_secret(self.destination.routing_key_file))
        else:
            value = render.slack(alert)
        return self._send_plain(value)

    def _send_webhook(self, message_id: str, body: bytes) -> Answer:
        keys = signing_keys(self.destination, self._default_secrets)
        headers = sign(message_id, self._clock.now(), body, keys)
        return self._go(body, headers)

    def _send_plain(self, value: Any) -> Answer:
        return self._go(render.as_bytes(value), {})

    def _go(self, body: bytes, headers: dict[str, str]) -> Answer:
        return self._post(
            self.destination.address(),
            body,
            headers,
            timeout_s=self.destination.timeout_s,
            allow_private=self.destination.allow_private,
            now=self._clock.now(),
        )

    def test(self, message_id: str) -> Answer:
        """Send a test message, which changes nothing anywhere."""
        kind = self.destination.kind
        now = self._clock.now()
        text = "Test alert of rackpulse: if you read this, alerts arrive."
        if kind == "webhook":
            body = {"type": "rackpulse.test", "timestamp": render.iso(now), "data": {"text": text}}
            return self._send_webhook(message_id, render.as_bytes(body))
        if kind == "slack":
            return self._send_plain({"text": text})
        if kind == "alertmanager":
            return self._send_plain(
                [
                    {
                        "labels": {"alertname": "rackpulse_test", "severity": "info"},
                        "annotations": {"summary": text},
                        "startsAt": render.iso(now),
                        "endsAt": render.iso(now + timedelta(minutes=1)),
                    }
                ]
            )
        assert self.destination.routing_key_file is not None
        return self._send_plain(
            {
                "routing_key": read_secret(self.destination.routing_key_file),
                "event_action": "trigger",
                "dedup_key": message_id,
                "payload": {"summary": text, "source": "rackpulse", "severity": "info"},
            }
        )

    def refresh(self, alerts: Sequence[Alert]) -> Answer:
        """Tell Alertmanager of everything that is open."""
        return self._send_plain(render.alertmanager(alerts, self._clock.now()))
