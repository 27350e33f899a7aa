"""What ran, on what, and what it cost: CPU seconds and peak memory of each process."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_LIBRARIES = ("pyarrow", "kafka-python", "clickhouse-connect", "chdb", "numpy")


@dataclass(frozen=True)
class Cost:
    """Of one process so far."""

    cpu_s: float
    peak_mb: float


def cost(pid: int) -> Cost:
    """CPU seconds (user and system) and peak resident memory of a running process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    cpu = (int(fields[11]) + int(fields[12])) / _TICKS
    status = Path(f"/proc/{pid}/status").read_text()
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return Cost(cpu, int(peak.split()[1]) / 1024)


def load() -> float:
    """Load of the last minute: other work on the machine makes times worthless."""
    return os.getloadavg()[0]


def describe() -> list[str]:
    """Machine and versions, as lines of Markdown."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory = int(Path("/proc/meminfo").read_text().split()[1]) / 1024 / 1024
    libraries = ", ".join(f"{name} {version(name)}" for name in _LIBRARIES)
    return [
        f"- machine: {os.cpu_count()} cores, {model}, {memory:.0f} GiB, {platform.platform()}",
        f"- Python {platform.python_version()}, {libraries}",
        f"- load of the machine at the start: {load():.1f}",
    ]
