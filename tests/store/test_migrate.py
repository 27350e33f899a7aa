"""Migrations: additive, refusing what is not, safe to run twice and at once."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from clickhouse_connect.driver.client import Client

from pipeline.errors import ConfigError
from pipeline.settings import Settings
from pipeline.store import migrate
from pipeline.streams import Contracts, load_contracts, schemas_folder
from tests.support.store import RunningStore

SCHEMAS = schemas_folder()
SETTINGS = Settings()


@pytest.fixture(scope="module")
def own_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStore]:
    with RunningStore(tmp_path_factory.mktemp("migrate")) as running:
        yield running


@pytest.fixture
def client(own_store: RunningStore) -> Iterator[Client]:
    with own_store.client() as connected:
        connected.command("DROP DATABASE IF EXISTS telemetry SYNC")
        connected.database = None  # type: ignore[assignment]
        yield connected


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An own folder of numbered SQL files."""
    (tmp_path / "sql").mkdir()
    module = sys.modules["pipeline.store.migrate"]
    monkeypatch.setattr(module, "schemas_folder", lambda: tmp_path)
    return tmp_path / "sql"


def _wider(contracts: Contracts, **changes: Any) -> Contracts:
    """The contracts with one more column in ``gpu``."""
    gpu = contracts["gpu"]
    like = gpu.column("power_w")
    extra = like.model_copy(update={"name": "novel_w", **changes})
    at = gpu.columns.index(like) + 1
    columns = (*gpu.columns[:at], extra, *gpu.columns[at:])
    return Contracts({**contracts, "gpu": gpu.model_copy(update={"columns": columns})})


def _types(client: Client, table: str) -> dict[str, str]:
    rows = client.query(
        f"SELECT name, type FROM system.columns WHERE database = 'telemetry' AND table = '{table}'"
    ).result_rows
    return dict(rows)


def test_tables_have_the_columns_of_the_contracts(client: Client, folder: Path) -> None:
    contracts = load_contracts()
    migrate(client, SETTINGS, contracts)
    for stream in contracts.values():
        assert list(_types(client, stream.name)) == [column.name for column in stream.columns]
    assert migrate(client, SETTINGS, contracts) == []


def test_a_new_column_is_added_in_its_place(client: Client, folder: Path) -> None:
    contracts = load_contracts()
    migrate(client, SETTINGS, contracts)
    client.command(
        "INSERT INTO telemetry.gpu (cluster, gpu_uuid, power_w, ingested_at)"
        " VALUES ('c', 'GPU-1', 5, now())"
    )
    done = migrate(client, SETTINGS, _wider(contracts))
    assert done == [
        "added telemetry.gpu.novel_w",
        *(f"added telemetry.gpu_minute_version.novel_w_{kind}" for kind in ("avg", "min", "max")),
    ]
    names = list(_types(client, "gpu"))
    assert names.index("novel_w") == names.index("power_w") + 1
    assert client.query("SELECT power_w, novel_w FROM telemetry.gpu").result_rows == [(5.0, None)]
    assert "novel_w_avg" in _types(client, "gpu_minute")


def test_a_column_that_left_the_contract_stays(client: Client, folder: Path) -> None:
    contracts = load_contracts()
    migrate(client, SETTINGS, _wider(contracts))
    assert migrate(client, SETTINGS, contracts) == []
    assert "novel_w" in _types(client, "gpu")


def test_a_changed_type_is_refused_with_advice(client: Client, folder: Path) -> None:
    contracts = load_contracts()
    migrate(client, SETTINGS, _wider(contracts))
    with pytest.raises(ConfigError) as caught:
        migrate(client, SETTINGS, _wider(contracts, type="float64"))
    text = str(caught.value)
    assert "telemetry.gpu.novel_w is Nullable(Float32)" in text
    assert "Nullable(Float64) in schemas/gpu.toml" in text
    assert "new name" in text
    assert _types(client, "gpu")["novel_w"] == "Nullable(Float32)"


def test_a_new_identity_is_refused(client: Client, folder: Path) -> None:
    contracts = load_contracts()
    migrate(client, SETTINGS, contracts)
    with pytest.raises(ConfigError, match="sorting key"):
        migrate(client, SETTINGS, _wider(contracts, type="string", kind="identity"))


def test_retention_follows_the_setting(client: Client, folder: Path) -> None:
    contracts = load_contracts()
    migrate(client, SETTINGS, contracts)
    done = migrate(client, Settings(retention_days=3), contracts)
    assert "set retention of telemetry.gpu to 3 days" in done
    engine = client.query("SELECT engine_full FROM system.tables WHERE name = 'gpu'").result_rows
    assert "toIntervalDay(3)" in engine[0][0]
    assert migrate(client, Settings(retention_days=3), contracts) == []


