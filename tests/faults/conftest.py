"""One Kafka of three brokers and one store for all fault tests; the table at the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pipeline.streams import Contracts
from tests.faults.ledger import OUTCOMES, table
from tests.faults.scene import Scene
from tests.support.kafka import RunningKafka


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/faults/" in item.nodeid:
            item.add_marker(pytest.mark.faults)
            item.add_marker(pytest.mark.kafka)


@pytest.fixture(scope="session")
def shared_scene(tmp_path_factory: pytest.TempPathFactory, contracts: Contracts) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("faults")
    with RunningKafka(folder / "kafka", brokers=3) as kafka:
        scene = Scene(folder, contracts, kafka)
        with scene.store:
            scene.store.migrate()
            yield scene


@pytest.fixture
def scene(shared_scene: Scene, request: pytest.FixtureRequest) -> Iterator[Scene]:
    shared_scene.begin(request.node.name.removeprefix("test_").replace("[", "-").rstrip("]"))
    yield shared_scene
    shared_scene.end()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if OUTCOMES:
        terminalreporter.section("faults")
        for line in table():
            terminalreporter.write_line(line)
