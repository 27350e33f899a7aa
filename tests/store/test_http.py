"""The HTTP interface, byte by byte: what ClickHouse's clients rely on."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from clickhouse_connect.driver.client import Client

from tests.store.conftest import Http


def test_ping_needs_no_password(http_owner: Http) -> None:
    reply = http_owner(method="GET", path="/ping", login=False)
    assert (reply.status, reply.text) == (200, "Ok.\n")


def test_get_with_query_in_the_url(http_owner: Http) -> None:
    reply = http_owner(method="GET", query="SELECT 1 AS a, 'x' AS b")
    assert (reply.status, reply.text) == (200, "1\tx\n")
    assert reply.headers["x-clickhouse-format"] == "TabSeparated"
    assert reply.headers["x-clickhouse-timezone"] == "UTC"


def test_statement_in_url_and_body_is_one_text(http_owner: Http) -> None:
    assert http_owner("+ 2", query="SELECT 1").text == "3\n"


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT 1 FORMAT CSV", "1\n"),
        ("SELECT 1 AS a FORMAT JSONEachRow SETTINGS max_threads = 1;\n -- end", '{"a":1}\n'),
        ("-- FORMAT JSON\nSELECT 'FORMAT CSV' AS a", "FORMAT CSV\n"),
        ("SELECT 1 AS format FORMAT TSVWithNames", "format\n1\n"),
        ("SELECT 1 -- end", "1\n"),
        ("(SELECT 2) UNION ALL (SELECT 2)", "2\n2\n"),
        ("SELECT 1 WHERE 0 FORMAT CSVWithNames", '"1"\n'),
        ("SELECT '–' AS a", "–\n"),
    ],
)
def test_format_clause(http_owner: Http, sql: str, expected: str) -> None:
    reply = http_owner(sql)
    assert (reply.status, reply.text) == (200, expected)


@pytest.mark.parametrize("wait", ["0", "1"])
@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SHOW TABLES FROM system LIKE 'one' FORMAT CSV", b'"one"\n'),
        ("SHOW TABLES FROM system LIKE 'one'", b"one\n"),
        ("SHOW DATABASES LIKE 'tele%' FORMAT JSONEachRow", b'{"name":"telemetry"}\n'),
        (
            "DESCRIBE TABLE system.one FORMAT JSONCompactEachRow",
            b'["dummy", "UInt8", "", "", "", "", ""]\n',
        ),
        ("EXISTS TABLE system.one FORMAT CSV", b"1\n"),
        ("EXPLAIN AST SELECT 1 FORMAT RawBLOB", b"SelectWithUnionQuery"),
        ("SHOW SETTINGS LIKE 'max_threads' FORMAT CSV", b'"max_threads",'),
        ("SHOW CREATE DATABASE telemetry FORMAT TSVRaw", b"CREATE DATABASE telemetry"),
        ("SHOW COLUMNS FROM one FROM system FORMAT CSV", b'"dummy","UInt8"'),
    ],
)
def test_answers_that_are_no_select(
    http_owner: Http, http_analyst: Http, sql: str, expected: bytes, wait: str
) -> None:
    for http in (http_owner, http_analyst):
        reply = http(sql, wait_end_of_query=wait)
        assert reply.status == 200
        assert reply.body.startswith(expected)


def test_default_format_and_jdbc_header(http_owner: Http) -> None:
    assert http_owner("SELECT 1 AS a", default_format="JSONEachRow").text == '{"a":1}\n'
    reply = http_owner(
        "SELECT 1 AS a WHERE 0", headers={"X-ClickHouse-Format": "RowBinaryWithNamesAndTypes"}
    )
    # One column, its name and type: an empty result keeps its header.
    assert reply.body == b"\x01\x01a\x05UInt8"


def test_header_of_names_and_types_comes_once_in_a_long_answer(http_owner: Http) -> None:
    reply = http_owner("SELECT number AS n FROM numbers(300000) FORMAT RowBinaryWithNamesAndTypes")
    assert reply.body[:10] == b"\x01\x01n\x06UInt64"
    assert len(reply.body) == 10 + 8 * 300_000


def test_long_answers_in_one_piece_formats(http_owner: Http) -> None:
    rows = 300_000
    sql = f"SELECT number AS n, toString(number) AS s FROM numbers({rows})"
    assert len(json.loads(http_owner(f"{sql} FORMAT JSONCompact").body)["data"]) == rows
    arrow = http_owner(f"{sql} FORMAT ArrowStream").body
    assert pa.ipc.open_stream(arrow).read_all()["n"].to_pylist() == list(range(rows))


def test_parameters(http_owner: Http) -> None:
    reply = http_owner(
        "SELECT {a:UInt8} + 1, {s:String}, {n:Nullable(String)} IS NULL, {l:Array(String)}",
        param_a="41",
        param_s="it's\\ta",
        param_n="\\N",
        param_l="['x','y']",
    )
    assert reply.text == "42\tit\\'s\\ta\t1\t['x','y']\n"


def test_settings_of_the_url_hold_for_the_statement(http_owner: Http) -> None:
    assert http_owner("SELECT getSetting('max_threads')", max_threads="3").text == "3\n"


@pytest.mark.parametrize(
    "name", ["no_such_setting", "max_threads=1, readonly", "x; DROP TABLE t", "MAX_THREADS"]
)
def test_unknown_setting_is_refused(http_owner: Http, name: str) -> None:
    reply = http_owner("SELECT 1", **{name: "1"})
    assert (reply.status, reply.code) == (404, 115)


@pytest.mark.parametrize(
    ("sql", "status", "code"),
    [
        ("SELEC 1", 400, 62),
        ("SELECT * FROM no_such_table", 404, 60),
        ("SELECT no_such_column", 404, 47),
        ("SELECT 1 FORMAT NoSuchFormat", 404, 73),
        ("SELECT throwIf(1)", 500, 395),
        ("SELECT sleep(2) SETTINGS max_execution_time = 0.1", 408, 159),
        ("SELECT 1; SELECT 2", 400, 62),
        ("", 400, 62),
        ("SELECT 1 INTO OUTFILE '/tmp/x'", 501, 344),
    ],
)
def test_errors_have_code_and_status(http_owner: Http, sql: str, status: int, code: int) -> None:
    reply = http_owner(sql)
    assert (reply.status, reply.code) == (status, code)
    assert reply.text.startswith(f"Code: {code}. DB::")


def test_get_may_not_write(http_owner: Http, table: str) -> None:
    for sql in (f"INSERT INTO {table} (id) VALUES (1)", f"TRUNCATE TABLE {table}"):
        assert http_owner(method="GET", query=sql).code == 164


def test_insert_formats_and_summary(http_owner: Http, client: Client, table: str) -> None:
    replies = [
        http_owner(f"INSERT INTO {table} (id, name) VALUES (1, 'a'), (2, 'b')"),
        http_owner(f'INSERT INTO {table} FORMAT JSONEachRow\n{{"id": 3, "name": "c"}}'),
        http_owner(f"INSERT INTO {table} (id, name) FORMAT CSV\n4,d\n5,e\n"),
        http_owner(b"6\tf\n", query=f"INSERT INTO {table} (id, name) FORMAT TabSeparated"),
        http_owner(
            b"\x07\x00\x00\x00\x00\x00\x00\x00\x01g",
            query=f"INSERT INTO {table} (id, name) FORMAT RowBinary",
        ),
    ]
    written = [json.loads(r.headers["x-clickhouse-summary"])["written_rows"] for r in replies]
    assert written == ["2", "1", "2", "1", "1"]
    assert all("x-clickhouse-format" not in reply.headers for reply in replies)
    rows = client.query(f"SELECT id, name, power_w FROM {table} ORDER BY id").result_rows
    assert rows == [(i, "abcdefg"[i - 1], None) for i in range(1, 8)]


def test_first_byte_of_data_may_look_like_a_newline(http_owner: Http, client: Client) -> None:
    # Ten columns: the first byte of Native and of RowBinary below is 10.
    client.command("CREATE OR REPLACE TABLE telemetry.ten (a UInt8) ENGINE = Memory")
    reply = http_owner(b"INSERT INTO telemetry.ten FORMAT RowBinary\n\n\n")
    assert json.loads(reply.headers["x-clickhouse-summary"])["written_rows"] == "2"
    assert client.query("SELECT a FROM telemetry.ten").result_rows == [(10,), (10,)]


def test_parameters_in_an_insert(http_owner: Http, client: Client, table: str) -> None:
    reply = http_owner(
        "INSERT INTO {t:Identifier}.{u:Identifier} (id, name) FORMAT CSV\n1,a\n",
        param_t=table.split(".")[0],
        param_u=table.split(".")[1],
    )
    assert reply.status == 200
    assert client.query(f"SELECT count() FROM {table}").result_rows == [(1,)]


def _arrow(ids: list[int], power: list[float | None]) -> bytes:
    batch = pa.record_batch(
        {
            "id": pa.array(ids, pa.uint64()),
            "name": pa.array([f"n{i}" for i in ids]).dictionary_encode(),
            "power_w": pa.array(power, pa.float32()),
        }
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


FENCED = """INSERT INTO {table} (id, name, power_w)
SELECT id, name, power_w
FROM input('id UInt64, name LowCardinality(String), power_w Nullable(Float32)')
WHERE (SELECT ifNull(maxOrNull(toInt64(id)), -1) FROM {table}) < {{first:Int64}}
SETTINGS max_insert_threads = 1, min_insert_block_size_bytes = 0
FORMAT ArrowStream
"""


def test_fenced_insert_stores_once(http_owner: Http, client: Client, table: str) -> None:
    body = FENCED.format(table=table).encode() + _arrow([0, 1, 2], [1.5, None, 3.0])
    first = http_owner(body, param_first="0")
    again = http_owner(body, param_first="0")
    assert json.loads(first.headers["x-clickhouse-summary"])["written_rows"] == "3"
    assert json.loads(again.headers["x-clickhouse-summary"])["written_rows"] == "0"
    rows = client.query(f"SELECT id, name, power_w FROM {table} ORDER BY id").result_rows
    assert rows == [(0, "n0", 1.5), (1, "n1", None), (2, "n2", 3.0)]


def test_fenced_insert_is_one_part(http_owner: Http, client: Client, table: str) -> None:
    count = 150_000
    body = FENCED.format(table=table).encode() + _arrow(list(range(count)), [1.0] * count)
    assert http_owner(body, param_first="0").status == 200
    parts = client.query(f"SELECT count(), countDistinct(_part) FROM {table}").result_rows
    assert parts == [(count, 1)]


@pytest.mark.parametrize("format", ["JSONEachRow", "CSV", "Native", "RowBinary"])
def test_input_takes_other_formats(
    http_owner: Http, client: Client, table: str, format: str
) -> None:
    data = http_owner(f"SELECT toUInt64(7) AS id, 'seven' AS name FORMAT {format}").body
    sql = f"INSERT INTO {table} (id, name) SELECT id * 2, upper(name) FROM input('id UInt64, name String') FORMAT {format}\n"  # noqa: E501
    assert http_owner(sql.encode() + data).status == 200
    assert client.query(f"SELECT id, name FROM {table}").result_rows == [(14, "SEVEN")]


def test_external_data(http_owner: Http) -> None:
    boundary = "x7y"
    form = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="query"\r\n\r\n'
        "SELECT id, name FROM ids ORDER BY id\r\n"
        f'--{boundary}\r\nContent-Disposition: form-data; name="ids"; filename="ids"\r\n\r\n'
        "1\ta\n2\tb\n\r\n"
        f"--{boundary}--\r\n"
    )
    headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
    for about in ({"ids_structure": "id UInt64, name String"},):
        assert http_owner(form, headers=headers, **about).text == "1\ta\n2\tb\n"
    numbered = form.replace("SELECT id, name FROM ids ORDER BY id", "SELECT _1, _2 FROM ids")
    reply = http_owner(numbered, headers=headers, ids_types="UInt64,String")
    assert reply.text == "1\ta\n2\tb\n"
    # The table lived for that request alone.
    assert http_owner("SELECT * FROM ids").code == 60


def test_session_keeps_what_set_and_temporary_tables_say(http_owner: Http) -> None:
    session = {"session_id": "s1", "session_timeout": "30"}
    assert http_owner("SET max_block_size = 4321", **session).status == 200
    assert http_owner("CREATE TEMPORARY TABLE mine (a UInt8)", **session).status == 200
    assert http_owner("INSERT INTO mine VALUES (5)", **session).status == 200
    assert http_owner("SELECT a, getSetting('max_block_size') FROM mine", **session).text == (
        "5\t4321\n"
    )
    assert http_owner("SELECT * FROM mine").code == 60


def test_settings_of_a_request_do_not_stay_in_its_session(http_owner: Http) -> None:
    session = {"session_id": "s2"}
    http_owner("SET max_block_size = 1111", **session)
    read = "SELECT getSetting('max_block_size'), getSetting('max_threads'), currentDatabase()"
    before = http_owner(read, **session).text
    inside = http_owner(read, max_block_size="9", max_threads="1", database="system", **session)
    assert inside.text == "9\t1\tsystem\n"
    assert http_owner(read, **session).text == before


def test_session_check_and_close(http_owner: Http) -> None:
    assert http_owner("SELECT 1", session_id="never", session_check="1").code == 372
    assert http_owner("SELECT 1", session_id="s3").status == 200
    assert http_owner("SELECT 1", session_id="s3", session_check="1", close_session="1").text
    assert http_owner("SELECT 1", session_id="s3", session_check="1").code == 372


def test_the_first_question_of_clickhouse_go(http_owner: Http) -> None:
    """It reads the answer as Native of its own protocol version; revision 0 makes it read plain
    Native from then on."""
    question = "SELECT displayName(), version(), revision(), timezone()"
    asked = {"default_format": "Native", "client_protocol_version": "54483"}
    version = http_owner("SELECT version()").text.strip().encode()
    reply = http_owner(question, **asked)
    assert reply.status == 200
    assert (
        reply.body
        == (
            b"\x01\x00\x02\xff\xff\xff\xff\x00"  # about the block
            b"\x04\x01"  # columns, rows
            b"\x0ddisplayName()\x06String\x00\x09rackpulse"
            b"\x09version()\x06String\x00" + bytes([len(version)]) + version + b"\x0arevision()"
            b"\x06UInt32\x00\x00\x00\x00\x00\x0atimezone()\x06String\x00\x03UTC"
        )
    )
    # Every other question is the engine's.
    assert http_owner(question).body.split(b"\t")[1] == version
    assert http_owner("SELECT 1", **asked).body == b"\x01\x01\x011\x05UInt8\x01"
