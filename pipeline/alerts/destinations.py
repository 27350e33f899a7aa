"""Where alerts go: one webhook by option or setting, or several from a TOML file."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator

from pipeline.alerts.model import Alert, Severity
from pipeline.alerts.signing import load_secrets
from pipeline.errors import ConfigError

Kind = Literal["webhook", "alertmanager", "pagerduty", "slack"]
PAGERDUTY_URL = "https://events.pagerduty.com/v2/enqueue"
_RANK: dict[Severity, int] = {"info": 0, "warning": 1, "critical": 2}


class Destination(BaseModel):
    """One receiver of alerts.

    Attributes:
        name: stands in ``telemetry.alert_delivery``; state is kept by name, not by URL.
        kind: which form the receiver takes.
        url: address; a secret one (Slack's) belongs in ``url_file``.
        secret_file: signing secrets of a ``webhook``; by default those of the settings.
        routing_key_file: PagerDuty's key.
        min_severity: what is less grave is not sent.
        drills: whether fire drills are sent; they are marked.
        allow_private: whether addresses of private networks and of this machine may be
            called. Link-local ones (a cloud's metadata service) never may.
        timeout_s: for a whole attempt.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,39}$")
    kind: Kind = "webhook"
    url: SecretStr = SecretStr("")
    url_file: Path | None = None
    secret_file: Path | None = None
    routing_key_file: Path | None = None
    min_severity: Severity = "info"
    drills: bool = True
    allow_private: bool = True
    timeout_s: float = Field(default=15.0, gt=0, le=30)

    @model_validator(mode="after")
    def _check(self) -> Self:
        address = self.url.get_secret_value()
        if self.url_file is None and not address and self.kind != "pagerduty":
            raise ValueError("give url or url_file")
        if address:
            check_url(address)
        if self.kind == "pagerduty" and self.routing_key_file is None:
            raise ValueError("give routing_key_file")
        return self

    def address(self) -> str:
        """The URL, from its file where it is secret.

        Raises:
            ConfigError: the file cannot be read or holds no URL.
        """
        if self.url_file is not None:
            found = read_secret(self.url_file)
            try:
                check_url(found)
            except ValueError as exc:
                raise ConfigError(f"{self.url_file}: {exc}") from exc
            return found
        return self.url.get_secret_value() or PAGERDUTY_URL

    def shown(self) -> str:
        """The address for logs: scheme and host only, since a path may be a secret."""
        parts = urlsplit(self.address())
        port = f":{parts.port}" if parts.port else ""
        return f"{parts.scheme}://{parts.hostname}{port}"

    def wants(self, alert: Alert, told_before: bool) -> bool:
        """Whether this alert is for this destination.

        Args:
            told_before: something about the same incident was delivered there; then the end
                is sent too, however grave the incident is by now.
        """
        if alert.drill and not self.drills:
            return False
        if alert.transition == "resolved" and told_before:
            return True
        return _RANK.get(alert.severity, 2) >= _RANK[self.min_severity]


def check_url(url: str) -> None:
    """Refuse what is no HTTP address.

    Raises:
        ValueError: the text says what is wrong, and never holds the address.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("the url must be like https://host/path")
    if parts.username or parts.password:
        raise ValueError("the url must not hold a password: use a path or the signature")
    _ = parts.port


def read_secret(path: Path) -> str:
    """The one line of a secret file.

    Raises:
        ConfigError: it cannot be read or is empty.
    """
    try:
        found = path.read_text(encoding="utf-8").strip()
    except OSError as exc:
        raise ConfigError(f"{path} cannot be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{path} is no text") from exc
    if not found:
        raise ConfigError(f"{path} is empty")
    return found


def load_destinations(path: Path) -> list[Destination]:
    """Read ``[[destination]]`` tables; paths in it are relative to it.

    Raises:
        ConfigError: the file is missing or wrong; the text names destination and field.
    """
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise ConfigError(f"{path} cannot be read: {exc.strerror}") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path} is not TOML: {exc}") from exc
    tables = raw.get("destination")
    if not isinstance(tables, list) or not tables:
        raise ConfigError(f"{path}: name at least one [[destination]]")
    found = []
    for table in tables:
        name = table.get("name", "?") if isinstance(table, dict) else "?"
        try:
            destination = Destination.model_validate(table)
        except ValidationError as exc:
            first = exc.errors(include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "destination"
            raise ConfigError(f"{path}: {name}: {where}: {first['msg']}") from exc
        found.append(_absolute(destination, path.parent))
    names = [destination.name for destination in found]
    if len(set(names)) != len(names):
        raise ConfigError(f"{path}: two destinations have the same name")
    return found


def _absolute(destination: Destination, folder: Path) -> Destination:
    changes = {
        name: folder / value
        for name in ("url_file", "secret_file", "routing_key_file")
        if (value := getattr(destination, name)) is not None
    }
    return destination.model_copy(update=changes)


def signing_keys(destination: Destination, default_file: Path) -> list[str]:
    """The secrets that sign what goes to a ``webhook``; none for other kinds."""
    if destination.kind != "webhook":
        return []
    if destination.secret_file is not None:
        return load_secrets(destination.secret_file)
    return load_secrets(default_file, create=True)