def test_numbered_files_run_once_in_order(client: Client, folder: Path) -> None:
    (folder / "0002_second.sql").write_text(
        "-- a comment; with a semicolon\n"
        "INSERT INTO telemetry.first SELECT 'a;b';\n"
        "ALTER TABLE telemetry.first COMMENT COLUMN a 'it''s; done';\n"
    )
    (folder / "0001_first.sql").write_text(
        "CREATE TABLE IF NOT EXISTS telemetry.first (a String) ENGINE = MergeTree ORDER BY a"
    )
    done = migrate(client, SETTINGS, load_contracts())
    assert done[-2:] == ["applied 0001_first.sql", "applied 0002_second.sql"]
    assert migrate(client, SETTINGS, load_contracts()) == []
    assert client.query("SELECT a FROM telemetry.first").result_rows == [("a;b",)]


def test_a_file_that_was_changed_afterwards_is_refused(client: Client, folder: Path) -> None:
    path = folder / "0001_first.sql"
    path.write_text("CREATE VIEW IF NOT EXISTS telemetry.one AS SELECT 1")
    migrate(client, SETTINGS, load_contracts())
    path.write_text("CREATE VIEW IF NOT EXISTS telemetry.one AS SELECT 2")
    with pytest.raises(ConfigError, match="0001_first.sql was changed after it was applied"):
        migrate(client, SETTINGS, load_contracts())


@pytest.mark.parametrize(
    ("names", "text"),
    [(["1_x.sql"], "NNNN_name.sql"), (["0001_a.sql", "0001_b.sql"], "same number")],
)
def test_odd_file_names_are_refused(
    client: Client, folder: Path, names: list[str], text: str
) -> None:
    for name in names:
        (folder / name).write_text("SELECT 1")
    with pytest.raises(ConfigError, match=text):
        migrate(client, SETTINGS, load_contracts())


def test_a_file_that_fails_is_tried_again(client: Client, folder: Path) -> None:
    path = folder / "0001_first.sql"
    path.write_text("CREATE TABLE IF NOT EXISTS telemetry.a (a UInt8) ENGINE = Memory; SELEC 1")
    with pytest.raises(ConfigError, match="0001_first.sql: statement 2 failed"):
        migrate(client, SETTINGS, load_contracts())
    path.write_text("CREATE TABLE IF NOT EXISTS telemetry.a (a UInt8) ENGINE = Memory; SELECT 1")
    assert migrate(client, SETTINGS, load_contracts()) == ["applied 0001_first.sql"]


def test_two_at_once(own_store: RunningStore, client: Client) -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            with own_store.client() as mine:
                migrate(mine, SETTINGS, load_contracts())
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=200)
    assert failures == []
    assert migrate(client, SETTINGS, load_contracts()) == []


def test_all_of_ours_may_run_twice(client: Client) -> None:
    """Two processes may apply the same file at once, and a killed one begins again."""
    migrate(client, SETTINGS, load_contracts())
    client.command("TRUNCATE TABLE telemetry.schema_migration")
    applied = migrate(client, SETTINGS, load_contracts())
    assert applied == [f"applied {path.name}" for path in sorted((SCHEMAS / "sql").glob("*.sql"))]


class _Recorder:
    """A client that keeps the statements that it is given; nothing is there yet."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def command(self, sql: str, **_: Any) -> None:
        self.sent.append(sql)

    def query(self, sql: str, **_: Any) -> Any:
        return SimpleNamespace(result_rows=[])


def test_replicated_tables_on_a_cluster() -> None:
    recorder = _Recorder()
    settings = Settings(table_engine="ReplicatedMergeTree", cluster_name="fleet")
    migrate(recorder, settings, load_contracts())  # type: ignore[arg-type]
    creates = [sql for sql in recorder.sent if re.match(r"\s*CREATE", sql)]
    assert all(re.search(r"^\s*CREATE [^(]*? ON CLUSTER 'fleet'", sql) for sql in creates)
    engines = {m for sql in creates for m in re.findall(r"ENGINE = (\w+)", sql)}
    assert engines
    assert all(engine.startswith("Replicated") for engine in engines)


def test_plain_tables_are_left_as_written() -> None:
    recorder = _Recorder()
    migrate(recorder, SETTINGS, load_contracts())  # type: ignore[arg-type]
    assert not any("ON CLUSTER" in sql or "Replicated" in sql for sql in recorder.sent)
