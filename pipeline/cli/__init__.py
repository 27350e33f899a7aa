"""The command line ``rackpulse``: one module per command, loaded when it is called."""

from __future__ import annotations

import importlib
import sys

import click

from pipeline import __version__
from pipeline.errors import RackpulseError, missing_extra

# Command: (module, attribute, help, extra that brings what the module imports).
COMMANDS: dict[str, tuple[str, str, str, str]] = {
    "up": ("pipeline.cli.up", "up", "Start everything on this machine and show it working.", "all"),
    "status": ("pipeline.cli.up", "status", "Show services, streams and open incidents.", "store"),
    "sql": ("pipeline.cli.sql", "sql", "Run a SQL statement and print the answer.", "store"),
    "migrate": ("pipeline.cli.store", "migrate", "Bring the database to this version.", "store"),
    "store": ("pipeline.cli.store", "store", "The embedded store.", "embedded"),
    "topics": ("pipeline.cli.bus", "topics", "Kafka topics.", ""),
    "broker": ("pipeline.cli.bus", "broker", "A Kafka broker for one machine.", ""),
    "collect": ("pipeline.cli.collect", "collect", "Read sources.", ""),
    "topology": ("pipeline.cli.topology", "topology", "The topology file.", ""),
    "write": ("pipeline.cli.write", "write", "Write Kafka messages to ClickHouse.", "store"),
    "verify": (
        "pipeline.cli.write", "verify", "Compare the topics with what is stored.", "store",
    ),
    "dead-letters": (
        "pipeline.cli.write", "dead_letters", "List, show and replay dead letters.", "store",
    ),
    "detect": ("pipeline.cli.detect", "detect", "Train, score, promote, roll back.", "detection"),
    "evaluate": ("pipeline.cli.detect", "evaluate", "Judge detectors on labels.", "detection"),
    "incidents": ("pipeline.cli.incidents", "incidents", "Incidents and silences.", "store"),
    "alerts": ("pipeline.cli.alerts", "alerts", "Deliver and receive webhooks.", "alerts"),
    "hall": ("pipeline.cli.hall", "hall", "The virtual GPU hall.", "hall"),
    "drill": ("pipeline.cli.hall", "drill", "Fire drills.", "hall"),
    "airflow": ("pipeline.cli.airflow", "airflow", "Airflow on this machine.", "airflow"),
    "docs": ("pipeline.cli.docs", "docs", "Generated pages of the documentation.", ""),
}  # fmt: skip


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _, extra = COMMANDS[cmd_name]
        try:
            command = getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as exc:
            if exc.name and exc.name.startswith("pipeline"):
                raise
            raise missing_extra(exc.name or "?", extra or "all") from exc
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text, _) in COMMANDS.items()])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="rackpulse")
def cli() -> None:
    """Watch GPU racks: collect, store, detect, explain, alert."""


def main() -> None:
    """Entry point: errors for a person are one clear line, not a traceback."""
    try:
        cli.main(standalone_mode=False)
    except click.ClickException as exc:
        exc.show()
        sys.exit(exc.exit_code)
    except click.exceptions.Exit as exc:
        sys.exit(exc.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("stopped", err=True)
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(0)
    except RackpulseError as exc:
        click.echo(f"rackpulse: {exc}", err=True)
        sys.exit(1)
    except OSError as exc:
        if exc.filename is None:
            raise
        # A state folder that is a file, or of another user; a full or read-only disk.
        click.echo(f"rackpulse: {exc.filename}: {exc.strerror}", err=True)
        sys.exit(1)
