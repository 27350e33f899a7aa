from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pipeline.detection.persistence import HOLD, NONE, STRONG, WEAK, judge
from pipeline.detection.spec import Decision, KofN

DECISION = Decision(strong=KofN(k=2, n=3), weak=KofN(k=3, n=4), clear_minutes=5)
LEVELS = hnp.arrays(np.int8, st.tuples(st.integers(1, 20), st.just(4)), elements=st.integers(0, 3))


def levels(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int8)[:, None]


def nothing(count: int) -> np.ndarray:
    return np.zeros((count, 1), dtype=np.int8)


def test_a_clear_fault_raises_within_three_windows() -> None:
    for run in ((STRONG, STRONG), (NONE, STRONG, STRONG), (STRONG, NONE, STRONG)):
        assert judge(levels(*run), nothing(len(run)), DECISION).raises[0]


def test_one_strong_window_raises_nothing() -> None:
    assert not judge(levels(NONE, NONE, STRONG), nothing(3), DECISION).raises[0]


def test_weak_evidence_raises_only_when_it_lasts() -> None:
    assert not judge(nothing(2), levels(WEAK, WEAK), DECISION).raises[0]
    assert judge(nothing(4), levels(WEAK, WEAK, NONE, WEAK), DECISION).raises[0]


def test_weak_one_minute_windows_alone_raise_nothing() -> None:
    assert not judge(levels(*[WEAK] * 10), nothing(10), DECISION).raises[0]


def test_what_is_over_raises_nothing_but_holds() -> None:
    verdict = judge(levels(STRONG, STRONG, NONE, NONE), nothing(4), DECISION)
    assert not verdict.raises[0]
    assert verdict.holds[0]


def test_it_closes_after_a_clean_run_and_not_before() -> None:
    for quiet in range(8):
        series = levels(STRONG, STRONG, *[NONE] * quiet)
        assert judge(series, nothing(len(series)), DECISION).holds[0] == (quiet < 5)


def test_the_bar_to_hold_is_lower_than_the_bar_to_raise() -> None:
    verdict = judge(levels(STRONG, STRONG, *[HOLD] * 10), nothing(12), DECISION)
    assert verdict.holds[0]
    assert not verdict.raises[0]


def test_what_never_was_over_the_higher_bar_holds_nothing() -> None:
    assert not judge(levels(*[HOLD] * 10), nothing(10), DECISION).holds[0]


@given(LEVELS)
def test_more_evidence_never_raises_less(short: np.ndarray) -> None:
    long = np.zeros_like(short)
    before = judge(short, long, DECISION)
    after = judge(np.minimum(short + 1, STRONG).astype(np.int8), long, DECISION)
    assert (after.raises >= before.raises).all()
    assert (after.holds >= before.holds).all()


@given(LEVELS, LEVELS)
def test_what_raises_also_holds(short: np.ndarray, long: np.ndarray) -> None:
    count = min(len(short), len(long))
    verdict = judge(short[:count], long[:count], DECISION)
    assert (verdict.holds >= verdict.raises).all()
    assert (verdict.first[verdict.holds] >= 0).all()
