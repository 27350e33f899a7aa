from __future__ import annotations

import json
from datetime import timedelta

import pytest

from pipeline.alerts import render
from pipeline.alerts.links import links_of, replay_sql
from pipeline.alerts.model import Evidence
from pipeline.alerts.terminal import alert_of, make_console, render_alert
from tests.alerts.helpers import START, alert


def test_generic_says_everything() -> None:
    body = render.generic(alert())
    assert body["type"] == "incident.opened"
    assert body["timestamp"] == "2026-11-30T03:12:20.000Z"
    data = body["data"]
    assert data["entity"] == {"kind": "gpu", "id": "GPU-5d1e", "name": "rack-03 tray 7 GPU 2"}
    assert data["location"] == {"rack": "rack-03", "tray": 7, "slot": 2}
    assert data["severity"] == "warning"
    assert data["cause"] == {"id": "capped_clocks", "confidence": 0.92}
    assert data["evidence"][0] == {
        "feature": "sm_clock_mhz", "label": "SM clock", "value": 1290.0, "peer_median": 1830.0,
        "unit": "MHz", "direction": "below", "minutes": 4.0, "z": -14.2,
        "difference_percent": -29.5,
    }  # fmt: skip
    assert "difference_percent" not in data["evidence"][1]  # the peers' median is 0
    assert data["peers"] == {"group": "same job and role", "size": 71}
    assert data["suggested_action"].startswith("Look for a power cap")
    assert data["window_end"] == data["opened_at"] == "2026-11-30T03:12:00.000Z"
    assert data["resolved_at"] is None
    assert data["drill"] is False


def test_generic_stays_below_20_kb() -> None:
    many = json.dumps([f"rack-03 tray {n} GPU with a rather long name {n:>200}" for n in range(72)])
    body = render.generic(alert(members=many))
    assert len(render.as_bytes(body)) < 20_000
    assert body["data"]["members_total"] == 72
    assert 0 < len(body["data"]["members"]) < 72


def test_half_a_character_is_no_reason_to_stay_silent() -> None:
    body = render.as_bytes(render.generic(alert(summary="bad \ud800 text", cause_confidence=0.5)))
    assert json.loads(body)["data"]["summary"] == "bad ? text"


def test_broken_json_in_a_row_costs_that_part_only() -> None:
    found = alert(evidence="{nonsense", location="[1]", members="null", peers="")
    assert found.evidence == ()
    assert found.location == {}
    assert found.members == ()
    assert render.generic(found)["data"]["cause"]["id"] == "capped_clocks"


def test_missing_numbers_are_null_never_nan() -> None:
    found = alert(evidence='[{"feature": "x", "value": NaN, "z": null, "peer_median": Infinity}]')
    item = render.generic(found)["data"]["evidence"][0]
    assert item["value"] is None
    assert item["peer_median"] is None
    assert "NaN" not in render.as_bytes(item).decode()


def test_alertmanager_holds_what_is_open_and_ends_what_is_over() -> None:
    now = START + timedelta(minutes=9)
    (item,) = render.alertmanager([alert()], now)
    assert item["labels"] == {
        "alertname": "straggler_gpu", "cluster": "main", "incident_id": "inc-1",
        "entity_kind": "gpu", "entity": "rack-03 tray 7 GPU 2", "severity": "warning",
        "rack": "rack-03",
    }  # fmt: skip
    assert all(isinstance(value, str) for value in item["labels"].values())
    assert item["startsAt"] == "2026-11-30T03:12:00.000Z"
    assert item["endsAt"] == "2026-11-30T03:26:00.000Z"
    assert "SM clock 1,290 MHz (peers 1,830 MHz) for 4 min" in item["annotations"]["evidence"]
    over = alert(transition="resolved", resolved_at=START + timedelta(minutes=7))
    (item,) = render.alertmanager([over], now)
    assert item["endsAt"] == "2026-11-30T03:19:00.000Z"


