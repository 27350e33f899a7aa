"""What is to be read: the target file, in our own form or as Prometheus' ``file_sd`` JSON.

Our own form::

    {"targets": [{"name": "dcgm/rack-01-tray-01", "kind": "dcgm", "url": "http://…/metrics",
                  "interval_s": 10, "timeout_s": 5, "host": "rack-01-tray-01"}],
     "dns":     [{"name": "dcgm-exporter.monitoring", "port": 9400, "kind": "dcgm"}]}

Prometheus' form needs the kind in a label: ``[{"targets": ["h1:9400"], "labels": {"kind":
"dcgm"}}]``; ``__scheme__``, ``__metrics_path__`` and ``host`` are understood, others are not
needed.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from pipeline.collectors.registry import KINDS, OF_HOST
from pipeline.errors import ConfigError

MAX_TARGETS = 20_000
_DURATION = re.compile(r"[0-9]{1,9}(\.[0-9]{0,9})?")


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _known_kind(kind: str) -> str:
    if kind not in KINDS:
        raise ValueError(f'there is no reader "{kind}"; there are: {", ".join(sorted(KINDS))}')
    return kind


class Target(_Model):
    """One thing that is read again and again.

    Attributes:
        name: stands on every row; never an address with a password.
        kind: name of the reader.
        url: address of the page, or of the management controller.
        path: file or folder instead, on the collector's own host.
        interval_s: time between two reads, in seconds.
        timeout_s: longest time for one read as a whole, in seconds.
        host: host that the target speaks for.
        manager_id: id of the management controller, where the operator gives one.
        cluster: cluster of the rows; by default the collector's own.
        credentials_file: JSON with ``user`` and ``password``, for a management controller.
        ca_file: certificates that vouch for the target, in PEM.
    """

    name: str = Field(min_length=1, max_length=300)
    kind: str = Field(min_length=1)
    url: str | None = None
    path: Path | None = None
    interval_s: float = Field(default=10.0, ge=0.05, le=86_400)
    timeout_s: float = Field(default=5.0, gt=0, le=3_600)
    host: str | None = None
    manager_id: str | None = None
    cluster: str | None = None
    credentials_file: Path | None = None
    ca_file: Path | None = None

    _kind = field_validator("kind")(_known_kind)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.url is None) == (self.path is None) and not (
            self.url is None and self.kind in OF_HOST
        ):
            raise ValueError("give either url or path")
        if self.url is not None:
            try:
                parts = urlsplit(self.url)
                _ = parts.port  # raises for what is no port
            except ValueError as exc:
                raise ValueError(f"url: {exc}") from exc
            if parts.scheme not in ("http", "https", "mqtt", "mqtts") or not parts.hostname:
                raise ValueError("url must begin with http://, https://, mqtt:// or mqtts://")
            if parts.username or parts.password:
                raise ValueError("take user and password out of the url: use credentials_file")
        return self


class DnsName(_Model):
    """A name whose addresses are all targets, such as a headless Kubernetes service."""

    name: str = Field(min_length=1)
    port: int = Field(ge=1, le=65_535)
    kind: str
    scheme: str = Field(default="http", pattern="^https?$")
    path: str = "/metrics"
    interval_s: float = Field(default=10.0, ge=0.05, le=86_400)
    timeout_s: float = Field(default=5.0, gt=0, le=3_600)
    cluster: str | None = None

    _kind = field_validator("kind")(_known_kind)


class TargetFile(_Model):
    """The whole file."""

    targets: tuple[Target, ...] = ()
    dns: tuple[DnsName, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        seen: set[str] = set()
        for target in self.targets:
            if target.name in seen:
                raise ValueError(f"the target {target.name} stands there twice")
            seen.add(target.name)
        if len(self.targets) > MAX_TARGETS:
            raise ValueError(f"at most {MAX_TARGETS} targets per collector: start another one")
        return self


def load_targets(path: Path) -> TargetFile:
    """Read a target file of either form.

    Raises:
        ConfigError: it is missing or wrong; the text says where and what.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError as exc:
        raise ConfigError(f"Target file {path} is missing") from exc
    except (OSError, ValueError, RecursionError) as exc:
        raise ConfigError(f"Target file {path} cannot be read: {exc}") from exc
    if isinstance(raw, list):
        # Prometheus reads an address that stands in two groups once.
        raw = {"targets": list({str(each): each for each in _from_file_sd(raw, path)}.values())}
    try:
        return TargetFile.model_validate(raw)
    except ValidationError as exc:
        first = exc.errors(include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"Target file {path}: {where}: {first['msg']}") from exc


def _from_file_sd(groups: list[Any], path: Path) -> Iterator[dict[str, object]]:
    for number, group in enumerate(groups):
        labels = group.get("labels") or {} if isinstance(group, dict) else None
        addresses = group.get("targets") if isinstance(group, dict) else None
        if not isinstance(labels, dict) or not isinstance(addresses, list):
            raise ConfigError(f"Target file {path}: group {number} has no list of targets")
        kind = labels.get("kind") or labels.get("__rackpulse_kind__") or labels.get("job")
        if not kind:
            raise ConfigError(f'Target file {path}: group {number} needs a label "kind"')
        for address in addresses:
            scheme = labels.get("__scheme__", "http")
            where = labels.get("__metrics_path__", "/metrics")
            try:
                host = labels.get("host") or urlsplit(f"//{address}").hostname
            except ValueError as exc:
                raise ConfigError(f"Target file {path}: {address!r}: {exc}") from exc
            yield {
                "name": f"{kind}/{address}",
                "kind": kind,
                "url": f"{scheme}://{address}{where}",
                "host": host,
                **_durations(labels),
            }


def _durations(labels: dict[str, str]) -> dict[str, float]:
    units = {"ms": 0.001, "s": 1.0, "m": 60.0}
    found = {}
    for label, field in (
        ("__scrape_interval__", "interval_s"),
        ("__scrape_timeout__", "timeout_s"),
    ):
        text = str(labels.get(label, ""))
        for unit, factor in units.items():
            number = text.removesuffix(unit)
            if number != text and _DURATION.fullmatch(number):
                found[field] = float(number) * factor
                break
    return found


def resolve(name: DnsName) -> list[Target]:
    """The targets behind a name; blocking.

    Raises:
        OSError: the name cannot be resolved now.
    """
    found = socket.getaddrinfo(name.name, name.port, type=socket.SOCK_STREAM)
    targets = []
    for address in sorted({str(entry[4][0]) for entry in found}):
        shown = f"[{address}]" if ":" in address else address
        targets.append(
            Target(
                name=f"{name.kind}/{shown}:{name.port}",
                kind=name.kind,
                url=f"{name.scheme}://{shown}:{name.port}{name.path}",
                interval_s=name.interval_s,
                timeout_s=name.timeout_s,
                cluster=name.cluster,
            )
        )
    return targets


def read_credentials(path: Path) -> tuple[str, str]:
    """User and password of a credentials file.

    Raises:
        ConfigError: it is missing, wrong, or others may read it; the password is not shown.
    """
    try:
        if path.stat().st_mode & 0o077:
            raise ConfigError(f"Others may read {path}: run  chmod 600 {path}")
        raw = json.loads(path.read_text(encoding="utf-8"))
        return str(raw["user"]), str(raw["password"])
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(
            f'{path} must be a JSON file with "user" and "password" that can be read'
        ) from None
