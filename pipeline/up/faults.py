"""Three faults in the virtual hall, once the detectors are live."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import httpx

from pipeline.up.observe import Scoring

DETECTORS = frozenset({"straggler_gpu", "hot_rack", "congested_link"})


class FaultStarter:
    """Asks the hall for its faults once every detector has a live model, and says when each is
    found.

    Args:
        seed: draws entity, time and severity of one fault per detector; None starts none.
        hall_url: address of the hall.
        say: prints a line for the person.
        beside_others: also when faults of an earlier start go on.
    """

    def __init__(
        self, seed: int | None, hall_url: str, say: Callable[[str], None],
        *, beside_others: bool = True,
    ) -> None:  # fmt: skip
        self._seed = seed
        self._beside_others = beside_others
        self._hall_url = hall_url
        self._say = say
        self._done = seed is None
        self._hidden: list[dict[str, Any]] = []

    def step(self, scoring: Scoring, incidents: list[dict[str, Any]], now: datetime) -> None:
        """Start the faults when it is time; a hall that does not answer is asked again.

        Args:
            incidents: those that are open, as :meth:`Observer.incidents` gives them.
        """
        self._look_for(incidents, now)
        if self._done or not scoring.live >= DETECTORS:
            return
        try:
            if not self._beside_others and (going_on := self._going_on(now)):
                self._done = True
                self._say(f"faults of an earlier start go on, none are drawn: {going_on}")
                return
            answer = httpx.post(
                f"{self._hall_url}/hall/faults", json={"seed": self._seed}, timeout=10.0
            )
            answer.raise_for_status()
        except httpx.HTTPError as exc:
            self._say(f"the hall did not take the faults, asking again: {exc}")
            return
        self._done = True
        self._hidden = answer.json()["faults"]
        self._say(f"faults drawn from seed {self._seed}:")
        for fault in self._hidden:
            name, entity = fault["entity_name"], fault["entity"]
            self._say(
                f"  {fault['detector']}: {_words(fault['cause'])} on {name}"
                f"{'' if name == entity else f' ({entity})'}, severity {fault['severity']:.2f},"
                f" starts at {_time(fault['start']):%H:%M:%S} UTC"
            )

    def _going_on(self, now: datetime) -> str:
        """Faults of the hall that have no end yet, in words."""
        answer = httpx.get(f"{self._hall_url}/hall/state", timeout=10.0)
        answer.raise_for_status()
        return ", ".join(
            f"{_words(fault['cause'])} on {fault['entity']}"
            for fault in answer.json()["faults"]
            if "cause" in fault and (fault["end"] is None or _time(fault["end"]) > now)
        )

    def _look_for(self, incidents: list[dict[str, Any]], now: datetime) -> None:
        """Say which faults have become incidents. A link's fault may be named by either end."""
        for fault in list(self._hidden):
            places = {fault["entity"], *fault.get("also", [])}
            for incident in incidents:
                if incident["detector"] != fault["detector"] or incident["entity"] not in places:
                    continue
                self._hidden.remove(fault)
                after_min = (now - _time(fault["start"])).total_seconds() / 60
                right = incident["cause"] == fault["cause"]
                self._say(
                    f"found {after_min:.1f} min after its start: {_words(fault['cause'])} on"
                    f" {fault['entity_name']}"
                    + ("" if right else f", taken for {_words(incident['cause'])}")
                )
                if not self._hidden:
                    self._say("all faults are found; Ctrl-C stops everything")
                break


def _words(cause: str) -> str:
    return cause.replace("_", " ") or "nothing known"


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