def test_pagerduty_opens_and_resolves_under_one_key() -> None:
    event = render.pagerduty(alert(severity="critical"), "routing-key")
    assert event["routing_key"] == "routing-key"
    assert event["event_action"] == "trigger"
    assert event["dedup_key"] == "inc-1"
    assert event["payload"]["severity"] == "critical"
    assert event["payload"]["source"] == "rack-03 tray 7 GPU 2"
    assert event["payload"]["custom_details"]["evidence"][0]["value"] == 1290.0
    assert render.pagerduty(alert(transition="updated"), "k")["event_action"] == "trigger"
    end = render.pagerduty(alert(transition="resolved"), "k")
    assert end == {"routing_key": "k", "event_action": "resolve", "dedup_key": "inc-1"}


def test_pagerduty_limits() -> None:
    event = render.pagerduty(alert(summary="x" * 5000, incident_id="i" * 300), "k")
    assert len(event["payload"]["summary"]) == 1024
    assert len(event["dedup_key"]) == 255


def test_slack_escapes_what_comes_from_machines() -> None:
    message = render.slack(alert(entity_name="<!channel> & co", cause=""))
    assert "<!channel>" not in json.dumps(message)
    assert "&lt;!channel&gt; &amp; co" in message["text"]


def test_slack_is_short_when_it_is_over() -> None:
    end = alert(transition="resolved", at=START + timedelta(minutes=14),
                resolved_at=START + timedelta(minutes=14))  # fmt: skip
    assert render.slack(end)["text"] == (
        "✅ Resolved: rack-03 tray 7 GPU 2: capped clocks (after 14 min)"
    )


def test_drills_say_so_everywhere() -> None:
    drill = alert(drill=True)
    assert render.generic(drill)["data"]["drill"] is True
    assert render.alertmanager([drill], START)[0]["labels"]["drill"] == "true"
    assert render.pagerduty(drill, "k")["payload"]["summary"].startswith("DRILL: ")
    assert "DRILL: " in render.slack(drill)["text"]
    assert "DRILL" in shown(drill)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1290.0, "MHz", "1,290 MHz"),
        (0.853, "share", "85.3 %"),
        (3.0, "", "3"),
        (0.05, "K", "0.05 K"),
        (None, "K", "–"),
    ],
)
def test_amounts(value: float | None, unit: str, text: str) -> None:
    assert Evidence("x", unit=unit).amount(value) == text


def test_links_hold_the_incident_and_a_statement_to_paste() -> None:
    found = alert(incident_id="a b/c", entity_id="x'); DROP TABLE telemetry.gpu; --\\")
    links = links_of(found, "http://127.0.0.1:18081/")
    assert links["fleet"] == "http://127.0.0.1:18081/rackpulse/fleet?incident=a%20b%2Fc"
    assert "entity_id = 'x\\'); DROP TABLE telemetry.gpu; --\\\\'" in links["sql"]
    assert "BETWEEN '2026-11-30 02:57:00' AND '2026-11-30 03:12:00'" in replay_sql(found)
    assert "fleet" not in links_of(found, None)


def shown(found: object) -> str:
    console = make_console(width=100)
    body = render.as_bytes(render.generic(found))  # type: ignore[arg-type]
    with console.capture() as capture:
        console.print(render_alert(alert_of(json.loads(body))))
    return capture.get()


def test_the_terminal_shows_what_a_tired_person_needs() -> None:
    text = shown(alert(members=json.dumps(["rack-03 tray 7 GPU 3"])))
    for words in (
        "WARNING", "rack-03 tray 7 GPU 2", "capped clocks (92%)", "rack-03 · tray 7 · slot 2",
        "1,290 MHz", "1,830 MHz", "-30 %", "4 min", "71 peers: same job and role",
        "with   rack-03 tray 7 GPU 3", "Look for a power cap", "03:12:20 UTC",
    ):  # fmt: skip
        assert words in text, words
    end = shown(alert(transition="resolved", at=START + timedelta(minutes=14),
                      resolved_at=START + timedelta(minutes=14)))  # fmt: skip
    assert "RESOLVED" in end
    assert "after 14 min" in end
    assert end.count("\n") == 1


def test_text_from_machines_is_no_markup() -> None:
    assert "[bold]not bold[/bold]" in shown(alert(entity_name="[bold]not bold[/bold]"))


def test_another_body_is_no_alert() -> None:
    with pytest.raises(ValueError, match="no alert"):
        alert_of({"type": "rackpulse.test", "timestamp": "2026-01-01T00:00:00Z", "data": {}})
