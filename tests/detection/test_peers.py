from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pipeline.detection.frame import Frame, Labels
from pipeline.detection.peers import find_peers, group_median, group_spread
from pipeline.detection.residuals import rolling_median
from pipeline.detection.spec import DetectorSpec

VALUES = st.one_of(st.floats(-1e6, 1e6), st.just(np.nan))


@given(st.data())
def test_group_median_is_the_median_of_the_known_values_of_each_group(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 40))
    values = data.draw(hnp.arrays(np.float64, size, elements=VALUES))
    group = data.draw(hnp.arrays(np.int64, size, elements=st.integers(-1, 4)))
    median, count = group_median(values, group)
    for i in range(size):
        known = values[(group == group[i]) & np.isfinite(values)]
        if group[i] < 0 or not len(known):
            assert np.isnan(median[i])
            assert count[i] == 0
        else:
            np.testing.assert_allclose(median[i], np.median(known), rtol=1e-12)
            assert count[i] == len(known)


def test_group_spread_is_the_standard_deviation_of_a_normal_group() -> None:
    values = np.random.default_rng(1).normal(10, 3, 5000)
    np.testing.assert_allclose(group_spread(values, np.zeros(5000, dtype=np.int64)), 3, rtol=0.05)


def test_one_that_stands_out_does_not_widen_its_group() -> None:
    values = np.array([1.0, 1.1, 0.9, 1.0, 1.05, 0.95, 1.0, 1.0, 1.02, 50.0])
    assert group_spread(values, np.zeros(10, dtype=np.int64))[0] < 0.1


def test_a_group_of_two_kinds_is_wide_although_most_of_it_is_alike() -> None:
    # Seven of ten serve alike, three rest: the middle half alone would call that narrow.
    values = np.array([0.43] * 7 + [0.15] * 3)
    assert group_spread(values, np.zeros(10, dtype=np.int64))[0] > 0.1


@given(
    hnp.arrays(np.float64, st.tuples(st.integers(1, 20), st.integers(1, 3)), elements=VALUES),
    st.integers(2, 6),
)
def test_rolling_median_needs_more_than_half_of_its_minutes(
    values: np.ndarray, minutes: int
) -> None:
    found = rolling_median(values, minutes)
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            window = values[max(0, i + 1 - minutes) : i + 1, j]
            known = window[np.isfinite(window)]
            if i + 1 < minutes or len(known) * 2 <= minutes:
                assert np.isnan(found[i, j])
            else:
                np.testing.assert_allclose(found[i, j], np.median(known), rtol=1e-12)


def spec_with(groups: list[dict[str, object]]) -> DetectorSpec:
    return DetectorSpec.model_validate(
        {
            "id": "t", "title": "t", "description": "t", "entity_kind": "gpu", "noun": "GPU",
            "streams": ["gpu"], "peer_group": groups,
            "feature": [
                {"name": "x", "label": "x", "unit": "K", "family": "a", "floor": 1, "min_effect": 1}
            ],
        }
    )  # fmt: skip


def frame_of_labels(**columns: list[str | None]) -> Frame:
    count = len(next(iter(columns.values())))
    labels = {}
    for name, texts in columns.items():
        names = sorted({text for text in texts if text})
        codes = np.array([[names.index(text) if text else -1 for text in texts]], dtype=np.int32)
        labels[name] = Labels(codes, names)
    ones = np.ones((1, count))
    return Frame(
        [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=1)],
        [f"e{i}" for i in range(count)], [f"e{i}" for i in range(count)],
        ones.astype(np.int32), ones, ones, {"x": ones}, labels,
    )  # fmt: skip


def test_peers_share_job_and_role_before_they_share_a_rack() -> None:
    spec = spec_with(
        [
            {"name": "job and role", "by": ["job", "role"], "min_peers": 2},
            {"name": "rack", "by": ["rack"], "min_peers": 1},
        ]
    )
    frame = frame_of_labels(
        job=["j", "j", "j", "j", None, None],
        role=["pp0", "pp0", "pp0", "pp1", None, None],
        rack=["r1"] * 6,
    )
    peers = find_peers(frame, spec, np.ones(frame.shape, dtype=bool))["a"]
    assert peers.level[0].tolist() == [0, 0, 0, 1, 1, 1]
    assert peers.size[0].tolist() == [3, 3, 3, 6, 6, 6]


def test_too_few_peers_give_no_group() -> None:
    spec = spec_with([{"name": "rack", "by": ["rack"], "min_peers": 8}])
    frame = frame_of_labels(rack=["r1"] * 8 + ["r2"] * 9)
    peers = find_peers(frame, spec, np.ones(frame.shape, dtype=bool))["a"]
    # Eight others are needed: a group of eight has seven.
    assert (peers.code[0, :8] == -1).all()
    assert (peers.code[0, 8:] >= 0).all()


def test_an_unfit_entity_is_nobodys_peer() -> None:
    spec = spec_with([{"name": "rack", "by": ["rack"], "min_peers": 2}])
    frame = frame_of_labels(rack=["r1", "r1", "r1"])
    fit = np.array([[True, True, False]])
    assert (find_peers(frame, spec, fit)["a"].code == -1).all()
