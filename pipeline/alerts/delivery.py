"""Deliver what is in the outbox to one destination, in order, until it is taken."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pipeline.alerts.outbox import Attempt, Outbox, Pending
from pipeline.alerts.post import Answer
from pipeline.alerts.schedule import next_attempt
from pipeline.alerts.sender import Sender
from pipeline.clock import Clock

log = logging.getLogger(__name__)

_REFRESH = timedelta(seconds=60)
_PAUSE_AFTER_NO_ANSWER = timedelta(seconds=5)


@dataclass
class Counts:
    """What a round did."""

    delivered: int = 0
    failed: int = 0
    gave_up: int = 0


class Courier:
    """Serves one destination.

    Args:
        rng: for the jitter of the schedule.
    """

    def __init__(
        self,
        outbox: Outbox,
        sender: Sender,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self.destination = sender.destination
        self._outbox = outbox
        self._sender = sender
        self._clock = clock
        self._rng = rng
        self._since: datetime | None = None
        self._paused_until: datetime | None = None
        self._refresh_at: datetime | None = None
        # Sent, but the store did not take the note yet.
        self._unrecorded: list[Attempt] = []

    def use(self, outbox: Outbox) -> None:
        """Go on with another connection to the store."""
        self._outbox = outbox

    def disabled_because(self) -> str | None:
        """Why nothing is sent; None when the destination is served."""
        return self._outbox.disabled_because()

    def round(self) -> Counts:
        """Send what is due now.

        Raises:
            Exception: the store does not answer; what was sent stays noted in memory, and
                is written down before anything else is sent.
        """
        counts = Counts()
        now = self._clock.now()
        self._flush()
        if self._since is None:
            self._since = self._outbox.enrol(now)
        if self._outbox.disabled_because() is not None:
            return counts
        if self._paused_until is not None and now < self._paused_until:
            return counts
        pending = self._outbox.pending(self._since, now)
        held: set[str] = set()
        for item in self._due(pending, now):
            incident = item.alert.incident_id
            if incident in held:
                continue
            failed = counts.failed
            if not self._deliver(item, counts):
                return counts
            if counts.failed > failed:
                # What happened later must not overtake it.
                held.add(incident)
        self._refresh()
        return counts

    def _flush(self) -> None:
        if self._unrecorded:
            self._outbox.record(self._unrecorded)
            self._unrecorded = []

    def _note(self, attempt: Attempt) -> None:
        self._unrecorded.append(attempt)
        self._flush()

    def _due(self, pending: Sequence[Pending], now: datetime) -> list[Pending]:
        """What may be sent now: an incident's transitions keep their order.

        An update that a newer transition has overtaken is not sent any more.
        """
        due: list[Pending] = []
        by_incident: dict[str, list[Pending]] = {}
        for item in pending:
            by_incident.setdefault(item.alert.incident_id, []).append(item)
        superseded: list[Attempt] = []
        for queue in by_incident.values():
            rest = []
            for place, item in enumerate(queue):
                last = place == len(queue) - 1
                if not self.destination.wants(item.alert, item.told_before):
                    superseded.append(self._attempt(item, "filtered"))
                elif item.alert.transition == "updated" and not last:
                    superseded.append(self._attempt(item, "superseded"))
                else:
                    rest.append(item)
            for item in rest:
                if item.next_at is not None and item.next_at > now:
                    break
                due.append(item)
        self._outbox.record(superseded)
        return sorted(due, key=lambda item: (item.alert.window_end, item.alert.at))

    def _attempt(self, item: Pending, outcome: str, **more: Any) -> Attempt:
        return Attempt(
            transition_id=item.alert.transition_id,
            incident_id=item.alert.incident_id,
            destination=self.destination.name,
            attempt=more.pop("attempt", item.attempts),
            at=self._clock.now(),
            outcome=outcome,
            **more,
        )

    def _deliver(self, item: Pending, counts: Counts) -> bool:
        """Send one; False when the others have to wait as well."""
        try:
            answer = self._sender.alert(item.alert)
        except (ValueError, TypeError, LookupError) as exc:
            # One odd row must not hold up the alerts behind it.
            log.exception("%s cannot be put into words", item.alert.transition_id)
            answer = Answer(0, f"not sent: {type(exc).__name__}", ours=True)
        now = self._clock.now()
        tries = item.attempts + 1
        facts = {
            "attempt": tries,
            "http_status": answer.status,
            "error": answer.error,
            "took_ms": answer.took_ms,
        }
        name = self.destination.name
        if answer.delivered:
            self._note(self._attempt(item, "delivered", **facts))
            counts.delivered += 1
            return True
        counts.failed += 1
        if answer.gone:
            self._note(self._attempt(item, "failed", **facts))
            self._outbox.switch("disabled", "the receiver answered 410 Gone", now)
            log.error("%s wants no more alerts (410): rackpulse alerts enable %s", name, name)
            return False
        again = next_attempt(tries, now, self._rng, answer.retry_after)
        if again is None:
            self._note(self._attempt(item, "gave_up", **facts))
            counts.gave_up += 1
            log.error("%s: gave up on %s after %d attempts: %s", name,
                      item.alert.transition_id, tries, answer.error)  # fmt: skip
            return True
        self._note(self._attempt(item, "failed", next_at=again, **facts))
        log.warning("%s did not take %s of %s (attempt %d: %s); again at %s", name,
                    item.alert.transition, item.alert.entity_name, tries, answer.error,
                    f"{again:%H:%M:%S} UTC")  # fmt: skip
        if answer.slow_down:
            self._paused_until = now + max(
                answer.retry_after or timedelta(0), _PAUSE_AFTER_NO_ANSWER
            )
            return False
        return True

    def _refresh(self) -> None:
        """Alertmanager ends what it does not hear of again: repeat what is open."""
        if self.destination.kind != "alertmanager":
            return
        now = self._clock.now()
        if self._refresh_at is not None and now < self._refresh_at:
            return
        self._refresh_at = now + _REFRESH
        alerts = [
            alert
            for alert in self._outbox.open_alerts(self.destination.drills)
            if self.destination.wants(alert, told_before=False)
        ]
        if alerts:
            answer = self._sender.refresh(alerts)
            if not answer.delivered:
                log.warning("%s: open incidents were not taken: %s",
                            self.destination.name, answer.error)  # fmt: skip
