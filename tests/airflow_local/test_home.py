from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from pipeline.airflow_local.connection import clickhouse_connection
from pipeline.airflow_local.home import AirflowHome, dags_folder
from pipeline.errors import ConfigError
from pipeline.settings import Settings


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def environment(home: AirflowHome, settings: Settings, **base: str) -> dict[str, str]:
    return home.environment(settings, 28081, {"conn_type": "clickhouse"}, base)


def test_secrets_are_private_and_outlive_a_restart(tmp_path: Path) -> None:
    home = AirflowHome(tmp_path)
    password, keys = home.password(), home.keys()
    again = AirflowHome(tmp_path)
    assert (again.password(), again.keys()) == (password, keys)
    assert len(password) >= 16
    assert mode(home.path) == 0o700
    home.login(28081)
    for name in ("passwords.json", "login.json", "keys.json"):
        assert mode(home.path / name) == 0o600, name
    assert json.loads((home.path / "passwords.json").read_text()) == {"admin": password}
    assert json.loads(home.login_file.read_text()) == {
        "url": "http://127.0.0.1:28081", "user": "admin", "password": password,
    }  # fmt: skip


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"admin": ""}', '{"admin": 1}'])
def test_a_damaged_file_is_made_anew(tmp_path: Path, damage: str) -> None:
    home = AirflowHome(tmp_path)
    home.passwords_file.write_text(damage)
    (home.path / "keys.json").write_text(damage)
    assert home.password()
    assert set(home.keys()) == {"fernet", "api", "jwt"}


def test_a_copied_password_file_becomes_private_again(tmp_path: Path) -> None:
    home = AirflowHome(tmp_path)
    home.password()
    home.passwords_file.chmod(0o644)
    home.password()
    assert mode(home.passwords_file) == 0o600


def test_airflow_sees_our_configuration_and_nobody_elses(tmp_path: Path) -> None:
    env = environment(
        AirflowHome(tmp_path),
        Settings(state_dir=tmp_path),
        AIRFLOW__DATABASE__SQL_ALCHEMY_CONN="postgresql://production",
        AIRFLOW_HOME="/elsewhere",
        AIRFLOW_CONN_CLICKHOUSE_DEFAULT="production",
        LANG="C.UTF-8",
    )
    assert "production" not in json.dumps(env)
    assert env["LANG"] == "C.UTF-8"
    assert env["AIRFLOW_HOME"] == str(tmp_path / "airflow")
    assert env["AIRFLOW__API__PORT"] == "28081"
    assert env["AIRFLOW__API__HOST"] == "127.0.0.1"
    # Both are needed, or every task fails with "connection refused".
    assert env["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"] == "http://127.0.0.1:28081/execution/"
    assert env["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] == f"sqlite:///{tmp_path}/airflow/airflow.db"
    assert env["AIRFLOW__CORE__DAGS_FOLDER"] == str(dags_folder())
    assert json.loads(env["AIRFLOW_CONN_CLICKHOUSE_DEFAULT"]) == {"conn_type": "clickhouse"}


def test_paths_reach_tasks_as_absolute_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Settings(state_dir=Path("state"), store_password_file=Path("secret"))
    env = environment(AirflowHome(settings.state_dir), settings)
    assert env["RACKPULSE_STATE_DIR"] == str(tmp_path / "state")
    assert env["RACKPULSE_STORE_PASSWORD_FILE"] == str(tmp_path / "secret")


def test_a_proxy_is_not_asked_for_this_machine(tmp_path: Path) -> None:
    env = environment(AirflowHome(tmp_path), Settings(), NO_PROXY="intranet")
    assert env["NO_PROXY"] == "intranet,127.0.0.1,localhost"
    assert env["no_proxy"] == "127.0.0.1,localhost"


def test_the_dags_are_those_of_the_project() -> None:
    assert {"score_fleet.py", "train_detectors.py"} <= {p.name for p in dags_folder().iterdir()}


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be made"):
        AirflowHome(tmp_path / "file")


def test_no_store_yet_is_no_connection(tmp_path: Path) -> None:
    assert clickhouse_connection(Settings(state_dir=tmp_path)) is None


def test_the_embedded_store_is_a_connection(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    (store / "endpoint.json").write_text('{"host": "127.0.0.1", "port": 18123, "pid": 1}')
    users = {"owner": {"user": "o", "password": "p"}, "analyst": {"user": "a", "password": "b"}}
    (store / "users.json").write_text(json.dumps(users))
    found = clickhouse_connection(Settings(state_dir=tmp_path))
    assert found is not None
    assert found["conn_type"] == "clickhouse"
    assert (found["host"], found["port"], found["schema"]) == ("127.0.0.1", 18123, "telemetry")
    assert (found["login"], found["password"]) == ("o", "p")
    assert found["extra"]["secure"] is False
    assert found["extra"]["client_kwargs"] == {"autogenerate_session_id": False}


@pytest.mark.parametrize(
    ("dsn", "expected"),
    [
        (
            "clickhouse://kim@ch.example.org/other",
            {"host": "ch.example.org", "port": 8123, "login": "kim", "password": "",
             "schema": "other", "secure": False},
        ),
        (
            "clickhouses://kim:p%40ss@ch.example.org:9443/",
            {"host": "ch.example.org", "port": 9443, "login": "kim", "password": "p@ss",
             "schema": "telemetry", "secure": True},
        ),
        (
            "clickhouse://ch.example.org?secure=true",
            {"host": "ch.example.org", "port": 8443, "login": "default", "password": "",
             "schema": "telemetry", "secure": True},
        ),
    ],
)  # fmt: skip
def test_a_server_is_a_connection(dsn: str, expected: dict[str, Any]) -> None:
    found = clickhouse_connection(Settings(store_dsn=SecretStr(dsn)))
    assert found is not None
    secure = expected.pop("secure")
    assert found["extra"]["secure"] is secure
    assert {name: found[name] for name in expected} == expected


def test_the_password_comes_from_its_file(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("geheim\n")
    settings = Settings(store_dsn=SecretStr("clickhouse://kim@h/"), store_password_file=secret)
    found = clickhouse_connection(settings)
    assert found is not None
    assert found["password"] == "geheim"
    missing = settings.model_copy(update={"store_password_file": tmp_path / "none"})
    with pytest.raises(ConfigError, match="RACKPULSE_STORE_PASSWORD_FILE"):
        clickhouse_connection(missing)


@pytest.mark.parametrize("dsn", ["nonsense", "clickhouse://h:notaport/"])
def test_a_wrong_dsn_is_said(dsn: str) -> None:
    with pytest.raises(ConfigError, match="RACKPULSE_STORE_DSN"):
        clickhouse_connection(Settings(store_dsn=SecretStr(dsn)))
