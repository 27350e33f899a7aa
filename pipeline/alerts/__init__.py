"""Alerts: what changed about an incident, told to people and to other systems."""
