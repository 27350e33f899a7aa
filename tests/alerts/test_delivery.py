"""The courier with the real store and a real receiver; only the clock is ours."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from clickhouse_connect.driver.client import Client
from pydantic import SecretStr

from pipeline.alerts import signing
from pipeline.alerts.delivery import Courier
from pipeline.alerts.destinations import Destination
from pipeline.alerts.outbox import Attempt, Outbox
from pipeline.alerts.schedule import PAUSES_S
from pipeline.alerts.sender import Sender
from pipeline.clock import ManualClock
from tests.alerts.helpers import START, Script, insert, rng, row, scripted


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START + timedelta(minutes=1))


@pytest.fixture
def script() -> Iterator[Script]:
    with scripted(Script()) as found:
        yield found


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    path = tmp_path / "webhook-secret"
    signing.load_secrets(path, create=True)
    return path


def courier(client: Client, url: str, secrets: Path, clock: ManualClock, **options: Any) -> Courier:
    destination = Destination(
        name="hook", url=SecretStr(url), timeout_s=options.pop("timeout_s", 5.0), **options
    )
    return Courier(Outbox(client, "hook", "http://airflow"), Sender(destination, secrets, clock),
                   clock, rng())  # fmt: skip


def outcomes(client: Client) -> list[tuple[str, str, int]]:
    """Transition, outcome and attempt, in the order of the attempts."""
    rows = client.query(
        "SELECT transition_id, outcome, attempt FROM telemetry.alert_delivery"
        " ORDER BY at, transition_id, attempt"
    ).result_rows
    return [(str(a), str(b), int(c)) for a, b, c in rows]


def test_an_alert_goes_out_once(
    client: Client, script: Script, secrets: Path, clock: ManualClock
) -> None:
    insert(client, row())
    serving = courier(client, script.url, secrets, clock)
    assert serving.round().delivered == 1
    assert serving.round().delivered == 0
    (request,) = script.requests
    assert request.headers["webhook-id"] == "tr-1"
    assert request.json["type"] == "incident.opened"
    assert request.json["data"]["links"]["fleet"] == (
        "http://airflow/rackpulse/fleet?incident=inc-1"
    )
    # The signature is of exactly the bytes that came in, at the time of the attempt.
    stamped = int(request.headers["webhook-timestamp"])
    assert stamped == int(clock.now().timestamp())
    expected = signing.sign("tr-1", clock.now(), request.body, signing.load_secrets(secrets))
    assert request.headers["webhook-signature"] == expected["webhook-signature"]
    assert outcomes(client) == [("tr-1", "delivered", 1)]


def test_a_new_courier_sends_nothing_again(
    client: Client, script: Script, secrets: Path, clock: ManualClock
) -> None:
    insert(client, row())
    courier(client, script.url, secrets, clock).round()
    clock.advance(3600 * 30)
    assert courier(client, script.url, secrets, clock).round().delivered == 0
    assert len(script.requests) == 1


def test_the_same_transition_stored_twice_is_sent_once(
    client: Client, script: Script, secrets: Path, clock: ManualClock
) -> None:
    insert(client, row(), row())
    assert courier(client, script.url, secrets, clock).round().delivered == 1
    assert script.ids() == ["tr-1"]


@pytest.mark.parametrize("status", [500, 400, 401, 302])
def test_tries_again_under_the_same_id(
    client: Client, script: Script, secrets: Path, clock: ManualClock, status: int
) -> None:
    script.answers = [(status, {"location": "http://127.0.0.1:9/"}), (status, {})]
    insert(client, row())
    serving = courier(client, script.url, secrets, clock)
    assert serving.round().failed == 1
    assert serving.round().failed == 0  # not due yet
    clock.advance(6)
    assert serving.round().failed == 1
    clock.advance(15)
    assert serving.round().delivered == 0  # the second pause is 20 s
    clock.advance(8)
    assert serving.round().delivered == 1
    assert script.ids() == ["tr-1"] * 3
    stamps = [int(request.headers["webhook-timestamp"]) for request in script.requests]
    assert stamps == sorted(set(stamps))
    assert [item[1:] for item in outcomes(client)] == [
        ("failed", 1), ("failed", 2), ("delivered", 3),
    ]  # fmt: skip


def test_a_courier_that_was_restarted_keeps_to_the_schedule(
    client: Client, script: Script, secrets: Path, clock: ManualClock
) -> None:
    script.answers = [(500, {})]
    insert(client, row())
    courier(client, script.url, secrets, clock).round()
    assert courier(client, script.url, secrets, clock).round().delivered == 0
    clock.advance(6)
    assert courier(client, script.url, secrets, clock).round().delivered == 1


def test_429_holds_back_everything_for_as_long_as_asked(
    client: Client, script: Script, secrets: Path, clock: ManualClock
) -> None:
    script.answers = [(429, {"retry-after": "60"})]
    insert(client, row(), row(transition_id="tr-2", incident_id="inc-2"))
    serving = courier(client, script.url, secrets, clock)
    serving.round()
    clock.advance(30)
    serving.round()
    assert script.ids() == ["tr-1"]
    clock.advance(31)
    assert serving.round().delivered == 2
    assert sorted(script.ids()) == ["tr-1", "tr-1", "tr-2"]


def test_a_receiver_that_hangs_does_not_hang_the_courier(
    client: Client, secrets: Path, clock: ManualClock
) -> None:
    insert(client, row())
    with scripted(Script(hang=threading.Event())) as slow:
        serving = courier(client, slow.url, secrets, clock, timeout_s=0.3)
        assert serving.round().failed == 1
    assert outcomes(client) == [("tr-1", "failed", 1)]
    with scripted(Script()) as well:
        clock.advance(6)
        assert courier(client, well.url, secrets, clock).round().delivered == 1
        assert well.ids() == ["tr-1"]


def test_410_switches_the_destination_off_until_someone_enables_it(
    client: Client, script: Script, secrets: Path, clock: ManualClock
) -> None:
    script.answers = [(410, {})]
    insert(client, row(), row(transition_id="tr-2", incident_id="inc-2"))
    serving = courier(client, script.url, secrets, clock)
    serving.round()
    clock.advance(3600)
    assert serving.round().delivered == 0
    assert len(script.requests) == 1
    assert serving.disabled_because() == "the receiver answered 410 Gone"
    # Also for a new process.
    again = courier(client, script.url, secrets, clock)
    assert again.round().delivered == 0
    Outbox(client, "hook").switch("enabled", "by hand", clock.now())
    assert again.round().delivered == 2


def test_the_transitions_of_an_incident_keep_their_order(
    client: Client, script: Script, secrets: Path, clock: ManualClock
) -> None:
    later = START + timedelta(minutes=5)
    script.answers = [(500, {})]
    insert(
        client,
        row(),
        row(transition_id="tr-9", transition="resolved", at=later, window_end=later,
            resolved_at=later),
    )  # fmt: skip
    clock.advance(600)
    serving = courier(client, script.url, secrets, clock)
    serving.round()
    serving.round()
    assert script.ids() == ["tr-1"]
    clock.advance(30)
    serving.round()
    assert script.ids() == ["tr-1", "tr-1", "tr-9"]


def test_an_update_that_was_overtaken_is_not_sent(
    client: Client, script: Script, secrets: Path, clock: ManualClock
) -> None:
    def at(minutes: int) -> dict[str, Any]:
        moment = START + timedelta(minutes=minutes)
        return {"at": moment, "window_end": moment}

    insert(
        client,
        row(),
        row(transition_id="tr-2", transition="updated", **at(1)),
        row(transition_id="tr-3", transition="updated", **at(2)),
    )
    clock.advance(600)
    serving = courier(client, script.url, secrets, clock)
    assert serving.round().delivered == 2
    assert script.ids() == ["tr-1", "tr-3"]
    assert ("tr-2", "superseded", 0) in outcomes(client)
    assert serving.round().delivered == 0


def test_what_is_not_grave_enough_is_not_sent_and_not_asked_again(
    client: Client, script: Script, secrets: Path, clock: ManualClock
) -> None:
    insert(client, row(severity="info"), row(transition_id="tr-2", incident_id="inc-2"))
    serving = courier(client, script.url, secrets, clock, min_severity="warning")
    assert serving.round().delivered == 1
    assert serving.round().delivered == 0
    assert sorted(outcomes(client)) == [("tr-1", "filtered", 0), ("tr-2", "delivered", 1)]


def test_a_new_destination_hears_of_the_last_hour_only(
    client: Client, script: Script, secrets: Path, clock: ManualClock
) -> None:
    long_ago = START - timedelta(hours=3)
    insert(client, row(transition_id="tr-0", incident_id="inc-0", at=long_ago,
                       window_end=long_ago), row())  # fmt: skip
    courier(client, script.url, secrets, clock).round()
    assert script.ids() == ["tr-1"]


def test_gives_up_at_the_end_of_the_schedule(
    client: Client, script: Script, secrets: Path, clock: ManualClock
) -> None:
    script.last = (500, {})
    insert(client, row())
    serving = courier(client, script.url, secrets, clock)
    for pause in PAUSES_S:
        counts = serving.round()
        assert (counts.failed, counts.gave_up) == (1, 0)
        clock.advance(pause * 1.1 + 1)
    counts = serving.round()
    assert counts.gave_up == 1
    assert len(script.requests) == len(PAUSES_S) + 1
    clock.advance(3600)
    assert serving.round().failed == 0


def test_what_was_sent_is_written_down_before_anything_else_is_sent(
    client: Client, script: Script, secrets: Path, clock: ManualClock
) -> None:
    class Sulking(Outbox):
        sulks = True

        def record(self, attempts: Any) -> None:
            if attempts and self.sulks:
                raise ConnectionError("the store is away")
            super().record(attempts)

    insert(client, row(), row(transition_id="tr-2", incident_id="inc-2"))
    outbox = Sulking(client, "hook")
    destination = Destination(name="hook", url=SecretStr(script.url))
    serving = Courier(outbox, Sender(destination, secrets, clock), clock, rng())
    for _ in range(3):
        with pytest.raises(ConnectionError):
            serving.round()
    assert script.ids() == ["tr-1"]
    outbox.sulks = False
    assert serving.round().delivered == 1
    assert script.ids() == ["tr-1", "tr-2"]
    assert [item[1] for item in outcomes(client)] == ["delivered", "delivered"]


def test_an_odd_row_does_not_hold_up_the_others(
    client: Client, script: Script, secrets: Path, clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    insert(client, row(), row(transition_id="tr-2", incident_id="inc-2"))
    serving = courier(client, script.url, secrets, clock)
    sender = serving._sender
    real = sender.alert

    def odd(found: Any) -> Any:
        if found.transition_id == "tr-1":
            raise KeyError("odd")
        return real(found)

    monkeypatch.setattr(sender, "alert", odd)
    counts = serving.round()
    assert (counts.delivered, counts.failed) == (1, 1)
    assert script.ids() == ["tr-2"]


def test_alertmanager_is_told_again_of_what_is_open(
    client: Client, script: Script, secrets: Path, clock: ManualClock
) -> None:
    over = START + timedelta(minutes=5)
    insert(client, row())
    serving = courier(client, script.url, secrets, clock, kind="alertmanager")
    serving.round()
    first = len(script.requests)
    serving.round()
    assert len(script.requests) == first
    clock.advance(61)
    serving.round()
    assert len(script.requests) == first + 1
    assert script.requests[-1].json[0]["labels"]["incident_id"] == "inc-1"
    assert "webhook-signature" not in script.requests[-1].headers
    insert(client, row(transition_id="tr-9", transition="resolved", at=over, window_end=over,
                       resolved_at=over))  # fmt: skip
    clock.advance(600)
    serving.round()
    assert script.requests[-1].json[0]["endsAt"] == "2026-11-30T03:17:00.000Z"
    sent = len(script.requests)
    clock.advance(61)
    serving.round()
    assert len(script.requests) == sent


def test_pagerduty_and_slack_over_http(
    client: Client, script: Script, secrets: Path, clock: ManualClock, tmp_path: Path
) -> None:
    script.last = (202, {})
    key = tmp_path / "key"
    key.write_text("routing-key\n")
    insert(client, row())
    courier(client, script.url, secrets, clock, kind="pagerduty", routing_key_file=key).round()
    assert script.requests[-1].json["routing_key"] == "routing-key"
    client.command("TRUNCATE TABLE telemetry.alert_delivery")
    courier(client, script.url, secrets, clock, kind="slack").round()
    assert "capped clocks" in script.requests[-1].json["text"]


@pytest.mark.parametrize("answers", [0, 1], ids=["delivered before", "waiting for a retry"])
def test_requeued_alerts_go_out_again_at_once_with_the_same_id(
    client: Client, script: Script, secrets: Path, clock: ManualClock, answers: int
) -> None:
    script.answers = [(500, {})] * answers
    insert(client, row())
    serving = courier(client, script.url, secrets, clock)
    serving.round()
    clock.advance(1)
    Outbox(client, "hook").record([Attempt("tr-1", "inc-1", "hook", 0, clock.now(), "requeued")])
    clock.advance(1)
    assert serving.round().delivered == 1
    assert script.ids() == ["tr-1", "tr-1"]
    bodies = [json.loads(request.body) for request in script.requests]
    assert bodies[0] == bodies[1]
