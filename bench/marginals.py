"""``python -m bench.marginals``: the hall's distributions beside those of two real clusters.

The reference is AcmeTrace (InternLM, CC BY 4.0): distribution points of two clusters of A100s,
read from ../shared/data/acme_cdf. Nothing of it is kept but a drawing and a few percentiles.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from pipeline.hall import constants as c
from pipeline.hall.engine import Hall
from pipeline.hall.fleet import build_fleet
from pipeline.hall.observe import Observation, Observer
from pipeline.hall.svg import Line, Panel, plot

Floats = NDArray[np.float64]
RACKS, SEED, HOURS = 16, 1, 24.0
SAMPLE_S, STEP_S = 600.0, 10.0
START = 1_772_438_400.0  # 2026-03-02T08:00:00Z
PERCENTILES = np.array([0.5, *range(2, 99, 2), 99.5])
SHOWN = (10, 50, 90, 99)
A100_LIMIT_W = 400.0
HDR_MB_PER_S = 25_000.0  # one HDR adapter per server, in one direction
_COLOURS = {"hall": "#c0392b", "Kalos": "#2c5f93", "Seren": "#16a085"}

# Title; the hall's column; file and place of the values in it, by cluster; factor to the unit.
Source = tuple[str, Callable[[Observation], Floats], dict[str, tuple[str, int]], float]
SOURCES: tuple[Source, ...] = (
    ("GPU_UTIL, %", lambda o: o.gpu["gpu_util_percent"],
     {"Kalos": ("util_gpu_kalos", 0), "Seren": ("util_gpu_seren", 0)}, 1.0),
    ("GPU memory in use, %", lambda o: o.gpu["fb_used_mib"] / c.FB_TOTAL_MIB * 100.0,
     {"Kalos": ("util_gpu_kalos", 2), "Seren": ("util_gpu_seren", 2)}, 1.0),
    ("GPU power, % of its limit", lambda o: o.gpu["power_w"] / c.POWER_LIMIT_W * 100.0,
     {"Kalos": ("gpu_power_kalos", 0), "Seren": ("gpu_power_seren", 0)}, 100.0 / A100_LIMIT_W),
    ("GPU temperature, °C", lambda o: o.gpu["gpu_temp_c"],
     {"Kalos": ("gpu_temp_kalos", 0), "Seren": ("gpu_temp_seren", 0)}, 1.0),
    ("HBM temperature, °C", lambda o: o.gpu["memory_temp_c"],
     {"Kalos": ("gpu_temp_kalos", 2), "Seren": ("gpu_temp_seren", 2)}, 1.0),
    ("InfiniBand sent, % of the adapter's rate", lambda o: o.ufm["sent_percent"],
     {"Seren": ("ib_seren", 0)}, 100.0 / HDR_MB_PER_S),
)  # fmt: skip


def data_folder() -> Path:
    """Folder of the reference data: RACKPULSE_DATA, else shared/data beside the checkout."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    return Path(os.environ.get("RACKPULSE_DATA", beside)) / "acme_cdf"


def reference(folder: Path, file: str, place: int, factor: float) -> Floats:
    """Percentiles of one measured distribution."""
    with np.load(folder / f"{file}.npz", allow_pickle=False) as found:
        values, shares = found[f"a{place}"], found[f"a{place + 1}"]
    return np.interp(PERCENTILES, shares, values) * factor


def simulated(racks: int = RACKS, hours: float = HOURS) -> list[Floats]:
    """Percentiles of the hall, one array per source; of the fabric only the adapters."""
    fleet = build_fleet(racks, SEED)
    hall = Hall(fleet, START)
    observer = Observer(hall, ufm=True)
    kept: list[list[Floats]] = [[] for _ in SOURCES]
    while hall.at < START + 3600.0 * hours:
        hall.advance(STEP_S)
        if hall.at % SAMPLE_S < STEP_S / 2:
            seen = observer.observe(links=False)
            for values, (_, column, _, _) in zip(kept, SOURCES, strict=True):
                values.append(column(seen)[: fleet.gpus])
    return [np.percentile(np.concatenate(values), PERCENTILES) for values in kept]


def draw(folder: Path, ours: list[Floats]) -> tuple[str, list[str]]:
    """The drawing, and a table in Markdown."""
    panels = []
    table = ["| what | whose | " + " | ".join(f"p{p}" for p in SHOWN) + " |"]
    table.append("|---|---|" + "---|" * len(SHOWN))
    for (title, _, real, factor), hall in zip(SOURCES, ours, strict=True):
        lines = {"hall": hall} | {
            name: reference(folder, file, place, factor) for name, (file, place) in real.items()
        }
        panels.append(
            Panel(title, [Line(n, v.tolist(), _COLOURS[n]) for n, v in lines.items()])
        )  # fmt: skip
        for name, values in lines.items():
            shown = [f"{np.interp(p, PERCENTILES, values):.0f}" for p in SHOWN]
            table.append(f"| {title} | {name} | " + " | ".join(shown) + " |")
    text = plot(
        f"{RACKS} racks for {HOURS:g} hours beside two clusters of A100s (AcmeTrace, CC BY 4.0)",
        PERCENTILES.tolist(), panels, "share of samples below, %",
    )  # fmt: skip
    return text, table


@click.command()
@click.option("--out", required=True, type=click.Path(path_type=Path), help="SVG to write.")
def main(out: Path) -> None:
    """Draw the hall's distributions beside real ones."""
    folder = data_folder()
    if not folder.is_dir():
        click.echo(f"skipped: no reference data at {folder} (set RACKPULSE_DATA)")
        return
    text, table = draw(folder, simulated())
    out.write_text(text, encoding="utf-8")
    click.echo("\n".join([str(out), "", *table]))


if __name__ == "__main__":
    main()
