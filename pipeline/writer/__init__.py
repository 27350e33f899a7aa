"""Kafka to ClickHouse, each row once (docs/exactly-once.md)."""
