"""Importers of what other programs know about where things stand and how they are wired."""

from pipeline.topology.imports.draft import Contradiction, Draft
from pipeline.topology.imports.merge import Merged, merge
from pipeline.topology.imports.sources import FORMS, read_source

__all__ = ["FORMS", "Contradiction", "Draft", "Merged", "merge", "read_source"]
