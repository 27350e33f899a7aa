"""Real NMX-T lines give the values that their page states."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.collectors.prometheus_text import parse
from pipeline.collectors.readers.nmxt import module_temperature
from tests.collectors.helpers import only, read, read_file, rows


@pytest.fixture
def folder(captures: Path) -> Path:
    return captures / "nmxt"


def test_parser_inputs(folder: Path) -> None:
    path = folder / "parser_test_inputs.prom"
    samples = list(parse(path.read_bytes()))
    assert len(samples) == 6
    assert samples[0].value == 1.5e-254
    assert samples[0].value > 0
    assert samples[1].name == "simple_metric"
    assert (samples[1].value, samples[1].time_ms) == (42.5, 1234567890)
    reading = read_file("nmxt", path)
    links = {(link["device_id"], link["link"]): link for link in rows(reading, "nvlink")}
    assert {link["side"] for link in links.values()} == {"switch"}
    # "No errors yet" is stored as 0 errors, never as underflow or NaN.
    assert links["0x8e2161ddc2b3af64", 2]["effective_ber"] == 0
    assert links["parser_test_inputs", 2]["effective_ber"] == 1e-10
    assert links["parser_test_inputs", 1]["link_downs"] == 5
    assert links["parser_test_inputs", 1]["symbol_errors"] == 0


def test_port_state_labels(folder: Path) -> None:
    path = folder / "port_state_labels.prom"
    assert len(parse(path.read_bytes())) == 2
    link = only(read_file("nmxt", path), "nvlink")
    assert (link["link"], link["down_blame"], link["effective_ber"]) == (11, "remote_phy", 0)


def test_module_temperatures(folder: Path) -> None:
    labels = (folder / "module_temperature_values.txt").read_text().splitlines()
    expected = [0, 37, 37.5, None, None, None]
    assert [module_temperature(label) for label in labels] == expected
    page = "".join(
        f'Link_Down{{Node_GUID="0x1",Port_Number="{port}",Module_Temperature="{label}"}} 0\n'
        for port, label in enumerate(labels, 1)
    )
    assert [link["module_temp_c"] for link in rows(read("nmxt", page), "nvlink")] == expected
