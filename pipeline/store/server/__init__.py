"""The embedded store: chDB behind ClickHouse's HTTP interface, for one machine."""
