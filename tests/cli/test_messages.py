"""What goes wrong at the command line is said in one line, never as a traceback."""

from __future__ import annotations

import json
import logging
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.cli import main
from pipeline.errors import RackpulseError
from pipeline.settings import load_settings
from pipeline.store import connect
from pipeline.up.services import delivery


def _ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str]:
    """Exit code and standard error of the command line."""
    monkeypatch.setattr(sys, "argv", ["rackpulse", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    code = ended.value.code
    assert isinstance(code, int)
    return code, capsys.readouterr().err


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Put back what a command sets for its whole process."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    handlers = [signal.getsignal(number) for number in numbers]
    root = logging.getLogger()
    level, shown = root.level, root.handlers[:]
    yield
    for number, handler in zip(numbers, handlers, strict=True):
        signal.signal(number, handler)
    root.level, root.handlers[:] = level, shown


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RACKPULSE_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize(
    "arguments",
    [
        ["store", "serve", "--port"],
        ["broker", "serve", "--port"],
        ["hall", "serve", "--racks", "1", "--port"],
        ["write", "--metrics-port"],
        ["collect", "run", "--targets", "none.json", "--metrics-port"],
    ],
    ids=lambda arguments: arguments[0],
)
@pytest.mark.parametrize("port", ["65536", "-1"])
def test_a_number_that_is_no_port_is_refused(
    arguments: list[str], port: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    code, said = _ended(monkeypatch, capsys, *arguments, port)
    assert (code, "0<=x<=65535" in said) == (2, True)


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize(
    "arguments",
    [["write"], ["alerts", "deliver", "--url", "http://127.0.0.1:9/"]],
    ids=lambda arguments: arguments[0],
)
def test_a_taken_metrics_port_is_named(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code, said = _ended(monkeypatch, capsys, *arguments, "--metrics-port", port)
    assert code == 1
    assert f"rackpulse: Port {port} cannot be used (Address already in use)" in said


@pytest.mark.parametrize(
    "arguments",
    [
        ["sql", "SELECT 1"],
        ["status"],
        ["store", "serve", "--port", "0"],
        ["broker", "serve", "--port", "0"],
        ["alerts", "receive", "--port", "0"],
        ["up", "--no-faults"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_state_folder_that_is_a_file_is_named(
    arguments: list[str], state: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    state.write_text("not a folder")
    code, said = _ended(monkeypatch, capsys, *arguments)
    assert code == 1
    assert said.startswith("rackpulse: ")
    assert str(state) in said


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[" * 100_000, "is not JSON"),
        ('{"cluster": "x", "racks": [{"id": %s}]}' % ("9" * 5000), "is not JSON"),
        ("null", "Input should be a valid dictionary"),
    ],
    ids=["deep", "long number", "null"],
)
def test_a_topology_that_is_none_is_refused(
    content: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    file = tmp_path / "topology.json"
    file.write_text(content)
    code, said = _ended(monkeypatch, capsys, "topology", "show", str(file))
    assert code == 1
    assert said.startswith(f"rackpulse: Topology file {file}")
    assert message in said


def test_a_table_that_is_no_csv_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "table.csv"
    file.write_bytes(b"kind,id\rgpu,GPU-1\r\rx")
    code, said = _ended(monkeypatch, capsys, "topology", "import", f"csv:{file}")
    assert (code, said.startswith("rackpulse: table.csv")) == (1, True)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RACKPULSE_STORE_DSN": "clickhouse://u:hush@h:abc"}, "RACKPULSE_STORE_DSN"),
        ({"RACKPULSE_STORE_DSN": "hush"}, "RACKPULSE_STORE_DSN"),
        (
            {"RACKPULSE_STORE_DSN": "clickhouse://u@h:1", "RACKPULSE_STORE_PASSWORD_FILE": "pw"},
            "RACKPULSE_STORE_PASSWORD_FILE",
        ),
    ],
    ids=["port", "word", "password file"],
)
def test_a_wrong_address_of_the_store_is_named(
    variables: dict[str, str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("pw").write_bytes(b"\xd0\xff")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    code, said = _ended(monkeypatch, capsys, "sql", "SELECT 1")
    assert code == 1
    assert said.startswith("rackpulse: ")
    assert message in said
    assert "hush" not in said


def test_a_store_that_is_away_is_told_the_same_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # Who waits for it writes a line to the log when the text changes.
    monkeypatch.setenv("RACKPULSE_STORE_DSN", "clickhouse://u:hush@127.0.0.1:1/telemetry")
    said = []
    for _ in range(2):
        with pytest.raises(RackpulseError) as failed:
            connect(load_settings())
        said.append(str(failed.value))
    assert said[0] == said[1]
    assert "refused" in said[0]


@pytest.mark.parametrize(
    ("scheme", "query"), [("https", ""), ("clickhouses", ""), ("clickhouse", "?secure=true")]
)
def test_an_address_that_asks_for_tls_gets_it(
    scheme: str, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A password must not travel in clear where the person wrote https.
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        address = f"{scheme}://u:hush@127.0.0.1:{port}/telemetry{query}"
        monkeypatch.setenv("RACKPULSE_STORE_DSN", address)
        first: list[bytes] = []

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                first.append(connection.recv(1))

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises(RackpulseError):
            connect(load_settings(), connect_timeout=2, query_retries=0)
        thread.join(10)
    assert first[0] == b"\x16"  # a TLS handshake


def test_an_unknown_stream_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = _ended(monkeypatch, capsys, "verify", "--streams", "gpu,gpus")
    assert (code, said.startswith("rackpulse: No stream gpus: there are gpu, ")) == (1, True)


@pytest.mark.parametrize("servers", ["host:", "host:abc", "host:70000", ",", "a:1,b:x"])
def test_a_wrong_address_of_kafka_is_named(
    servers: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RACKPULSE_BOOTSTRAP_SERVERS", servers)
    code, said = _ended(monkeypatch, capsys, "topics", "list")
    assert code == 1
    assert said.startswith("rackpulse: RACKPULSE_BOOTSTRAP_SERVERS: ")


@pytest.mark.parametrize(
    "arguments",
    [["alerts", "receive", "--port", "0"], ["alerts", "rotate-secret"]],
    ids=lambda arguments: arguments[1],
)
def test_a_secret_that_is_no_text_is_named(
    arguments: list[str], state: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    file = state / "alerts" / "webhook-secret"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"\xff\n")
    code, said = _ended(monkeypatch, capsys, *arguments)
    assert (code, f"rackpulse: The webhook secret {file}" in said) == (1, True)


@pytest.mark.parametrize(
    "content", [b"\xff", b'[[destination]]\nname="a"\nkind="slack"\nurl_file="a"']
)
def test_destinations_that_are_no_text_are_named(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    file = tmp_path / "destinations"
    file.write_bytes(content)
    (tmp_path / "a").write_bytes(b"\xff")
    code, said = _ended(monkeypatch, capsys, "alerts", "test", "--destinations", str(file))
    assert (code, said.startswith(f"rackpulse: {tmp_path}")) == (1, True)


def test_a_login_that_is_damaged_is_none(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (state / "airflow").mkdir(parents=True)
    (state / "airflow" / "login.json").write_text('{"url": 5}')
    code, said = _ended(monkeypatch, capsys, "airflow", "login")
    assert (code, "Airflow has not run here yet" in said) == (1, True)


def test_a_collector_id_is_no_path(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "targets.json").write_text('{"targets": []}')
    code, said = _ended(
        monkeypatch, capsys, "collect", "run", "--targets", str(tmp_path / "targets.json"),
        "--metrics-port", "0", "--collector-id", "../../x",
    )  # fmt: skip
    assert (code, "--collector-id" in said) == (2, True)
    assert not state.exists()


def test_the_address_of_a_webhook_is_no_argument_of_a_process() -> None:
    # Every user of a machine sees the arguments of all processes, and a path may be a secret.
    spec = delivery("https://hooks.example.org/hush", 18092)
    assert "hush" not in json.dumps(list(spec.argv))
    assert spec.env["RACKPULSE_WEBHOOK_URL"] == "https://hooks.example.org/hush"


@pytest.mark.parametrize(
    "arguments",
    [
        ["write", "--max-rows", "-5"],
        ["write", "--linger", "-5"],
        ["write", "--linger", "nan"],
        ["write", "--buffer-mb", "0"],
        ["verify", "--wait", "-1"],
        ["hall", "serve", "--history-hours", "-1"],
        ["hall", "serve", "--history-hours", "nan"],
        ["collect", "run", "--targets", "t.json", "--window", "nan"],
        ["collect", "run", "--targets", "t.json", "--window", "0"],
    ],
)
def test_numbers_out_of_range_are_refused(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = _ended(monkeypatch, capsys, *arguments)
    assert code == 2
    assert f"Invalid value for '{arguments[-2]}'" in said


def test_health_pages_listen_where_the_setting_says(
    free_port: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """127.0.0.2 is this machine too: nothing leaves it."""
    monkeypatch.setenv("RACKPULSE_METRICS_HOST", "127.0.0.2")
    with socket.socket() as taken:
        taken.bind(("127.0.0.2", free_port))
        taken.listen()
        code, said = _ended(monkeypatch, capsys, "write", "--metrics-port", str(free_port))
    assert code == 1
    assert f"Port {free_port} cannot be used" in said


@pytest.mark.parametrize(
    ("server", "person"),
    [
        (
            "Received ClickHouse exception, code: 47, server response: Code: 47. DB::Exception:"
            " Unknown expression identifier `sm_clock`. In scope SELECT sm_clock FROM gpu."
            " Maybe you meant: ['sm_clock_mhz']. (UNKNOWN_IDENTIFIER) (for url"
            " http://127.0.0.1:18123)",
            "Unknown expression identifier `sm_clock`. Maybe you meant: ['sm_clock_mhz']"
            " (UNKNOWN_IDENTIFIER)",
        ),
        (
            "Code: 62. DB::Exception: Syntax error: failed at position 7 (1): 1. Expected one of:"
            " token, Dot, FROM. (SYNTAX_ERROR) (for url http://127.0.0.1:18123)",
            "Syntax error: failed at position 7 (1): 1 (SYNTAX_ERROR)",
        ),
        (
            "Code: 497. DB::Exception: analyst may only read. (ACCESS_DENIED)",
            "analyst may only read. (ACCESS_DENIED)",
        ),
        ("the server hung up", "the server hung up"),
    ],
)
def test_errors_of_a_statement_are_about_the_statement(server: str, person: str) -> None:
    from pipeline.cli.sql import plain

    assert plain(server) == person
