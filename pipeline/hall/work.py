"""Synchronous work: every rank computes, then all wait for the slowest.

For rank g of job j, in units of the job's compute time at nominal clock:

    compute_g = weight_stage * sequence_j(t) * jitter_g(t) / clock_g^0.85 / (1 - lost_g)
    ready_g   = compute_g + stall_g            (a late host leaves the GPU idle)
    step_j    = (max over g of ready_g + comm_j) * net_j
    busy_g    = compute_g / step_j,  stalled_g = stall_g / step_j,  the rest spins

so one slow rank lengthens the step, and everybody else's activity falls together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.hall import constants as c
from pipeline.hall.effects import Effects
from pipeline.hall.fleet import Bools, Floats
from pipeline.hall.jobs import Schedule


@dataclass
class Work:
    """Shares of a step's time per GPU (they add up to 1), and pace per partition.

    Attributes:
        busy, spin, stalled: computing, waiting in a collective, waiting for the host.
        waiting: loading, checkpointing: work for the host, little for the GPU.
        idle: no job.
        pace: of each partition, work done against an undisturbed hall (1 at best).
    """

    busy: Floats
    spin: Floats
    stalled: Floats
    waiting: Floats
    idle: Floats
    pace: Floats
    step: Floats


def do_work(
    schedule: Schedule,
    effects: Effects,
    clock: Floats,
    sequence: Floats,
    jitter: Floats,
    net: Floats,
    pods: Floats,
    begin: float,
    end: float,
) -> Work:
    """Share out the time from ``begin`` to ``end``.

    Args:
        clock: each GPU's clock, ratio of nominal.
        sequence: noise of each partition's step length, unit variance.
        jitter: noise of each rank, unit variance.
        net: factor by which a slow network stretches each partition's step.
        pods: share of time in which each tray's inference pod is busy.
    """
    part = schedule.gpu_partition
    idle, loading, checkpointing, running = schedule.phases(begin, end)
    weight = schedule.gpu_weight * (1.0 + 0.006 * jitter)
    extra = effects.stage_extra[part] * (schedule.gpu_stage == schedule.last_stage)
    compute = (
        (weight + extra)
        * (1.0 + schedule.sequence_sigma * sequence)[part]
        / np.maximum(clock, 0.05) ** c.WORK_CLOCK_EXPONENT
        / (1.0 - np.minimum(effects.memory + effects.flap, 0.9))
    )
    ready = np.where(effects.lost, 0.0, compute + effects.stall)
    slowest = np.maximum.reduceat(ready, schedule.first_gpu)
    step = (slowest + schedule.comm) * net
    run = running[part]
    share = run / step[part]
    busy = compute * share
    stalled = effects.stall * share
    waiting = (loading + checkpointing)[part]
    idle_gpu = idle[part]
    service = schedule.inference[part]
    if service.any():
        active = np.repeat(pods, c.GPUS_PER_TRAY)[service] * run[service]
        busy[service] = np.minimum(active / np.maximum(clock[service], 0.3), 1.0)
        stalled[service] = np.minimum(effects.stall[service] * busy[service], 0.3)
        idle_gpu = idle_gpu.copy()
        idle_gpu[service] = np.clip(1.0 - busy[service] - stalled[service], 0.0, 1.0)
    stopped = _stopped(schedule, effects)
    if stopped.any():
        gone = stopped[part]
        busy[gone] = stalled[gone] = waiting[gone] = 0.0
        idle_gpu = np.where(gone, 1.0, idle_gpu)
    off = effects.off[schedule.fleet.gpu_rack]
    if off.any():
        busy[off] = stalled[off] = waiting[off] = 0.0
        idle_gpu = np.where(off, 1.0, idle_gpu)
    spin = np.clip(1.0 - busy - stalled - waiting - idle_gpu, 0.0, 1.0)
    pace = running * (1.0 + schedule.comm) / step * ~stopped
    return Work(busy, spin, stalled, waiting, idle_gpu, pace, step)


def _stopped(schedule: Schedule, effects: Effects) -> Bools:
    """Training jobs that lost a member, by a fault or by maintenance, stand still."""
    gone = effects.lost | effects.off[schedule.fleet.gpu_rack]
    if not gone.any():
        return np.zeros(len(schedule.partitions), dtype=bool)
    return np.maximum.reduceat(gone, schedule.first_gpu) & schedule.train
