"""rackpulse: telemetry of rack-scale GPU clusters, from collectors to explained alerts."""

__version__ = "0.1.0"
