"""Settings, from ``RACKPULSE_…`` environment variables; none is read at import."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from pipeline.errors import ConfigError


class Settings(BaseSettings):
    """What a process of rackpulse needs to know about its surroundings.

    Attributes:
        state_dir: the one folder that holds state on this machine.
        cluster: name that rows carry in ``cluster``.
        bootstrap_servers: Kafka brokers, ``host:port`` comma separated; unset means that
            ``rackpulse up`` starts one.
        kafka_options_file: TOML file that says how clients log in to Kafka (TLS, SASL).
        store_dsn: ClickHouse DSN such as ``clickhouse://user@host:8123/telemetry``; unset
            means the embedded store of ``state_dir``. A password belongs in
            ``store_password_file``.
        replication_factor: of topics; unset means as many as there are brokers, 3 at most.
        retention_days: how long raw rows are kept.
        table_engine: ``MergeTree``, or ``ReplicatedMergeTree`` on a cluster.
        cluster_name: ClickHouse cluster for ``ON CLUSTER`` statements.
    """

    model_config = SettingsConfigDict(env_prefix="RACKPULSE_", extra="ignore", frozen=True)

    state_dir: Path = Path(".rackpulse")
    cluster: str = Field(default="main", min_length=1)
    bootstrap_servers: str | None = None
    kafka_options_file: Path | None = None
    store_dsn: SecretStr | None = None
    store_password_file: Path | None = None
    replication_factor: int | None = Field(default=None, ge=1)
    retention_days: int = Field(default=7, ge=1)
    table_engine: str = "MergeTree"
    cluster_name: str | None = None
    topology_file: Path | None = None
    targets_file: Path | None = None
    webhook_url: str | None = None
    webhook_secret_file: Path | None = None
    metrics_host: str = "127.0.0.1"
    log_format: str = Field(default="text", pattern="^(text|json)$")


def load_settings(**overrides: object) -> Settings:
    """Settings of the environment, with ``overrides`` on top.

    Raises:
        ConfigError: a variable has a bad value; the text names it.
    """
    try:
        return Settings(**{name: value for name, value in overrides.items() if value is not None})  # type: ignore[arg-type]  # pydantic checks them
    except ValidationError as exc:
        first = exc.errors()[0]
        name = "RACKPULSE_" + "_".join(str(part) for part in first["loc"]).upper()
        raise ConfigError(f"{name}: {first['msg']}") from exc
