"""The store's process: starting, stopping, being killed, and what stands in its way."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from pipeline.cli.sql import sql as sql_command
from pipeline.errors import RackpulseError
from pipeline.listening import HOST, listen
from pipeline.settings import Settings
from pipeline.store import connect
from pipeline.store.local import endpoint_file, read_endpoint, store_folder, users_file
from pipeline.store.server.serve import serve
from tests.store.conftest import Http
from tests.support.store import RunningStore
from tests.support.wait import wait_until


def test_kill_9_and_restart_keeps_what_was_answered(tmp_path: Path) -> None:
    store = RunningStore(tmp_path)
    with store, store.client() as client:
        client.command("CREATE TABLE telemetry.t (a UInt64) ENGINE = MergeTree ORDER BY a")
        passwords = store.users
        for number in range(5):
            client.insert("telemetry.t", [[number]], column_names=["a"])
        store.kill9()
        # The endpoint of the dead process is still there.
        assert read_endpoint(store.settings.state_dir) is not None
        with pytest.raises(RackpulseError, match="rackpulse store serve"):
            store.client()
        store.start()
        assert store.users == passwords
        with store.client() as again:
            assert again.query("SELECT count(), max(a) FROM telemetry.t").result_rows == [(5, 4)]


SLOWLY = "function_sleep_max_microseconds_per_block = 600000000"


def _start(http: Http, sql: str, comment: str) -> threading.Thread:
    """Run a statement in a thread and wait until the store has it."""

    def work() -> None:
        with contextlib.suppress(OSError):
            http(sql, log_comment=comment)

    thread = threading.Thread(target=work)
    thread.start()
    seen = "SELECT count() FROM system.processes WHERE Settings['log_comment'] = {c:String}"
    wait_until(lambda: http(seen, param_c=comment).text == "1\n", f"{comment} to run")
    return thread


def test_kill_9_in_mid_insert_leaves_all_or_nothing(tmp_path: Path) -> None:
    store = RunningStore(tmp_path)
    with store:
        http = Http(store)
        http("CREATE TABLE telemetry.t (a UInt64) ENGINE = MergeTree ORDER BY a")
        rows = "SELECT number + sleepEachRow(0.01) FROM numbers(1000)"
        _start(http, f"INSERT INTO telemetry.t {rows} SETTINGS {SLOWLY}", "insert")
        store.kill9()
        store.start()
        assert Http(store)("SELECT count() FROM telemetry.t").text in ("0\n", "1000\n")


def test_sigterm_waits_for_an_insert(tmp_path: Path) -> None:
    store = RunningStore(tmp_path)
    with store:
        http = Http(store)
        http("CREATE TABLE telemetry.t (a UInt64) ENGINE = MergeTree ORDER BY a")
        rows = "SELECT number + sleepEachRow(0.1) FROM numbers(20)"
        thread = _start(http, f"INSERT INTO telemetry.t {rows} SETTINGS {SLOWLY}", "insert")
        assert store.stop() == 0
        thread.join(timeout=20)
        store.start()
        assert Http(store)("SELECT count() FROM telemetry.t").text == "20\n"


def test_sigterm_does_not_wait_for_ever(tmp_path: Path) -> None:
    with RunningStore(tmp_path) as store:
        endless = "SELECT count() FROM numbers(100000000000000) WHERE NOT ignore(sipHash64(number))"
        thread = _start(Http(store), endless, "endless")
        assert store.stop() == 0
        thread.join(timeout=20)
        assert not thread.is_alive()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_it_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    with RunningStore(tmp_path) as store:
        assert store.end(number) == 0
        assert not endpoint_file(store.settings.state_dir).exists()
        assert "Traceback" not in store.log.read_text()


def test_more_signals_while_it_closes_tear_nothing_down(tmp_path: Path) -> None:
    with RunningStore(tmp_path) as store:
        os.kill(store.pid, signal.SIGINT)

        def closed() -> bool:
            os.kill(store.pid, signal.SIGTERM)  # as a supervisor and Ctrl-C together do
            return "the store is closed" in store.log.read_text()

        wait_until(closed, "the store to be closed in order", 20)
        assert "Traceback" not in store.log.read_text()


def _serve(state: Path, port: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pipeline", "store", "serve", "--port", str(port)],
        env={**os.environ, "RACKPULSE_STATE_DIR": str(state)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_a_taken_port_is_said(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = _serve(tmp_path, port)
    assert ended.returncode == 1
    assert ended.stderr.splitlines() == [
        f"rackpulse: Port {port} is taken by another program: stop that one, or choose another"
        " port with --port, 0 for a free one"
    ]


def test_a_second_store_on_the_folder_is_refused(tmp_path: Path) -> None:
    with RunningStore(tmp_path) as store:
        ended = _serve(store.settings.state_dir, 0)
        assert ended.returncode == 1
        assert f"Another store (process {store.pid}, http://127.0.0.1:" in ended.stderr
        assert "Traceback" not in ended.stderr
        # The first one does not notice.
        assert Http(store)("SELECT 1").text == "1\n"


def test_a_data_folder_in_other_hands_is_said(tmp_path: Path) -> None:
    """As when some other program has opened the data with chDB."""
    folder = store_folder(tmp_path) / "data"
    folder.mkdir(parents=True)
    with (folder / "status").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        ended = _serve(tmp_path, 0)
    assert ended.returncode == 1
    assert f"The data folder {folder} cannot be opened" in ended.stderr
    assert not endpoint_file(tmp_path).exists()


def test_damaged_users_file_is_said(tmp_path: Path) -> None:
    path = users_file(tmp_path)
    path.parent.mkdir(parents=True)
    path.write_text("{")
    with pytest.raises(RackpulseError, match="damaged"):
        serve(Settings(state_dir=tmp_path), 0)


def test_no_store_is_said(tmp_path: Path) -> None:
    with pytest.raises(RackpulseError, match="rackpulse store serve"):
        connect(Settings(state_dir=tmp_path))


def test_wrong_password_is_said(tmp_path: Path) -> None:
    with RunningStore(tmp_path) as store:
        dsn = f"clickhouse://rackpulse:nonsense@127.0.0.1:{store.endpoint.port}/telemetry"
        with pytest.raises(RackpulseError, match="refused the user or the password"):
            connect(Settings(store_dsn=dsn))  # type: ignore[arg-type]


def test_dsn_with_a_password_file(tmp_path: Path) -> None:
    with RunningStore(tmp_path) as store:
        secret = tmp_path / "password"
        secret.write_text(store.users.owner.password + "\n")
        settings = Settings(
            store_dsn=f"clickhouse://rackpulse@127.0.0.1:{store.endpoint.port}/telemetry",  # type: ignore[arg-type]
            store_password_file=secret,
        )
        with connect(settings) as client:
            assert client.query("SELECT currentDatabase()").result_rows == [("telemetry",)]


def test_sql_command_prints_as_the_analyst(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunningStore(tmp_path) as store:
        monkeypatch.setenv("RACKPULSE_STATE_DIR", str(store.settings.state_dir))
        runner = CliRunner()
        table = runner.invoke(sql_command, ["SELECT 1 AS answer, NULL AS missing"])
        assert table.exit_code == 0
        assert "answer" in table.output
        assert "NULL" in table.output
        text = runner.invoke(sql_command, ["SELECT '[red]a [/b] :cd:' AS `[/c]`"])
        assert "[red]a [/b] :cd:" in text.output
        assert "[/c]" in text.output
        long = runner.invoke(sql_command, ["SELECT number FROM numbers(1000000000)"])
        assert long.exit_code == 0
        assert "9999" in long.output
        assert "10000 " not in long.output
        assert "there are more rows" in long.output
        as_json = runner.invoke(sql_command, ["SELECT 1 AS a, 'x' AS b", "--format", "json"])
        assert json.loads(as_json.output) == {"a": 1, "b": "x"}
        as_csv = runner.invoke(sql_command, ["SELECT 1 AS a, 'x' AS b", "--format", "csv"])
        assert as_csv.output == '"a","b"\n1,"x"\n'
        refused = runner.invoke(sql_command, ["DROP TABLE telemetry.gpu"])
        assert isinstance(refused.exception, RackpulseError)
        for nothing in ("", " ;\n"):
            empty = runner.invoke(sql_command, [nothing])
            assert "Write a statement" in str(empty.exception)
        strange = runner.invoke(sql_command, ["SELECT '\udcff'"])
        assert isinstance(strange.exception, RackpulseError)
        formatted = runner.invoke(sql_command, ["SELECT 1 FORMAT JSON;"])
        assert "--format" in str(formatted.exception)
        late = "SELECT throwIf(number = 900000) FROM numbers(1000000)"
        for shape in ("csv", "json"):
            broken = runner.invoke(sql_command, [late, "--format", shape])
            assert isinstance(broken.exception, RackpulseError)


def test_an_answer_does_not_wait_for_the_acknowledgement_of_its_head() -> None:
    with listen(0) as listener, socket.create_connection(listener.getsockname()) as client:
        accepted, peer = listener.accept()
        with accepted:
            assert peer == client.getsockname()
            assert listener.getsockname()[0] == HOST
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
