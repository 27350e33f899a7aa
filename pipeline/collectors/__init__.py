"""Readers of what real clusters emit: a page in, rows of the contracts out."""

from pipeline.collectors.page import Page, Reading
from pipeline.collectors.registry import KINDS, reader

__all__ = ["KINDS", "Page", "Reading", "reader"]
