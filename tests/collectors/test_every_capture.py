"""Every capture: the command line prints the values that its page states, or no reader fits it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pipeline.cli.collect import collect
from pipeline.collectors.registry import KINDS, OF_HOST
from pipeline.errors import RackpulseError
from tests.collectors.capture_cases import CASES, NOT_READ, Case
from tests.conftest import ROOT

# An exporter's error text, and a table whose only line overflowed: nothing of a page is left.
NO_PAGE = {
    "dcgm/issues/dcgm-exporter-728_body_http500.txt",
    "dcgm/issues/gpu-monitoring-tools-4_dmon_overflow.txt",
}


def run(kind: str, path: Path, *args: str) -> Result:
    command = [kind, "--file", str(path), "--sink", "stdout", "--format", "jsonl", *args]
    ended = CliRunner().invoke(collect, command)
    if ended.exception is not None and not isinstance(ended.exception, RackpulseError):
        raise ended.exception
    return ended


def test_no_capture_is_left_out(captures: Path) -> None:
    files = {path.relative_to(captures).as_posix() for path in captures.rglob("*")
             if path.is_file() and path.name != "INDEX.md"}  # fmt: skip
    read = [case.name for case in CASES]
    assert len(read) == len(set(read))
    assert set(read) | set(NOT_READ) == files
    assert not set(read) & set(NOT_READ)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind}:{case.name}")
def test_the_command_line_prints_what_the_capture_states(captures: Path, case: Case) -> None:
    ended = run(case.kind, captures / case.name, *case.args)
    assert ended.exit_code == (1 if case.name in NO_PAGE else 0), ended.output
    rows: list[dict[str, Any]] = [json.loads(line) for line in ended.stdout.splitlines()]
    assert Counter(row["stream"] for row in rows) == case.rows
    for which, holds in case.says:
        count = which.get("rows", 1)
        wanted = {name: value for name, value in which.items() if name != "rows"}
        found = [row for row in rows if all(row.get(n) == v for n, v in wanted.items())]
        assert len(found) == count, which
        for row in found:
            assert {name: row.get(name) for name in holds} == {
                name: pytest.approx(value, rel=1e-6) if isinstance(value, float) else value
                for name, value in holds.items()
            }
    assert [name for name in case.lacks for row in rows if name in row] == []
    refused = [line.removeprefix("refused ") for line in ended.stderr.splitlines()
               if line.startswith("refused ")]  # fmt: skip
    assert sorted(refused) == sorted(case.refused)


@pytest.mark.parametrize(
    "name", NOT_READ, ids=[f"{name}: {other.reason}" for name, other in NOT_READ.items()]
)
def test_no_reader_fits(captures: Path, name: str) -> None:
    for kind in sorted(set(KINDS) - OF_HOST):
        assert run(kind, captures / name).stdout == "", kind
    # What reads it instead has a test that names it.
    assert Path(name).name in (ROOT / NOT_READ[name].test).read_text(encoding="utf-8")
