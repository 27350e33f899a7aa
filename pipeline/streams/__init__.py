"""Stream contracts: TOML files in ``schemas/`` as Arrow schemas, ClickHouse tables and docs."""

from pipeline.streams.contract import (
    Column,
    Contracts,
    Source,
    Stream,
    load_contracts,
    schemas_folder,
)

__all__ = ["Column", "Contracts", "Source", "Stream", "load_contracts", "schemas_folder"]
