"""Minutes: what a stream's readings were in each minute, computed from its stored rows.

A minute is computed from raw rows and replaced as a whole, never added to: so it cannot
disagree with them for long, whatever was killed, and late rows only make it be computed
again. Which minutes are out of date is asked of the tables themselves: those whose number of
raw rows is not the number that their rollup was made of.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from clickhouse_connect.driver.client import Client

from pipeline.store.sql_text import quote
from pipeline.streams import Column, Stream
from pipeline.streams.ddl import DATABASE, clickhouse_type

# The event stream is one row per happening: there is nothing to sum up.
ROLLED_UP = ("gpu", "nvlink", "ib_port", "coolant", "component")
# How far back the row before a minute's first is looked for, for the first increase.
_BEFORE = timedelta(minutes=10)
# At most so many minutes are computed by one statement: its memory stays bounded.
_MINUTES_AT_ONCE = 5
_FLOATS = ("float32", "float64")


def table_name(stream: Stream) -> str:
    """The table that holds a stream's minutes, every version of them."""
    return f"{DATABASE}.{stream.name}_minute_version"


def view_name(stream: Stream) -> str:
    """The view of a stream's minutes, newest version of each."""
    return f"{DATABASE}.{stream.name}_minute"


def _key(stream: Stream) -> list[Column]:
    return [stream.column(name) for name in ("cluster", *stream.entity, "source")]


def _placement(stream: Stream) -> list[Column]:
    return [column for column in stream.columns if column.group == "placement"]


def _gauges(stream: Stream) -> list[Column]:
    return [c for c in stream.columns if c.kind == "gauge" and c.group == "own"]


def _counters(stream: Stream) -> list[Column]:
    return [c for c in stream.columns if c.kind == "counter" and c.group == "own"]


def rollup_columns(stream: Stream) -> list[tuple[str, str, str]]:
    """Columns of a stream's minutes: name, type, comment."""
    columns = [(c.name, clickhouse_type(c), c.description) for c in _key(stream)]
    columns += [
        ("minute", "DateTime('UTC')", "Its beginning"),
        ("version", "DateTime64(6, 'UTC')", "When it was computed; the newest counts"),
        ("samples", "UInt32", "How many rows it was made of"),
    ]
    columns += [(c.name, clickhouse_type(c), f"{c.description}; the last one") for c in
                _placement(stream)]  # fmt: skip
    for column in _gauges(stream):
        unit = f" [{column.unit}]" if column.unit else ""
        for kind in ("avg", "min", "max"):
            columns.append(
                (f"{column.name}_{kind}", "Nullable(Float32)", f"{column.description}{unit}")
            )
    for column in _counters(stream):
        unit = f" [{column.unit}]" if column.unit else ""
        columns.append(
            (
                f"{column.name}_increase",
                "Nullable(Float64)",
                f"{column.description}: increase in the minute{unit}",
            )
        )
    return columns


def create_sql(stream: Stream, retention_days: int) -> list[str]:
    """Statements that make a stream's table of minutes and its view.

    Args:
        retention_days: how long minutes are kept.
    """
    lines = ",\n    ".join(
        f"`{name}` {kind} CODEC(ZSTD(1)) COMMENT {quote(text)}"
        for name, kind, text in rollup_columns(stream)
    )
    order = ", ".join(column.name for column in _key(stream))
    return [
        f"""CREATE TABLE IF NOT EXISTS {table_name(stream)}
(
    {lines}
)
ENGINE = ReplacingMergeTree(version)
PARTITION BY toDate(minute)
ORDER BY ({order}, minute)
TTL toDate(minute) + INTERVAL {retention_days} DAY DELETE
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 0
COMMENT {quote(f"Minutes of {stream.name}: every version that was computed")}""",
        f"""CREATE OR REPLACE VIEW {view_name(stream)} AS
SELECT * EXCEPT (version) FROM {table_name(stream)} FINAL
COMMENT {quote(f"{stream.description}; summed up by minute")}""",
    ]


def stale_minutes(
    client: Client, stream: Stream, since: datetime, until: datetime
) -> list[datetime]:
    """Minutes of a span of time whose rollup was made of another number of rows.

    Args:
        since: aware; its minute is the first that is looked at.
        until: aware; its minute is not looked at any more, so give a time by which rows
            have usually come in.
    """
    rows = client.query(
        f"""
        SELECT minute
        FROM
        (
            SELECT toStartOfMinute(sampled_at) AS minute, count() AS raw, 0 AS rolled
            FROM {DATABASE}.{stream.name}
            WHERE sampled_at >= {{since:DateTime('UTC')}} AND sampled_at < {{until:DateTime('UTC')}}
            GROUP BY minute
            UNION ALL
            SELECT minute, 0 AS raw, sum(samples) AS rolled
            FROM {view_name(stream)}
            WHERE minute >= {{since:DateTime('UTC')}} AND minute < {{until:DateTime('UTC')}}
            GROUP BY minute
        )
        GROUP BY minute
        HAVING sum(raw) > sum(rolled)
        ORDER BY minute
        """,
        parameters=_span(since, until),
    ).result_rows
    return [_aware(row[0]) for row in rows]


