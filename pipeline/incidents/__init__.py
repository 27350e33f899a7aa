"""Incidents: one per cause, opened, updated and resolved from findings."""

from pipeline.incidents.silences import Silence, silence, silences, unsilence
from pipeline.incidents.step import step
from pipeline.incidents.table import Transition

__all__ = ["Silence", "Transition", "silence", "silences", "step", "unsilence"]
