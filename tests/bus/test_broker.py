"""The broker of one machine: starts, says where, recovers, gives way."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kafka import KafkaProducer

from pipeline.bus.consumer import log_ends
from pipeline.bus.endpoint import bootstrap, read_endpoint
from pipeline.bus.kafka_libs import NoKafkaError, fetch_libs
from pipeline.bus.topics import create_topics, load_topics, topic_ids, topic_states
from pipeline.errors import RackpulseError
from pipeline.settings import Settings
from tests.support.kafka import RunningKafka
from tests.support.wait import wait_until

COMMAND = [sys.executable, "-m", "pipeline", "broker", "serve"]


@contextmanager
def serving(
    settings: Settings, port: int = 0, path: str | None = None
) -> Iterator[subprocess.Popen[str]]:
    """``rackpulse broker serve`` in a process of its own."""
    env = {**os.environ, "RACKPULSE_STATE_DIR": str(settings.state_dir)}
    env.pop("RACKPULSE_BOOTSTRAP_SERVERS", None)
    if path is not None:
        env["PATH"] = path
    process = subprocess.Popen(
        [*COMMAND, "--port", str(port)], stderr=subprocess.PIPE, text=True, env=env
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for_endpoint(settings: Settings, process: subprocess.Popen[str]) -> None:
    def ready() -> bool:
        assert process.poll() is None, process.communicate()[1]
        found = read_endpoint(settings.state_dir)
        return found is not None and found.pid == process.pid

    wait_until(ready, "endpoint.json", 120)


def children_of(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in listed.split()]


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


@pytest.mark.kafka
def test_messages_survive_a_kill_and_nothing_is_left_running(tmp_path: Path) -> None:
    settings = Settings(state_dir=tmp_path)
    with serving(settings) as process:
        wait_for_endpoint(settings, process)
        endpoint = read_endpoint(tmp_path)
        assert endpoint is not None
        assert endpoint.kind == "kafka"
        assert bootstrap(settings) == f"127.0.0.1:{endpoint.port}"
        assert len(create_topics(settings)) == len(load_topics())
        assert create_topics(settings) == []
        ids = topic_ids(settings)
        producer = KafkaProducer(bootstrap_servers=bootstrap(settings))
        producer.send("gpu", b"one", partition=0).get(20)
        producer.close()
        java = children_of(process.pid)
        assert len(java) == 1
        process.kill()
        process.wait()
        wait_until(lambda: all(is_gone(pid) for pid in java), "the end of the Java process")
    with serving(settings) as process:
        wait_for_endpoint(settings, process)
        assert log_ends(settings, ["gpu"])["gpu", 0] == (0, 1)
        assert topic_ids(settings) == ids
        java = children_of(process.pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert all(is_gone(pid) for pid in java)
        assert read_endpoint(tmp_path) is None


@pytest.mark.kafka
def test_topics_are_brought_up_to_date(tmp_path: Path) -> None:
    topics = load_topics()
    with RunningKafka(tmp_path / "kafka") as kafka:
        settings = kafka.settings()
        create_topics(settings, topics)
        more = topics["gpu"].model_copy(update={"partitions": 6, "retention_hours": 12})
        changed = {**topics, "gpu": more}
        assert topic_states(settings, changed)[0].note.startswith("6 partitions are declared")
        assert create_topics(settings, changed) == [
            "gpu: 4 -> 6 partitions; keys move",
            "gpu: retention.ms 86400000 -> 43200000",
            "gpu: segment.ms 10800000 -> 5400000",
        ]
        assert create_topics(settings, changed) == []
        # Partitions are never taken away.
        assert topic_states(settings, topics)[0].note == "only 4 partitions are declared"
        three = Settings(bootstrap_servers=kafka.bootstrap, replication_factor=3)
        with pytest.raises(RackpulseError, match="refuses to create"):
            create_topics(three, {"other": topics["gpu"].model_copy(update={"name": "other"})})


def test_without_java_the_wheels_broker_runs_and_says_so(tmp_path: Path) -> None:
    settings = Settings(state_dir=tmp_path)
    with serving(settings, path="/nonexistent") as process:
        wait_for_endpoint(settings, process)
        endpoint = read_endpoint(tmp_path)
        assert endpoint is not None
        assert endpoint.kind == "tansu"
        create_topics(settings)
        assert create_topics(settings) == []
        assert all(not state.note for state in topic_states(settings))
        # A second one of this state folder gives way, and says to what.
        with serving(settings, path="/nonexistent") as second:
            _, text = second.communicate(timeout=60)
            assert second.returncode == 1
            assert f"runs already (process {process.pid}, {endpoint.bootstrap_servers})" in text
        broker = children_of(process.pid)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=30)
        assert process.returncode == 0
        assert "no java on PATH" in said
        assert "MEMORY ONLY" in said
        assert all(is_gone(pid) for pid in broker)


def test_a_taken_port_is_a_clear_message(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with serving(Settings(state_dir=tmp_path), port=port) as process:
            _, text = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"Port {port} on 127.0.0.1 is taken" in text
    assert "Traceback" not in text


def test_no_broker_is_a_clear_message(tmp_path: Path) -> None:
    with pytest.raises(RackpulseError, match="RACKPULSE_BOOTSTRAP_SERVERS"):
        bootstrap(Settings(state_dir=tmp_path))


def test_maven_that_fails_is_told_and_leaves_nothing_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    maven = tools / "mvn"
    maven.write_text("#!/bin/sh\necho 'no route to the repository'\nexit 1\n")
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", str(tools))
    with pytest.raises(NoKafkaError, match="no route to the repository"):
        fetch_libs(tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["lock"]
