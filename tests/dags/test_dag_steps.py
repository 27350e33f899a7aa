from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from enum import Enum
from typing import Any

import pytest
from clickhouse_connect.driver.client import Client

from pipeline import dag_steps
from pipeline.clock import ManualClock
from pipeline.errors import ConfigError, RackpulseError
from pipeline.hall.drill_store import StorePipeline
from pipeline.incidents import silences, table
from pipeline.settings import Settings
from pipeline.streams import load_contracts
from tests.support.store import RunningStore

END = datetime.now(UTC).replace(second=0, microsecond=0)
DETECTORS = ("congested_link", "straggler_gpu")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStore]:
    with RunningStore(tmp_path_factory.mktemp("steps")) as running:
        running.migrate()
        yield running


@pytest.fixture
def client(store: RunningStore) -> Iterator[Client]:
    with store.client() as found:
        for table in ("gpu", "gpu_minute_version", "coolant", "ib_port", "component",
                      "model_version", "model_transition", "silence"):  # fmt: skip
            found.command(f"TRUNCATE TABLE telemetry.{table}")
        yield found


def put(
    client: Client, stream: str, *samples: tuple[float, float], cluster: str = "main",
    partition: int = 0,
) -> None:  # fmt: skip
    """Rows by seconds of sampling and of storing, both counted from END."""
    client.insert(
        f"telemetry.{stream}",
        [
            [cluster, END + timedelta(seconds=sampled), END + timedelta(seconds=stored), partition]
            for sampled, stored in samples
        ],
        column_names=["cluster", "sampled_at", "ingested_at", "kafka_partition"],
    )


def model(client: Client, detector: str, state: str, until: datetime) -> None:
    client.insert(
        "telemetry.model_version",
        [[detector, "v1", until, until]],
        column_names=["detector", "version", "created_at", "trained_until"],
    )
    client.insert(
        "telemetry.model_transition",
        [[detector, "v1", state, until]],
        column_names=["detector", "version", "state", "at"],
    )


def test_takes_the_first_time_that_is_given() -> None:
    fallback = datetime(2026, 11, 30, 3, 12, 45, tzinfo=UTC)
    assert dag_steps.whole_minute(None, "", fallback) == datetime(2026, 11, 30, 3, 12, tzinfo=UTC)
    asked = dag_steps.whole_minute("2026-11-30T05:12:30+02:00", fallback)
    assert asked == datetime(2026, 11, 30, 3, 12, tzinfo=UTC)
    assert asked.utcoffset() == timedelta(0)
    elsewhere = fallback.astimezone(timezone(timedelta(hours=5, minutes=45)))
    assert dag_steps.whole_minute(elsewhere) == datetime(2026, 11, 30, 3, 12, tzinfo=UTC)


@dataclass
class Run:
    data_interval_end: datetime | None
    run_after: datetime


def test_a_run_is_about_its_own_minute_unless_another_is_asked_for() -> None:
    scheduled = Run(END, END + timedelta(minutes=3))
    by_hand = Run(None, END + timedelta(seconds=30))
    assert dag_steps.minute_of(scheduled, {"window_end": None}, "window_end") == END
    assert dag_steps.minute_of(by_hand, None, "window_end") == END
    past = {"window_end": "2026-01-31T12:00:00Z"}
    asked = dag_steps.minute_of(scheduled, past, "window_end")
    assert asked == datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize("bad", ["yesterday", "2026-11-30T03:12:00", datetime(2026, 1, 1)])  # noqa: DTZ001
def test_refuses_times_that_could_mean_anything(bad: Any) -> None:
    with pytest.raises(ConfigError, match="like 2026-01-31T12:00:00Z"):
        dag_steps.whole_minute(bad)
    with pytest.raises(ConfigError, match="No window"):
        dag_steps.whole_minute(None, "")


