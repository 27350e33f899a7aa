"""ClickHouse's own JDBC driver against the store, as a JDBC tool would use it."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from tests.support.store import RunningStore

HERE = Path(__file__).parent / "jdbc"


def _libs() -> Path:
    """The driver's jars, fetched by Maven the first time."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    pom = HERE / "pom.xml"
    folder = base / "rackpulse" / f"jdbc-{hashlib.sha256(pom.read_bytes()).hexdigest()[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        libs = folder / "libs"
        if not libs.is_dir():
            partly = folder / f"partly-{os.getpid()}"
            subprocess.run(
                ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies",
                 f"-DoutputDirectory={partly}"],
                check=True, timeout=240,
            )  # fmt: skip
            partly.rename(libs)
    return libs


@pytest.fixture(scope="module")
def found(store: RunningStore, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What the Java program said: name to its values in order."""
    libs = _libs()
    classes = tmp_path_factory.mktemp("classes")
    path = f"{libs}/*"
    subprocess.run(
        ["java", "-cp", path, "org.eclipse.jdt.internal.compiler.batch.Main",
         "-17", "-nowarn", "-d", str(classes), str(HERE / "JdbcCheck.java")],
        check=True, timeout=120,
    )  # fmt: skip
    url = f"jdbc:clickhouse://127.0.0.1:{store.endpoint.port}/telemetry"
    users = store.users
    ended = subprocess.run(
        ["java", "-Xmx256m", "-Duser.timezone=UTC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=off",
         "-cp", f"{classes}:{path}", "JdbcCheck", url],
        env={**os.environ, "OWNER_PASSWORD": users.owner.password,
             "ANALYST_PASSWORD": users.analyst.password},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-3000:]
    said: dict[str, list[str]] = {}
    for line in ended.stdout.splitlines():
        name, _, value = line.partition("=")
        said.setdefault(name, []).append(value)
    return said


EXPECTED = {
    "u64": "18446744073709551615",
    "i32": "-5",
    "f64": "1.5",
    "nf": "2.5",
    "missing": "true",
    "dt64": "2026-11-30T12:34:56.789Z",
    "dt": "2026-11-30T12:34:56Z",
    "d": "2026-11-30",
    "lc": "rack-01",
    "lcmissing": "null",
    "b": "true",
    "dec": "12.34",
    "id": "61f0c404-5cb3-11e7-907b-a6006ad3dba0",
    "arr": "[x, y]",
    "s": "tab<TAB>and 'quote'",
    "columns": "15 Nullable(Float32)",
    "more": "false",
    "param_int": "42",
    "param_string": "it's \\ a 'quote'",
    "param_null": "1",
    "update_count": "1",
    "batch": "1000",
    # 1001 ids; 500 odd ones from 3 have no power; 1.5 and 1, 2, … 500; "a" and three names.
    "stored": "1001 1001 500 125251.5 4 2026-01-01T00:00:00.500Z",
    "long": f"500000 {sum(range(500_000)) + sum(len(str(n)) for n in range(500_000))}",
    "product": "ClickHouse",
    "table": "jdbc",
    "table_columns": "id name power_w at",
    "cancelled": "394",
    "analyst_count": "1001",
    "analyst_drop": "497",
    "wrong_password": "516",
}


@pytest.mark.jdbc
@pytest.mark.parametrize("name", list(EXPECTED))
def test_jdbc(found: dict[str, list[str]], name: str) -> None:
    assert found[name] == [EXPECTED[name]]


@pytest.mark.jdbc
def test_jdbc_errors_have_clickhouse_codes(found: dict[str, list[str]]) -> None:
    assert found["error"] == ["60", "62", "395"]
    assert "cancel_failed" not in found
