"""``rackpulse up``: everything on one machine, started, watched and stopped in order."""
