"""What the Dags ask before and around the detectors, as plain functions.

The Dags only wire; whatever they compute is here or in the detectors, where it can be
called and tested without Airflow.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any

from pipeline.clock import Clock, SystemClock
from pipeline.errors import ConfigError, RackpulseError
from pipeline.settings import load_settings

if TYPE_CHECKING:
    # Dag files name an error of this module, so it is loaded whenever one is parsed.
    from clickhouse_connect.driver.client import Client

DRILL_CAUSES = ("capped_clocks", "blocked_quick_disconnect", "bad_cable")
# Sampled densely, so that a fresh row tells that the window before it is complete.
AWAITED_STREAMS = ("gpu", "coolant", "ib_port")
# What the detectors' features are made of.
LEARNT_STREAMS = ("gpu", "coolant", "ib_port", "component")


class DrillFailedError(RackpulseError):
    """The pipeline did not see a drill's fault."""


class NotScoredError(RackpulseError):
    """A window of a live detector has no score; the run is to be red."""


def whole_minute(*choices: datetime | str | None) -> datetime:
    """The first of the choices that is there, as a whole minute in UTC, rounded down.

    Raises:
        ConfigError: a text is no date and time, or has no time zone; or nothing is there.
    """
    for choice in choices:
        if choice is None or choice == "":
            continue
        if isinstance(choice, str):
            try:
                found = datetime.fromisoformat(choice)
            except ValueError as exc:
                raise ConfigError(
                    f'"{choice}" is no time: write it like 2026-01-31T12:00:00Z'
                ) from exc
        else:
            found = choice
        if found.tzinfo is None:
            raise ConfigError(f'"{choice}" has no time zone: write it like 2026-01-31T12:00:00Z')
        return found.astimezone(UTC).replace(second=0, microsecond=0)
    raise ConfigError("No window was given")


def minute_of(dag_run: Any, params: Mapping[str, Any] | None, name: str) -> datetime:
    """The minute that a run is about: the parameter ``name`` if given, else the run's own.

    Args:
        dag_run: has ``data_interval_end`` (None when started by hand) and ``run_after``.
    """
    asked = (params or {}).get(name)
    return whole_minute(asked, dag_run.data_interval_end, dag_run.run_after)


@dataclass(frozen=True)
class StreamState:
    """How far a stream has come.

    Attributes:
        newest: time of the newest row around the window; None when there is none.
        rows: rows inside the window's minute.
    """

    stream: str
    newest: datetime | None
    rows: int

    def covers(self, window_end: datetime) -> bool:
        """Whether a row from the window's end or later is there."""
        return self.newest is not None and self.newest >= window_end


def stream_states(
    client: Client, window_end: datetime, streams: Sequence[str] = AWAITED_STREAMS
) -> list[StreamState]:
    """Look at the rows around the end of a window."""
    states = []
    for stream in streams:
        newest, anything, rows = client.query(
            f"""
            SELECT max(sampled_at), count(), countIf(sampled_at < {{end:DateTime64(3, 'UTC')}})
            FROM telemetry.{stream}
            WHERE cluster = {{cluster:String}} AND sampled_at >= {{start:DateTime64(3, 'UTC')}}
              AND sampled_at < {{horizon:DateTime64(3, 'UTC')}}
              AND ingested_at >= {{start:DateTime64(3, 'UTC')}} - INTERVAL 1 DAY
            """,
            parameters={
                "cluster": load_settings().cluster,
                "start": window_end - timedelta(minutes=1),
                "end": window_end,
                "horizon": window_end + timedelta(minutes=10),
            },
        ).result_rows[0]
        states.append(StreamState(stream, _utc(newest) if anything else None, int(rows)))
    return states


