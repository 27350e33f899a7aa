from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pipeline.detection.conformal import Calibration, benjamini_hochberg, smallest_p

RNG = np.random.default_rng(1)
HEALTHY = np.abs(RNG.normal(size=5000))


def test_benjamini_hochberg_on_the_example_of_its_paper() -> None:
    # Benjamini and Hochberg (1995), section 3.2: 15 tests, q = 0.05, the four smallest rejected.
    p = np.array(
        [
            0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240,
            0.4262, 0.5719, 0.6528, 0.7590, 1.0000,
        ]
    )  # fmt: skip
    assert benjamini_hochberg(p, 0.05).tolist() == [True] * 4 + [False] * 11


def test_benjamini_hochberg_leaves_entities_without_a_verdict_out() -> None:
    p = np.array([np.nan, 0.02, np.nan, np.nan])
    # One test, not four: 0.02 <= 0.05 * 1 / 1.
    assert benjamini_hochberg(p, 0.05).tolist() == [False, True, False, False]


@given(
    hnp.arrays(np.float64, st.integers(1, 60), elements=st.floats(0, 1)),
    st.floats(0.001, 0.5),
)
def test_benjamini_hochberg_rejects_the_smallest_and_no_more_than_it_may(
    p: np.ndarray, q: float
) -> None:
    rejected = benjamini_hochberg(p, q)
    count = int(rejected.sum())
    if count:
        assert p[rejected].max() <= q * count / len(p)
        assert p[rejected].max() <= p[~rejected].min(initial=2.0)
    # Nothing larger would have been allowed: the definition's "largest k".
    for k in range(count + 1, len(p) + 1):
        assert np.sort(p)[k - 1] > q * k / len(p)


@pytest.mark.parametrize("log", [True, False])
@given(scores=hnp.arrays(np.float64, 40, elements=st.floats(0, 60)))
@settings(max_examples=40)
def test_p_values_never_rise_with_the_score(scores: np.ndarray, log: bool) -> None:
    calibration = Calibration.fit(HEALTHY, log=log)
    ordered = np.sort(scores)
    p = calibration.p_values(ordered)
    assert (np.diff(p) <= 1e-15).all()
    assert ((p > 0) & (p <= 1)).all()


def test_p_values_of_healthy_scores_are_about_uniform() -> None:
    calibration = Calibration.fit(HEALTHY, log=True)
    fresh = np.abs(np.random.default_rng(2).normal(size=20_000))
    p = calibration.p_values(fresh)
    for level in (0.5, 0.1, 0.01):
        assert (p <= level).mean() == pytest.approx(level, rel=0.25)
    # A valid p-value: its chance to be so small is at most itself, here with sampling slack.
    assert (p <= 0.001).mean() <= 0.002


def test_beyond_the_reference_the_tail_goes_on_falling() -> None:
    calibration = Calibration.fit(HEALTHY, log=True)
    p = calibration.p_values(np.array([5.0, 10.0, 20.0, 40.0]))
    assert p[0] < 1e-3
    assert (p[1:] < p[:-1]).all()
    assert p[-1] < 1e-7


def test_faults_in_the_reference_do_not_make_far_scores_usual() -> None:
    spoilt = np.concatenate([HEALTHY, np.full(20, 40.0)])
    p = Calibration.fit(spoilt, log=True).p_values(np.array([40.0]))
    # 20 of 5,020 are as high, yet a score of 40 among |z| of normal data stays remarkable.
    assert p[0] < 1e-4


def test_a_constant_reference_still_gives_p_values() -> None:
    calibration = Calibration.fit(np.zeros(1000), log=True)
    p = calibration.p_values(np.array([0.0, 3.0]))
    assert p[0] == 1.0
    assert p[1] < 1e-6


def test_unknown_scores_stay_unknown() -> None:
    p = Calibration.fit(HEALTHY, log=True).p_values(np.array([np.nan, 1.0]))
    assert np.isnan(p[0])
    assert np.isfinite(p[1])


def test_a_short_reference_is_refused() -> None:
    with pytest.raises(ValueError, match="50 scores"):
        Calibration.fit(HEALTHY[:49], log=True)


def test_calibration_survives_its_json() -> None:
    calibration = Calibration.fit(HEALTHY, log=True)
    again = Calibration.from_json(calibration.to_json())
    scores = np.linspace(0, 20, 50)
    np.testing.assert_array_equal(calibration.p_values(scores), again.p_values(scores))


def test_smallest_p_counts_the_tests_that_were_made() -> None:
    p = np.array([[0.01, np.nan, 0.6], [0.5, 0.02, np.nan], [np.nan, np.nan, np.nan]])
    np.testing.assert_allclose(smallest_p(p), [0.02, 0.02, 0.6])
    assert np.isnan(smallest_p(np.full((3, 1), np.nan)))[0]
