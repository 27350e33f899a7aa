"""``rackpulse topology``: import it from what a site has, show it, check it."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.errors import RackpulseError

if TYPE_CHECKING:
    from pipeline.topology import Topology


@click.group()
def topology() -> None:
    """The topology file."""


@topology.command("import")
@click.argument("sources", nargs=-1, required=True)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="File to write.")
@click.option("--cluster", help="Name of the cluster; by default RACKPULSE_CLUSTER.")
@click.option("--host-pattern", help="Regular expression with groups rack and tray.")
@click.option("--store", "to_store", is_flag=True, help="Keep this version in ClickHouse too.")
def import_(
    sources: tuple[str, ...], out: Path | None, cluster: str | None, host_pattern: str | None,
    to_store: bool,
) -> None:  # fmt: skip
    """Import SOURCES, merge them and write a topology file.

    A source is a file, or FORM:FILE with a form of ibnetdiscover, slurm, topograph, nmx, dcgm,
    csv or topology; without one the content tells. Where two sources differ the first counts.
    """
    from pipeline.settings import load_settings
    from pipeline.topology.imports import merge, read_source
    from pipeline.topology.imports.ibnetdiscover import HOST_PATTERN
    from pipeline.topology.imports.sources import FORMS

    _check_pattern(host_pattern)
    drafts = []
    for source in sources:
        form, colon, rest = source.partition(":")
        known = bool(colon) and form in FORMS
        draft = read_source(
            Path(rest if known else source), form if known else None, host_pattern or HOST_PATTERN
        )
        facts = ", ".join(
            f"{count} {name.replace('_', ' ')}" for name, count in draft.facts.items()
        )
        click.echo(f"{draft.source}: {facts}", err=True)
        for reason, count in draft.skipped.items():
            click.echo(f"  skipped {count} x {reason}", err=True)
        for note in draft.notes[:10]:
            click.echo(f"  {note}", err=True)
        drafts.append(draft)
    settings = load_settings()
    merged = merge(drafts, cluster or settings.cluster)
    for contradiction in merged.contradictions[:50]:
        click.echo(f"contradiction: {contradiction}", err=True)
    if len(merged.contradictions) > 50:
        click.echo(f"and {len(merged.contradictions) - 50} more contradictions", err=True)
    text = merged.topology.model_dump_json(exclude_none=True, indent=1)
    if out is None:
        click.echo(text)
    else:
        new = out.with_name(out.name + ".new")
        new.write_text(text + "\n", encoding="utf-8")
        new.replace(out)
        click.echo(f"{out}: {_summary(merged.topology)}", err=True)
    if to_store:
        from pipeline.clock import SystemClock
        from pipeline.store import connect
        from pipeline.topology import versions

        number, new_one = versions.store(
            connect(settings), merged.topology, SystemClock().now(),
            [draft.source for draft in drafts], [str(each) for each in merged.contradictions],
        )  # fmt: skip
        word = "kept as" if new_one else "is the same as"
        click.echo(f"{word} version {number} in ClickHouse", err=True)


def _check_pattern(pattern: str | None) -> None:
    import re

    if pattern is None:
        return
    try:
        groups = re.compile(pattern).groupindex
    except re.error as exc:
        raise RackpulseError(f"--host-pattern is no regular expression: {exc}") from exc
    if not {"rack", "tray"} <= set(groups):
        raise RackpulseError("--host-pattern needs the groups (?P<rack>…) and (?P<tray>…)")


def _summary(found: Topology) -> str:
    kinds = Counter(entity.kind for entity in found.entities)
    parts = [f"{len(found.racks)} racks"]
    parts += [f"{count} {kind}" for kind, count in sorted(kinds.items())]
    parts.append(f"{len(found.cables)} cables")
    return ", ".join(parts)


def _load(file: Path | None, from_store: bool) -> Topology:
    from pipeline.settings import load_settings
    from pipeline.topology import load_topology, versions

    settings = load_settings()
    if from_store:
        from pipeline.store import connect

        found = versions.load(connect(settings), settings.cluster)
        if found is None:
            raise RackpulseError(f"ClickHouse holds no topology of {settings.cluster}")
        return found
    path = file or settings.topology_file or settings.state_dir / "hall" / "topology.json"
    return load_topology(path)


_FILE = click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
_STORED = click.option("--store", "from_store", is_flag=True, help="The version in ClickHouse.")


@topology.command()
@_FILE
@_STORED
@click.option("--rack", "one_rack", help="Show this rack's entities.")
def show(file: Path | None, from_store: bool, one_rack: str | None) -> None:
    """Show racks and what stands in them."""
    found = _load(file, from_store)
    click.echo(f"cluster {found.cluster}: {_summary(found)}")
    if one_rack:
        for entity in found.entities:
            place = found.place(entity.kind, entity.id)
            if place.rack == one_rack:
                where = f"tray {place.tray} slot {place.slot} rail {place.rail} leaf {place.leaf}"
                click.echo(f"  {entity.kind:10} {entity.id} {entity.name or ''} {where}")
        return
    for rack in found.racks:
        inside = Counter(entity.kind for entity in found.entities if entity.rack == rack.id)
        held = ", ".join(f"{count} {kind}" for kind, count in sorted(inside.items()))
        click.echo(f"  {rack.id}  cdu {rack.cdu or '?'}  {held}")


@topology.command()
@_FILE
@_STORED
def check(file: Path | None, from_store: bool) -> None:
    """Say what is odd; the exit code is 1 when anything is."""
    from pipeline.topology.imports.check import check as findings

    found = _load(file, from_store)
    odd = findings(found)
    for finding in odd:
        click.echo(finding)
    click.echo(f"{_summary(found)}: {len(odd)} findings" if odd else f"{_summary(found)}: sound")
    if odd:
        sys.exit(1)
