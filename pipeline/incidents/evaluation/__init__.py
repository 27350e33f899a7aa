"""Honest evaluation: labelled sets, time-ordered splits, no point adjustment."""
