"""Every capture of dcgm, nmxt, ib and prom has a test, and the command line reads it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from pipeline.cli.collect import collect
from tests.collectors.helpers import read_file
from tests.conftest import captures_folder

# Captures that are no page of readings, with the reason.
NOT_READ = {
    "ib/ibnetdiscover_stderr_no_mad.txt": "what a command says when it fails: topology import",
    "ib/infiniband_exporter/ibnetdiscover-test.out": "cables, not readings: topology import",
}

KIND_OF = [
    ("dcgm/*.prom", "dcgm"),
    ("dcgm/issues/*.prom", "dcgm"),
    ("dcgm/issues/dcgm-exporter-728_body_http500.txt", "dcgm"),
    ("dcgm/issues/DCGM-265*", "dcgm_dmon"),
    ("dcgm/issues/*dmon*", "dcgm_dmon"),
    ("nmxt/*.prom", "nmxt"),
    ("ib/infiniband_exporter_page.prom", "ib_exporter"),
    ("ib/node_exporter_infiniband.prom", "node_exporter_ib"),
    ("ib/sysfs_*", "ib_sysfs"),
    ("ib/ibstat*", "ibstat"),
    ("ib/ufm/*", "ufm"),
    ("ib/infiniband_exporter/perfquery*", "perfquery"),
    ("ib/infiniband_exporter/ibswinfo*", "ibswinfo"),
]
# Read by something else than a reader of pages; their tests name them.
OTHERWISE = ("dcgm/*.csv", "nmxt/module_temperature_values.txt", "prom/*")


def pages() -> list[tuple[str, str]]:
    folder = captures_folder()
    return [
        (kind, path.relative_to(folder).as_posix())
        for pattern, kind in KIND_OF
        for path in sorted(folder.glob(pattern))
    ]


def test_nothing_is_left_out(captures: Path) -> None:
    files = {
        path.relative_to(captures).as_posix()
        for part in ("dcgm", "nmxt", "ib", "prom")
        for path in (captures / part).rglob("*")
        if path.is_file()
    }
    read = {name for _, name in pages()}
    for pattern in OTHERWISE:
        read |= {path.relative_to(captures).as_posix() for path in captures.glob(pattern)}
    assert files - read == set(NOT_READ)
    assert len(files) == 57


def test_every_page_is_named_in_a_test(captures: Path) -> None:
    here = Path(__file__).parent
    tests = "".join(path.read_text(encoding="utf-8") for path in here.glob("test_captures_*.py"))
    named = {name: Path(name).name in tests or "perfquery-rcv-error" in name for _, name in pages()}
    assert [name for name, found in named.items() if not found] == []


@pytest.mark.parametrize(("kind", "name"), pages(), ids=lambda value: value)
def test_the_command_line_prints_what_the_reader_gives(
    captures: Path, kind: str, name: str
) -> None:
    path = captures / name
    ended = CliRunner().invoke(
        collect, [kind, "--file", str(path), "--sink", "stdout", "--format", "jsonl"]
    )
    assert ended.exit_code == 0, ended.output
    printed = [json.loads(line) for line in ended.stdout.splitlines()]
    assert len(printed) == read_file(kind, path).rows
