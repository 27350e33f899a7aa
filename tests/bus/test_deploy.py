"""The files in deploy/: nobody runs them here, so at least they name what exists."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import pytest
import yaml

from pipeline.cli import cli
from pipeline.settings import Settings
from tests.conftest import ROOT

COMPOSE = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())
KUBERNETES = list(yaml.safe_load_all((ROOT / "deploy" / "kubernetes.yaml").read_text()))


def containers() -> Iterator[tuple[str, list[str], set[str]]]:
    """Name, arguments and settings of every container of ours."""
    for name, service in COMPOSE["services"].items():
        if service["image"].startswith("rackpulse"):
            yield f"compose/{name}", service["command"], set(service["environment"])
    config = {each["metadata"]["name"]: set(each["data"])
              for each in KUBERNETES if each["kind"] == "ConfigMap"}  # fmt: skip
    for each in KUBERNETES:
        if each["kind"] in ("Job", "StatefulSet"):
            for container in each["spec"]["template"]["spec"]["containers"]:
                names = {from_["configMapRef"]["name"] for from_ in container["envFrom"]}
                settings = {setting for name in names for setting in config[name]}
                yield f"kubernetes/{each['metadata']['name']}", container["args"], settings


@pytest.mark.parametrize("container", list(containers()), ids=lambda container: container[0])
def test_commands_options_and_settings_exist(container: tuple[str, list[str], set[str]]) -> None:
    _, arguments, settings = container
    command: click.Command | None = cli
    context = click.Context(cli)
    left = [str(argument) for argument in arguments]
    while isinstance(command, click.Group):
        command = command.get_command(context, left.pop(0))
    assert command is not None
    options = {name for parameter in command.params for name in parameter.opts}
    assert {word for word in left if word.startswith("--")} <= options
    known = {f"RACKPULSE_{name.upper()}" for name in Settings.model_fields}
    assert {name for name in settings if name.startswith("RACKPULSE_")} <= known


def test_three_copies_of_which_two_must_have_a_message() -> None:
    nodes: dict[str, Any] = {
        name: service["environment"]
        for name, service in COMPOSE["services"].items()
        if name.startswith("kafka-")
    }
    assert sorted(env["KAFKA_NODE_ID"] for env in nodes.values()) == ["1", "2", "3"]
    for name, env in nodes.items():
        assert f"{env['KAFKA_NODE_ID']}@{name}:9093" in env["KAFKA_CONTROLLER_QUORUM_VOTERS"]
        assert env["KAFKA_ADVERTISED_LISTENERS"] == f"PLAINTEXT://{name}:9092"
        assert env["KAFKA_DEFAULT_REPLICATION_FACTOR"] == "3"
        assert env["KAFKA_MIN_INSYNC_REPLICAS"] == "2"
        assert env["KAFKA_AUTO_CREATE_TOPICS_ENABLE"] == "false"


def test_only_this_machine_reaches_a_published_port() -> None:
    published = [port for service in COMPOSE["services"].values()
                 for port in service.get("ports", [])]  # fmt: skip
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)