def await_rows(
    client: Client,
    window_end: datetime,
    clock: Clock,
    *,
    patience_s: float = 14.0,
    streams: Sequence[str] = AWAITED_STREAMS,
) -> list[StreamState]:
    """Wait until the window's rows have landed, but not for ever.

    A stream that stays away is not an error here: the detectors' structure gate reports
    it as telemetry lost. A stream without any row is not waited for.

    Args:
        patience_s: how long after now to wait for streams that still flow, in seconds.
    """
    deadline = clock.monotonic() + patience_s
    while True:
        states = stream_states(client, window_end, streams)
        flowing = [state for state in states if state.newest is not None]
        if not flowing or all(state.covers(window_end) for state in flowing):
            return states
        if clock.monotonic() >= deadline:
            return states
        clock.wait(1.0)


def live_detectors(client: Client) -> list[str]:
    """Detectors that have a live model, by name."""
    rows = client.query(
        "SELECT DISTINCT detector FROM telemetry.detector_model WHERE state = 'live' ORDER BY 1"
    ).result_rows
    return [str(row[0]) for row in rows]


def untrained_detectors(
    client: Client, window_end: datetime, detectors: Sequence[str], *, pause_minutes: int = 15
) -> list[str]:
    """Detectors that have no live model and were not trained lately either.

    Args:
        pause_minutes: how long a model that the gates did not let through holds back the
            next attempt.
    """
    rows = client.query(
        """
        SELECT detector FROM telemetry.detector_model
        WHERE state = 'live' OR trained_until > {since:DateTime('UTC')}
        """,
        parameters={"since": window_end - timedelta(minutes=pause_minutes)},
    ).result_rows
    there = {str(row[0]) for row in rows}
    return [detector for detector in detectors if detector not in there]


def history_has_landed(client: Client, window_end: datetime, *, minutes: int = 60) -> bool:
    """Whether there is enough to learn from, and no more of the past is coming in.

    Args:
        minutes: of history that are wanted before ``window_end``.
    """
    fresh, old = client.query(
        """
        SELECT
            countIf(sampled_at >= {recent:DateTime64(3, 'UTC')}),
            countIf(sampled_at < {old:DateTime64(3, 'UTC')})
        FROM telemetry.gpu
        WHERE cluster = {cluster:String} AND ingested_at >= {since:DateTime64(3, 'UTC')}
        """,
        parameters={
            "cluster": load_settings().cluster,
            "recent": window_end - timedelta(minutes=1),
            "old": window_end - timedelta(minutes=minutes),
            "since": window_end - timedelta(days=2),
        },
    ).result_rows[0]
    return bool(fresh and old) and not past_is_landing(client, window_end)


def past_is_landing(client: Client, window_end: datetime) -> bool:
    """Whether rows of the past are still on their way to the tables.

    They stand before the first fresh ones in each Kafka partition. So a partition brings the
    past when its newest sample came in minutes late, and what came in spans more time than
    it took to come: a host whose clock is behind sends late samples too, but at their pace.
    """
    for stream in LEARNT_STREAMS:
        (behind,) = client.query(
            f"""
            SELECT countIf(late_s > 180 AND span_s > took_s + 180)
            FROM
            (
                SELECT
                    dateDiff('second', max(sampled_at), max(ingested_at)) AS late_s,
                    dateDiff('second', min(sampled_at), max(sampled_at)) AS span_s,
                    dateDiff('second', min(ingested_at), max(ingested_at)) AS took_s
                FROM telemetry.{stream}
                WHERE cluster = {{cluster:String}}
                  AND ingested_at >= {{lately:DateTime64(3, 'UTC')}}
                GROUP BY kafka_topic_id, kafka_partition
            )
            """,
            parameters={
                "cluster": load_settings().cluster,
                "lately": window_end - timedelta(minutes=15),
            },
        ).result_rows[0]
        if behind:
            return True
    return False


