"""Comparison with peers: group medians and spreads, for every minute at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.detection.conformal import BoolArray, FloatArray
from pipeline.detection.frame import Frame, joined_codes
from pipeline.detection.spec import DetectorSpec

IntArray = NDArray[np.int64]
# Makes the median absolute deviation of a normal distribution its standard deviation.
MAD_TO_SIGMA = 1.4826


def group_median(values: FloatArray, group: IntArray) -> tuple[FloatArray, IntArray]:
    """Median and number of known values of the group that each value belongs to.

    Args:
        values: any shape, NaN where unknown.
        group: same shape, rising codes; below 0 belongs to none.

    Returns:
        Median (NaN for none) and count, both in the shape of ``values``.
    """
    flat = values.ravel()
    codes = group.ravel()
    median = np.full(flat.shape, np.nan)
    count = np.zeros(flat.shape, dtype=np.int64)
    known = np.flatnonzero(np.isfinite(flat) & (codes >= 0))
    if not len(known):
        return median.reshape(values.shape), count.reshape(values.shape)
    if bool((flat[known] == flat[known[0]]).all()):
        return _of_constant(flat, codes, known, values.shape)
    order = known[np.lexsort((flat[known], codes[known]))]
    sorted_codes = codes[order]
    starts = np.flatnonzero(np.r_[True, sorted_codes[1:] != sorted_codes[:-1]])
    sizes = np.diff(np.r_[starts, len(order)])
    sorted_values = flat[order]
    low = sorted_values[starts + (sizes - 1) // 2]
    high = sorted_values[starts + sizes // 2]
    medians = (low + high) / 2
    # Values of unknown size in a known group get its median too: they are compared with it.
    position = np.searchsorted(sorted_codes[starts], codes)
    position = np.minimum(position, len(starts) - 1)
    hit = (codes >= 0) & (sorted_codes[starts][position] == codes)
    median[hit] = medians[position[hit]]
    count[hit] = sizes[position[hit]]
    return median.reshape(values.shape), count.reshape(values.shape)


def group_spread(values: FloatArray, group: IntArray) -> FloatArray:
    """Robust standard deviation of each value's group: the larger of what its middle half and
    its middle four fifths would be in a normal distribution.

    The second one tells a group that is not of one kind, such as a service of which some
    members are busy and some are not; up to a tenth of the group may stand out.

    Args:
        values, group: as for :func:`group_median`.
    """
    flat, codes = values.ravel(), group.ravel()
    spread = np.full(flat.shape, np.nan)
    known = np.flatnonzero(np.isfinite(flat) & (codes >= 0))
    if not len(known):
        return spread.reshape(values.shape)
    if bool((flat[known] == flat[known[0]]).all()):
        spread[codes >= 0] = 0.0
        return spread.reshape(values.shape)
    order = known[np.lexsort((flat[known], codes[known]))]
    sorted_codes, sorted_values = codes[order], flat[order]
    starts = np.flatnonzero(np.r_[True, sorted_codes[1:] != sorted_codes[:-1]])
    last = np.diff(np.r_[starts, len(order)]) - 1

    def at(share: float) -> FloatArray:
        # Rounded towards the middle, so that one of a few cannot set the spread.
        inward = np.ceil(share * last) if share < 0.5 else np.floor(share * last)
        found: FloatArray = sorted_values[starts + inward.astype(np.int64)]
        return found

    sigma = np.maximum((at(0.75) - at(0.25)) / 1.349, (at(0.9) - at(0.1)) / 2.563)
    position = np.minimum(np.searchsorted(sorted_codes[starts], codes), len(starts) - 1)
    hit = (codes >= 0) & (sorted_codes[starts][position] == codes)
    spread[hit] = np.maximum(sigma[position[hit]], 0.0)
    return spread.reshape(values.shape)


def _of_constant(
    flat: FloatArray, codes: IntArray, known: IntArray, shape: tuple[int, ...]
) -> tuple[FloatArray, IntArray]:
    """The same where all known values are equal: most error counters, most of the time."""
    sizes = np.bincount(codes[known], minlength=int(codes.max(initial=0)) + 1)
    count = np.where(codes >= 0, sizes[np.maximum(codes, 0)], 0)
    median = np.where(count > 0, flat[known[0]], np.nan)
    return median.reshape(shape), count.reshape(shape)


@dataclass
class PeerGroups:
    """The peer group of every entity in every minute.

    Attributes:
        code: one code per group and minute, -1 where there are too few peers.
        level: index of the group's kind in the specification, -1 for none.
        size: members of the group, the entity itself included.
    """

    code: IntArray
    level: IntArray
    size: IntArray


Peers = dict[str, PeerGroups]


def find_peers(frame: Frame, spec: DetectorSpec, fit: BoolArray) -> Peers:
    """Peer groups of every feature family.

    Args:
        fit: minutes x entities that passed the structure gate: others are nobody's peers.
    """
    made: dict[tuple[int, ...], PeerGroups] = {}
    found = {}
    for family in spec.families:
        kinds = spec.groups_of(family)
        if kinds not in made:
            made[kinds] = _groups(frame, spec, kinds, fit)
        found[family] = made[kinds]
    return found


def _groups(frame: Frame, spec: DetectorSpec, kinds: tuple[int, ...], fit: BoolArray) -> PeerGroups:
    """Give every fit entity the first kind of group that has enough peers."""
    shape = frame.shape
    code = np.full(shape, -1, dtype=np.int64)
    level = np.full(shape, -1, dtype=np.int64)
    size = np.zeros(shape, dtype=np.int64)
    offset = 0
    for index in kinds:
        kind = spec.peer_group[index]
        codes = joined_codes(frame, kind.by) if kind.by else np.zeros(shape, dtype=np.int64)
        per_minute = codes + np.arange(shape[0])[:, None] * (int(codes.max(initial=0)) + 1)
        per_minute = np.where(fit & (codes >= 0), per_minute, -1)
        known = per_minute >= 0
        if not known.any():
            continue
        unique, inverse, counts = np.unique(
            per_minute[known], return_inverse=True, return_counts=True
        )
        members = np.zeros(shape, dtype=np.int64)
        members[known] = counts[inverse]
        compact = np.full(shape, -1, dtype=np.int64)
        compact[known] = inverse
        enough = known & (members > kind.min_peers) & (level < 0)
        code[enough] = compact[enough] + offset
        level[enough] = index
        size[enough] = members[enough]
        offset += len(unique)
    return PeerGroups(code, level, size)
