"""The page about collectors says what is built; files for deployment name what exists."""

from __future__ import annotations

import configparser
import json
import shlex
from pathlib import Path
from typing import Any

import click
import yaml

from pipeline.cli.collect import collect
from pipeline.collectors.reference import BEGIN, END, HEAD, render
from pipeline.collectors.registry import KINDS
from pipeline.collectors.targets import TargetFile
from pipeline.streams import Contracts
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "collectors.md").read_text()


def test_generated_table_is_up_to_date(contracts: Contracts) -> None:
    made = PAGE[PAGE.index(BEGIN) :]
    assert made == render(contracts), "rackpulse docs sources"
    assert made.rstrip().endswith(END)
    (head,) = [line for line in made.splitlines() if line.startswith(f"| {HEAD[0]}")]
    assert head == f"| {' | '.join(HEAD)} |"  # one table
    for kind in KINDS:
        assert f"`{kind}`" in made


def test_example_of_a_target_file_is_one(tmp_path: Path) -> None:
    start = PAGE.index("```json") + len("```json")
    example = json.loads(PAGE[start : PAGE.index("```", start)])
    targets = TargetFile.model_validate(example)
    assert {target.kind for target in targets.targets} == {"dcgm", "redfish", "bms", "ib_sysfs"}


def run_options() -> set[str]:
    command = collect.get_command(click.Context(collect), "run")
    assert command is not None
    return {name for parameter in command.params for name in parameter.opts}


def options(words: list[str]) -> set[str]:
    return {word.split("=", 1)[0] for word in words if word.startswith("--")}


def test_systemd_unit() -> None:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((ROOT / "deploy" / "rackpulse-collect.service").read_text())
    service = parser["Service"]
    words = shlex.split(service["ExecStart"].replace("\\\n", " "))
    assert words[0].endswith("/rackpulse")
    assert words[1:3] == ["collect", "run"]
    assert options(words) <= run_options()
    assert service["Restart"] == "always"
    assert int(service["TimeoutStopSec"]) >= 20


def test_daemonset() -> None:
    text = (ROOT / "deploy" / "kubernetes" / "collector-daemonset.yaml").read_text()
    parts: list[dict[str, Any]] = list(yaml.safe_load_all(text))
    config, daemonset = parts
    targets = (
        config["data"]["targets.json"].replace("$(NODE)", "n1").replace("$(HOST_IP)", "1.2.3.4")
    )
    assert len(TargetFile.model_validate(json.loads(targets)).targets) == 3
    spec = daemonset["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert [*container["command"], *container["args"][:2]] == ["rackpulse", "collect", "run"]
    assert options(container["args"]) <= run_options()
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"] for volume in spec["volumes"]}
    assert mounted <= volumes
    labels = daemonset["spec"]["template"]["metadata"]["labels"]
    assert daemonset["spec"]["selector"]["matchLabels"].items() <= labels.items()
