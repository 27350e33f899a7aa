"""Reading dcgm-exporter pages: ours, the library's parser, and a plain pydantic-per-row loop.

The pages are those of the reference fleet: 1,152 compute trays with 4 GPUs and 80 fields, 368,640
sample lines. All three run in one process on the same pages; the slow two on a part of them.
CPU time is what is compared, so that a busy machine does not decide.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

import pyarrow as pa
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel

from bench import machine
from pipeline.collectors import Page
from pipeline.collectors.prometheus_text import parse
from pipeline.collectors.readers import dcgm
from pipeline.streams import Contracts, load_contracts

TRAYS = 1152
FIELDS = 80
GPUS = 4
PART = 24
BLANK = "9223372036854775794"
AT = datetime(2026, 1, 1, tzinfo=UTC)
TARGET_LINES_PER_S = 200_000


def fleet(contracts: Contracts, trays: int = TRAYS) -> list[Page]:
    """Pages of the reference fleet, with HELP and TYPE lines and one blank in 29 readings."""
    names = [
        source.names[0]
        for column, source in contracts["gpu"].by_source("dcgm")
        if column.type not in ("label", "string")
    ][:FIELDS]
    return [Page(_page(names, tray), f"dcgm/tray-{tray:04}", AT, "bench") for tray in range(trays)]


def _page(names: list[str], tray: int) -> bytes:
    lines = []
    for number, name in enumerate(names):
        lines.append(f"# HELP {name} What it is, in a sentence of a usual length (in its unit).")
        lines.append(f"# TYPE {name} gauge")
        ratio = name.endswith(("RATIO", "ACTIVE"))
        for gpu in range(GPUS):
            value = (
                f"0.{(tray * 7 + number * 31 + gpu) % 1_000_000:06}"
                if ratio
                else str((tray * 13 + number * 7 + gpu) % 90 + 1)
            )
            if (number + gpu + tray) % 29 == 0:
                value = BLANK
            lines.append(
                f'{name}{{gpu="{gpu}",UUID="GPU-500c921b-643b-55e0-{tray:04x}-da471928196{gpu}",'
                f'pci_bus_id="0000000{gpu}:06:00.0",device="nvidia{gpu}",'
                f'modelName="NVIDIA GB300",Hostname="tray-{tray:04}",'
                f'DCGM_FI_DRIVER_VERSION="580.105.05"}} {value}'
            )
    return ("\n".join(lines) + "\n").encode()


class _Row(BaseModel):
    name: str
    gpu: int
    uuid: str
    pci_bus_id: str
    device: str
    model: str
    host: str
    value: float | None


def _pydantic_loop(pages: list[Page]) -> int:
    """What one writes first: a model per sample line, and a table of them."""
    rows = []
    for page in pages:
        for line in page.body.decode().splitlines():
            if line.startswith("#"):
                continue
            head, _, value = line.rpartition("} ")
            name, _, block = head.partition("{")
            labels = dict(part.split("=", 1) for part in block.split(","))
            row = _Row(
                name=name,
                gpu=int(labels["gpu"].strip('"')),
                uuid=labels["UUID"].strip('"'),
                pci_bus_id=labels["pci_bus_id"].strip('"'),
                device=labels["device"].strip('"'),
                model=labels["modelName"].strip('"'),
                host=labels["Hostname"].strip('"'),
                value=None if float(value) >= 2.0**63 else float(value),
            )
            rows.append(row.model_dump())
    return int(pa.Table.from_pylist(rows).num_rows)


def _library(pages: list[Page]) -> int:
    """The library's parser alone: no rows, no blanks."""
    return sum(
        len(family.samples)
        for page in pages
        for family in text_string_to_metric_families(page.body.decode())
    )


def _measured(name: str, pages: list[Page], work: Callable[[list[Page]], int]) -> dict[str, object]:
    lines = len(pages) * FIELDS * GPUS
    started = time.process_time()
    done = work(pages)
    seconds = time.process_time() - started
    assert done > 0
    return {
        "name": name,
        "pages": len(pages),
        "lines": lines,
        "cpu_s": round(seconds, 3),
        "lines_per_s": round(lines / seconds),
    }


def run(trays: int = TRAYS) -> list[dict[str, object]]:
    """Measure all three; the first is held to 200,000 lines per second and core."""
    contracts = load_contracts()
    pages = fleet(contracts, trays)
    part = pages[: min(PART, trays)]

    def rows(given: list[Page]) -> int:
        return sum(dcgm.read(page, contracts).tables["gpu"].num_rows for page in given)

    rows(part)  # caches are warm in a collector that runs
    found = [
        _measured("rackpulse: page to Arrow rows, blanks handled", pages, rows),
        _measured(
            "rackpulse: parsing alone", pages, lambda given: sum(len(parse(p.body)) for p in given)
        ),
        _measured("prometheus_client: parsing alone", part, _library),
        _measured("pydantic model per line, then a table", part, _pydantic_loop),
    ]
    found[0]["target_lines_per_s"] = TARGET_LINES_PER_S
    return found


def main() -> None:
    """Print a Markdown table."""
    print(f"# Reading exporter pages, load of the machine {machine.load():.1f}\n")
    print("| what | sample lines | CPU s of one core | lines per second | at least |")
    print("|---|---:|---:|---:|---:|")
    for result in run():
        least = result.get("target_lines_per_s")
        print(
            f"| {result['name']} | {result['lines']:,} | {result['cpu_s']} | "
            f"{result['lines_per_s']:,} | {'' if least is None else format(least, ',')} |"
        )
    print()


if __name__ == "__main__":
    main()