def test_waits_until_the_rows_of_the_window_are_there(client: Client) -> None:
    put(client, "gpu", (-30, -29))

    class Arriving(ManualClock):
        def wait(self, seconds: float) -> None:
            super().wait(seconds)
            if self.monotonic() == 3:
                put(client, "gpu", (1, 3))

    clock = Arriving()
    states = dag_steps.await_rows(client, END, clock)
    assert clock.monotonic() == 3
    gpu = states[0]
    assert (gpu.stream, gpu.rows, gpu.covers(END)) == ("gpu", 1, True)
    assert dag_steps.describe(states, END).splitlines() == [
        "gpu: 1 rows, complete", "coolant: no rows", "ib_port: no rows",
    ]  # fmt: skip


def test_does_not_wait_for_ever_nor_for_what_was_never_there(client: Client) -> None:
    clock = ManualClock()
    dag_steps.await_rows(client, END, clock)
    assert clock.monotonic() == 0
    put(client, "gpu", (-30, -29), (1, 3))
    put(client, "ib_port", (-20, -19))
    states = dag_steps.await_rows(client, END, clock, patience_s=5)
    assert clock.monotonic() == 5
    assert dag_steps.describe(states, END).splitlines()[2] == "ib_port: 1 rows, 20 s behind"


def test_a_past_window_needs_no_waiting(client: Client) -> None:
    put(client, "gpu", (-7200 - 20, 0), (-7200 + 5, 0))
    clock = ManualClock()
    states = dag_steps.await_rows(client, END - timedelta(hours=2), clock)
    assert clock.monotonic() == 0
    assert states[0].rows == 1


def test_history_has_landed_when_no_more_of_the_past_comes_in(client: Client) -> None:
    assert not dag_steps.history_has_landed(client, END)
    put(client, "gpu", (-3 * 3600, -30))
    assert not dag_steps.history_has_landed(client, END), "nothing fresh yet"
    put(client, "gpu", (-5, -4))
    assert dag_steps.history_has_landed(client, END), "what is fresh stands behind the past"
    later = END + timedelta(minutes=2)
    assert not dag_steps.history_has_landed(client, later), "nothing fresh any more"
    put(client, "gpu", (115, 116))
    assert dag_steps.history_has_landed(client, later)
    assert not dag_steps.history_has_landed(client, later, minutes=240)


@pytest.mark.parametrize("stream", ["ib_port", "coolant", "component", "gpu"])
def test_history_has_not_landed_while_a_partition_still_brings_the_past(
    client: Client, stream: str
) -> None:
    """The past stands before the fresh rows in each partition, and a writer may pause in it."""
    put(client, "gpu", (-7200, -600), (-5, -4))
    put(client, stream, (-7200, -600), (-5, -4), partition=1)
    assert dag_steps.history_has_landed(client, END)
    put(client, stream, (-7200, -300), (-3600, -200), partition=2)
    assert not dag_steps.history_has_landed(client, END), "the rest of the past is still in Kafka"
    put(client, stream, (-5, -4), partition=2)
    assert dag_steps.history_has_landed(client, END)


def test_silent_slow_and_late_hosts_do_not_hold_training_up(client: Client) -> None:
    put(client, "gpu", (-7200, -7100), (-5, -4))
    put(client, "ib_port", (-7200, -7100), (-1200, -1190), partition=1)
    put(client, "coolant", (-800, -799), (-500, -499), partition=2)
    a_clock_behind = [(second - 400, second) for second in range(-600, 0, 10)]
    put(client, "component", *a_clock_behind, partition=3)
    assert dag_steps.history_has_landed(client, END)


def test_drills_in_clusters_of_their_own_do_not_count(client: Client) -> None:
    put(client, "gpu", (-7200, -30), (-5, -4), cluster="drill-1")
    clock = ManualClock()
    assert dag_steps.await_rows(client, END, clock)[0].newest is None
    assert clock.monotonic() == 0
    assert not dag_steps.history_has_landed(client, END)
    put(client, "gpu", (-7200, -600), (-5, -4))
    assert dag_steps.history_has_landed(client, END)


