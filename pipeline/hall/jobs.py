"""Who computes what, where and when: partitions of trays, and the jobs that follow each other.

The fleet is cut into partitions once; each runs one job after another. A job's times and
habits follow from the seed, the partition and the job's number alone, so that no schedule has
to be stored.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from pipeline.hall import constants as c
from pipeline.hall import noise
from pipeline.hall.fleet import Bools, Fleet, Floats, Ints

Kind = Literal["train", "inference", "idle"]
_JOB = 101  # purposes of the random generators
_PARTITION = 102


@dataclass(frozen=True)
class Partition:
    """A run of trays that is scheduled as one.

    Attributes:
        first, trays: its trays, counted over the whole fleet.
        wide: whether its jobs need the fat-tree: they span racks, or the hall is small.
    """

    number: int
    first: int
    trays: int
    kind: Kind
    wide: bool = False


@dataclass(frozen=True)
class Job:
    """One job: times in seconds since 1970, rates at full speed.

    Attributes:
        stages: pipeline stages; 1 means data parallel only.
        stage_weight: compute time of each stage, about 1.
        comm: exposed communication per unit of compute time.
        tensor, dram: activity while computing.
        dynamic_w: power at full activity and nominal clock, above the static part.
        nvlink_bytes_per_s, ib_share: traffic per GPU; the latter of the line rate.
        cross_rail: share of fabric traffic that goes to every rail.
        sequence_sigma: noise of a step's length that all its ranks share.
    """

    id: str
    kind: Kind
    start: float
    end: float
    load_s: float
    checkpoint_every_s: float
    checkpoint_s: float
    stages: int
    stage_weight: tuple[float, ...]
    comm: float
    tensor: float
    dram: float
    sm: float
    dynamic_w: float
    nvlink_bytes_per_s: float
    ib_share: float
    cross_rail: float
    sequence_sigma: float
    fb_used_mib: float
    cpu_util: float


def cut_partitions(fleet: Fleet) -> list[Partition]:
    """Cut the fleet into partitions: one large training job, smaller ones, inference, idle."""
    rng = noise.generator(fleet.seed, _PARTITION)
    whole = fleet.racks - max(1, round(fleet.racks / 10)) if fleet.racks > 1 else 0
    sizes: list[tuple[int, Kind]] = []
    left = whole
    share = 0.82 if fleet.racks <= 16 else 0.36
    while left:
        size = max(1, min(left, round(whole * share)))
        if left - size == 1 and left <= 4:
            size = left
        sizes.append((size * c.TRAYS, "train"))
        left -= size
        share = float(rng.choice([0.25, 0.2, 0.12, 0.08, 0.04]))
    for _ in range(fleet.racks - whole):
        sizes.extend([(9, "train"), (7, "inference"), (2, "idle")])
    found = []
    first = 0
    for number, (trays, kind) in enumerate(sizes):
        wide = kind == "train" and (trays > c.TRAYS or fleet.racks <= 3)
        found.append(Partition(number, first, trays, kind, wide))
        first += trays
    return found


def draw_job(seed: int, partition: Partition, number: int, start: float) -> Job:
    """The ``number``-th job of a partition.

    Args:
        start: when it starts; the first one of a partition has run for a while already.
    """
    rng = noise.generator(seed, _JOB, partition.number, number)
    if partition.kind != "train":
        return _service(rng, partition, start)
    racks = partition.trays / c.TRAYS
    large = racks >= 2
    hours = float(np.exp(rng.normal(np.log(20.0 if large else 3.5), 0.45)))
    duration = max(9.0 if large else 1.0, hours) * 3600.0
    stages = int(rng.choice([n for n in (1, 2, 3, 4, 6) if partition.trays >= 6 * n]))
    weight = 1.0 + rng.normal(0.0, 0.015, stages)
    if stages > 1:
        weight[0] -= 0.02
        weight[-1] += 0.03
    moe = bool(rng.random() < 0.4)
    return Job(
        id=f"job-{partition.number:02d}{number:04d}",
        kind="train",
        start=start,
        end=start + duration,
        load_s=float(rng.uniform(90, 200)),
        checkpoint_every_s=float(rng.uniform(1200, 2700)),
        checkpoint_s=float(rng.uniform(25, 70)),
        stages=stages,
        stage_weight=tuple(float(value) for value in weight),
        comm=float(rng.uniform(0.14, 0.24) + (0.05 if moe else 0.0)),
        tensor=float(rng.uniform(0.50, 0.62) - (0.08 if moe else 0.0)),
        dram=float(rng.uniform(0.34, 0.52)),
        sm=float(rng.uniform(0.88, 0.95)),
        dynamic_w=float(rng.uniform(1090, 1215)),
        nvlink_bytes_per_s=float(rng.uniform(140e9, 260e9) * (1.6 if moe else 1.0)),
        ib_share=float(rng.uniform(0.46, 0.58))
        if partition.wide
        else float(rng.uniform(0.02, 0.06)),
        cross_rail=float(rng.uniform(0.75, 0.95)),
        sequence_sigma=float(rng.uniform(0.012, 0.035)),
        fb_used_mib=float(rng.uniform(185_000, 268_000)),
        cpu_util=float(rng.uniform(0.16, 0.30)),
    )


def _service(rng: np.random.Generator, partition: Partition, start: float) -> Job:
    return Job(
        id=f"svc-{partition.number:02d}" if partition.kind == "inference" else "",
        kind=partition.kind,
        start=start,
        end=np.inf,
        load_s=0.0,
        checkpoint_every_s=1e12,
        checkpoint_s=0.0,
        stages=1,
        stage_weight=(1.0,),
        comm=0.05,
        tensor=float(rng.uniform(0.16, 0.26)),
        dram=float(rng.uniform(0.55, 0.75)),
        sm=float(rng.uniform(0.45, 0.65)),
        dynamic_w=float(rng.uniform(700, 850)),
        nvlink_bytes_per_s=float(rng.uniform(30e9, 80e9)),
        ib_share=float(rng.uniform(0.01, 0.03)),
        cross_rail=0.5,
        sequence_sigma=0.0,
        fb_used_mib=float(rng.uniform(200_000, 262_000)),
        cpu_util=float(rng.uniform(0.08, 0.2)),
    )


class Schedule:
    """Jobs of all partitions, as arrays with one element per partition."""

    def __init__(self, fleet: Fleet, epoch: float) -> None:
        self.fleet = fleet
        self.epoch = epoch
        self.partitions = cut_partitions(fleet)
        self.first_gpu: Ints = np.array([p.first * c.GPUS_PER_TRAY for p in self.partitions])
        self.tray_partition: Ints = np.repeat(
            np.arange(len(self.partitions)), [p.trays for p in self.partitions]
        )
        self.gpu_partition: Ints = np.repeat(self.tray_partition, c.GPUS_PER_TRAY)
        self.members: Ints = np.bincount(self.gpu_partition, minlength=len(self.partitions))
        self.inference: Bools = np.array([p.kind == "inference" for p in self.partitions])
        self.train: Bools = np.array([p.kind == "train" for p in self.partitions])
        self._numbers = [0] * len(self.partitions)
        self.jobs = [self._first(p) for p in self.partitions]
        self.version = 0  # rises when a job follows another: labels have to be made again
        self._collect()

    def _first(self, partition: Partition) -> Job:
        rng = noise.generator(self.fleet.seed, _JOB, partition.number, 0, 1)
        age = float(rng.uniform(0.03, 0.35))
        job = draw_job(self.fleet.seed, partition, 0, self.epoch)
        if job.kind != "train":
            return job
        return draw_job(self.fleet.seed, partition, 0, self.epoch - age * (job.end - job.start))

    def shift(self, by_s: float) -> None:
        """Move all jobs later: time stood still for the hall."""
        self.epoch += by_s
        self.jobs = [replace(job, start=job.start + by_s, end=job.end + by_s) for job in self.jobs]
        self._collect()

    def move_to(self, at: float) -> None:
        """Let jobs follow each other until ``at``, seconds since 1970."""
        changed = False
        for number, partition in enumerate(self.partitions):
            while True:
                job = self.jobs[number]
                rng = noise.generator(
                    self.fleet.seed, _JOB, partition.number, self._numbers[number], 2
                ) if job.end <= at else None  # fmt: skip
                if rng is None:
                    break
                gap = float(rng.uniform(180, 480))
                if at < job.end + gap:
                    break
                self._numbers[number] += 1
                self.jobs[number] = draw_job(
                    self.fleet.seed, partition, self._numbers[number], job.end + gap
                )
                changed = True
        if changed:
            self.version += 1
            self._collect()

    def _collect(self) -> None:
        def column(name: str) -> Floats:
            return np.array([getattr(job, name) for job in self.jobs], dtype=float)

        self.start, self.end = column("start"), column("end")
        self.load_s = column("load_s")
        self.checkpoint_every_s = column("checkpoint_every_s")
        self.checkpoint_s = column("checkpoint_s")
        self.comm, self.tensor, self.dram = column("comm"), column("tensor"), column("dram")
        self.sm, self.dynamic_w = column("sm"), column("dynamic_w")
        self.nvlink, self.ib_share = column("nvlink_bytes_per_s"), column("ib_share")
        self.cross_rail = column("cross_rail")
        self.sequence_sigma = column("sequence_sigma")
        self.fb_used, self.cpu_util = column("fb_used_mib"), column("cpu_util")
        self.gpu_stage = np.concatenate(
            [
                np.repeat(np.arange(p.trays) * job.stages // p.trays, c.GPUS_PER_TRAY)
                for p, job in zip(self.partitions, self.jobs, strict=True)
            ]
        )
        self.gpu_weight: Floats = np.concatenate(
            [
                np.repeat(
                    np.array(job.stage_weight)[np.arange(p.trays) * job.stages // p.trays],
                    c.GPUS_PER_TRAY,
                )
                for p, job in zip(self.partitions, self.jobs, strict=True)
            ]
        )
        self.last_stage = np.array([job.stages - 1 for job in self.jobs])[self.gpu_partition]

    def phases(self, begin: float, end: float) -> tuple[Floats, Floats, Floats, Floats]:
        """Shares of the time from ``begin`` to ``end`` that each partition spends
        idle, loading, checkpointing and computing."""
        span = end - begin
        alive = _overlap(begin, end, self.start, self.end) / span
        loading = _overlap(begin, end, self.start, self.start + self.load_s) / span
        run_from = self.start + self.load_s
        checkpointing = (
            self._checkpointed(np.minimum(end, self.end) - run_from)
            - self._checkpointed(np.minimum(begin, self.end) - run_from)
        ) / span
        idle = 1.0 - alive
        idle[~(self.train | self.inference)] = 1.0
        running = np.clip(1.0 - idle - loading - checkpointing, 0.0, 1.0)
        return idle, loading, checkpointing, running

    def _checkpointed(self, run_s: Floats) -> Floats:
        """Seconds of checkpoints in the first ``run_s`` seconds of running."""
        run_s = np.maximum(run_s, 0.0)
        whole, rest = np.divmod(run_s, self.checkpoint_every_s)
        return whole * self.checkpoint_s + np.maximum(
            0.0, rest - (self.checkpoint_every_s - self.checkpoint_s)
        )

    def labels(self, at: float) -> tuple[list[str], list[str]]:
        """Job ids of the partitions, and role of each GPU within its job; empty for none."""
        ids = [job.id if at < job.end else "" for job in self.jobs]
        roles = []
        for partition, job in zip(self.partitions, self.jobs, strict=True):
            count = partition.trays * c.GPUS_PER_TRAY
            if job.kind == "idle" or at >= job.end:
                roles += [""] * count
            elif job.kind == "inference":
                roles += ["decode"] * count
            elif job.stages == 1:
                roles += ["dp"] * count
            else:
                stage = np.repeat(
                    np.arange(partition.trays) * job.stages // partition.trays, c.GPUS_PER_TRAY
                )
                roles += [f"pp{number}" for number in stage]
        return ids, roles


def _overlap(begin: float, end: float, start: Floats, stop: Floats) -> Floats:
    shared: Floats = np.maximum(np.minimum(end, stop) - np.maximum(begin, start), 0.0)
    return shared
