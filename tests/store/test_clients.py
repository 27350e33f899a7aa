"""clickhouse-connect's ordinary HTTP client, and curl."""

from __future__ import annotations

import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import clickhouse_connect
import pyarrow as pa
import pytest
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import DatabaseError
from clickhouse_connect.driver.external import ExternalData
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import skip_or_fail
from tests.support.store import RunningStore

COLUMNS = {
    "id": "UInt64",
    "small": "Int8",
    "name": "String",
    "label": "LowCardinality(String)",
    "maybe": "LowCardinality(Nullable(String))",
    "power_w": "Nullable(Float32)",
    "ratio": "Float64",
    "ok": "Bool",
    "at": "DateTime64(3, 'UTC')",
    "minute": "DateTime('UTC')",
    "parts": "Array(String)",
    "counts": "Map(String, UInt64)",
}


@pytest.fixture(scope="module")
def types_table(store: RunningStore) -> str:
    columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    with store.client() as client:
        client.command("DROP TABLE IF EXISTS telemetry.types")
        client.command(f"CREATE TABLE telemetry.types ({columns}) ENGINE = MergeTree ORDER BY id")
    return "telemetry.types"


ROWS = st.lists(
    st.tuples(
        st.integers(0, 2**64 - 1),
        st.integers(-128, 127),
        st.text(st.characters(blacklist_categories=["Cs"]), max_size=20),
        st.sampled_from(["rack-01", "rack-02", "", "r'; DROP TABLE x"]),
        st.none() | st.sampled_from(["a", "b"]),
        st.none() | st.floats(-1000, 1000, width=32),
        st.floats(allow_nan=False, allow_infinity=False),
        st.booleans(),
        st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1)).map(  # noqa: DTZ001
            lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000, tzinfo=UTC)
        ),
        st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1)).map(  # noqa: DTZ001
            lambda at: at.replace(microsecond=0, tzinfo=UTC)
        ),
        st.lists(st.text("ab'\\\n\t", max_size=3), max_size=3),
        st.dictionaries(st.sampled_from(["x", "y"]), st.integers(0, 2**64 - 1)),
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda row: row[0],
)


@settings(deadline=None, max_examples=25)
@given(rows=ROWS, compress=st.sampled_from([False, "lz4", "zstd", "gzip", "br"]))
def test_rows_come_back_as_they_went_in(
    store: RunningStore, types_table: str, rows: list[tuple[object, ...]], compress: bool | str
) -> None:
    with store.client(compress=compress, tz_mode="aware") as client:
        client.command(f"TRUNCATE TABLE {types_table}")
        summary = client.insert(types_table, rows, column_names=list(COLUMNS))
        assert summary.written_rows == len(rows)
        found = client.query(f"SELECT * FROM {types_table} ORDER BY id").result_rows
    assert [tuple(row) for row in found] == sorted(rows, key=lambda row: row[0])  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("compress", [False, "lz4", "zstd"])
def test_arrow_there_and_back(store: RunningStore, table: str, compress: bool | str) -> None:
    sent = pa.table(
        {
            "id": pa.array(range(1000), pa.uint64()),
            "name": pa.array([f"n{i % 7}" for i in range(1000)]).dictionary_encode(),
            "power_w": pa.array([None if i % 3 else i / 2 for i in range(1000)], pa.float32()),
        }
    )
    with store.client(compress=compress) as client:
        client.insert_arrow(table, sent)
        found = client.query_arrow(f"SELECT * FROM {table} ORDER BY id")
    assert found["id"].to_pylist() == sent["id"].to_pylist()
    assert found["name"].to_pylist() == sent["name"].to_pylist()
    assert found["power_w"].to_pylist() == sent["power_w"].to_pylist()