def _utc(value: datetime) -> datetime:
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def first_training(
    client: Client, window_end: datetime, detectors: Sequence[str]
) -> list[dict[str, object]]:
    """Arguments of the training runs that are due now: none or one.

    The run's name holds a quarter of an hour, so that a minute later the same run is meant.
    """
    untrained = untrained_detectors(client, window_end, detectors)
    if not untrained or not history_has_landed(client, window_end):
        return []
    quarter = window_end.replace(minute=window_end.minute // 15 * 15)
    return [
        {
            "trigger_run_id": f"first__{quarter:%Y-%m-%dT%H:%M}",
            "conf": {"detectors": untrained, "until": window_end.isoformat()},
        }
    ]


def describe(states: Sequence[StreamState], window_end: datetime) -> str:
    """One line per stream for the task's log."""
    lines = []
    for state in states:
        if state.newest is None:
            lines.append(f"{state.stream}: no rows")
        else:
            behind = (window_end - state.newest).total_seconds()
            word = "complete" if behind <= 0 else f"{behind:.0f} s behind"
            lines.append(f"{state.stream}: {state.rows} rows, {word}")
    return "\n".join(lines)


def choose_detectors(asked: Sequence[str]) -> list[str]:
    """The detectors that were asked for; all when none was.

    Raises:
        ConfigError: there is no detector of that name; the text lists those that there are.
    """
    # Detection is heavy to load, and the gate does without it.
    from pipeline.detection import load_specs

    known = list(load_specs())
    unknown = [name for name in asked if name not in known]
    if unknown:
        raise ConfigError(f"No detector {', '.join(unknown)}: there are {', '.join(known)}")
    return list(asked) or known


def prepare_scoring(
    client: Client,
    window_end: datetime,
    detectors: Sequence[str],
    clock: Clock | None = None,
    *,
    in_training: bool = False,
) -> dict[str, Any]:
    """What ``score_fleet`` does first.

    Args:
        detectors: all that there are.
        in_training: a training run is under way, so that none is due.

    Returns:
        ``window_end`` (ISO text), the detectors that are ``live``, and ``training``: the
        arguments of a training run that is due.
    """
    print(describe(await_rows(client, window_end, clock or SystemClock()), window_end))
    live = live_detectors(client)
    print(f"live models: {', '.join(live) or 'none yet, so nothing is scored'}")
    training = [] if in_training else first_training(client, window_end, detectors)
    if training:
        print("enough history is there: training starts")
    elif in_training:
        print("training is under way")
    elif not live:
        print("training starts by itself once an hour of history is there")
    return {"window_end": window_end.isoformat(), "live": live, "training": training}


def score_window(client: Client, window_end: str, detector: str) -> Any:
    """Score one detector's window; returns the report for the UI."""
    from pipeline import detection

    report = detection.score(client, load_settings(), whole_minute(window_end), [detector])
    return _shown(report)


def step_incidents(client: Client, window_end: str, live: Sequence[str]) -> Any:
    """Move the incidents on by one window; returns the transitions for the UI.

    Detectors that could not be scored hold up neither the others nor their incidents.

    Args:
        live: detectors that should have been scored.

    Raises:
        NotScoredError: some were not; raised when everything else is done.
    """
    from pipeline import incidents

    settings = load_settings()
    end = whole_minute(window_end)
    shown = _shown(incidents.step(client, settings, end))
    rows = client.query(
        "SELECT DISTINCT detector FROM telemetry.score_run"
        " WHERE cluster = {cluster:String} AND window_end = {end:DateTime('UTC')}",
        parameters={"cluster": settings.cluster, "end": end},
    ).result_rows
    missing = sorted(set(live) - {str(row[0]) for row in rows})
    if missing:
        raise NotScoredError(
            f"Not scored: {', '.join(missing)}. The log of the red score task says why; the other"
            " detectors' incidents are up to date"
        )
    return shown


def train_detector(client: Client, detector: str, until: str) -> Any:
    """Train one detector; returns the report for the UI."""
    from pipeline import detection

    return _shown(detection.train(client, load_settings(), detector, whole_minute(until)))


def silence_for(client: Client, params: Mapping[str, Any], *, since: datetime, by: str) -> Any:
    """Silence what a form asks for; returns the silence for the UI.

    Args:
        params: ``scope``, ``name``, ``minutes``, ``reason``, ``detector``.
        since: when it begins.

    Raises:
        RackpulseError: a field is missing or wrong.
    """
    from pipeline import incidents

    scope, name = str(params["scope"]), str(params["name"]).strip()
    reason = str(params["reason"]).strip()
    if scope != "all" and not name:
        raise RackpulseError(f"Which {scope}? Give its name")
    if not reason:
        raise RackpulseError("Why? Give a reason: the next shift will ask")
    detector = str(params.get("detector") or "")
    if detector:
        choose_detectors([detector])
    ends_at = since + timedelta(minutes=int(params["minutes"]))
    made = incidents.silence(
        client, load_settings().cluster, scope, "" if scope == "all" else name,
        starts_at=since, ends_at=ends_at, reason=reason, by=by, detector=detector,
    )  # fmt: skip
    return _shown({"silence_id": made, "scope": scope, "name": name, "ends_at": ends_at})


def sum_up_streams(
    client: Client, until: datetime, *, hours: float = 3.0, clock: Clock | None = None
) -> Any:
    """Compute the minutes before ``until`` that are out of date; returns how many by stream."""
    from pipeline.store import rollups
    from pipeline.streams import load_contracts

    if past_is_landing(client, until):
        # Every minute that it touches would be computed again and again.
        print("rows of the past are still coming in: a later run sums them up")
        return {}
    contracts = load_contracts()
    version = (clock or SystemClock()).now()
    # Rows of the newest minute may still be on their way; the next run takes it.
    end = until - timedelta(minutes=1)
    return _shown(
        {
            name: len(
                rollups.refresh(
                    client, contracts[name], end - timedelta(hours=hours), end, version=version
                )
            )
            for name in rollups.ROLLED_UP
        }
    )


def run_fire_drill(client: Client, fault: str, at: datetime) -> Any:
    """Run a fire drill; returns its report for the UI.

    Args:
        fault: cause to play; empty takes another one each hour.
        at: time of the run.

    Raises:
        DrillFailedError: the pipeline did not see the fault, or did not say so.
    """
    from pipeline.hall.drill_store import run_drill
    from pipeline.streams import load_contracts

    cause = fault or DRILL_CAUSES[int(at.timestamp() // 3600) % len(DRILL_CAUSES)]
    try:
        report = run_drill(load_settings(), load_contracts(), cause, say=print, client=client)
    except RackpulseError as exc:
        _tell_of_drill(client, cause, str(exc), at)
        raise
    shown = _shown(report.as_json())
    failure = None if report.passed else report.failure or _shortfall(shown)
    _tell_of_drill(client, cause, failure, at)
    if failure is not None:
        raise DrillFailedError(f"The drill with {cause} failed: {failure}")
    return shown


def _shortfall(report: Mapping[str, Any]) -> str:
    """Why a drill that lost no stage did not pass."""
    pages = report.get("false_pages")
    return f"false pages: {'; '.join(pages)}" if pages else "its cause was taken for another"


def _tell_of_drill(client: Client, cause: str, failure: str | None, at: datetime) -> None:
    """Open or resolve the alarm about drills; where that fails the red task has to do."""
    from pipeline.hall.drill_alarm import tell

    try:
        for transition in tell(client, cause, failure, at):
            print(f"{transition.transition}: {transition.summary}")
    except Exception as exc:  # a store that does not answer must not hide the drill's own failure
        print(f"nobody could be told: {exc}")


def _shown(report: object) -> Any:
    plain = as_plain(report)
    for item in plain if isinstance(plain, list) else [plain]:
        print(json.dumps(item))
    return plain


def as_plain(value: Any) -> Any:
    """A report as numbers, texts, lists and dicts, so that the Airflow UI can show it."""
    if is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): as_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [as_plain(item) for item in value]
    if isinstance(value, Enum):
        return as_plain(value.value)
    if isinstance(value, datetime):
        return value.isoformat()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)
