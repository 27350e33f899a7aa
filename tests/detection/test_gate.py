from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np

from pipeline.detection.engine import judge_frame
from pipeline.detection.findings import lost_entities
from pipeline.detection.frame import Frame, Labels
from pipeline.detection.gate import inspect, rule_holds
from pipeline.detection.residuals import Baseline
from pipeline.detection.spec import Gate, Rule
from tests.detection.specs import small_spec

START = datetime(2026, 3, 2, 8, tzinfo=UTC)
SPEC = small_spec(gate=Gate(settle=("job",), settle_minutes=2, frozen_minutes=3, lost_minutes=3))


def make(minutes: int = 12, entities: int = 4) -> Frame:
    """Six samples a minute, all moving, two hosts of two."""
    shape = (minutes, entities)
    hosts = Labels(np.tile(np.arange(entities) // 2, (minutes, 1)).astype(np.int32), ["h0", "h1"])
    jobs = Labels(np.zeros(shape, dtype=np.int32), ["one", "two"])
    return Frame(
        [START + timedelta(minutes=i + 1) for i in range(minutes)],
        [f"e{i}" for i in range(entities)], [f"e{i}" for i in range(entities)],
        np.full(shape, 6, dtype=np.int32), np.full(shape, 6.0),
        np.arange(minutes * entities, dtype=float).reshape(shape),
        {}, {"host": hosts, "job": jobs},
    )  # fmt: skip


def test_a_minute_of_which_only_a_part_has_arrived_is_not_judged() -> None:
    frame = make()
    frame.samples[-1, 0] = 2
    frame.samples[-1, 1] = 3
    assert inspect(frame, SPEC).fit[-1].tolist() == [False, True, True, True]


def test_one_sample_a_minute_is_enough_where_that_is_usual() -> None:
    frame = make()
    frame.samples[:] = 1
    frame.moving[:] = 1
    assert inspect(frame, SPEC).fit.all()


def test_a_source_that_repeats_itself_is_frozen_and_recovers() -> None:
    frame = make()
    frame.fingerprint[3:9, 2] = 77.0
    frame.moving[3:9, 2] = 1
    found = inspect(frame, SPEC)
    # The first frozen minute is like no other; after three repeats it is known.
    assert found.frozen[:, 2].tolist() == [False] * 6 + [True] * 3 + [False] * 3
    assert not found.fit[6:9, 2].any()
    assert found.fit[9:, 2].all()


def test_a_changed_job_unsettles_for_some_minutes() -> None:
    frame = make()
    frame.labels["job"].codes[5:, 1] = 1
    fit = inspect(frame, SPEC).fit[:, 1]
    assert fit.tolist() == [True] * 5 + [False] * 3 + [True] * 4


def test_a_gpu_that_vanishes_from_a_host_that_reports_is_lost() -> None:
    frame = make()
    frame.samples[-3:, 0] = 0
    assert lost_entities(frame, SPEC).tolist() == [True, False, False, False]


def test_a_gap_that_is_shorter_is_only_a_gap() -> None:
    frame = make()
    frame.samples[-2:, 0] = 0
    assert not lost_entities(frame, SPEC).any()


def test_a_silent_host_or_pipeline_is_not_a_lost_gpu() -> None:
    frame = make()
    frame.samples[-4:, :2] = 0
    assert not lost_entities(frame, SPEC).any()
    frame.samples[-4:] = 0
    assert not lost_entities(frame, SPEC).any()


def test_an_unknown_reading_breaks_no_rule() -> None:
    frame = make()
    values = np.full(frame.shape, np.nan)
    values[0, 0] = 3.0
    frame.values["x"] = values
    held = rule_holds(frame, Rule(name="r", when="x > 0", cause="c"))
    assert held.sum() == 1
    assert held[0, 0]
    assert not rule_holds(frame, Rule(name="r", when="x <= 2", cause="c")).any()


def test_a_frame_without_entities_gives_no_verdicts() -> None:
    empty = Frame(
        make().ends, [], [], np.zeros((12, 0), dtype=np.int32), np.zeros((12, 0)),
        np.zeros((12, 0)),
    )  # fmt: skip
    judged = judge_frame(empty, SPEC, {f.name: Baseline() for f in SPEC.feature}, [], [], 0.02)
    assert judged.short.level.shape == (12, 0)
