"""The topics, declared in ``schemas/topics.toml``."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from kafka.errors import InvalidConfigurationError, KafkaError, TopicAlreadyExistsError
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipeline.bus.endpoint import ask_admin
from pipeline.errors import ConfigError, RackpulseError
from pipeline.settings import Settings
from pipeline.streams import schemas_folder

DEAD_LETTERS = "rackpulse.dead-letters"
_HOUR_MS = 3_600_000
_MOST_COPIES = 3


class Topic(BaseModel):
    """One topic.

    Attributes:
        replication_factor: None means as many copies as there are brokers, 3 at most.
        retention_hours: how long messages are kept after they came in.
        max_message_bytes: of a batch of messages as it is stored, compressed.
        compression: what is not compressed like this is recompressed by the broker; ``producer``
            keeps what the producer did.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[a-zA-Z0-9._-]{1,249}$")
    partitions: int = Field(ge=1)
    replication_factor: int | None = Field(default=None, ge=1)
    retention_hours: float = Field(gt=0)
    max_message_bytes: int = Field(ge=1)
    compression: Literal["producer", "zstd", "lz4", "gzip", "snappy", "uncompressed"] = "producer"

    def configs(self, copies: int) -> dict[str, str]:
        """The topic's configuration on the broker."""
        retention_ms = round(self.retention_hours * _HOUR_MS)
        return {
            "cleanup.policy": "delete",
            "retention.ms": str(retention_ms),
            # A segment is only dropped as a whole: with Kafka's seven days a quiet topic would
            # keep messages for longer than the store keeps rows.
            "segment.ms": str(max(60_000, retention_ms // 8)),
            "max.message.bytes": str(self.max_message_bytes),
            "compression.type": self.compression,
            # A collector with a wrong clock neither is refused nor changes the retention.
            "message.timestamp.type": "LogAppendTime",
            "min.insync.replicas": str(max(1, copies - 1)),
        }


# Unknown to older brokers: a batch may not unfold to more than this.
_NEWER_CONFIGS = {"max.decompressed.message.bytes": "16000000"}


@dataclass(frozen=True)
class TopicState:
    """What a broker has of a declared topic.

    Attributes:
        topic_id: changes when a topic is created again; None while it is missing.
    """

    topic: Topic
    topic_id: str | None
    partitions: int
    copies: int

    @property
    def note(self) -> str:
        """What a person should know, or an empty text."""
        if self.topic_id is None:
            return "missing: rackpulse topics create"
        if self.partitions < self.topic.partitions:
            return f"{self.topic.partitions} partitions are declared: rackpulse topics create"
        if self.partitions > self.topic.partitions:
            return f"only {self.topic.partitions} partitions are declared"
        return ""


def load_topics(path: Path | None = None) -> dict[str, Topic]:
    """Read the declaration of all topics, by name.

    Raises:
        ConfigError: the file is missing or wrong.
    """
    path = path or schemas_folder() / "topics.toml"
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise ConfigError(f"Topic file {path} cannot be read: {exc}") from exc
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError(f"Topic file {path} is not TOML: {exc}") from exc
    unknown = set(raw) - {"defaults", "topic"}
    if unknown:
        raise ConfigError(f"{path}: unknown {', '.join(sorted(unknown))}")
    topics = {}
    for name, own in raw.get("topic", {}).items():
        try:
            topics[name] = Topic.model_validate({**raw.get("defaults", {}), **own, "name": name})
        except (ValidationError, TypeError) as exc:
            raise ConfigError(f"{path}: topic {name}: {exc}") from exc
    return topics


def create_topics(settings: Settings, topics: dict[str, Topic] | None = None) -> list[str]:
    """Create what is missing, add partitions, bring the configuration up to date.

    Safe to call again and from two processes at once. Partitions are never taken away.
    Added partitions move keys to other partitions; writers notice.

    Returns:
        One line for each change.

    Raises:
        RackpulseError: no broker answers, or it refuses.
    """
    declared = topics or load_topics()
    changes: list[str] = []
    try:
        ask_admin(settings, lambda admin: _create(admin, settings, declared, changes))
    except KafkaError as exc:
        raise RackpulseError(f"Kafka refuses to create the topics: {exc}") from exc
    return changes


def _create(admin: Any, settings: Settings, topics: dict[str, Topic], changes: list[str]) -> None:
    brokers = len(admin.describe_cluster()["brokers"])
    found = _describe(admin)

    def copies(topic: Topic) -> int:
        wanted = settings.replication_factor or topic.replication_factor
        return wanted or min(_MOST_COPIES, max(1, brokers))

    missing = {
        name: {
            "num_partitions": topic.partitions,
            "replication_factor": copies(topic),
            "configs": topic.configs(copies(topic)),
        }
        for name, topic in topics.items()
        if name not in found
    }
    for name, how in missing.items():
        try:
            _create_one(admin, name, how)
        except TopicAlreadyExistsError:
            continue  # another process was faster
        changes.append(f"created {name} with {how['num_partitions']} partitions")
    for name, topic in topics.items():
        if name in missing:
            continue
        partitions = len(found[name]["partitions"])
        if partitions < topic.partitions:
            admin.create_partitions({name: topic.partitions})
            changes.append(f"{name}: {partitions} -> {topic.partitions} partitions; keys move")
        changes += _configure(admin, topic, len(found[name]["partitions"][0]["replica_nodes"]))


def _create_one(admin: Any, name: str, how: dict[str, Any]) -> None:
    newer = {**how, "configs": {**how["configs"], **_NEWER_CONFIGS}}
    try:
        admin.create_topics({name: newer}, wait_for_metadata=True)
    except InvalidConfigurationError:
        admin.create_topics({name: how}, wait_for_metadata=True)


def _configure(admin: Any, topic: Topic, copies: int) -> list[str]:
    from kafka.admin import ConfigResource, ConfigResourceType

    resource = partial(ConfigResource, ConfigResourceType.TOPIC, topic.name)
    answer = admin.describe_configs([resource()], config_filter="all")
    has = {
        name: entry["value"]
        for by_kind in answer.values()
        for entries in by_kind.values()
        for name, entry in entries.items()
    }
    differing = {
        name: value
        for name, value in {**topic.configs(copies), **_NEWER_CONFIGS}.items()
        if name in has and has[name] != value
    }
    if not differing:
        return []
    admin.alter_configs([resource(configs=differing)], incremental=True)
    return [f"{topic.name}: {name} {has[name]} -> {value}" for name, value in differing.items()]


def _describe(admin: Any, names: list[str] | None = None) -> dict[str, Any]:
    described = admin.describe_topics(names)
    return {entry["name"]: entry for entry in described if not entry["error_code"]}


def topic_ids(settings: Settings) -> dict[str, str]:
    """Topic id of every topic that exists, by name.

    Raises:
        KafkaAwayError: no broker answers.
    """
    found = ask_admin(settings, _describe)
    return {name: str(entry["topic_id"]) for name, entry in found.items()}


def topic_states(settings: Settings, topics: dict[str, Topic] | None = None) -> list[TopicState]:
    """The declared topics beside what the broker has.

    Raises:
        KafkaAwayError: no broker answers.
    """
    topics = topics or load_topics()
    found = ask_admin(settings, _describe)
    states = []
    for name, topic in topics.items():
        entry = found.get(name)
        partitions = entry["partitions"] if entry else []
        copies = min((len(each["replica_nodes"]) for each in partitions), default=0)
        topic_id = str(entry["topic_id"]) if entry else None
        states.append(TopicState(topic, topic_id, len(partitions), copies))
    return states