def test_automatic_sessions_of_the_client(store: RunningStore) -> None:
    login = store.users.owner
    with clickhouse_connect.get_client(
        host="127.0.0.1", port=store.endpoint.port, username=login.user, password=login.password,
        autogenerate_session_id=True,
    ) as client:  # fmt: skip
        client.command("CREATE TEMPORARY TABLE mine (a UInt8)")
        client.insert("mine", [[1], [2]], column_names=["a"])
        assert client.query("SELECT sum(a) FROM mine").result_rows == [(3,)]
        client.command("SET max_block_size = 77")
        assert client.command("SELECT getSetting('max_block_size')") == 77


def test_parameters_of_both_kinds(client: Client) -> None:
    text = "it's a \\ 'test'\t–\n{x}"
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    found = client.query(
        "SELECT {text:String}, {at:DateTime('UTC')}, {many:Array(String)}, {none:Nullable(String)}",
        parameters={"text": text, "at": at, "many": [text, "b"], "none": None},
    ).result_rows[0]
    assert found == (text, at.replace(tzinfo=None), [text, "b"], None)
    assert client.query("SELECT %(a)s", parameters={"a": text}).result_rows == [(text,)]


def test_external_data(client: Client) -> None:
    data = ExternalData(
        file_name="racks", data=b"r1\t1\nr2\t2\n", fmt="TSV", structure=["rack String", "n UInt8"]
    )
    found = client.query("SELECT rack, n + 1 FROM racks ORDER BY n", external_data=data)
    assert found.result_rows == [("r1", 2), ("r2", 3)]


def test_columns_only_and_commands(client: Client, table: str) -> None:
    probe = client.query(f"SELECT * FROM {table} LIMIT 0")
    assert probe.column_names == ("id", "name", "power_w")
    assert probe.row_count == 0
    assert client.command("SELECT 1") == 1
    assert client.command(f"SELECT count() FROM {table}") == 0
    assert client.query("SHOW TABLES FROM system LIKE 'one'").result_rows == [("one",)]
    assert client.query("DESCRIBE TABLE system.one").result_rows[0][:2] == ("dummy", "UInt8")
    assert client.ping()


def test_large_numbers_of_rows_stream(client: Client) -> None:
    with client.query_rows_stream("SELECT number FROM numbers(300000)") as rows:
        assert sum(row[0] for row in rows) == sum(range(300_000))


def test_errors_carry_code_and_name(client: Client) -> None:
    with pytest.raises(DatabaseError) as caught:
        client.query("SELECT * FROM no_such_table")
    assert (caught.value.code, caught.value.name) == (60, "UNKNOWN_TABLE")


def test_summary_of_a_query(client: Client) -> None:
    summary = client.query("SELECT number FROM numbers(1000)").summary
    assert (summary["read_rows"], summary["result_rows"]) == ("1000", "1000")


def test_curl(store: RunningStore, table: str, tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        skip_or_fail("needs curl on PATH")
    login = tmp_path / "login"
    login.write_text(f'user = "{store.users.owner.user}:{store.users.owner.password}"\n')
    base = ["curl", "-sS", "-K", str(login)]

    def curl(*arguments: str, data: bytes = b"") -> str:
        return subprocess.run(
            [*base, *arguments], input=data, capture_output=True, check=True, timeout=60
        ).stdout.decode()

    assert curl(store.url, "--data-binary", "SELECT 1") == "1\n"
    insert = f"{store.url}/?query=INSERT+INTO+{table}+(id,name)+FORMAT+CSV"
    assert curl(insert, "--data-binary", "@-", data=b"1,a\n2,b\n") == ""
    assert curl("-T", "-", "-X", "POST", insert, data=b"3,c\n") == ""
    assert curl("-G", store.url, "--data-urlencode", f"query=SELECT count() FROM {table}") == "3\n"
    packed = curl(
        "--compressed", store.url, "--data-binary", f"SELECT name FROM {table} ORDER BY id"
    )
    assert packed == "a\nb\nc\n"
    target = f"{store.url}/?t_structure=n+UInt8"
    form = curl("-F", "query=SELECT sum(n) FROM t", "-F", "t=@-", target, data=b"1\n2\n")
    assert form == "3\n"
