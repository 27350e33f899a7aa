"""Airflow's home in the state folder: secrets, login, and the environment that configures it."""

from __future__ import annotations

import base64
import json
import os
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError
from pipeline.settings import Settings

USER = "admin"
_PATH_SETTINGS = ("store_password_file", "topology_file", "targets_file", "webhook_secret_file")
_PRELOAD = (
    "airflow.executors.local_executor",
    "airflow.sdk.execution_time.supervisor",
    "airflow.sdk.execution_time.task_runner",
    "airflow.providers.clickhousedb.hooks.clickhouse",
    "airflow.providers.standard.operators.trigger_dagrun",
    "pipeline.airflow_plugin",
    "pipeline.dag_steps",
    "pipeline.detection",
    "pipeline.incidents",
)


@dataclass(frozen=True)
class Login:
    """How a person gets in."""

    url: str
    user: str
    password: str


def dags_folder() -> Path:
    """The folder of Dags: beside the checkout's package, else inside the wheel."""
    checkout = Path(__file__).resolve().parents[2] / "dags"
    if checkout.is_dir() and (checkout.parent / "pyproject.toml").is_file():
        return checkout
    return Path(str(resources.files("pipeline") / "_data" / "dags"))


def write_private(path: Path, value: object) -> None:
    """Write JSON that only its owner can read, whole or not at all."""
    draft = path.with_name(path.name + ".tmp")
    draft.unlink(missing_ok=True)
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as out:
        json.dump(value, out)
    draft.replace(path)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; empty when the file is missing or was cut short by a crash."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


class AirflowHome:
    """The folder ``airflow/`` of the state folder.

    Args:
        state_dir: the one folder that holds state on this machine.

    Raises:
        ConfigError: the folder cannot be made or written.
    """

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir.resolve() / "airflow"
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.path.chmod(0o700)
        except OSError as exc:
            raise ConfigError(
                f"Airflow's folder {self.path} cannot be made: {exc.strerror}"
            ) from exc
        self.passwords_file = self.path / "passwords.json"
        self.login_file = self.path / "login.json"
        self.run_file = self.path / "run.json"
        self.migrated_file = self.path / "migrated.json"
        self.logs = self.path / "logs"
        self.database = self.path / "airflow.db"

    def keys(self) -> dict[str, str]:
        """Signing and encryption keys, made once, so that a login outlives a restart."""
        path = self.path / "keys.json"
        found = read_json(path)
        made = {
            "fernet": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
            "api": secrets.token_urlsafe(32),
            "jwt": secrets.token_urlsafe(48),
        }
        if set(found) != set(made) or not all(isinstance(v, str) and v for v in found.values()):
            write_private(path, made)
            return made
        return {name: str(value) for name, value in found.items()}

    def password(self) -> str:
        """The admin's password, generated once; Airflow reads it from the same file."""
        known = read_json(self.passwords_file).get(USER)
        if not isinstance(known, str) or not known:
            known = secrets.token_urlsafe(12)
            write_private(self.passwords_file, {USER: known})
        # Someone may have copied the state folder about.
        self.passwords_file.chmod(0o600)
        return known

    def login(self, port: int) -> Login:
        """Write down for a person how to get in, and return it."""
        login = Login(f"http://127.0.0.1:{port}", USER, self.password())
        write_private(self.login_file, login.__dict__)
        return login

    def environment(
        self,
        settings: Settings,
        port: int,
        connection: Mapping[str, object] | None,
        base: Mapping[str, str],
    ) -> dict[str, str]:
        """What Airflow's processes see: configuration comes from here and nowhere else.

        Args:
            port: of the UI and the API that tasks talk to.
            connection: the Airflow Connection ``clickhouse_default``, as its JSON form.
            base: the environment to add to. Airflow's own variables in it are dropped: they
                belong to another Airflow, whose database ours must not touch.
        """
        env = {name: value for name, value in base.items() if not name.startswith("AIRFLOW_")}
        keys = self.keys()
        url = f"http://127.0.0.1:{port}"
        options = {
            "CORE__DAGS_FOLDER": str(dags_folder()),
            "CORE__LOAD_EXAMPLES": "False",
            "CORE__EXECUTOR": "LocalExecutor",
            "CORE__PARALLELISM": "4",
            "CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "CORE__LAZY_LOAD_PLUGINS": "True",
            "CORE__FERNET_KEY": keys["fernet"],
            "CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin",
            "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self.passwords_file),
            "CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
            "API__HOST": "127.0.0.1",
            "API__PORT": str(port),
            "API__BASE_URL": url,
            "API__WORKERS": "1",
            "API__SECRET_KEY": keys["api"],
            "API__INSTANCE_NAME": "rackpulse",
            "API__ENABLE_SWAGGER_UI": "False",
            "API_AUTH__JWT_SECRET": keys["jwt"],
            "DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self.database}",
            "DAG_PROCESSOR__PARSING_PROCESSES": "1",
            "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "60",
            # A task whose process was killed is noticed within a minute, not within five.
            "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "60",
            # Workers are forked from a process that has loaded what tasks need: a task that
            # loads the detectors by itself spends seconds on that, every minute.
            "SCHEDULER__MP_START_METHOD": "forkserver",
            "SCHEDULER__MP_FORKSERVER_PRELOAD": ",".join(_PRELOAD),
            "LOGGING__BASE_LOG_FOLDER": str(self.logs),
            "LOGGING__COLORED_CONSOLE_LOG": "False",
            "USAGE_DATA_COLLECTION__ENABLED": "False",
        }
        env |= {f"AIRFLOW__{name}": value for name, value in options.items()}
        env["AIRFLOW_HOME"] = str(self.path)
        if connection is not None:
            env["AIRFLOW_CONN_CLICKHOUSE_DEFAULT"] = json.dumps(connection)
        # Tasks run in other folders than this process.
        env["RACKPULSE_STATE_DIR"] = str(settings.state_dir.resolve())
        for name in _PATH_SETTINGS:
            path = getattr(settings, name)
            if path is not None:
                env[f"RACKPULSE_{name.upper()}"] = str(path.resolve())
        env["PATH"] = os.pathsep.join(
            [str(Path(sys.executable).parent), env.get("PATH", os.defpath)]
        )
        # Three detectors are scored at once; threads of their own would only be in the way.
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            env.setdefault(name, "1")
        # Tasks talk to the API on this machine; a proxy would not find it.
        for name in ("NO_PROXY", "no_proxy"):
            env[name] = ",".join(filter(None, [env.get(name, ""), "127.0.0.1,localhost"]))
        return env
