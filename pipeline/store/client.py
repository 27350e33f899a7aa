"""The ClickHouse client: clickhouse-connect by DSN, or on the embedded store."""

from __future__ import annotations

import logging
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import clickhouse_connect
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError, OperationalError
from urllib3.exceptions import HTTPError

from pipeline.errors import ConfigError, RackpulseError
from pipeline.settings import Settings
from pipeline.store.local import Role, read_endpoint, read_users, store_folder
from pipeline.streams.ddl import DATABASE

# Its warnings reach the log of a service; a command says what is wrong itself.
logging.getLogger("clickhouse_connect").addHandler(logging.NullHandler())

_UNKNOWN_DATABASE = 81
_AUTHENTICATION_FAILED = (192, 193, 516)


def connect(settings: Settings, *, role: Role = "owner", **kwargs: Any) -> Client:
    """A client with the database ``telemetry``.

    Sessions are off, so that one client may be used by several threads at once.

    Args:
        settings: ``store_dsn`` names a server; without it the embedded store of
            ``state_dir`` is used, which must be running.
        role: which user of the embedded store. A DSN names its own user.
        kwargs: passed to :func:`clickhouse_connect.get_client`.

    Raises:
        RackpulseError: nothing answers, or it does not let us in; the text says what to do.
    """
    options: dict[str, Any] = {
        "database": DATABASE,
        "autogenerate_session_id": False,
        "client_name": "rackpulse",
        **kwargs,
    }
    if settings.store_dsn is not None:
        where = _dsn_options(settings, options)
    else:
        where = _local_options(settings, role, options)
    try:
        return _client(options, settings)
    except ClickHouseError as exc:
        if getattr(exc, "code", None) in _AUTHENTICATION_FAILED:
            raise RackpulseError(
                f"{where} refused the user or the password: check RACKPULSE_STORE_DSN and"
                " RACKPULSE_STORE_PASSWORD_FILE, or users.json of the embedded store"
            ) from exc
        raise RackpulseError(f"{where} does not answer as ClickHouse does: {_short(exc)}") from exc
    except (OSError, HTTPError) as exc:
        raise RackpulseError(f"{where} does not answer: {_short(exc)}") from exc


def _client(options: dict[str, Any], settings: Settings) -> Client:
    try:
        return clickhouse_connect.get_client(**options)
    except ClickHouseError as exc:
        if getattr(exc, "code", None) != _UNKNOWN_DATABASE:
            raise
    # A new server: make the database from outside it, once.
    with clickhouse_connect.get_client(**{**options, "database": "default"}) as first:
        on_cluster = f" ON CLUSTER '{settings.cluster_name}'" if settings.cluster_name else ""
        first.command(f"CREATE DATABASE IF NOT EXISTS {DATABASE}{on_cluster}")
    return clickhouse_connect.get_client(**options)


def _dsn_options(settings: Settings, options: dict[str, Any]) -> str:
    assert settings.store_dsn is not None
    options["dsn"] = settings.store_dsn.get_secret_value()
    if not _is_address(options["dsn"]):
        # Without its text, which may hold a password.
        raise ConfigError(
            "RACKPULSE_STORE_DSN is no address such as clickhouse://user@host:8123/telemetry"
        )
    # The client would speak plain HTTP with  https://  and fail at  ?secure=true.
    parts = urlsplit(options["dsn"])
    query = dict(parse_qsl(parts.query))
    if query.pop("secure", "") in ("true", "1") or parts.scheme in ("https", "clickhouses"):
        options["secure"] = True
    options["dsn"] = parts._replace(query=urlencode(query)).geturl()
    if settings.store_password_file is not None:
        try:
            options["password"] = settings.store_password_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as exc:
            raise ConfigError(f"RACKPULSE_STORE_PASSWORD_FILE cannot be read: {exc}") from exc
    return "The ClickHouse server of RACKPULSE_STORE_DSN"


def _is_address(dsn: str) -> bool:
    try:
        parts = urlsplit(dsn)
        _ = parts.port
    except ValueError:
        return False
    return bool(parts.scheme and parts.hostname)


def _local_options(settings: Settings, role: Role, options: dict[str, Any]) -> str:
    folder = store_folder(settings.state_dir)
    users = read_users(settings.state_dir)
    endpoint = read_endpoint(settings.state_dir)
    if endpoint is None:
        raise RackpulseError(
            f"The embedded store of {folder} is not running:"
            " start it with `rackpulse store serve` or `rackpulse up`"
        )
    login = getattr(users, role)
    # On one machine compression only costs.
    options.setdefault("compress", False)
    options.update(
        host=endpoint.host, port=endpoint.port, username=login.user, password=login.password
    )
    return (
        f"The embedded store of {folder} ({endpoint.host}:{endpoint.port});"
        " start it with `rackpulse store serve` or `rackpulse up`. It"
    )


def _short(exc: BaseException) -> str:
    # The first cause: what is wrapped around it names an id of its own for every question.
    while isinstance(exc, (OSError, HTTPError, OperationalError)) and exc.__cause__ is not None:
        exc = exc.__cause__
    return str(exc).splitlines()[0][:300] if str(exc) else type(exc).__name__
