"""Every interleaving of two writers, a store that crashes and a log (docs/exactly-once.md)."""

from __future__ import annotations

import pytest

from tests.writer import protocol_model, sequence_model


def test_nothing_is_lost_or_doubled_in_any_interleaving() -> None:
    found = protocol_model.walk(protocol_model.Rules())
    assert found.fault is None, found.trace
    assert found.completes, "the walk must reach a state where everything is stored"
    assert found.states > 10_000


@pytest.mark.parametrize("missing", ["epoch_fence", "kill", "wait_until_gone"])
def test_the_protocol_breaks_without(missing: str) -> None:
    found = protocol_model.walk(protocol_model.Rules(**{missing: False}))
    assert found.fault == "doubled"
    assert any("insert" in step for step in found.trace)


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["offset_fence", "read_back"])
def test_second_lines_are_not_needed_by_the_model(missing: str) -> None:
    assert protocol_model.walk(protocol_model.Rules(**{missing: False})).fault is None


@pytest.mark.slow
def test_one_of_the_two_lines_must_hold() -> None:
    rules = protocol_model.Rules(epoch_fence=False, offset_fence=False)
    assert protocol_model.walk(rules).fault == "doubled"


def test_repeats_are_told_by_their_very_number() -> None:
    states, fault = sequence_model.walk(sequence_model.Rules())
    assert fault is None
    assert states > 1_000


def test_the_highest_number_would_lose_samples_when_keys_move() -> None:
    assert sequence_model.walk(sequence_model.Rules(exact=False))[1] == "lost"


def test_a_repeat_in_another_partition_could_be_doubled() -> None:
    assert sequence_model.walk(sequence_model.Rules(pinned=False))[1] == "doubled"
