"""What a careless server lets in, and what this one must not."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest
from clickhouse_connect.driver.client import Client

from pipeline.store.local import users_file
from tests.store.conftest import Http
from tests.support.store import RunningStore


def _raw(store: RunningStore, request: bytes, *, half_close: bool = True) -> bytes:
    """Send bytes as they are; everything that comes back."""
    with socket.create_connection((store.endpoint.host, store.endpoint.port), timeout=20) as sock:
        sock.sendall(request)
        if half_close:
            sock.shutdown(socket.SHUT_WR)
        found = b""
        while piece := sock.recv(1 << 16):
            found += piece
        return found


# --- who may come in ---------------------------------------------------------------


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1:1", "[::2]"])
def test_foreign_host_is_refused(http_owner: Http, host: str) -> None:
    name = host.format(port=http_owner.store.endpoint.port)
    reply = http_owner("SELECT 1", headers={"Host": name})
    assert (reply.status, reply.code) == (403, 497)


@pytest.mark.parametrize("host", ["localhost:{port}", "127.0.0.1:{port}", "LocalHost"])
def test_own_names_are_let_in(http_owner: Http, host: str) -> None:
    name = host.format(port=http_owner.store.endpoint.port)
    assert http_owner("SELECT 1", headers={"Host": name}).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "http://localhost.evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_web_pages_are_refused(http_owner: Http, headers: dict[str, str]) -> None:
    assert http_owner("SELECT 1", headers=headers).code == 497
    assert http_owner(method="GET", path="/ping", headers=headers).code == 497


def test_password_is_needed_in_any_of_its_forms(http_owner: Http) -> None:
    user, password = http_owner.user, http_owner.password
    ways = [
        {"headers": {"X-ClickHouse-User": user, "X-ClickHouse-Key": password}},
        {"user": user, "password": password},
        {"headers": {"Authorization": http_owner.basic}},
    ]
    for way in ways:
        assert http_owner("SELECT 1", login=False, **way).status == 200  # type: ignore[arg-type]
    wrong = [
        {},
        {"user": user, "password": password + "x"},
        {"user": "analyst", "password": password},
        {"user": "default"},
        {"headers": {"Authorization": "Basic !!!"}},
        {"headers": {"Authorization": "Bearer x"}},
        {"headers": {"X-ClickHouse-User": user}},
    ]
    for way in wrong:
        reply = http_owner("SELECT 1", login=False, **way)  # type: ignore[arg-type]
        assert (reply.status, reply.code) == (403, 516)
        assert password not in reply.text


def test_passwords_lie_where_only_the_owner_reads(store: RunningStore) -> None:
    path = users_file(store.settings.state_dir)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert store.users.owner.password not in store.log.read_text()


# --- the analyst ---------------------------------------------------------------------


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret.csv"
    path.write_text("1\n2\n")
    return path


ALLOWED = [
    "SELECT 1",
    "WITH a AS (SELECT 1 AS b) SELECT b FROM a",
    "SELECT count() FROM system.tables WHERE database = 'telemetry'",
    "SELECT sumIf(number, 1), quantiles(0.5, 0.9)(number) FROM numbers(10)",
    "SELECT row_number() OVER (ORDER BY number) FROM numbers(3) SETTINGS max_threads = 1",
    "SELECT arrayMap(x -> x + 1, [1, 2])",
    "SELECT number FROM numbers(3) WHERE number IN (SELECT 1) FORMAT JSONEachRow",
    "SHOW TABLES FROM telemetry",
    "SHOW DATABASES",
    "DESCRIBE TABLE telemetry.open",
    "SHOW CREATE TABLE telemetry.open",
    "EXISTS TABLE telemetry.open",
    "EXPLAIN SELECT * FROM telemetry.open",
    "EXPLAIN indexes = 1 SELECT * FROM open",
    "SELECT Settings['log_comment'] FROM system.processes",
    "SELECT a, a = 1 FROM open SETTINGS max_threads = 1 UNION ALL SELECT a, a = 2 FROM open",
    "SELECT * FROM (SELECT 1 UNION ALL SELECT 2) ORDER BY 1 LIMIT 1 BY 1",
    "SELECT toStartOfMinute(now()), dateDiff('second', now(), now()), a::Float64 FROM open",
    "SELECT 'it''s; -- not a comment' AS `odd name`, \"a\" FROM open",
    "SHOW COLUMNS FROM open",
    "SHOW PROCESSLIST",
]

REFUSED = [
    # Writing and governing.
    "CREATE TABLE telemetry.x (a UInt8) ENGINE = Memory",
    "CREATE TEMPORARY TABLE x (a UInt8)",
    "INSERT INTO telemetry.open VALUES (1)",
    "INSERT INTO telemetry.open SELECT 1",
    "INSERT INTO FUNCTION file('{file}.out', 'CSV', 'a UInt8') SELECT 1",
    "ALTER TABLE telemetry.open DELETE WHERE 1",
    "DROP TABLE telemetry.open",
    "TRUNCATE TABLE telemetry.open",
    "RENAME TABLE telemetry.open TO telemetry.closed",
    "OPTIMIZE TABLE telemetry.open FINAL",
    "KILL QUERY WHERE 1",
    "KILL QUERY WHERE 1 SYNC",
    "SYSTEM STOP MERGES",
    "SYSTEM SHUTDOWN",
    "SET readonly = 0",
    "SET max_threads = 1",
    "USE system",
    "GRANT SELECT ON *.* TO analyst",
    "CREATE USER eve",
    "BACKUP TABLE telemetry.open TO File('{file}.bak')",
    "ATTACH TABLE telemetry.y FROM '{file}' (a UInt8) ENGINE = Memory",
    "CREATE FUNCTION f AS (x) -> x",
    "EXECUTE AS default SELECT 1",
    "SELECT 1 PARALLEL WITH DROP TABLE telemetry.open",
    # Files and other servers.
    "SELECT * FROM file('{file}')",
    "SELECT * FROM file('{file}', 'CSV', 'a UInt8')",
    "SELECT file('{file}')",
    "SELECT * FROM `{file}`",
    "SELECT * FROM default.`{file}`",
    "SELECT * FROM '{file}'",
    "SELECT 1 IN default.`{file}`",
    "SELECT * FROM telemetry.open WHERE a IN (SELECT * FROM default.`{file}`)",
    "SELECT * FROM telemetry.open AS o JOIN default.`{file}` AS `x) (alias y` ON 1",
    "DESCRIBE TABLE default.`{file}`",
    "EXISTS TABLE default.`{file}`",
    "SHOW CREATE TABLE default.`{file}`",
    "SELECT hasColumnInTable('default', '{file}', 'c1')",
    "SELECT joinGet('default.`{file}`', 'a', 1)",
    "SELECT * FROM filesystem('/')",
    "SELECT * FROM url('http://127.0.0.1:1/', 'CSV', 'a UInt8')",
    "SELECT * FROM s3('http://127.0.0.1:1/b/k')",
    "SELECT * FROM remote('127.0.0.1', 'system', 'one')",
    "SELECT * FROM cluster('default', 'system', 'one')",
    "SELECT * FROM mysql('127.0.0.1:1', 'd', 't', 'u', 'p')",
    "SELECT * FROM postgresql('127.0.0.1:1', 'd', 't', 'u', 'p')",
    "SELECT * FROM sqlite('{file}', 't')",
    "SELECT * FROM executable('id', 'CSV', 'a String')",
    "SELECT * FROM Python(users)",
    "SELECT * FROM python(users)",
    "SELECT * FROM merge('default', '.*')",
    "SELECT * FROM loop(default, `{file}`)",
    "SELECT * FROM icebergLocal('{file}')",
    "SELECT * FROM viewExplain('EXPLAIN', '', (SELECT * FROM file('{file}')))",
    "SELECT aiGenerate('x')",
    "SELECT showCertificate()",
    "SELECT addressToLine(1)",
    "SELECT getServerSetting('path')",
    "EXPLAIN SELECT * FROM file('{file}')",
    "EXPLAIN TABLE OVERRIDE mysql('x', 'y', 'z', 'u', 'p') PARTITION BY x",
    "EXPLAIN INSERT INTO telemetry.open SELECT 1",
    "SELECT 1 INTO OUTFILE '{file}.out'",
    "SELECT 1 INTO OUTFILE '{file}.out' TRUNCATE FORMAT CSV",
    # Settings in the text.
    "SELECT 1 SETTINGS readonly = 0",
    "SELECT 1 SETTINGS max_memory_usage = 0",
    "SELECT 1 SETTINGS max_threads = 1, allow_introspection_functions = 1",
    "SELECT * FROM (SELECT 1 SETTINGS output_format_schema = '{file}.out')",
    "SELECT 1 SETTINGS max_execution_time = 0",
    "SELECT 1 SETTINGS max_execution_time = -1",
    "SELECT 1 SETTINGS max_execution_time = 301",
    "SELECT 1 SETTINGS max_threads = '1000'",
    # Several statements.
    "SELECT 1; DROP TABLE telemetry.open",
    "SELECT 1;SELECT * FROM file('{file}')",
    "SELECT 1 -- \n; SYSTEM STOP MERGES",
    "/* SELECT */ DROP TABLE telemetry.open",
]


@pytest.fixture(scope="module", autouse=True)
def _open(store: RunningStore) -> None:
    with store.client() as client:
        client.command("CREATE TABLE IF NOT EXISTS telemetry.open (a UInt8) ENGINE = Memory")


@pytest.mark.parametrize("sql", ALLOWED)
def test_analyst_may(http_analyst: Http, sql: str) -> None:
    reply = http_analyst(sql)
    assert reply.status == 200, reply.text


@pytest.mark.parametrize("sql", REFUSED)
def test_analyst_may_not(http_analyst: Http, http_owner: Http, secret: Path, sql: str) -> None:
    reply = http_analyst(sql.format(file=secret))
    assert reply.status in (400, 403, 404, 500, 501), reply.text
    # Refused by us or unknown to the engine: never run and failed on the way.
    assert reply.code in (497, 164, 62, 60, 344, 46), reply.text
    assert b"1\n2" not in reply.body
    assert sorted(path.name for path in secret.parent.iterdir()) == ["secret.csv"]
    tables = set(http_owner("SHOW TABLES FROM telemetry").text.split())
    assert "open" in tables
    assert not tables & {"x", "y", "closed"}


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("SELECT * FROM {t:Identifier}", {"t": "{file}"}),
        ("SELECT * FROM {d:Identifier}.{t:Identifier}", {"d": "default", "t": "{file}"}),
        ("SELECT 1 IN {d:Identifier}.{t:Identifier}", {"d": "default", "t": "{file}"}),
        ("DESCRIBE TABLE {d:Identifier}.{t:Identifier}", {"d": "default", "t": "{file}"}),
    ],
)
def test_analyst_may_not_by_parameters(
    http_analyst: Http, secret: Path, sql: str, names: dict[str, str]
) -> None:
    params = {f"param_{name}": value.format(file=secret) for name, value in names.items()}
    reply = http_analyst(sql, **params)
    assert reply.code in (497, 60, 47), reply.text


@pytest.mark.parametrize("name", ["default", "system", "telemetry"])
def test_no_database_leads_an_analyst_to_files(http_analyst: Http, secret: Path, name: str) -> None:
    assert http_analyst("SELECT 1", database=name).text == "1\n"
    assert http_analyst(f"SELECT * FROM `{secret}`", database=name).code == 60
    assert http_analyst(f"SELECT * FROM `{secret}`", session_id="f", database=name).code == 60


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("readonly", "0", None),
        ("max_memory_usage", "0", 164),
        ("allow_introspection_functions", "1", 164),
        ("output_format_schema", "/somewhere/x", 164),
        ("format_schema", "/etc/passwd:x", 164),
        ("format_template_row", "/etc/passwd", 164),
        ("max_threads=1, readonly", "0", 115),
    ],
)
def test_analyst_settings_of_the_url(
    http_analyst: Http, name: str, value: str, code: int | None
) -> None:
    reply = http_analyst("SELECT getSetting('readonly')", **{name: value})
    assert reply.code == code
    if code is None:
        assert reply.text == "2\n"


def test_analyst_time_is_capped(http_analyst: Http) -> None:
    read = "SELECT getSetting('max_execution_time')"
    assert http_analyst(read).text == "300\n"
    for asked in ("0", "100000", "-1"):
        assert http_analyst(read, max_execution_time=asked).text == "300\n"
    assert http_analyst(read, max_execution_time="7").text == "7\n"


def test_analyst_stays_one_in_a_session(http_analyst: Http, http_owner: Http) -> None:
    session = {"session_id": "shared name"}
    assert http_owner("CREATE TEMPORARY TABLE mine (a UInt8)", **session).status == 200
    # The owner's session of the same name is another one.
    assert http_analyst("SELECT * FROM mine", **session).code == 60
    assert http_analyst("SELECT 1", max_threads="1", **session).status == 200
    assert http_analyst("CREATE TEMPORARY TABLE x (a UInt8)", **session).code == 497
    assert http_analyst("SELECT getSetting('readonly')", **session).text == "2\n"


def test_external_table_brings_nothing_but_columns(http_analyst: Http, secret: Path) -> None:
    form = (
        '--b\r\nContent-Disposition: form-data; name="query"\r\n\r\nSELECT * FROM t\r\n'
        '--b\r\nContent-Disposition: form-data; name="t"; filename="t"\r\n\r\n1\n\r\n--b--\r\n'
    )
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    assert http_analyst(form, headers=headers, t_structure="a UInt8").text == "1\n"
    for structure in (
        f"a String DEFAULT file('{secret}')",
        f"a UInt8) AS SELECT * FROM file('{secret}') --",
        f"a UInt8) ENGINE = File(CSV, '{secret}') --",
        f"a String MATERIALIZED file('{secret}')",
    ):
        reply = http_analyst(form, headers=headers, t_structure=structure)
        assert b"1\n2" not in reply.body
        assert reply.text == "1\n" or reply.status != 200


# --- HTTP ----------------------------------------------------------------------------


def _head(http: Http, extra: str, target: str = "/") -> bytes:
    return (
        f"POST {target} HTTP/1.1\r\nHost: 127.0.0.1:{http.store.endpoint.port}\r\n"
        f"Authorization: {http.basic}\r\n{extra}\r\n"
    ).encode()


@pytest.mark.parametrize(
    "extra",
    [
        "Content-Length: 8\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 8\r\n",
        "Content-Length: 8\r\nContent-Length: 30\r\n",
        "Content-Length: 8\r\n Content-Length: 30\r\n",
        "Content-Length: +8\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding : chunked\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
    ],
)
def test_no_second_request_is_smuggled_in(http_owner: Http, table: str, extra: str) -> None:
    inner = _head(http_owner, "Content-Length: 0\r\n", f"/?query=TRUNCATE+TABLE+{table}")
    http_owner(f"INSERT INTO {table} (id) VALUES (1)")
    _raw(http_owner.store, _head(http_owner, extra) + b"0\r\n\r\n" + inner + b"SELECT 1")
    _raw(http_owner.store, _head(http_owner, extra) + b"SELECT 1" + b"\r\n" + inner[:4])
    assert http_owner(f"SELECT count() FROM {table}").text == "1\n"


def test_bare_line_feeds_and_obsolete_folds_do_not_split(http_owner: Http) -> None:
    answer = _raw(http_owner.store, _head(http_owner, "X: a\n b\r\nContent-Length: 8\r\n"))
    assert answer.startswith(b"HTTP/1.1 400") or b"200 OK" not in answer


@pytest.mark.parametrize("bad", ["a\r\nX-Injected: 1", "a\nb", "ü", "x" * 300, "a\x00b"])
def test_ids_cannot_carry_line_ends_into_headers(http_owner: Http, bad: str) -> None:
    for name in ("query_id", "session_id"):
        reply = http_owner("SELECT 1", **{name: bad})
        assert reply.code == 36
        assert "x-injected" not in reply.headers


def test_error_texts_do_not_reach_headers(http_owner: Http) -> None:
    reply = http_owner("SELECT `a\r\nX-Injected: 1`")
    assert reply.code == 47
    assert "x-injected" not in reply.headers


# --- bodies --------------------------------------------------------------------------


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_cut_short_stores_nothing(
    http_owner: Http, client: Client, table: str, chunked: bool
) -> None:
    rows = b"".join(b"%d\tn\n" % i for i in range(50_000))
    target = f"/?query=INSERT+INTO+{table}+(id,name)+FORMAT+TSV&max_insert_block_size=1000"
    target += "&min_insert_block_size_rows=1000&min_insert_block_size_bytes=0"
    if chunked:
        head = _head(http_owner, "Transfer-Encoding: chunked\r\n", target)
        body = b"%x\r\n%s\r\n" % (len(rows), rows)
    else:
        head = _head(http_owner, f"Content-Length: {len(rows) + 1}\r\n", target)
        body = rows
    answer = _raw(http_owner.store, head + body)
    assert b"200 OK" not in answer
    assert client.query(f"SELECT count() FROM {table}").result_rows == [(0,)]
    assert http_owner("SELECT 1").text == "1\n"


def test_a_fenced_body_cut_short_stores_nothing(
    http_owner: Http, client: Client, table: str
) -> None:
    sql = f"INSERT INTO {table} (id) SELECT id FROM input('id UInt64') FORMAT RowBinary\n"
    body = sql.encode() + bytes(8 * 1000)
    head = _head(http_owner, f"Content-Length: {len(body) + 8}\r\n")
    assert b"200 OK" not in _raw(http_owner.store, head + body)
    assert client.query(f"SELECT count() FROM {table}").result_rows == [(0,)]


def test_a_large_insert_takes_bounded_memory(tmp_path: Path) -> None:
    """640 MB come in; the store's memory grows by far less, wherever the data waits."""
    rows, size = 640, 1 << 20
    row = b"\x01" * 8 + b"\x80\x80\x40" + os.urandom(size)  # id, length as LEB128, bytes

    with RunningStore(tmp_path) as store:
        http = Http(store)
        http("CREATE TABLE telemetry.big (id UInt64, name String) ENGINE = MergeTree ORDER BY id")
        http("SYSTEM STOP MERGES telemetry.big")
        before = _peak(store.pid)
        target = "/?query=INSERT+INTO+telemetry.big+FORMAT+RowBinary&max_insert_block_size=8"
        target += "&min_insert_block_size_rows=8&min_insert_block_size_bytes=0"
        head = _head(http, f"Content-Length: {rows * len(row)}\r\n", target)
        with socket.create_connection((store.endpoint.host, store.endpoint.port)) as sock:
            sock.sendall(head)
            for _ in range(rows):
                sock.sendall(row)
            assert sock.recv(4096).startswith(b"HTTP/1.1 200")
        assert http("SELECT count(), sum(length(name)) FROM telemetry.big").text == (
            f"{rows}\t{rows * size}\n"
        )
        assert _peak(store.pid) - before < 420 << 20
        assert list((store.settings.state_dir / "store" / "tmp").iterdir()) == []


def _peak(pid: int) -> int:
    """Highest resident memory of a process so far, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM")
