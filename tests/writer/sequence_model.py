"""Repeats of a collector, walked through: one key, three samples, a topic that gains a partition.

The collector numbers its samples, sends them in order and trims its spool after the
acknowledgement. It may die between the two and then sends again what was not trimmed. When a
partition is added, new samples of the key go to the new partition, which another writer reads
at its own pace. A writer first asks whether a sample is stored already, then stores it: two
steps, between which anything may happen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

SAMPLES = 3


class State(NamedTuple):
    """Spool, two partitions, what their two writers hold, and what is stored."""

    trimmed: int = 0  # samples up to this number have left the spool
    sent: int = 0  # samples up to this number were sent in this life
    pins: tuple[int, ...] = (-1,) * SAMPLES  # partition of a sample's first sending
    grown: bool = False
    crashes: int = 0
    logs: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    read: tuple[int, int] = (0, 0)
    holding: tuple[int, int] = (0, 0)  # sample that passed the check and is not stored yet
    stored: tuple[int, ...] = (0,) * SAMPLES


@dataclass(frozen=True)
class Rules:
    """``exact``: look for this very number, else for any number as high. ``pinned``: a sample
    is sent again to the partition of its first sending."""

    exact: bool = True
    pinned: bool = True
    max_crashes: int = 1


def broken(state: State) -> str | None:
    """A sample stored twice; or one that nobody holds any more and that is not stored."""
    if max(state.stored) > 1:
        return "doubled"
    for sample in range(1, state.trimmed + 1):
        unread = any(sample in log[at:] for log, at in zip(state.logs, state.read, strict=True))
        if not unread and sample not in state.holding and not state.stored[sample - 1]:
            return "lost"
    return None


def steps(state: State, rules: Rules) -> Iterator[State]:
    """Every next state."""
    if state.sent < SAMPLES:
        sample = max(state.sent, state.trimmed)
        partition = int(state.grown)
        if rules.pinned and state.pins[sample] >= 0:
            partition = state.pins[sample]
        logs = list(state.logs)
        logs[partition] = (*logs[partition], sample + 1)
        pins = list(state.pins)
        pins[sample] = partition
        yield state._replace(sent=sample + 1, logs=(logs[0], logs[1]), pins=tuple(pins))
    if state.trimmed < state.sent:
        yield state._replace(trimmed=state.trimmed + 1)
    if state.crashes < rules.max_crashes:
        yield state._replace(sent=state.trimmed, crashes=state.crashes + 1)
    if not state.grown:
        yield state._replace(grown=True)
    for partition in (0, 1):
        yield from _writer(state, partition, rules)


def _writer(state: State, partition: int, rules: Rules) -> Iterator[State]:
    holding = list(state.holding)
    if holding[partition]:
        stored = list(state.stored)
        stored[holding[partition] - 1] += 1
        holding[partition] = 0
        yield state._replace(stored=tuple(stored), holding=(holding[0], holding[1]))
    elif state.read[partition] < len(state.logs[partition]):
        sample = state.logs[partition][state.read[partition]]
        known = state.stored[sample - 1] if rules.exact else max(state.stored[sample - 1 :])
        read = list(state.read)
        read[partition] += 1
        if not known:
            holding[partition] = sample
        yield state._replace(read=(read[0], read[1]), holding=(holding[0], holding[1]))


def walk(rules: Rules) -> tuple[int, str | None]:
    """Number of states visited, and the first fault."""
    seen = {State()}
    queue = deque(seen)
    while queue:
        state = queue.popleft()
        fault = broken(state)
        if fault:
            return len(seen), fault
        for following in steps(state, rules):
            if following not in seen:
                seen.add(following)
                queue.append(following)
    return len(seen), None
