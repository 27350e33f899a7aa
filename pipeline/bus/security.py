"""How clients log in to Kafka: a file beside the settings, because it names secrets."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from pipeline.errors import ConfigError


class KafkaSecurity(BaseModel):
    """Contents of ``RACKPULSE_KAFKA_OPTIONS_FILE``; names as in kafka-python.

    There is no way to switch off the check of certificates or of host names.

    Attributes:
        sasl_password_file: holds the password alone; only its owner may read it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "SASL_SSL"
    ssl_cafile: Path | None = None
    ssl_certfile: Path | None = None
    ssl_keyfile: Path | None = None
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    sasl_username: str | None = None
    sasl_password_file: Path | None = None

    @model_validator(mode="after")
    def _check(self) -> KafkaSecurity:
        if self.security_protocol.startswith("SASL"):
            missing = [
                name
                for name in ("sasl_mechanism", "sasl_username", "sasl_password_file")
                if getattr(self, name) is None
            ]
            if missing:
                raise ValueError(f"{self.security_protocol} needs {', '.join(missing)}")
        return self


def read_security(path: Path | None) -> dict[str, Any]:
    """Options for kafka-python's clients; none without a file.

    Raises:
        ConfigError: a file is missing, wrong, or readable by others.
    """
    if path is None:
        return {}
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
        security = KafkaSecurity.model_validate(raw)
    except OSError as exc:
        raise ConfigError(f"Kafka options file {path} cannot be read: {exc.strerror}") from exc
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError(f"Kafka options file {path} is not TOML: {exc}") from exc
    except ValidationError as exc:
        # Never the values: a password may have been put there by mistake.
        faults = "; ".join(
            f"{'.'.join(map(str, error['loc'])) or 'file'}: {error['msg']}"
            for error in exc.errors(include_input=False)
        )
        raise ConfigError(f"Kafka options file {path}: {faults}") from exc
    options: dict[str, Any] = {"security_protocol": security.security_protocol}
    for name in ("ssl_cafile", "ssl_certfile", "ssl_keyfile"):
        found: Path | None = getattr(security, name)
        if found is not None:
            options[name] = str(path.parent / found)
    if security.sasl_password_file is not None and security.sasl_mechanism is not None:
        options["sasl_mechanism"] = security.sasl_mechanism
        options["sasl_plain_username"] = security.sasl_username
        options["sasl_plain_password"] = _password(path.parent / security.sasl_password_file)
    return options


def _password(path: Path) -> str:
    try:
        if path.stat().st_mode & 0o077:
            raise ConfigError(f"{path} can be read by others: chmod 600 {path}")
        return path.read_text(encoding="utf-8").strip()
    except OSError as exc:
        raise ConfigError(f"Password file {path} cannot be read: {exc.strerror}") from exc
