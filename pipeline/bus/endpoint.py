"""Where Kafka is, and how its clients are set up."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from kafka.errors import KafkaError

from pipeline.bus.kafka_log import calm_kafka_logs
from pipeline.bus.security import read_security
from pipeline.clock import Clock, SystemClock
from pipeline.errors import ConfigError, RackpulseError
from pipeline.settings import Settings

T = TypeVar("T")

log = logging.getLogger(__name__)

_TANSU_CLUSTER = "tansu_cluster"  # its default, which we leave


class KafkaAwayError(RackpulseError, ConnectionError):
    """Kafka does not answer; it may later. Also an OSError, as a lost connection is."""


@dataclass(frozen=True)
class Endpoint:
    """A broker that runs on this machine, as ``endpoint.json`` says it.

    Attributes:
        kind: ``kafka`` or ``tansu``.
    """

    host: str
    port: int
    pid: int
    bootstrap_servers: str
    kind: str


def endpoint_file(state_dir: Path) -> Path:
    """The file in which a broker of this state folder says where it listens."""
    return state_dir / "kafka" / "endpoint.json"


def write_endpoint(state_dir: Path, endpoint: Endpoint) -> None:
    """Say where the broker listens; readers never see half a file."""
    path = endpoint_file(state_dir)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps(asdict(endpoint)) + "\n", encoding="utf-8")
    part.replace(path)


def read_endpoint(state_dir: Path) -> Endpoint | None:
    """What the broker said last; None where it said nothing that can be read."""
    try:
        return Endpoint(**json.loads(endpoint_file(state_dir).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def bootstrap(settings: Settings) -> str:
    """Addresses of the brokers, ``host:port`` comma separated.

    Raises:
        ConfigError: what is configured is no address.
        RackpulseError: none is configured and none was started here.
    """
    if settings.bootstrap_servers:
        for server in settings.bootstrap_servers.replace(" ", "").split(","):
            _check_address(server)
        return settings.bootstrap_servers
    endpoint = read_endpoint(settings.state_dir)
    if endpoint is None:
        raise RackpulseError(
            "No Kafka broker is known: set RACKPULSE_BOOTSTRAP_SERVERS=host:port, or start one "
            f"on this machine with  rackpulse broker serve  (state folder {settings.state_dir})"
        )
    return endpoint.bootstrap_servers


def _check_address(server: str) -> None:
    try:
        parts = urlsplit(f"//{server}")
        good = bool(parts.hostname) and parts.netloc == server and not server.endswith(":")
        _ = parts.port
    except ValueError:
        good = False
    if not good:
        raise ConfigError(
            f'RACKPULSE_BOOTSTRAP_SERVERS: "{server}" is no address; write host:port, several '
            "with commas"
        )


def client_options(settings: Settings) -> dict[str, Any]:
    """What every Kafka client of ours is given: the addresses as a list, and how to log in.

    Raises:
        ConfigError: ``kafka_options_file`` is wrong.
        RackpulseError: no broker is known.
    """
    return {
        "bootstrap_servers": bootstrap(settings).replace(" ", "").split(","),
        **read_security(settings.kafka_options_file),
    }


def producer_options(settings: Settings) -> dict[str, Any]:
    """What every producer of ours is given: addresses and batch size.

    Tansu answers a wrong end of the log when its last batch holds several messages, so there
    each message is a batch of its own.

    Raises:
        KafkaAwayError: no broker answers.
    """
    if settings.bootstrap_servers:
        described = ask_admin(settings, lambda admin: admin.describe_cluster(), timeout_s=5.0)
        tansu = described["cluster_id"] == _TANSU_CLUSTER
    else:
        endpoint = read_endpoint(settings.state_dir)
        tansu = endpoint is not None and endpoint.kind == "tansu"
    return {**client_options(settings), "batch_size": 0 if tansu else 500_000}


def end_producer(producer: Any) -> None:
    """End a producer at once; messages that it still holds fail.

    kafka-python's ``close(timeout)`` raises while messages are unsent, and its thread then goes
    on sending them behind our back: it is told to stop first.
    """
    try:
        producer._sender.force_close()
        producer._sender.join(10.0)
        producer.close(timeout=0)
    except Exception:
        log.exception("ending a producer")


def ask_admin(
    settings: Settings,
    ask: Callable[[Any], T],
    timeout_s: float = 15.0,
    clock: Clock | None = None,
) -> T:
    """Call ``ask`` with an admin client, again where a broker was just lost.

    Args:
        ask: may be called more than once.

    Raises:
        KafkaAwayError: no broker answers in time.
        KafkaError: one that another try does not mend.
    """
    from kafka import KafkaAdminClient

    calm_kafka_logs()
    clock = clock or SystemClock()
    options = client_options(settings)
    deadline = clock.monotonic() + timeout_s
    while True:
        left_ms = max(1_000, round((deadline - clock.monotonic()) * 1000))
        try:
            admin = KafkaAdminClient(
                **options,
                client_id="rackpulse-admin",
                request_timeout_ms=left_ms,
                bootstrap_timeout_ms=left_ms,
            )
            try:
                return ask(admin)
            finally:
                admin.close()
        except (KafkaError, OSError) as exc:
            if isinstance(exc, KafkaError) and not exc.retriable:
                raise
            if clock.monotonic() >= deadline:
                raise unreachable(settings, exc) from exc
            clock.wait(0.2)


def unreachable(settings: Settings, exc: Exception) -> KafkaAwayError:
    """The error for a person when Kafka does not answer."""
    options = settings.kafka_options_file
    login = f", and is the login of {options} right" if options else ""
    return KafkaAwayError(
        f"Kafka does not answer at {bootstrap(settings)} ({type(exc).__name__}): is the broker "
        f"running, is RACKPULSE_BOOTSTRAP_SERVERS right{login}?"
    )


def warn_without_crc32c() -> bool:
    """Say loudly when checksums are computed in Python; True when they are native."""
    try:
        import crc32c  # noqa: F401  # only whether it is there
    except ImportError:
        log.error(
            "The native crc32c code is missing: Kafka is 15 to 25 times slower without it. "
            'Install it with  pip install "kafka-python[crc32c]"'
        )
        return False
    return True
