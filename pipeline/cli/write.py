"""``rackpulse write``, ``verify`` and ``dead-letters``."""

from __future__ import annotations

import click

from pipeline.service import setup_logging, stop_on_signals
from pipeline.settings import load_settings
from pipeline.streams import load_contracts


@click.command()
@click.option("--streams", default="", help="Comma separated; all by default.")
@click.option(
    "--instance", default=1, show_default=True, help="Number of this writer in the group."
)
@click.option(
    "--metrics-port", type=int, help="Of /livez, /readyz and /metrics; 0 takes a free one."
)
@click.option("--group", help="Consumer group.")
@click.option("--linger", "linger_s", type=float, help="Seconds that a message waits for more.")
@click.option("--max-rows", type=int, help="Rows of a block, at most.")
@click.option("--buffer-mb", type=int, help="Message megabytes held until they are stored.")
@click.option("--session-timeout", type=float, help="Seconds until the group calls this one dead.")
def write(
    streams: str, instance: int, metrics_port: int | None, group: str | None,
    linger_s: float | None, max_rows: int | None, buffer_mb: int | None,
    session_timeout: float | None,
) -> None:  # fmt: skip
    """Write Kafka messages to ClickHouse, each row once, until SIGTERM or Ctrl-C."""
    from pipeline.writer.options import Options
    from pipeline.writer.service import serve

    settings = load_settings()
    setup_logging(settings.log_format)
    chosen = {
        "streams": tuple(name.strip() for name in streams.split(",") if name.strip()),
        "instance": instance,
        "group": group,
        "linger_s": linger_s,
        "max_rows": max_rows,
        "buffer_bytes": buffer_mb * 1_000_000 if buffer_mb else None,
        "session_timeout_ms": round(session_timeout * 1000) if session_timeout else None,
    }
    options = Options(**{name: value for name, value in chosen.items() if value is not None})  # type: ignore[arg-type]
    serve(settings, load_contracts(), options, stop_on_signals(), metrics_port)
