"""Topics: declared in one file, created by a command."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.bus.topics import DEAD_LETTERS, load_topics
from pipeline.errors import ConfigError
from pipeline.streams import Contracts


def test_every_stream_has_its_topic_and_there_are_dead_letters(contracts: Contracts) -> None:
    assert set(load_topics()) == {*contracts, DEAD_LETTERS}


def test_kafka_keeps_messages_for_less_time_than_the_tables_keep_rows() -> None:
    for topic in load_topics().values():
        if topic.name == DEAD_LETTERS:
            continue
        configs = topic.configs(copies=3)
        # A segment goes as a whole, once its newest message is old enough.
        longest_ms = int(configs["retention.ms"]) + int(configs["segment.ms"])
        assert longest_ms < 2 * 86_400_000


def test_a_dead_letter_has_room_for_the_largest_message() -> None:
    topics = load_topics()
    largest = max(t.max_message_bytes for t in topics.values() if t.name != DEAD_LETTERS)
    assert topics[DEAD_LETTERS].max_message_bytes >= largest + 100_000


@pytest.mark.parametrize(("copies", "insync"), [(1, "1"), (2, "1"), (3, "2")])
def test_one_copy_may_be_missing(copies: int, insync: str) -> None:
    assert load_topics()["gpu"].configs(copies)["min.insync.replicas"] == insync


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[topic.gpu]\npartitions = 0", "topic gpu.*partitions"),
        ("[topic.gpu]\npartitons = 4", "topic gpu.*partitons"),
        ('[topic."a/b"]\npartitions = 1', "topic a/b.*name"),
        ("[topics.gpu]\npartitions = 1", "unknown topics"),
        ("[topic.gpu\n", "not TOML"),
        ("topic.gpu = 3", "topic gpu"),
    ],
)
def test_a_wrong_declaration_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "topics.toml"
    defaults = "retention_hours = 1\nmax_message_bytes = 1000\n"
    path.write_text(f"{text}\n[defaults]\n{defaults}")
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        load_topics(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_topics(tmp_path / "none.toml")
