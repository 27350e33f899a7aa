"""Contracts: ranges, errors that say what is wrong, and what is made of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.errors import ContractError
from pipeline.streams import Column, Contracts, load_contracts, schemas_folder
from pipeline.streams.arrow import arrow_type, conform, table_schema, wire_schema
from pipeline.streams.contract import STREAM_NAMES
from pipeline.streams.ddl import clickhouse_type, create_table_sql
from pipeline.streams.dictionary import render
from tests.conftest import ROOT


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(schemas_folder(), tmp_path / "schemas"))


# -- what the contracts say


def test_every_stream_is_there(contracts: Contracts) -> None:
    assert tuple(contracts) == STREAM_NAMES


def test_every_numeric_reading_is_bounded_or_a_counter(contracts: Contracts) -> None:
    """A gauge without a believed range would let a sentinel into a forest."""
    for stream in contracts.values():
        for column in stream.columns:
            if column.kind == "gauge":
                assert column.range is not None, f"{stream.name}.{column.name}"


def test_every_reading_has_a_unit(contracts: Contracts) -> None:
    without = [
        f"{stream.name}.{column.name}"
        for stream in contracts.values()
        for column in stream.columns
        if column.kind in ("gauge", "counter") and not column.unit
    ]
    # The legacy total counts in a unit that differs between exporter versions.
    assert without == ["gpu.nvlink_bandwidth_total"]


@pytest.mark.parametrize(
    ("suffix", "unit"),
    [
        ("_w", "W"), ("_c", "°C"), ("_mhz", "MHz"), ("_percent", "%"), ("_bytes", "B"),
        ("_bytes_per_s", "B/s"), ("_ns", "ns"), ("_mib", "MiB"), ("_kpa", "kPa"),
        ("_lpm", "L/min"), ("_gbps", "Gb/s"), ("_kw", "kW"), ("_v", "V"), ("_a", "A"),
    ],
)  # fmt: skip
def test_units_in_names(contracts: Contracts, suffix: str, unit: str) -> None:
    found = [
        column
        for stream in contracts.values()
        for column in stream.columns
        if column.name.endswith(suffix) and column.unit is not None
    ]
    assert found
    assert {column.unit for column in found} == {unit}


def test_a_source_names_one_column_only(contracts: Contracts) -> None:
    for stream in contracts.values():
        seen: dict[tuple[str, str], str] = {}
        for column in stream.columns:
            for kind, source in column.sources.items():
                for name in source.names:
                    first = seen.setdefault((kind, name), column.name)
                    assert first == column.name, f"{stream.name}: {kind} {name}"


def test_dcgm_fields_have_their_number(contracts: Contracts) -> None:
    """Field ids are what stays when names move."""
    numbers: dict[tuple[str, int], str] = {}
    for stream in contracts.values():
        for column, source in stream.by_source("dcgm"):
            assert source.id is not None, f"{stream.name}.{column.name}"
            first = numbers.setdefault((stream.name, source.id), column.name)
            assert first == column.name, f"{stream.name}: {source.id} twice"


@pytest.mark.parametrize(
    ("stream", "column", "number", "name"),
    [
        ("gpu", "power_w", 155, "DCGM_FI_DEV_POWER_USAGE"),
        ("gpu", "power_w", 155, "DCGM_FI_DEV_BOARD_POWER_WATTS"),
        ("gpu", "xid_last", 230, "DCGM_FI_DEV_XID_ERRORS"),
        ("gpu", "tensor_active_ratio", 1004, "DCGM_FI_PROF_TENSOR_UTIL_RATIO"),
        ("gpu", "nvlink_recovery_events", 1213, "DCGM_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS"),
        (
            "nvlink",
            "recovery_successful",
            583,
            "DCGM_FI_DEV_NVLINK_PPCNT_RECOVERY_SUCCESSFUL_TOTAL",
        ),
        ("nvlink", "link_downs", 585, "DCGM_FI_DEV_NVLINK_PPCNT_PHYSICAL_LINK_DOWN_TOTAL"),
        ("nvlink", "plr_rx_codewords", 586, "DCGM_FI_DEV_NVLINK_PPCNT_PLR_RCV_CODES"),
        ("nvlink", "tx_wait_ticks", 1509, "DCGM_FI_DEV_NVLINK_PPCNT_IBPC_PORT_XMIT_WAIT"),
        ("component", "power_w", 1130, "DCGM_FI_DEV_CPU_POWER_UTIL_CURRENT"),
    ],
)
def test_numbers_and_names_of_dcgm(
    contracts: Contracts, stream: str, column: str, number: int, name: str
) -> None:
    source = contracts[stream].column(column).sources["dcgm"]
    assert source.id == number
    assert name in source.names


# -- the loader


def test_a_missing_file(folder: Path) -> None:
    (folder / "nvlink.toml").unlink()
    with pytest.raises(ContractError, match=r"nvlink\.toml is missing"):
        load_contracts(folder)


def test_a_file_that_is_no_toml(folder: Path) -> None:
    (folder / "gpu.toml").write_text("name = \n")
    with pytest.raises(ContractError, match=r"gpu\.toml is not TOML: .*line 1"):
        load_contracts(folder)


def append(folder: Path, text: str) -> None:
    with (folder / "gpu.toml").open("a", encoding="utf-8") as file:
        file.write(text)


COLUMN = (
    '\n[[column]]\nname = "{name}"\ntype = "{type}"\nkind = "{kind}"\ndescription = "x"\n{more}\n'
)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ({"name": "power_w"}, "columns defined twice: \\['power_w'\\]"),
        ({"name": "cluster"}, "columns defined twice: \\['cluster'\\]"),
        ({"name": "BadName"}, "String should match pattern"),
        ({"type": "number"}, "Input should be 'string'"),
        ({"kind": "level"}, "Input should be 'identity'"),
        ({"kind": "counter", "type": "float32"}, "counter extra must be uint64 or float64"),
        ({"more": "range = [5, 1]"}, "range of extra runs backwards"),
        ({"more": 'unlit = "W"'}, "unlit.*Extra inputs are not permitted"),
        ({"more": "sources.dcgm = { names = [] }"}, "at least 1 item"),
        ({"more": 'sources.dcgm = { name = "X" }'}, "name.*Extra inputs are not permitted"),
    ],
)
def test_a_wrong_column(folder: Path, column: dict[str, str], message: str) -> None:
    append(
        folder,
        COLUMN.format(
            **{"name": "extra", "type": "float32", "kind": "gauge", "more": "", **column}
        ),
    )
    with pytest.raises(ContractError, match=r"(?s)gpu\.toml.*" + message):
        load_contracts(folder)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('entity = ["gpu_uuid", ', 'entity = ["gpu_id", ', "unknown column: gpu_id"),
        ('key = ["rack", ', 'key = ["rak", ', "unknown column: rak"),
        ('entity = ["gpu_uuid", ', 'entity = ["power_w", ', "power_w must be of kind identity"),
        ("version = 1", "version = 0", "greater than or equal to 1"),
    ],
)
def test_a_wrong_stream(folder: Path, before: str, after: str, message: str) -> None:
    path = folder / "gpu.toml"
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))
    with pytest.raises(ContractError, match=message):
        load_contracts(folder)


def test_columns_that_are_no_table(folder: Path) -> None:
    (folder / "gpu.toml").write_text('name = "gpu"\ncolumn = "x"\n')
    with pytest.raises(ContractError, match=r"write columns as \[\[column\]\]"):
        load_contracts(folder)


def test_names_outside_the_contract_are_unknown(contracts: Contracts) -> None:
    with pytest.raises(KeyError):
        contracts["gpu"].column("no_such_column")


# -- additive changes


def test_one_more_column_is_carried_everywhere(folder: Path, contracts: Contracts) -> None:
    append(
        folder, COLUMN.format(name="fan_percent", type="float32", kind="gauge", more='unit = "%"')
    )
    wider = load_contracts(folder)["gpu"]
    before = contracts["gpu"]
    names = [column.name for column in wider.columns]
    assert [name for name in names if name != "fan_percent"] == [c.name for c in before.columns]
    assert wire_schema(wider).field("fan_percent").type == pa.float32()
    assert "`fan_percent` Nullable(Float32)" in create_table_sql(wider)
    assert "| `fan_percent` | Nullable(Float32) | gauge | % |" in render(load_contracts(folder))
    assert wider.digest != before.digest


def test_an_older_table_still_fits_a_wider_contract(folder: Path, contracts: Contracts) -> None:
    row = _row(contracts)
    old = conform(contracts["gpu"], row)
    append(folder, COLUMN.format(name="fan_percent", type="float32", kind="gauge", more=""))
    wider = load_contracts(folder)["gpu"]
    new = conform(wider, old)
    assert new.schema == wire_schema(wider)
    assert new["fan_percent"].to_pylist() == [None]
    assert new.drop_columns(["fan_percent"]).to_pylist() == old.to_pylist()


def test_the_digest_is_about_shape_only(contracts: Contracts) -> None:
    gpu = contracts["gpu"]
    reworded = gpu.model_copy(
        update={
            "columns": tuple(c.model_copy(update={"description": "other"}) for c in gpu.columns)
        }
    )
    assert reworded.digest == gpu.digest


# -- Arrow and ClickHouse


def test_arrow_and_clickhouse_agree(contracts: Contracts) -> None:
    pairs = {
        "string": (pa.string(), "String"), "bool": (pa.bool_(), "Bool"),
        "uint8": (pa.uint8(), "UInt8"), "uint16": (pa.uint16(), "UInt16"),
        "uint32": (pa.uint32(), "UInt32"), "uint64": (pa.uint64(), "UInt64"),
        "int32": (pa.int32(), "Int32"), "int64": (pa.int64(), "Int64"),
        "float32": (pa.float32(), "Float32"), "float64": (pa.float64(), "Float64"),
        "timestamp_ms": (pa.timestamp("ms", tz="UTC"), "DateTime64(3, 'UTC')"),
        "label": (pa.dictionary(pa.int32(), pa.string()), "LowCardinality"),
    }  # fmt: skip
    for stream in contracts.values():
        schema = table_schema(stream)
        for column in stream.columns:
            arrow, clickhouse = pairs[column.type]
            assert arrow_type(column) == arrow
            assert clickhouse in clickhouse_type(column)
            assert schema.field(column.name).nullable is column.nullable
            assert ("Nullable" in clickhouse_type(column)) is column.nullable


def test_what_is_always_known_is_never_null(contracts: Contracts) -> None:
    for stream in contracts.values():
        for name in (*stream.row_identity, "ingested_at", "kafka_offset", "collector_seq"):
            assert not stream.column(name).nullable


def test_the_wire_leaves_out_what_the_writer_adds(contracts: Contracts) -> None:
    for stream in contracts.values():
        added = {column.name for column in stream.delivery_columns}
        assert added >= {
            "ingested_at", "kafka_topic_id", "kafka_partition", "kafka_offset", "kafka_key",
            "collector_id", "collector_seq",
        }  # fmt: skip
        assert added.isdisjoint(wire_schema(stream).names)


def _row(contracts: Contracts, **more: object) -> pa.Table:
    del contracts
    row: dict[str, object] = {
        "cluster": "c", "source": "dcgm", "gpu_uuid": "GPU-1", "gpu_instance_id": "",
        "power_w": 170.5, **more,
    }  # fmt: skip
    table = pa.Table.from_pylist([row])
    return table.append_column("sampled_at", pa.array([0], pa.timestamp("ms", tz="UTC")))


def test_conform_fills_orders_and_casts(contracts: Contracts) -> None:
    table = conform(contracts["gpu"], _row(contracts, gpu_index=3, xid_last=None))
    assert table.schema == wire_schema(contracts["gpu"])
    row = table.to_pylist()[0]
    assert (row["gpu_index"], row["xid_last"], row["rack"], row["power_w"]) == (
        3,
        None,
        None,
        170.5,
    )


def test_conform_refuses(contracts: Contracts) -> None:
    gpu = contracts["gpu"]
    with pytest.raises(KeyError, match="no column"):
        conform(gpu, _row(contracts, unheard_of=1))
    with pytest.raises(KeyError, match="identity column gpu_uuid is missing"):
        conform(gpu, _row(contracts).drop_columns(["gpu_uuid"]))
    with pytest.raises(ValueError, match="identity column gpu_uuid holds NULL"):
        conform(gpu, _row(contracts, gpu_uuid=None))
    with pytest.raises(pa.ArrowInvalid):
        conform(gpu, _row(contracts, gpu_index=70_000))


def test_quotes_in_descriptions_are_escaped() -> None:
    from pipeline.streams.ddl import column_sql

    column = Column(name="x", type="float32", description="it's a \\ test", unit="W")
    assert column_sql(column).endswith("COMMENT 'it\\'s a \\\\ test [W]'")


# -- the generated page


def test_the_data_dictionary_is_up_to_date(contracts: Contracts) -> None:
    page = (ROOT / "docs" / "data-dictionary.md").read_text(encoding="utf-8")
    assert page == render(contracts), (
        "make it anew: rackpulse docs data-dictionary > docs/data-dictionary.md"
    )


def test_the_data_dictionary_lists_every_column(contracts: Contracts) -> None:
    page = render(contracts)
    for stream in contracts.values():
        section = page.split(f"## telemetry.{stream.name}\n")[1].split("\n## ")[0]
        listed = [line.split("`")[1] for line in section.splitlines() if line.startswith("| `")]
        assert listed == [column.name for column in stream.columns]
