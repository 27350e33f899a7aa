"""Three faults in the virtual hall, once the detectors judge what it does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import httpx

from pipeline.up.observe import Scoring

DETECTORS = frozenset({"straggler_gpu", "hot_rack", "congested_link"})


@dataclass(frozen=True)
class FaultPlan:
    """Which faults to start.

    Attributes:
        seed: draws entity, time and severity of one fault per detector; None starts none.
        settle_runs: scoring runs with every detector live before the faults are drawn.
    """

    seed: int | None
    settle_runs: int = 2


class FaultStarter:
    """Asks the hall for its faults once every detector has judged a few windows.

    Args:
        hall_url: address of the hall.
        say: prints a line for the person.
    """

    def __init__(self, plan: FaultPlan, hall_url: str, say: Callable[[str], None]) -> None:
        self._plan = plan
        self._hall_url = hall_url
        self._say = say
        self._done = plan.seed is None

    def step(self, scoring: Scoring) -> None:
        """Start the faults when it is time; a hall that does not answer is asked again."""
        if self._done or not scoring.live >= DETECTORS:
            return
        if min(scoring.runs.get(name, 0) for name in DETECTORS) < self._plan.settle_runs:
            return
        try:
            answer = httpx.post(
                f"{self._hall_url}/hall/faults", json={"seed": self._plan.seed}, timeout=10.0
            )
            answer.raise_for_status()
        except httpx.HTTPError as exc:
            self._say(f"the hall did not take the faults, asking again: {exc}")
            return
        self._done = True
        self._say(f"faults drawn from seed {self._plan.seed}:")
        for fault in answer.json()["faults"]:
            self._say(
                f"  {fault['start']}  {fault['detector']}: {fault['cause']} on {fault['entity']}, "
                f"severity {fault['severity']:.2f}"
            )