def test_the_first_training_is_asked_for_once_per_quarter_of_an_hour(client: Client) -> None:
    put(client, "gpu", (-7200, -600), (-5, -4))
    (run,) = dag_steps.first_training(client, END, DETECTORS)
    assert run["conf"] == {"detectors": list(DETECTORS), "until": END.isoformat()}
    quarter = END.replace(minute=END.minute // 15 * 15)
    assert run["trigger_run_id"] == f"first__{quarter:%Y-%m-%dT%H:%M}"


def test_no_training_without_history_or_where_all_is_trained(client: Client) -> None:
    assert dag_steps.first_training(client, END, DETECTORS) == []
    put(client, "gpu", (-7200, -600), (-5, -4))
    model(client, "congested_link", "live", END - timedelta(days=3))
    # Refused by its gates five minutes ago: not tried again at once.
    model(client, "straggler_gpu", "candidate", END - timedelta(minutes=5))
    assert dag_steps.live_detectors(client) == ["congested_link"]
    assert dag_steps.first_training(client, END, DETECTORS) == []
    later = END + timedelta(minutes=20)
    put(client, "gpu", (20 * 60 - 5, 20 * 60 - 4))
    (run,) = dag_steps.first_training(client, later, DETECTORS)
    assert run["conf"] == {"detectors": ["straggler_gpu"], "until": later.isoformat()}


def test_prepare_scoring_says_what_it_found(
    client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    put(client, "gpu", (-7200, -600), (1, 2))
    found = dag_steps.prepare_scoring(client, END, DETECTORS, ManualClock())
    assert found["window_end"] == END.isoformat()
    assert found["live"] == []
    text = capsys.readouterr().out
    assert "gpu: 0 rows, complete" in text
    assert "live models: none yet" in text
    assert "enough history is there: training starts" in text
    assert len(found["training"]) == 1
    again = dag_steps.prepare_scoring(client, END, DETECTORS, ManualClock(), in_training=True)
    assert again["training"] == []
    assert "training is under way" in capsys.readouterr().out
    client.command("TRUNCATE TABLE telemetry.gpu")
    assert dag_steps.prepare_scoring(client, END, DETECTORS, ManualClock())["training"] == []
    assert "training starts by itself" in capsys.readouterr().out


def test_choose_detectors_knows_the_folders() -> None:
    known = dag_steps.choose_detectors([])
    assert "straggler_gpu" in known
    assert dag_steps.choose_detectors(["hot_rack"]) == ["hot_rack"]
    with pytest.raises(ConfigError, match="No detector nonsense: there are .*hot_rack"):
        dag_steps.choose_detectors(["nonsense"])


FORM = {"scope": "rack", "name": " rack-03 ", "minutes": 90, "reason": "hoses", "detector": ""}


def test_a_form_becomes_a_silence(client: Client) -> None:
    found = dag_steps.silence_for(client, FORM, since=END, by="kim")
    (silence,) = silences(client)
    assert silence.silence_id == found["silence_id"]
    assert (silence.scope, silence.entity_id, silence.by) == ("rack", "rack-03", "kim")
    assert silence.ends_at - silence.starts_at == timedelta(minutes=90)
    client.command("TRUNCATE TABLE telemetry.silence")
    dag_steps.silence_for(client, {**FORM, "scope": "all", "name": ""}, since=END, by="kim")
    assert silences(client)[0].scope == "all"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"name": " "}, "Which rack"),
        ({"reason": ""}, "Why"),
        ({"detector": "nonsense"}, "No detector nonsense"),
        ({"scope": "moon"}, "No scope moon"),
        ({"minutes": 0}, "must end after it starts"),
    ],
)
def test_a_form_that_says_too_little_is_refused(
    client: Client, change: dict[str, Any], says: str
) -> None:
    with pytest.raises(RackpulseError, match=says):
        dag_steps.silence_for(client, {**FORM, **change}, since=END, by="kim")


