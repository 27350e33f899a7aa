"""The main job through real parts: one command, three faults found, nothing lost or doubled.

Apache Kafka, the ClickHouse engine, collectors over HTTP, Airflow with both Dags, signed
webhooks over HTTP: all of it is started by ``rackpulse up`` as a person would start it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.wait import wait_until

_RACKS = 4
_COMMAND = (sys.executable, "-m", "pipeline")
_STREAMS_THAT_GROW = {"gpu", "nvlink", "ib_port", "coolant", "component"}


class Up:
    """A running ``rackpulse up`` and the commands of another terminal."""

    def __init__(self, state_dir: Path, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log
        self._env = _env(state_dir)

    def command(self, *arguments: str, timeout_s: float = 180) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*_COMMAND, *arguments],
            env=self._env, capture_output=True, text=True, timeout=timeout_s, check=False,
        )  # fmt: skip

    def status(self) -> dict[str, Any]:
        answer = self.command("status", "--json")
        if answer.returncode:
            return {"services": [], "streams": [], "incidents": [], "urls": {}}
        found: dict[str, Any] = json.loads(answer.stdout)
        return found

    def sql(self, statement: str) -> str:
        answer = self.command("sql", "--format", "csv", statement)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout.strip()

    def service_pid(self, name: str) -> int:
        run = json.loads((Path(self._env["RACKPULSE_STATE_DIR"]) / "up.json").read_text())
        return next(int(entry["pid"]) for entry in run["services"] if entry["name"] == name)

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def alive(self) -> None:
        assert self.process.poll() is None, f"rackpulse up ended:\n{self.said()[-4000:]}"


def _env(state_dir: Path, **more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RACKPULSE_")}
    return {**clean, "RACKPULSE_STATE_DIR": str(state_dir), **more}


@contextmanager
def running_up(state_dir: Path, *options: str, **env: str) -> Iterator[Up]:
    """``rackpulse up`` with its output in a file; Ctrl-C at the end, and nothing left."""
    state_dir.mkdir(parents=True, exist_ok=True)
    log = state_dir / "terminal.log"
    with log.open("ab") as out:
        process = subprocess.Popen(
            [*_COMMAND, "up", *options],
            env=_env(state_dir, **env), stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip
    up = Up(state_dir, process, log)
    try:
        yield up
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        try:
            process.wait(180)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
    assert process.returncode == 0, up.said()[-4000:]
    assert "all stopped" in up.said()


def _wait(up: Up, check: Any, what: str, timeout_s: float) -> None:
    def look() -> bool:
        up.alive()
        return bool(check())

    try:
        wait_until(look, what, timeout_s=timeout_s, every_s=2.0)
    except AssertionError as exc:
        raise AssertionError(f"{exc}\n{up.said()[-4000:]}") from exc


def _airflow_run_states(up: Up, state_dir: Path, dag_id: str) -> list[str]:
    login = json.loads((state_dir / "airflow" / "login.json").read_text())
    base = up.status()["urls"]["airflow"]
    token = httpx.post(
        f"{base}/auth/token",
        json={"username": login["user"], "password": login["password"]},
        timeout=20,
    ).json()["access_token"]
    answer = httpx.get(
        f"{base}/api/v2/dags/{dag_id}/dagRuns",
        headers={"Authorization": f"Bearer {token}"},
        params={"limit": 100},
        timeout=20,
    )
    answer.raise_for_status()
    return [run["state"] for run in answer.json()["dag_runs"]]


@pytest.mark.kafka
@pytest.mark.airflow
@pytest.mark.timeout(1500)
def test_the_main_job_end_to_end(tmp_path: Path) -> None:
    state_dir = tmp_path / "state"
    options = ("--racks", str(_RACKS), "--history-hours", "1", "--faults-seed", "11")
    with running_up(state_dir, *options) as up:
        _wait(up, lambda: "everything runs" in up.said(), "everything to run", 300)
        assert "Apache Kafka" in up.said()
        before = {s["name"]: s["rows"] for s in up.status()["streams"]}

        # A writer and the store are killed while rows flow: they come back by themselves.
        os.kill(up.service_pid("writer"), signal.SIGKILL)
        os.kill(up.service_pid("store"), signal.SIGKILL)

        _wait(up, lambda: "all faults are found" in up.said(), "the faults to be found", 900)
        incidents = up.status()["incidents"]
        assert {incident["detector"] for incident in incidents} == {
            "straggler_gpu", "hot_rack", "congested_link",
        }  # fmt: skip
        assert len(incidents) == 3, incidents

        # What was injected is what was found: detector, entity and cause.
        hall = httpx.get(up.status()["urls"]["hall"], timeout=10).json()
        injected = {f["detector"]: f for f in hall["faults"]}
        for incident in incidents:
            fault = injected[incident["detector"]]
            # A cable has two ends: either names the fault rightly.
            assert incident["entity"] in {fault["entity"], *fault.get("also", ())}, incident
            assert incident["cause"] == fault["cause"], incident

        # Each was sent, signed, and printed with its cause.
        for fault in injected.values():
            cause = f"cause  {fault['cause'].replace('_', ' ')}"
            _wait(up, lambda c=cause: c in up.said(), f"the alert: {cause}", 60)

        after = {s["name"]: s["rows"] for s in up.status()["streams"]}
        for name in _STREAMS_THAT_GROW:
            assert after[name] > before[name], name
        assert int(up.sql("select count() from telemetry.gpu").splitlines()[-1]) > 0

        for dag_id in ("train_detectors", "score_fleet"):
            states = _airflow_run_states(up, state_dir, dag_id)
            assert "success" in states, (dag_id, states)
            assert "failed" not in states, (dag_id, states)

        verified = up.command("verify", "--json")
        report = json.loads(verified.stdout)
        assert verified.returncode == 0, report
        assert report["missing"] == 0
        assert report["doubled"] == 0
