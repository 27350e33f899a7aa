"""The fleet page of the Airflow UI: what it asks the store, and its files.

Nothing here imports Airflow; the plugin serves it behind Airflow's login.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

MEDIA_TYPES = {
    "fleet.html": "text/html",
    "fleet.css": "text/css",
    "fleet.js": "text/javascript",
    "fleet.svg": "image/svg+xml",
    "fleet-dark.svg": "image/svg+xml",
}


def static_file(name: str) -> str:
    """The text of one of the page's files.

    Raises:
        KeyError: there is no such file.
    """
    _ = MEDIA_TYPES[name]
    return Path(str(resources.files(__package__) / "static" / name)).read_text(encoding="utf-8")