def test_minutes_are_summed_up_once(client: Client) -> None:
    put(client, "gpu", (-200, -199), (-190, -189), (-100, -99), (-10, -9))
    assert dag_steps.sum_up_streams(client, END)["gpu"] == 2  # the newest minute waits
    assert dag_steps.sum_up_streams(client, END)["gpu"] == 0
    put(client, "gpu", (-7200, -300), (-3600, -200), partition=2)
    assert dag_steps.sum_up_streams(client, END) == {}, "the past is still coming in"


def test_drills_take_turns_and_fail_loudly(monkeypatch: pytest.MonkeyPatch, client: Client) -> None:
    played: list[str] = []

    class DrillReport:
        failure = "no incident within 5 min"

        def __init__(self, cause: str) -> None:
            self.passed = cause != "bad_cable"

        def as_json(self) -> dict[str, Any]:
            return {"passed": self.passed}

    def run_drill(_settings: Any, _contracts: Any, cause: str, **_: Any) -> DrillReport:
        played.append(cause)
        return DrillReport(cause)

    def alarm() -> list[tuple[str, ...]]:
        return client.query(
            "SELECT state, severity, cluster FROM telemetry.incident WHERE detector = 'fire_drill'"
            " AND NOT drill"
        ).result_rows

    monkeypatch.setattr("pipeline.hall.drill_store.run_drill", run_drill)
    start = datetime(2026, 11, 30, 0, 23, tzinfo=UTC)
    for hour in range(2):
        assert dag_steps.run_fire_drill(client, "", start + timedelta(hours=hour)) == {
            "passed": True
        }
    says = "bad_cable failed: no incident within 5 min"
    with pytest.raises(dag_steps.DrillFailedError, match=says):
        dag_steps.run_fire_drill(client, "", start + timedelta(hours=2))
    assert sorted(played) == sorted(dag_steps.DRILL_CAUSES)
    # Someone is told, once, until a drill passes.
    assert alarm() == [("open", "critical", "rackpulse")]
    with pytest.raises(dag_steps.DrillFailedError):
        dag_steps.run_fire_drill(client, "bad_cable", start + timedelta(hours=3))
    assert alarm() == [("open", "critical", "rackpulse")]
    after = start + timedelta(hours=4)
    assert dag_steps.run_fire_drill(client, "tired_pump", after) == {"passed": True}
    assert played[-1] == "tired_pump"
    assert alarm() == [("resolved", "critical", "rackpulse")]


def test_what_a_killed_drill_left_open_is_closed_by_the_next(client: Client) -> None:
    client.command("TRUNCATE TABLE telemetry.incident_transition")

    def left(cluster: str, at: datetime, *, drill: bool = True) -> None:
        incident = table.incident_id(cluster, "hot_rack", "rack-01", at)
        table.insert(client, [table.Transition(
            table.transition_id(incident, "opened", at), incident, "opened", at, at, cluster,
            "hot_rack", "rack", "rack-01", "rack-01", {}, "warning", "tired_pump", 0.9, "hot", [],
            {}, "", opened_at=at, drill=drill,
        )])  # fmt: skip

    left("drill-now", END - timedelta(minutes=9))
    left("drill-killed", END - timedelta(hours=3))
    left("drill-other", END - timedelta(minutes=20))  # one that runs beside it
    left("main", END - timedelta(hours=3), drill=False)
    StorePipeline(client, Settings(), load_contracts()).tidy("drill-now", END)
    rows = client.query("SELECT cluster FROM telemetry.incident WHERE state = 'open'").result_rows
    assert sorted(rows) == [("drill-other",), ("main",)]


class Colour(Enum):
    RED = "red"


@dataclass
class Report:
    at: datetime
    colour: Colour
    parts: tuple[Any, ...]


def test_reports_become_plain_values() -> None:
    report = Report(END, Colour.RED, ({"n": 1}, None, 1.5, True, object))
    plain = dag_steps.as_plain([report])
    assert plain == [
        {
            "at": END.isoformat(),
            "colour": "red",
            "parts": [{"n": 1}, None, 1.5, True, str(object)],
        }
    ]
