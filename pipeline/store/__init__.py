"""ClickHouse: the client, migrations, outcomes of inserts, and the embedded server."""

from pipeline.store.client import connect
from pipeline.store.migrate import migrate
from pipeline.store.outcome import Outcome, classify, reason

__all__ = ["Outcome", "classify", "connect", "migrate", "reason"]
