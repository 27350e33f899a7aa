"""Ports that are taken, and the file that other terminals read."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from pipeline.errors import RackpulseError
from pipeline.up.ports import DEFAULT_PORTS, choose_ports
from pipeline.up.runfile import is_running, only_one, ports_of, read_run, write_run


def test_a_taken_port_that_was_asked_for_is_an_error_that_says_what_to_do() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        port = sock.getsockname()[1]
        with pytest.raises(RackpulseError, match=f"Port {port} for store is taken.*--port store="):
            choose_ports({"store": port}, {})


def test_a_taken_usual_port_moves_and_says_so() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        port = sock.getsockname()[1]
        ports, notes = choose_ports({}, {"hall": port})
        assert ports["hall"] != port
        assert any(str(port) in note and "hall" in note for note in notes)


def test_every_service_has_a_port_of_its_own() -> None:
    ports, _ = choose_ports({}, {"store": 28123, "writer": 28123, "hall": 28123})
    assert set(ports) == set(DEFAULT_PORTS)
    taken = [*ports.values(), ports["kafka"] + 1]
    assert len(set(taken)) == len(taken)


def test_one_run_at_a_time_in_a_state_folder(tmp_path: Path) -> None:
    with only_one(tmp_path):
        write_run(tmp_path, {"pid": os.getpid()})
        with (
            pytest.raises(RackpulseError, match=f"already runs.*process {os.getpid()}"),
            only_one(tmp_path),
        ):
            pass
    with only_one(tmp_path):
        pass


@pytest.mark.parametrize("pid", [0, -1, 10**30, "1", None])
def test_a_number_that_is_no_process_does_not_run(pid: object) -> None:
    assert not is_running({"pid": pid})


@pytest.mark.parametrize("content", ["", "{", "[]", "null"])
def test_a_broken_run_file_is_no_run(tmp_path: Path, content: str) -> None:
    (tmp_path / "up.json").write_text(content)
    assert read_run(tmp_path) == {}
    assert not is_running(read_run(tmp_path))


@pytest.mark.parametrize(
    "ports", [[1], "no", None, {"kafka": "a"}, {"kafka": True}, {"kafka": 70000}]
)
def test_ports_that_are_none_are_left_out(ports: object) -> None:
    assert ports_of({"ports": ports}) == {}
    assert ports_of({"ports": {"hall": 18080}}) == {"hall": 18080}
