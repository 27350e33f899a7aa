"""The live view and the faults of the demo."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from rich.console import Console

from pipeline.up import live
from pipeline.up.faults import DETECTORS, FaultStarter
from pipeline.up.observe import Scoring, StreamStatus

NOW = datetime(2026, 3, 1, 12, 0, 30, tzinfo=UTC)
LATER = datetime(2026, 3, 1, 12, 5, tzinfo=UTC)
STREAMS = [
    StreamStatus("gpu", 1_234_567, 57.6, 0),
    StreamStatus("nvlink", 42, None, None),
]
INCIDENT = {
    "id": "inc-1",
    "detector": "hot_rack",
    "entity": "rack-03",
    "entity_name": "rack-03",
    "cause": "blocked_quick_disconnect",
    "severity": "critical",
    "opened_at": "2026-03-01T11:54:00+00:00",
}


def test_names_of_machines_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    named = {**INCIDENT, "entity_name": "[red]leaf [/b] :cd:"}
    live.make_console().print(live.incidents_table([named], NOW))
    assert "[red]leaf [/b] :cd:" in capsys.readouterr().out


def _shown(incidents: list[dict[str, Any]], services: dict[str, str]) -> str:
    console = Console(width=110, record=True, force_terminal=True, file=None, quiet=False)
    with console.capture() as capture:
        console.print(
            live.screen(
                services, STREAMS, "3 live models", incidents, {"Airflow UI": "http://x"}, NOW
            )
        )
    return Console(width=110).render_str(capture.get()).plain


def test_the_view_shows_rates_lag_and_incidents() -> None:
    text = _shown([INCIDENT], {"kafka": "running", "writer": "restarting (exit -9)"})
    for part in (
        "1,234,567", "58", "writer (restarting (exit -9))", "6 min", "rack-03",
        "blocked quick disconnect", "critical", "http://x",
    ):  # fmt: skip
        assert part in text, part


def test_an_incident_of_a_drill_is_called_one() -> None:
    shown = _shown([{**INCIDENT, "drill": True}, INCIDENT], {"kafka": "running"})
    assert shown.count("DRILL hot_rack") == 1
    assert shown.count("hot_rack") == 2


def test_an_unknown_lag_is_not_shown_as_zero() -> None:
    assert "lag ? messages" in live.plain_line(STREAMS, "ok", [])


def test_no_incident_is_said() -> None:
    assert "no open incident" in _shown([], {"kafka": "running"})


def test_scoring_line_names_the_oldest_window() -> None:
    scoring = Scoring(
        frozenset(DETECTORS),
        {"hot_rack": NOW - timedelta(seconds=90), "straggler_gpu": NOW - timedelta(seconds=30)},
    )
    assert "(90 s ago)" in scoring.text(NOW)
    assert "no live model" in Scoring(frozenset(), {}).text(NOW)


class _Hall:
    """The hall's fault address, over a transport of httpx's own."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, statuses: list[int], ends: Sequence[str | None] = ()
    ) -> None:
        self.asked: list[bytes] = []
        self._statuses = statuses
        self._ends = ends

        def post(url: str, **more: object) -> httpx.Response:
            with httpx.Client(transport=httpx.MockTransport(self._answer)) as client:
                return client.post(url, **more)  # type: ignore[arg-type]

        def get(url: str, **more: object) -> httpx.Response:
            with httpx.Client(transport=httpx.MockTransport(self._state)) as client:
                return client.get(url, **more)  # type: ignore[arg-type]

        monkeypatch.setattr("pipeline.up.faults.httpx.post", post)
        monkeypatch.setattr("pipeline.up.faults.httpx.get", get)

    def _state(self, _request: httpx.Request) -> httpx.Response:
        faults: list[dict[str, Any]] = [{"benign": True, "kind": "hot_day", "end": None}]
        faults += [{"cause": "tired_pump", "entity": "cdu-1", "end": end} for end in self._ends]
        return httpx.Response(200, json={"faults": faults})

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request.content)
        faults = [
            {"start": "2026-03-01T12:01:00Z", "detector": "hot_rack", "severity": 0.5,
             "cause": "tired_pump", "entity": "cdu-1", "entity_name": "cdu-1"},
            {"start": "2026-03-01T12:01:30Z", "detector": "congested_link", "severity": 0.5,
             "cause": "bad_cable", "entity": "0x0a/76", "entity_name": "leaf-r1-1 port 76",
             "also": ["0x0b/1"]},
        ]  # fmt: skip
        return httpx.Response(self._statuses.pop(0), json={"faults": faults})


def _incident(detector: str, entity: str, cause: str) -> dict[str, Any]:
    return {"detector": detector, "entity": entity, "cause": cause}


def _scoring(live: frozenset[str] = DETECTORS) -> Scoring:
    return Scoring(live, {})


def test_faults_start_once_and_only_when_every_detector_is_live(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hall = _Hall(monkeypatch, [503, 200])
    said: list[str] = []
    starter = FaultStarter(7, "http://hall", said.append)
    starter.step(_scoring(live=frozenset({"hot_rack"})), [], NOW)
    assert not hall.asked
    starter.step(_scoring(), [], NOW)
    assert len(hall.asked) == 1
    starter.step(_scoring(), [], NOW)
    starter.step(_scoring(), [], NOW)
    assert len(hall.asked) == 2, "refused once, taken once, never asked again"
    assert "faults drawn from seed 7:" in said
    assert "  hot_rack: tired pump on cdu-1, severity 0.50, starts at 12:01:00 UTC" in said
    assert (
        "  congested_link: bad cable on leaf-r1-1 port 76 (0x0a/76), severity 0.50,"
        " starts at 12:01:30 UTC" in said
    )


@pytest.mark.parametrize(
    ("ends", "drawn"),
    [
        ([None], False),
        (["2026-03-01T18:00:00Z"], False),
        (["2026-03-01T09:00:00Z"], True),
        ([], True),
    ],
)
def test_a_later_start_draws_none_beside_faults_that_go_on(
    monkeypatch: pytest.MonkeyPatch, ends: list[str | None], drawn: bool
) -> None:
    hall = _Hall(monkeypatch, [200], ends)
    said: list[str] = []
    starter = FaultStarter(7, "http://hall", said.append, beside_others=False)
    starter.step(_scoring(), [], NOW)
    starter.step(_scoring(), [], NOW)
    assert len(hall.asked) == drawn
    words = "faults of an earlier start go on, none are drawn: tired pump on cdu-1"
    assert said.count(words) == (not drawn)


def test_what_was_found_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    _Hall(monkeypatch, [200])
    said: list[str] = []
    starter = FaultStarter(7, "http://hall", said.append)
    other = _incident("hot_rack", "rack-03", "tired_pump")
    starter.step(_scoring(), [other], LATER)
    del said[:]
    far_end = _incident("congested_link", "0x0b/1", "slow_receiver")
    starter.step(_scoring(), [other, far_end], LATER)
    starter.step(_scoring(), [other, far_end], LATER)
    assert said == [
        "found 3.5 min after its start: bad cable on leaf-r1-1 port 76, taken for slow receiver"
    ]
    starter.step(_scoring(), [far_end, _incident("hot_rack", "cdu-1", "tired_pump")], LATER)
    assert said[1:] == [
        "found 4.0 min after its start: tired pump on cdu-1",
        "all faults are found; Ctrl-C stops everything",
    ]


def test_no_faults_means_none(monkeypatch: pytest.MonkeyPatch) -> None:
    hall = _Hall(monkeypatch, [])
    FaultStarter(None, "http://hall", print).step(_scoring(), [], NOW)
    assert not hall.asked
