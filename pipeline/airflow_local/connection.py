"""The store's address as an Airflow Connection."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from pipeline.airflow_local.home import read_json
from pipeline.errors import ConfigError
from pipeline.settings import Settings

_DATABASE = "telemetry"


def clickhouse_connection(settings: Settings) -> dict[str, Any] | None:
    """The Connection ``clickhouse_default`` in its JSON form.

    Returns:
        None when no server is configured and the embedded store has never run.

    Raises:
        ConfigError: the DSN or the password file cannot be used.
    """
    if settings.store_dsn is not None:
        return _of_dsn(settings.store_dsn.get_secret_value(), settings.store_password_file)
    folder = settings.state_dir / "store"
    endpoint = read_json(folder / "endpoint.json")
    owner = read_json(folder / "users.json").get("owner")
    if not endpoint or not isinstance(owner, dict):
        return None
    return _connection(
        host=str(endpoint["host"]),
        port=int(endpoint["port"]),
        user=str(owner["user"]),
        password=str(owner["password"]),
    )


def _of_dsn(dsn: str, password_file: Path | None) -> dict[str, Any]:
    parts = urlsplit(dsn)
    try:
        port = parts.port
    except ValueError as exc:
        raise ConfigError("RACKPULSE_STORE_DSN: the port is not a number") from exc
    if not parts.hostname:
        raise ConfigError("RACKPULSE_STORE_DSN: give it as clickhouse://user@host:8123/telemetry")
    options = dict(parse_qsl(parts.query))
    secure = parts.scheme in ("clickhouses", "https") or options.get("secure") in ("true", "1")
    password = unquote(parts.password or "")
    if password_file is not None:
        try:
            password = password_file.read_text(encoding="utf-8").strip()
        except OSError as exc:
            raise ConfigError(
                f"RACKPULSE_STORE_PASSWORD_FILE: {password_file}: {exc.strerror}"
            ) from exc
    return _connection(
        host=parts.hostname,
        port=port or (8443 if secure else 8123),
        user=unquote(parts.username or "default"),
        password=password,
        database=parts.path.strip("/") or _DATABASE,
        secure=secure,
    )


def _connection(
    *,
    host: str,
    port: int,
    user: str,
    password: str,
    database: str = _DATABASE,
    secure: bool = False,
) -> dict[str, Any]:
    return {
        "conn_type": "clickhouse",
        "description": "rackpulse's store",
        "host": host,
        "port": port,
        "login": user,
        "password": password,
        "schema": database,
        "extra": {
            "secure": secure,
            "client_name": "rackpulse",
            # Several threads of a task may share a client; a session would let in one only.
            "client_kwargs": {"autogenerate_session_id": False},
        },
    }
