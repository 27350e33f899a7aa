"""A real Airflow on a tmp folder: both Dags run green, the page is behind the login, all ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from pipeline.airflow_local import sessions
from pipeline.airflow_local.home import AirflowHome, read_json
from pipeline.streams import Contracts
from tests.airflow_local.history import store_history
from tests.support.store import RunningStore
from tests.support.wait import wait_until

# The main job in tests/e2e runs both Dags as well; this one looks closer and takes minutes.
pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.timeout(1500)]
pytest.importorskip("airflow", reason="needs the extra airflow")


class Serving:
    """``rackpulse airflow serve`` as a process, and its REST API."""

    def __init__(self, state_dir: Path, port: int, log: Path) -> None:
        self.state_dir = state_dir
        self.home = AirflowHome(state_dir)
        self.url = f"http://127.0.0.1:{port}"
        self.log = log
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pipeline", "airflow", "serve", "--port", str(port)],
                env={**os.environ, "RACKPULSE_STATE_DIR": str(state_dir)},
                stdout=out, stderr=out, stdin=subprocess.DEVNULL,
            )  # fmt: skip

    def wait_ready(self) -> None:
        def ready() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            return self.log.read_text().count("Airflow is ready") > 0

        wait_until(ready, "Airflow to be ready", timeout_s=280, every_s=0.5)
        login = read_json(self.home.login_file)
        answer = httpx.post(
            f"{self.url}/auth/token",
            json={"username": login["user"], "password": login["password"]}, trust_env=False,
        )  # fmt: skip
        self.token = str(answer.json()["access_token"])

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.token}", **options.pop("headers", {})}
        return httpx.request(
            method, f"{self.url}{path}", headers=headers, timeout=30, trust_env=False, **options
        )

    def get(self, path: str) -> Any:
        answer = self.request("GET", path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def runs(self, dag: str, state: str) -> list[str]:
        found = self.get(f"/api/v2/dags/{dag}/dagRuns?state={state}&limit=100")
        return [run["dag_run_id"] for run in found["dag_runs"]]

    def tasks(self, dag: str, run: str) -> dict[str, list[str]]:
        found = self.get(f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances?limit=100")
        states: dict[str, list[str]] = {}
        for task in found["task_instances"]:
            states.setdefault(task["task_id"], []).append(task["state"])
        return states

    def sessions(self) -> list[sessions.Session]:
        return [sessions.Session(**item) for item in read_json(self.home.run_file)["sessions"]]


@contextmanager
def serving(state_dir: Path, port: int, log: Path) -> Iterator[Serving]:
    found = Serving(state_dir, port, log)
    try:
        yield found
    finally:
        if found.process.poll() is None:
            found.process.terminate()
            found.process.wait(90)


def scored(airflow: Serving) -> str | None:
    """A run that scored all detectors; fails at the first red one."""
    red = airflow.runs("score_fleet", "failed") + airflow.runs("train_detectors", "failed")
    assert red == [], _logs(airflow, red[0])
    for run in airflow.runs("score_fleet", "success"):
        if set(airflow.tasks("score_fleet", run)["score"]) == {"success"}:
            return run
    return None


def _logs(airflow: Serving, run: str) -> str:
    found = sorted(airflow.home.logs.glob(f"*/run_id={run}/**/*.log"))
    return "\n".join(path.read_text()[-3000:] for path in found)


def test_trains_scores_and_ends(tmp_path: Path, contracts: Contracts, free_port: int) -> None:
    store = RunningStore(tmp_path)
    log = tmp_path / "serve.log"
    with store:
        store.migrate()
        with store.client() as client:
            store_history(client, tmp_path / "set", contracts, datetime.now(UTC))
        with serving(store.settings.state_dir, free_port, log) as airflow:
            airflow.wait_ready()
            run = wait_until(lambda: scored(airflow), "a scored window", timeout_s=800, every_s=2)
            _check_dags(airflow, run)
            _check_store(store)
            _check_page(airflow)
            _check_addresses(airflow)
            ours = airflow.sessions()
            assert len(sessions.members(ours)) > 5
            # Killed outright, it takes its components with it, and the next start recovers.
            airflow.process.kill()
            airflow.process.wait(10)
            wait_until(lambda: not sessions.members(ours), "everything to end", timeout_s=60)
        log.write_text("")
        with serving(store.settings.state_dir, free_port, log) as airflow:
            airflow.wait_ready()
            known = set(airflow.runs("score_fleet", "success"))
            wait_until(
                lambda: set(airflow.runs("score_fleet", "success")) - known,
                "a window scored after the restart", timeout_s=300, every_s=2,
            )  # fmt: skip
            ours = airflow.sessions()
            airflow.process.send_signal(signal.SIGTERM)
            assert airflow.process.wait(90) == 0
            assert sessions.members(ours) == []
        _check_secrets(airflow, store, log)


def _check_dags(airflow: Serving, run: str) -> None:
    found = {dag["dag_id"]: dag for dag in airflow.get("/api/v2/dags")["dags"]}
    assert {"score_fleet", "train_detectors"} <= set(found)
    assert not any(dag["has_import_errors"] for dag in found.values())
    # Drills go to on-call: someone has to want them.
    assert [name for name, dag in found.items() if dag["is_paused"]] == ["fire_drill"]
    states = airflow.tasks("score_fleet", run)
    assert states["gate"] == ["success"]
    assert states["score"] == ["success"] * 3
    assert states["incidents"] == ["success"]
    (training,) = airflow.runs("train_detectors", "success")
    assert training.startswith("first__")
    assert airflow.tasks("train_detectors", training)["train"] == ["success"] * 3


def _check_store(store: RunningStore) -> None:
    with store.client() as client:
        live = client.query(
            "SELECT detector FROM telemetry.detector_model WHERE state = 'live' ORDER BY detector"
        ).result_rows
        assert [row[0] for row in live] == ["congested_link", "hot_rack", "straggler_gpu"]
        verdicts = client.query(
            "SELECT min(verdicts) FROM telemetry.score_run GROUP BY window_end"
            " HAVING uniqExact(detector) = 3 LIMIT 1"
        ).result_rows
        assert verdicts[0][0] > 0
        opened = client.query("SELECT count() FROM telemetry.incident_transition").result_rows
        assert opened == [(0,)]


def _check_page(airflow: Serving) -> None:
    bare = httpx.get(f"{airflow.url}/rackpulse/api/fleet", trust_env=False)
    assert bare.status_code == 401
    page = httpx.get(
        f"{airflow.url}/rackpulse/fleet?incident=x", headers={"accept": "text/html"},
        trust_env=False, follow_redirects=False,
    )  # fmt: skip
    assert page.status_code == 302
    assert page.headers["location"] == "/auth/login/?next=/rackpulse/fleet%3Fincident%3Dx"
    html = airflow.request("GET", "/rackpulse/fleet")
    assert "Open incidents" in html.text
    assert "frame-ancestors 'self'" in html.headers["content-security-policy"]
    state = airflow.get("/rackpulse/api/fleet")
    assert len(state["racks"]) == 4
    assert {item["state"] for item in state["detectors"]} == {"live"}
    assert state["can_change"] is True
    assert airflow.request("GET", "/rackpulse/api/incidents/none").status_code == 404

    wish = {"scope": "rack", "entity": "rack-03", "minutes": 30, "reason": "hose change"}
    token = {"x-rackpulse-csrf": state["csrf"]}

    def silence(headers: dict[str, str], body: Any = wish) -> httpx.Response:
        return airflow.request("POST", "/rackpulse/api/silences", json=body, headers=headers)

    assert silence({}).status_code == 403
    assert silence({"x-rackpulse-csrf": "0" * 64}).status_code == 403
    assert silence({**token, "origin": "http://evil.example.org"}).status_code == 403
    assert silence({**token, "sec-fetch-site": "cross-site"}).status_code == 403
    assert silence(token, {**wish, "minutes": 0}).status_code == 422
    assert silence(token, {**wish, "scope": "nonsense"}).status_code == 400
    assert silence(token, {**wish, "entity": ""}).status_code == 400
    assert airflow.get("/rackpulse/api/fleet")["silences"] == []
    made = silence({**token, "origin": airflow.url, "sec-fetch-site": "same-origin"})
    assert made.status_code == 201, made.text
    (found,) = airflow.get("/rackpulse/api/fleet")["silences"]
    assert (found["entity"], found["by"], found["active"]) == ("rack-03", "admin", True)
    path = f"/rackpulse/api/silences/{found['id']}"
    assert airflow.request("DELETE", path).status_code == 403
    assert airflow.request("DELETE", path, headers=token).status_code == 200
    assert airflow.get("/rackpulse/api/fleet")["silences"] == []
    assert airflow.request("DELETE", "/rackpulse/api/silences/none", headers=token).status_code == (
        400
    )


def _check_addresses(airflow: Serving) -> None:
    """Every socket that the components listen on is one of this machine alone."""
    ours = set(sessions.members(airflow.sessions()))
    inodes = set()
    for pid in ours:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            target = os.readlink(link) if link.is_symlink() else ""
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    listening = []
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                listening.append(fields[1].split(":")[0])
    assert listening
    assert set(listening) <= {"0100007F", "00000000000000000000000001000000"}


def _check_secrets(airflow: Serving, store: RunningStore, log: Path) -> None:
    keys = json.loads((airflow.home.path / "keys.json").read_text())
    secrets = [airflow.home.password(), store.users.owner.password, *keys.values()]
    files = [log, *airflow.home.logs.rglob("*.log"), *(airflow.home.path / "services").iterdir()]
    assert len(files) > 10
    for path in files:
        text = path.read_text(errors="replace")
        for secret in secrets:
            assert secret not in text, path
