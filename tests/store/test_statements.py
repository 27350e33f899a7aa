"""Statements while they run: seen, cancelled, failing half-way, many at once."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import threading
from urllib.parse import urlencode

import pyarrow as pa
import pytest
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError

from tests.store.conftest import Http
from tests.support.store import RunningStore
from tests.support.wait import wait_until

SLOW = "SELECT count() FROM numbers(20) WHERE sleepEachRow(1) = 0 SETTINGS max_block_size = 1, function_sleep_max_microseconds_per_block = 30000000"  # noqa: E501


def _running(http: Http, comment: str) -> int:
    sql = "SELECT count() FROM system.processes WHERE Settings['log_comment'] = {c:String}"
    return int(http(sql, param_c=comment).text)


class _Background:
    """A request in a thread of its own."""

    def __init__(self, http: Http, sql: str | bytes, **params: str) -> None:
        self.reply = None
        self._thread = threading.Thread(target=self._run, args=(http, sql, params))
        self._thread.start()

    def _run(self, http: Http, sql: str | bytes, params: dict[str, str]) -> None:
        self.reply = http(sql, **params)

    def join(self) -> object:
        self._thread.join(timeout=40)
        assert not self._thread.is_alive()
        return self.reply


def test_kill_by_log_comment(http_owner: Http) -> None:
    slow = _Background(http_owner, SLOW, log_comment="block 17")
    wait_until(lambda: _running(http_owner, "block 17") == 1, "the statement to be seen")
    http_owner("KILL QUERY WHERE Settings['log_comment'] = 'block 17' SYNC")
    assert _running(http_owner, "block 17") == 0
    slow.join()
    assert slow.reply.code == 394


@pytest.mark.parametrize(
    "condition",
    ["query_id = 'mine-{n}'", "`query_id` IN ('x', 'mine-{n}')", "query_id={{q:String}}"],
)
def test_kill_by_the_clients_own_id(http_owner: Http, condition: str) -> None:
    number = str(abs(hash(condition)))
    slow = _Background(http_owner, SLOW, query_id=f"mine-{number}", log_comment=number)
    wait_until(lambda: _running(http_owner, number) == 1, "the statement to be seen")
    reply = http_owner(
        f"KILL QUERY WHERE {condition.format(n=number)} SYNC", param_q=f"mine-{number}"
    )
    assert reply.status == 200, reply.text
    slow.join()
    assert slow.reply.code == 394
    assert slow.reply.headers["x-clickhouse-query-id"] == f"mine-{number}"


def test_killed_fenced_insert_stores_nothing(http_owner: Http, client: Client, table: str) -> None:
    batch = pa.record_batch({"id": pa.array(range(20), pa.uint64())})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    sql = (
        f"INSERT INTO {table} (id) SELECT id FROM input('id UInt64') WHERE sleepEachRow(1) = 0"
        " SETTINGS function_sleep_max_microseconds_per_block = 30000000 FORMAT ArrowStream\n"
    )
    insert = _Background(http_owner, sql.encode() + sink.getvalue().to_pybytes(), log_comment="i1")
    wait_until(lambda: _running(http_owner, "i1") == 1, "the insert to be seen")
    http_owner("KILL QUERY WHERE Settings['log_comment'] = 'i1' SYNC")
    insert.join()
    assert insert.reply.code == 394
    assert _running(http_owner, "i1") == 0
    assert client.query(f"SELECT count() FROM {table}").result_rows == [(0,)]


def _send(http: Http, sql: str, **params: str) -> socket.socket:
    endpoint = http.store.endpoint
    sock = socket.create_connection((endpoint.host, endpoint.port), timeout=30)
    sock.sendall(
        (
            f"POST /?{urlencode(params)} HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: {http.basic}\r\nContent-Length: {len(sql)}\r\n\r\n{sql}"
        ).encode()
    )
    return sock


def test_a_client_that_goes_away_ends_its_select(http_owner: Http) -> None:
    sock = _send(http_owner, SLOW, log_comment="gone")
    wait_until(lambda: _running(http_owner, "gone") == 1, "the statement to be seen")
    sock.close()
    wait_until(lambda: _running(http_owner, "gone") == 0, "the statement to be cancelled", 10)


def test_a_client_that_stops_reading_and_goes_away_ends_its_select(http_owner: Http) -> None:
    sock = _send(http_owner, "SELECT number FROM numbers(10000000000)", log_comment="full")
    assert sock.recv(100)
    wait_until(lambda: _running(http_owner, "full") == 1, "the statement to be seen")
    sock.close()
    wait_until(lambda: _running(http_owner, "full") == 0, "the statement to be cancelled", 10)


def test_an_endless_answer_takes_bounded_memory(http_owner: Http) -> None:
    """The engine waits for a client that does not read, with little in between."""
    before = _resident(http_owner.store.pid)
    sock = _send(http_owner, "SELECT number, randomString(100) FROM numbers(1000000000)")
    assert sock.recv(100)
    most = 0
    for _ in range(20):
        assert http_owner("SELECT 1").text == "1\n"
        most = max(most, _resident(http_owner.store.pid) - before)
    sock.close()
    assert most < 300 << 20


def _resident(pid: int) -> int:
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


FAILS_LATE = "SELECT number, throwIf(number = 3000000) FROM numbers(10000000)"


def test_an_error_in_mid_stream_is_told_and_the_answer_stays_open(http_owner: Http) -> None:
    endpoint = http_owner.store.endpoint
    connection = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=30)
    connection.request("POST", "/", FAILS_LATE, {"Authorization": http_owner.basic})
    response = connection.getresponse()
    assert response.status == 200
    tag = response.getheader("X-ClickHouse-Exception-Tag")
    assert tag
    with pytest.raises(http.client.IncompleteRead) as caught:
        response.read()
    end = caught.value.partial[-2000:].decode()
    block = end[end.index("__exception__") :]
    lines = block.split("\r\n")
    assert lines[0] == "__exception__"
    assert lines[1] == tag
    text, _, footer = lines[2].rpartition("\n")
    assert text.startswith("Code: 395. DB::")
    assert footer == f"{len(text.encode()) + 1} {tag}"
    assert lines[3] == "__exception__"
    connection.close()


def test_an_error_in_mid_stream_has_its_status_when_the_end_is_awaited(http_owner: Http) -> None:
    reply = http_owner(FAILS_LATE, wait_end_of_query="1")
    assert (reply.status, reply.code) == (500, 395)


@pytest.mark.parametrize("compress", [False, "lz4", "zstd", "gzip"])
def test_clickhouse_connect_sees_an_error_in_mid_stream(
    store: RunningStore, compress: bool | str
) -> None:
    with (
        store.client(compress=compress) as client,
        pytest.raises(ClickHouseError, match="395"),
        client.query_row_block_stream(FAILS_LATE) as blocks,
    ):
        for _ in blocks:
            pass


def test_busy_session_is_locked(http_owner: Http) -> None:
    slow = _Background(http_owner, SLOW, log_comment="busy", session_id="busy")
    wait_until(lambda: _running(http_owner, "busy") == 1, "the statement to be seen")
    reply = http_owner("SELECT 1", session_id="busy")
    assert (reply.status, reply.code) == (423, 373)
    http_owner("KILL QUERY WHERE Settings['log_comment'] = 'busy' SYNC")
    slow.join()
    assert http_owner("SELECT 1", session_id="busy").status == 200


class _Insistent(_Background):
    """Asks again as long as the store is full: a look at how full it is takes a place too."""

    enough = threading.Event()

    def _run(self, http: Http, sql: str | bytes, params: dict[str, str]) -> None:
        super()._run(http, sql, params)
        while self.reply.code == 202 and not self.enough.wait(0.05):
            super()._run(http, sql, params)


def test_too_many_statements_are_refused_and_can_be_killed(
    http_owner: Http, http_analyst: Http
) -> None:
    many = [_Background(http_analyst, "SELECT sleep(3)", log_comment="a") for _ in range(16)]
    _Insistent.enough.clear()
    many += [_Insistent(http_owner, SLOW, log_comment="many") for _ in range(44)]
    try:
        wait_until(lambda: http_owner("SELECT 1").code == 202, "the store to be full")
        reply = http_owner("SELECT 1")
        assert (reply.status, reply.code) == (503, 202)
        assert http_owner(method="GET", path="/ping").status == 200
    finally:
        _Insistent.enough.set()
    killed = http_owner("KILL QUERY WHERE Settings['log_comment'] = 'many' ASYNC")
    assert killed.status == 200
    for background in many:
        background.join()
    assert http_owner("SELECT 1").text == "1\n"


def test_analysts_cannot_keep_the_owner_out(http_owner: Http, http_analyst: Http) -> None:
    many = [_Background(http_analyst, "SELECT sleep(3)") for _ in range(20)]
    wait_until(lambda: http_analyst("SELECT 1").code == 202, "the analyst's room to be full")
    assert http_owner("SELECT 1").text == "1\n"
    for background in many:
        background.join()


WORKER = """
import sys
from pathlib import Path
from pipeline.settings import Settings
from pipeline.store import connect
number = int(sys.argv[2])
with connect(Settings(state_dir=Path(sys.argv[1]))) as client:
    for block in range(5):
        rows = [[number * 1000 + block * 10 + i, "n", 1.5] for i in range(10)]
        client.insert(sys.argv[3], rows, column_names=["id", "name", "power_w"])
        assert client.query(f"SELECT count() FROM {sys.argv[3]} WHERE id >= {number * 1000} AND"
                            f" id < {number * 1000 + 1000}").result_rows == [((block + 1) * 10,)]
"""


def test_several_processes_write_and_read_at_once(
    store: RunningStore, client: Client, table: str
) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(store.settings.state_dir), str(n), table]
        )
        for n in range(3)
    ]
    assert [process.wait(timeout=200) for process in processes] == [0, 0, 0]
    found = client.query(f"SELECT count(), uniqExact(id) FROM {table}").result_rows
    assert found == [(150, 150)]


def test_one_client_is_used_by_many_threads(client: Client) -> None:
    found: list[int] = []

    def work(number: int) -> None:
        for _ in range(5):
            found.append(client.query(f"SELECT {number}").result_rows[0][0])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert sorted(found) == sorted(list(range(8)) * 5)


def test_connections_are_not_leaked(http_owner: Http) -> None:
    http_owner("SELECT 1")
    before = _descriptors(http_owner.store.pid), _threads(http_owner.store.pid)
    for _ in range(100):
        assert http_owner("SELECT 1").status == 200
        assert http_owner("SELECT no_such_column").code == 47
    after = _descriptors(http_owner.store.pid), _threads(http_owner.store.pid)
    assert after[0] <= before[0] + 5
    assert after[1] <= before[1] + 80  # the pool of statement threads may fill


def _descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def _threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))
