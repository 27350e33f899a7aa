"""What the brokers say of the topics now: their ids, partitions and the ends of their logs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from pipeline.bus.consumer import Ends, read_log_ends
from pipeline.bus.endpoint import client_options
from pipeline.errors import RackpulseError, SlowDownError
from pipeline.settings import Settings

T = TypeVar("T")
_TIMEOUT_MS = 10_000


class _Admin(KafkaAdminClient):  # type: ignore[misc]  # kafka-python has no types
    def _process_acl_operations(self, obj: Any) -> Any:
        # Kafka 4.4 names an operation that kafka-python 3.0 does not know, and describing a
        # group would fail on it; who may do what is of no interest here.
        return obj


@dataclass(frozen=True)
class TopicNow:
    """A topic as it is now."""

    topic_id: str
    partitions: int


class Topics:
    """Asks the brokers; may be used by several threads.

    A topic's id is asked after its messages were fetched and before they are stored: ids are
    never used again, so if it is still the one that was taken over, the messages are of it.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._admin: _Admin | None = None

    def now(self, topic: str) -> TopicNow:
        """The topic as it is now.

        Raises:
            SlowDownError: no broker answers, or the topic is not there.
        """
        (entry,) = self._ask(lambda admin: admin.describe_topics([topic]))
        if entry["error_code"]:
            raise SlowDownError("topic_missing", 1.0)
        return TopicNow(str(entry["topic_id"]), len(entry["partitions"]))

    def ends(self, topic: str) -> Ends:
        """First and next offset by topic and partition.

        Raises:
            SlowDownError: no broker answers.
        """
        return self._ask(lambda admin: read_log_ends(admin, [topic]))

    def config(self, topic: str, name: str) -> str | None:
        """A setting of the topic; None where the broker does not say.

        Raises:
            SlowDownError: no broker answers.
        """
        from kafka.admin import ConfigResource, ConfigResourceType

        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        answer = self._ask(lambda admin: admin.describe_configs([resource], config_filter="all"))
        for by_kind in answer.values():
            for entries in by_kind.values():
                if name in entries:
                    return str(entries[name]["value"])
        return None

    def unassigned(
        self, group: str, topics: Iterable[str], mine: Collection[tuple[str, int]]
    ) -> set[tuple[str, int]]:
        """Partitions that no member of the group has, unless it is just being arranged.

        Args:
            mine: what this member was given, for brokers that do not say.

        Raises:
            SlowDownError: no broker answers.
        """

        def question(admin: Any) -> tuple[Any, Any]:
            return admin.describe_groups([group])[group], admin.describe_topics(sorted(topics))

        described, found = self._ask(question)
        members = described["members"]
        if described["group_state"] == "Stable":
            given = set(mine)
        elif members:
            return set()
        else:
            given = set()  # this member was put out, and may not know it
        for member in members:
            assignment = member["member_assignment"]
            if isinstance(assignment, dict):
                given |= {
                    (each["topic"], partition)
                    for each in assignment["assigned_partitions"]
                    for partition in each["partitions"]
                }
            elif len(members) > 1:
                return set()
        return {
            (entry["name"], partition["partition_index"])
            for entry in found
            if not entry["error_code"]
            for partition in entry["partitions"]
        } - given

    def _ask(self, question: Callable[[Any], T]) -> T:
        with self._lock:
            try:
                if self._admin is None:
                    self._admin = _Admin(
                        **client_options(self._settings),
                        client_id="rackpulse-writer-topics",
                        request_timeout_ms=_TIMEOUT_MS,
                        bootstrap_timeout_ms=_TIMEOUT_MS,
                    )
                return question(self._admin)
            except (KafkaError, OSError, RackpulseError) as exc:
                self._close()
                raise SlowDownError("kafka_away", 1.0) from exc

    def _close(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()

    def close(self) -> None:
        """Let the connection go."""
        with self._lock:
            self._close()
