"""Opened, updated, resolved: on a real engine, window after window."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import CliRunner
from clickhouse_connect.driver.client import Client

from pipeline.cli.incidents import incidents as incidents_command
from pipeline.detection.findings import COLUMNS, Finding, as_row
from pipeline.detection.spec import load_specs
from pipeline.errors import RackpulseError
from pipeline.incidents import silence, silences, step, unsilence
from pipeline.incidents.evaluation.labelled import scratch_store
from pipeline.incidents.step import advance
from pipeline.incidents.views import incident_history, incident_rows, whole_id
from pipeline.settings import Settings, load_settings
from tests.incidents.findings import WINDOW, gpu, port

MINUTE = timedelta(minutes=1)
TABLES = ("finding", "score_run", "detector_score", "incident_transition", "silence")


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return load_settings(state_dir=tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="module")
def engine(settings: Settings) -> Iterator[Client]:
    with scratch_store(settings) as client:
        yield client


@pytest.fixture
def store(engine: Client) -> Client:
    for name in TABLES:
        engine.command(f"TRUNCATE TABLE telemetry.{name}")
    return engine


def scored(
    store: Client, minute: int, findings: list[Finding], *, judged: tuple[str, ...] = ("GPU-1",)
) -> datetime:
    """Put down what scoring one window would have."""
    end = WINDOW + minute * MINUTE
    for item in findings:
        item.window_end = end
    if findings:
        store.insert(
            "telemetry.finding", [as_row(item, "main") for item in findings],
            column_names=list(COLUMNS),
        )  # fmt: skip
    if judged:
        store.insert(
            "telemetry.detector_score",
            [["main", "straggler_gpu", end, entity, True] for entity in judged],
            column_names=["cluster", "detector", "window_end", "entity_id", "verdict"],
        )
    store.insert(
        "telemetry.score_run",
        [["main", "straggler_gpu", end]],
        column_names=["cluster", "detector", "window_end"],
    )
    return end


def kinds(changes: list[Any]) -> list[str]:
    return [change.transition for change in changes]


def test_an_incident_opens_once_and_resolves_when_its_entity_is_judged_well(
    store: Client, settings: Settings
) -> None:
    assert kinds(step(store, settings, scored(store, 0, [gpu("GPU-1")]))) == ["opened"]
    assert step(store, settings, scored(store, 1, [gpu("GPU-1")])) == []
    # Evidence below the bar to open still holds it.
    assert step(store, settings, scored(store, 2, [gpu("GPU-1", raises=False, level=1)])) == []
    closed = step(store, settings, scored(store, 3, []))
    assert kinds(closed) == ["resolved"]
    assert closed[0].resolved_at == WINDOW + 3 * MINUTE
    assert closed[0].opened_at == WINDOW
    [row] = incident_rows(store, "main", resolved=True)
    assert (row["state"], row["entity_id"], row["cause"]) == ("resolved", "GPU-1", "capped_clocks")
    assert incident_rows(store, "main") == []


def test_a_repeat_for_the_same_window_writes_nothing_new(store: Client, settings: Settings) -> None:
    end = scored(store, 0, [gpu("GPU-1")])
    first = step(store, settings, end)
    again = step(store, settings, end)
    assert [t.transition_id for t in again] == [t.transition_id for t in first]
    count = store.query("SELECT count() FROM telemetry.incident_transition").result_rows[0][0]
    assert count == 1


def test_a_window_that_comes_late_changes_nothing(store: Client, settings: Settings) -> None:
    scored(store, 0, [gpu("GPU-2")], judged=("GPU-2",))
    step(store, settings, scored(store, 5, [gpu("GPU-1")]))
    assert step(store, settings, WINDOW) == []


def test_ids_follow_from_what_it_is_about(store: Client, settings: Settings) -> None:
    first = step(store, settings, scored(store, 0, [gpu("GPU-1")]))[0]
    store.command("TRUNCATE TABLE telemetry.incident_transition")
    second = step(store, settings, WINDOW)[0]
    assert (first.incident_id, first.transition_id) == (second.incident_id, second.transition_id)


def test_what_only_holds_opens_nothing(store: Client, settings: Settings) -> None:
    assert step(store, settings, scored(store, 0, [gpu("GPU-1", raises=False, level=1)])) == []


def test_an_entity_without_a_verdict_is_not_well(store: Client, settings: Settings) -> None:
    step(store, settings, scored(store, 0, [gpu("GPU-1")]))
    assert step(store, settings, scored(store, 1, [], judged=("GPU-2",))) == []
    # Gone for three quarters of an hour: drained or replaced.
    late = step(store, settings, scored(store, 47, [], judged=("GPU-2",)))
    assert kinds(late) == ["resolved"]


def test_a_detector_that_was_not_scored_leaves_its_incidents(
    store: Client, settings: Settings
) -> None:
    step(store, settings, scored(store, 0, [gpu("GPU-1")]))
    assert step(store, settings, WINDOW + MINUTE) == []


def test_a_better_cause_is_told_once_it_has_stood_two_windows(
    store: Client, settings: Settings
) -> None:
    step(store, settings, scored(store, 0, [gpu("GPU-1", cause="unknown", cause_confidence=0.0)]))
    assert step(store, settings, scored(store, 1, [gpu("GPU-1")])) == []
    changed = step(store, settings, scored(store, 2, [gpu("GPU-1")]))
    assert kinds(changed) == ["updated"]
    assert changed[0].cause == "capped_clocks"


def test_a_cause_is_not_lost_while_the_evidence_fades(store: Client, settings: Settings) -> None:
    step(store, settings, scored(store, 0, [gpu("GPU-1")]))
    for minute in (1, 2, 3):
        fading = gpu("GPU-1", cause="unknown", cause_confidence=0.0, raises=False, level=1)
        assert step(store, settings, scored(store, minute, [fading])) == []


def test_a_silenced_rack_opens_nothing_and_then_does(store: Client, settings: Settings) -> None:
    found = silence(
        store, "main", "rack", "rack-01", starts_at=WINDOW - MINUTE, ends_at=WINDOW + 5 * MINUTE,
        reason="pump swap", by="test",
    )  # fmt: skip
    assert step(store, settings, scored(store, 0, [gpu("GPU-1")])) == []
    assert [s.silence_id for s in silences(store, since=WINDOW)] == [found]
    opened = step(store, settings, scored(store, 6, [gpu("GPU-1")]))
    assert kinds(opened) == ["opened"]


def test_a_silence_neither_ends_nor_feeds_an_open_incident(
    store: Client, settings: Settings
) -> None:
    step(store, settings, scored(store, 0, [gpu("GPU-1")]))
    silence(
        store, "main", "gpu", "GPU-1", starts_at=WINDOW, ends_at=WINDOW + 9 * MINUTE,
        reason="r", by="test",
    )  # fmt: skip
    assert step(store, settings, scored(store, 1, [gpu("GPU-1")])) == []
    assert kinds(step(store, settings, scored(store, 2, []))) == ["resolved"]


def test_a_lifted_silence_is_over(store: Client) -> None:
    now = datetime.now(UTC)
    found = silence(
        store, "main", "all", "", starts_at=now - MINUTE, ends_at=now + timedelta(hours=2),
        reason="r", by="test",
    )  # fmt: skip
    unsilence(store, found, by="test")
    assert silences(store, since=datetime.now(UTC) + timedelta(seconds=1)) == []
    with pytest.raises(RackpulseError, match="No silence"):
        unsilence(store, "nothing", by="test")


def test_a_silence_with_a_wrong_scope_is_refused(store: Client) -> None:
    with pytest.raises(RackpulseError, match="No scope"):
        silence(
            store, "main", "planet", "x", starts_at=WINDOW, ends_at=WINDOW + MINUTE, reason="r",
            by="t",
        )  # fmt: skip


def test_history_shows_every_transition(store: Client, settings: Settings) -> None:
    opened = step(store, settings, scored(store, 0, [gpu("GPU-1")]))[0]
    step(store, settings, scored(store, 1, []))
    rows = incident_history(store, opened.incident_id)
    assert [row["transition"] for row in rows] == ["opened", "resolved"]


def test_an_incident_is_shown_by_the_beginning_of_its_id(
    store: Client, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.store.client.connect", lambda settings: store)
    opened = step(store, settings, scored(store, 0, [gpu("GPU-1")]))[0]
    step(store, settings, scored(store, 1, []))
    shown = CliRunner().invoke(incidents_command, ["show", opened.incident_id[:12]])
    assert shown.exit_code == 0, shown.output
    *card, first, last, whole = shown.output.splitlines()
    assert any("cause" in line and opened.cause.replace("_", " ") in line for line in card)
    assert " opened " in first
    assert " resolved " in last
    assert whole == f"id {opened.incident_id}"
    found = CliRunner().invoke(incidents_command, ["show", "--json", opened.incident_id])
    assert [item["transition"] for item in json.loads(found.output)["history"]] == [
        "opened", "resolved",
    ]  # fmt: skip


def test_a_beginning_that_is_of_no_incident_or_of_several_is_refused(store: Client) -> None:
    store.insert(
        "telemetry.incident_transition",
        [["ab01", WINDOW], ["ab02", WINDOW], ["ab", WINDOW], ["c0", WINDOW]],
        column_names=["incident_id", "window_end"],
    )
    assert whole_id(store, "c") == "c0"
    assert whole_id(store, "ab") == "ab"
    with pytest.raises(RackpulseError, match="Several incidents begin with ab0: ab01, ab02"):
        whole_id(store, "ab0")
    for beginning in ("d", ""):
        with pytest.raises(RackpulseError, match=f"(No|Several) incident.*{beginning}"):
            whole_id(store, beginning)


@pytest.mark.parametrize(
    "moment",
    [datetime(2026, 1, 1, 0, 0, 30, tzinfo=UTC), datetime(2026, 1, 1)],  # noqa: DTZ001
)
def test_only_whole_minutes_in_utc_are_stepped(
    store: Client, settings: Settings, moment: datetime
) -> None:
    with pytest.raises(RackpulseError, match="window_end"):
        step(store, settings, moment)


def slow(entity_id: str, peer: str, effect: float, **more: Any) -> Finding:
    return port(
        entity_id, peer, "leaf down", ["wait_share"], "slow_receiver", effect=effect, **more
    )


def links(minute: int, found: list[Finding], open_now: list[Any]) -> list[Any]:
    return advance(
        found, open_now, {}, load_specs(), "main", WINDOW + minute * MINUTE, {"congested_link"},
        [], lambda incident: True,
    )  # fmt: skip


def test_a_second_slow_receiver_on_a_leaf_is_named_while_the_first_is_open() -> None:
    victim = slow("0xa/80", "0xs/2", 2.0, raises=False)
    first = links(0, [slow("0xa/1", "0xh1/1", 5.0), victim], [])
    assert [(c.transition, c.entity_id) for c in first] == [("opened", "0xa/1")]
    fading = slow("0xa/1", "0xh1/1", 1.0, raises=False, level=1)
    second = links(1, [slow("0xa/7", "0xh7/1", 6.0), victim, fading], first)
    # What is left of the first is the second's: one fault, one incident.
    assert [(c.transition, c.entity_id) for c in second] == [
        ("opened", "0xa/7"), ("resolved", "0xa/1"),
    ]  # fmt: skip


def test_two_slow_receivers_that_share_victims_are_two_incidents() -> None:
    victim = slow("0xa/80", "0xs/2", 2.0, raises=False)
    first = links(0, [slow("0xa/1", "0xh1/1", 5.0), victim], [])
    both = links(1, [slow("0xa/1", "0xh1/1", 5.0), slow("0xa/7", "0xh7/1", 6.0), victim], first)
    assert [(c.transition, c.entity_id) for c in both] == [("opened", "0xa/7")]


def test_a_victim_that_waits_longer_for_a_while_opens_nothing() -> None:
    victim = slow("0xa/80", "0xs/2", 2.0, raises=False)
    first = links(0, [slow("0xa/1", "0xh1/1", 5.0), victim], [])
    # A known victim leads, or a new one that stands little above the culprit, or one that
    # does not raise by itself.
    for worst in (
        slow("0xa/80", "0xs/2", 9.0),
        slow("0xa/81", "0xs/3", 6.0),
        slow("0xa/81", "0xs/3", 9.0, raises=False),
    ):
        fading = slow("0xa/1", "0xh1/1", 4.0, raises=False)
        assert links(1, [worst, fading], first) == []
