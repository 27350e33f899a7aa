"""``rackpulse collect`` as a person types it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pipeline.cli.collect import collect
from tests.collectors_service.helpers import write_targets
from tests.support.exporters import exporters
from tests.support.wait import wait_until


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(collect, [str(arg) for arg in args], catch_exceptions=False)


def rows(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_short_numbers_and_what_was_refused(captures: Path) -> None:
    folder = captures / "redfish"
    (row,) = rows(run("redfish", "--file", folder / "dmtf" / "cdu_secondary_connector.json"))
    assert row["heat_removed_kw"] == 25.31
    result = run("redfish", "--file", folder / "gb300" / "gpu0_power_smoothing_sentinels.json")
    assert "refused 1 x not_set in power_floor_percent" in result.stderr


def test_table_for_people(captures: Path) -> None:
    file = captures / "redfish" / "dmtf" / "cdu_pump_1.json"
    shown = run("redfish", "--file", file, "--format", "table").output
    assert "coolant: 1 rows" in shown
    assert "38.5" in shown


def test_a_table_shows_what_a_page_says_and_reads_no_markup_in_it(tmp_path: Path) -> None:
    page = tmp_path / "page"
    page.write_text(
        'DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-1",modelName="[red]X [/b] :cd:",Hostname="h"} 41\n'
    )
    assert "[red]X [/b] :cd:" in run("dcgm", "--file", page, "--format", "table").output


def test_url_topology_and_target(tmp_path: Path) -> None:
    topology = tmp_path / "topology.json"
    gpu = {"kind": "gpu", "id": "GPU-h-1", "host": "h", "rack": "rack-09", "tray": 2}
    topology.write_text(json.dumps({"cluster": "c", "entities": [gpu]}))
    with exporters() as server:
        url = f"http://127.0.0.1:{server.port}/ok/h"
        found = rows(run("dcgm", "--url", url, "--topology", topology, "--target", "me"))
        assert [row.get("rack") for row in found] == [None, "rack-09", None, None]
        assert {row["target"] for row in found} == {"me"}


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["dcgm"], "give either --file or --url"),
        (["dcgm", "--url", "http://u:secret@h/metrics"], "take user and password out"),
        (["dcgm", "--url", "http://127.0.0.1:9/metrics", "--timeout", "1"], "refused"),
        (["dcgm", "--file", __file__], "test_cli.py has no row of a dcgm page"),
        (["redfish", "--file", __file__], "test_cli.py has no row of a redfish page"),
        (["nothing"], "No such command"),
        (["run"], "Say what to read"),
    ],
)
def test_mistakes_are_answered(args: list[str], text: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", "collect", *args],
        capture_output=True, text=True, timeout=60,
        env={name: value for name, value in os.environ.items() if "TARGETS" not in name},
    )  # fmt: skip
    assert done.returncode != 0
    assert text in done.stderr
    assert "Traceback" not in done.stderr
    assert "secret" not in done.stderr


def test_service_prints_and_ends_on_sigterm(tmp_path: Path, free_port: int) -> None:
    import httpx

    with exporters() as server:
        target = {
            "name": "dcgm/h", "kind": "dcgm", "interval_s": 0.2, "timeout_s": 2, "host": "h",
            "url": f"http://127.0.0.1:{server.port}/ok/h",
        }  # fmt: skip
        targets = write_targets(tmp_path / "t.json", [target])
        out = tmp_path / "rows.jsonl"
        command = [
            sys.executable, "-m", "pipeline", "collect", "run", "--targets", str(targets),
            "--sink", "stdout", "--window", "0.1", "--metrics-port", str(free_port),
        ]  # fmt: skip
        env = {**os.environ, "RACKPULSE_STATE_DIR": str(tmp_path / "state")}
        with out.open("wb") as stream:
            process = subprocess.Popen(command, stdout=stream, stderr=subprocess.PIPE, env=env)
        try:
            wait_until(lambda: out.stat().st_size > 0, "rows", 60)
            page = httpx.get(f"http://127.0.0.1:{free_port}/readyz")
            assert page.status_code == 200
            metrics = httpx.get(f"http://127.0.0.1:{free_port}/metrics").text
            assert 'rackpulse_target_up{kind="dcgm",target="dcgm/h"} 1.0' in metrics
            # The port is taken now: another one says what to do.
            other = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env)
            assert other.returncode == 1
            assert "choose another one with --metrics-port" in other.stderr
        finally:
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        assert b"Traceback" not in errors
    streams = {json.loads(line)["stream"] for line in out.read_text().splitlines()}
    assert streams == {"gpu", "component"}
