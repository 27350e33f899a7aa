"""Which job, and which role in it, each GPU works for.

What the exporter says of a GPU counts; where it says nothing, a file of the scheduler does:
``squeue --json`` (written by a timer), or a CSV with ``job_id`` and any of ``gpu_uuid``,
``host``, ``gpu_index``, ``job_role``, ``rank``. The most exact line wins: a GPU by its UUID,
then by host and index, then all GPUs of a host.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.collectors.rows import clean
from pipeline.errors import ConfigError
from pipeline.topology.imports.draft import host_list

MAX_BYTES = 256_000_000
_INDEXES = re.compile(r"gpu[^,]*\(IDX:([0-9,-]+)\)")
_LONGEST_INDEXES = 16  # two numbers and a dash; more is no index


@dataclass(frozen=True, slots=True)
class Work:
    """What a GPU works for."""

    job_id: str
    role: str | None = None


@dataclass(slots=True)
class Jobs:
    """Jobs by what they are known by."""

    by_uuid: dict[str, Work] = field(default_factory=dict)
    by_index: dict[tuple[str, int], Work] = field(default_factory=dict)
    by_host: dict[str, Work] = field(default_factory=dict)
    # Hosts of several jobs whose GPUs the scheduler does not tell apart.
    shared: set[str] = field(default_factory=set)

    def find(self, uuid: str | None, host: str | None, index: int | None) -> Work | None:
        """What a GPU works for; None where nobody says, or where it cannot be told."""
        if uuid in self.by_uuid:
            return self.by_uuid[uuid]
        if host is None:
            return None
        if index is not None and (host, index) in self.by_index:
            return self.by_index[host, index]
        return None if host in self.shared else self.by_host.get(host)

    def _whole_host(self, host: str, work: Work) -> None:
        if self.by_host.setdefault(host, work) != work:
            self.shared.add(host)

    def fill(self, table: pa.Table) -> pa.Table:
        """Rows of ``gpu`` with job and role where the page itself said nothing."""
        if not (self.by_uuid or self.by_index or self.by_host):
            return table
        names = table.column_names

        def column(name: str) -> list[Any]:
            found = table.column(name).to_pylist() if name in names else None
            return found or [None] * table.num_rows

        jobs, roles = column("job_id"), column("job_role")
        ids = zip(column("gpu_uuid"), column("host"), column("gpu_index"), strict=True)
        changed = False
        for row, (uuid, host, index) in enumerate(ids):
            work = self.find(uuid, host, index)
            if work is None or jobs[row] not in (None, work.job_id):
                continue
            if jobs[row] is None or (roles[row] is None and work.role is not None):
                changed = True
                jobs[row], roles[row] = work.job_id, roles[row] or work.role
        if not changed:
            return table
        for name, values in (("job_id", jobs), ("job_role", roles)):
            array = pa.array(values, pa.string()).dictionary_encode()
            if name in names:
                table = table.set_column(table.column_names.index(name), name, array)
            else:
                table = table.append_column(name, array)
        return table


def load_jobs(path: Path) -> Jobs:
    """Read a file of either form.

    Raises:
        ConfigError: it is missing or of no known form.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(f"{path} is larger than {MAX_BYTES} bytes")
        text = path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as exc:
        raise ConfigError(f"Job file {path} cannot be read: {exc.strerror}") from exc
    if text.lstrip().startswith("{"):
        try:
            raw = json.loads(text)
        except (ValueError, RecursionError) as exc:
            raise ConfigError(f"Job file {path} is not JSON: {exc}") from exc
        return _of_squeue(raw, path)
    try:
        return _of_csv(text, path)
    except (csv.Error, ValueError) as exc:
        raise ConfigError(f"Job file {path} is no CSV: {exc}") from exc


def _of_squeue(raw: Any, path: Path) -> Jobs:
    entries = raw.get("jobs") if isinstance(raw, dict) else None
    if not isinstance(entries, list):
        raise ConfigError(f"Job file {path} has no jobs: write it with  squeue --json")
    jobs, ending = Jobs(), Jobs()
    for entry in entries:
        if not isinstance(entry, dict):
            continue
        state, job_id = entry.get("job_state"), _job_id(entry)
        words = {str(each).upper() for each in (state if isinstance(state, list) else [state])}
        if job_id is None or words.isdisjoint(("RUNNING", "COMPLETING")):
            continue
        to, work = (ending if "COMPLETING" in words else jobs), Work(job_id)
        for host, indexes in _places(entry):
            if indexes is None:
                to._whole_host(host, work)
            for index in indexes or ():
                to.by_index[host, index] = work
    # A job that ends gives way to the one that already runs in its place.
    jobs.by_index = ending.by_index | jobs.by_index
    jobs.shared |= {host for host in ending.shared if host not in jobs.by_host}
    jobs.by_host = ending.by_host | jobs.by_host
    return jobs


def _job_id(entry: dict[str, Any]) -> str | None:
    array, task = _number(entry.get("array_job_id")), _number(entry.get("array_task_id"))
    if array and task is not None:
        return clean(f"{array}_{task}")
    job_id = _number(entry.get("job_id"))
    return None if job_id is None else clean(str(job_id)) or None


def _number(raw: object) -> object:
    """A number as Slurm writes it: plain, or with a word whether it is set."""
    if isinstance(raw, dict):
        raw = raw.get("number") if raw.get("set", True) else None
    return raw if isinstance(raw, (int, str)) else None


def _places(entry: dict[str, Any]) -> Iterator[tuple[str, list[int] | None]]:
    """Hosts of a job, each with the indexes of its GPUs where Slurm tells them."""
    nodes = entry.get("nodes")
    try:
        hosts = host_list(nodes) if isinstance(nodes, str) else []
    except ConfigError:
        return
    details = entry.get("gres_detail")
    details = details if isinstance(details, list) and len(details) == len(hosts) else []
    for number, host in enumerate(hosts):
        groups = _INDEXES.findall(str(details[number])) if details else []
        yield clean(host), [n for group in groups for n in _numbers(group)] if groups else None


def _numbers(text: str) -> list[int]:
    found: list[int] = []
    for piece in text.split(","):
        first, dash, last = piece.partition("-")
        if len(piece) < _LONGEST_INDEXES and first.isdigit() and (not dash or last.isdigit()):
            found += range(int(first), min(int(last or first), int(first) + 1_023) + 1)
    return found


def _of_csv(text: str, path: Path) -> Jobs:
    reader = csv.DictReader(io.StringIO(text), skipinitialspace=True)
    if not reader.fieldnames or "job_id" not in reader.fieldnames:
        raise ConfigError(f'Job file {path} is neither squeue --json nor a CSV with "job_id"')
    jobs = Jobs()
    for line in reader:
        row = {key: (value or "").strip() for key, value in line.items() if isinstance(value, str)}
        if not row.get("job_id"):
            continue
        work = Work(row["job_id"], row.get("job_role") or row.get("rank") or None)
        if row.get("gpu_uuid"):
            jobs.by_uuid[row["gpu_uuid"]] = work
        elif row.get("host") and row.get("gpu_index", "").isdecimal():
            jobs.by_index[row["host"], int(row["gpu_index"])] = work
        elif row.get("host"):
            jobs._whole_host(row["host"], work)
    return jobs