def refresh(
    client: Client, stream: Stream, since: datetime, until: datetime, *, version: datetime
) -> list[datetime]:
    """Compute the minutes of a span of time that are out of date.

    Doing it twice, or in two processes at once, does no harm. Raw rows that retention has
    dropped do not empty a minute that was computed while they were there.

    Args:
        since: aware; first minute.
        until: aware; the minute after the last.
        version: now; later computations win.

    Returns:
        The minutes that were computed.
    """
    stale = stale_minutes(client, stream, since, until)
    for batch in _runs(stale):
        _compute(client, stream, batch, version)
    return stale


def _runs(minutes: Iterable[datetime]) -> Iterable[list[datetime]]:
    """Cut minutes into runs that lie close together."""
    run: list[datetime] = []
    for minute in minutes:
        if run and (
            len(run) >= _MINUTES_AT_ONCE or minute - run[0] >= timedelta(minutes=_MINUTES_AT_ONCE)
        ):
            yield run
            run = []
        run.append(minute)
    if run:
        yield run


def _compute(client: Client, stream: Stream, minutes: list[datetime], version: datetime) -> None:
    since, until = minutes[0], minutes[-1] + timedelta(minutes=1)
    parameters = {
        **_span(since, until),
        "before": since - _BEFORE,
        "minutes": minutes,
        "version": version,
    }
    client.command(
        compute_sql(stream),
        parameters=parameters,
        settings={
            "async_insert": 0,
            "max_insert_threads": 1,
            # All of a minute appears at once: one block, one part for each day.
            "min_insert_block_size_rows": 50_000_000,
            "min_insert_block_size_bytes": 0,
        },
    )


def compute_sql(stream: Stream) -> str:
    """The statement that computes minutes anew.

    Its parameters: ``since``, ``until``, ``before``, ``minutes`` and ``version``.
    """
    key = ", ".join(f"`{column.name}`" for column in _key(stream))
    counters = _counters(stream)
    lag = "".join(
        f",\n        lagInFrame(toNullable(`{c.name}`)) OVER by_time AS `before {c.name}`"
        for c in counters
    )
    # In the order of rollup_columns; without names, which would hide the columns they are of.
    select = [
        *(f"`{column.name}`" for column in _key(stream)),
        "minute",
        "{version:DateTime64(6, 'UTC')}",
        "count()",
        *(f"argMax(`{column.name}`, sampled_at)" for column in _placement(stream)),
        *(
            f"{kind}(`{column.name}`)"
            for column in _gauges(stream)
            for kind in ("avg", "min", "max")
        ),
        *(f"sum({_increase(column)})" for column in counters),
    ]
    columns = ", ".join(f"`{name}`" for name, _, _ in rollup_columns(stream))
    listed = ",\n    ".join(select)
    return f"""INSERT INTO {table_name(stream)} ({columns})
SELECT
    {listed}
FROM
(
    SELECT *, toStartOfMinute(sampled_at) AS minute{lag}
    FROM {DATABASE}.{stream.name}
    WHERE sampled_at >= {{before:DateTime('UTC')}} AND sampled_at < {{until:DateTime('UTC')}}
    WINDOW by_time AS (
        PARTITION BY {key} ORDER BY sampled_at ROWS BETWEEN 1 PRECEDING AND CURRENT ROW
    )
)
WHERE has({{minutes:Array(DateTime('UTC'))}}, minute)
GROUP BY {key}, minute"""


def _increase(column: Column) -> str:
    """Increase of a counter since the row before: as in the rate views."""
    now, before = f"`{column.name}`", f"`before {column.name}`"
    difference = f"{now} - {before}"
    if column.type not in _FLOATS:
        difference = f"toUInt64({difference})"
    return (
        f"multiIf({now} >= {before}, toFloat64({difference}),"
        f" {now} < {before} / 2, toFloat64({now}), NULL)"
    )


def _span(since: datetime, until: datetime) -> dict[str, datetime]:
    return {
        "since": since.astimezone(UTC).replace(second=0, microsecond=0),
        "until": until.astimezone(UTC).replace(second=0, microsecond=0),
    }


def _aware(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
