"""A trained detector, as an object and as bytes.

The bytes are a zip file: ``model.json`` with all numbers, and one skops file per forest.
Never pickle; one type is allowed when a forest is loaded, and the hash is checked first.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import json
import zipfile
from dataclasses import dataclass, field
from datetime import datetime
from importlib.metadata import version as library_version
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.detection.families import Family, LazyForest, family_from_json, family_json
from pipeline.detection.residuals import Baseline
from pipeline.errors import RackpulseError

if TYPE_CHECKING:
    from sklearn.ensemble import IsolationForest

FORMAT = 1
ALLOWED_TYPES = ("sklearn.tree._tree.Tree",)
LIBRARIES = ("scikit-learn", "skops", "numpy")
_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass
class Model:
    """What training learnt.

    Attributes:
        detector, version, spec_digest, contract_digest: what it belongs to.
        trained_from, trained_until: training window.
        baselines: by feature.
        short, long: families of the one-minute and of the long window.
        q: false-discovery rate over the fleet and window.
        metrics: what training measured.
        data_digest: hash of the training feature rows.
        minutes: hash of each training minute: evaluation refuses minutes that were learnt.
    """

    detector: str
    version: str
    spec_digest: str
    contract_digest: str
    trained_from: datetime
    trained_until: datetime
    baselines: dict[str, Baseline]
    short: list[Family]
    long: list[Family]
    q: float
    metrics: dict[str, Any] = field(default_factory=dict)
    data_digest: str = ""
    minutes: list[str] = field(default_factory=list)


def dump(model: Model) -> bytes:
    """The model's bytes. skops numbers objects by their address, so that two dumps of one model
    differ: the hash is of what is stored, not of what is dumped again."""
    raw = {
        "format": FORMAT, "detector": model.detector, "version": model.version,
        "spec_digest": model.spec_digest, "contract_digest": model.contract_digest,
        "trained_from": model.trained_from.isoformat(),
        "trained_until": model.trained_until.isoformat(),
        "baselines": {name: vars(base) for name, base in model.baselines.items()},
        "short": [family_json(family) for family in model.short],
        "long": [family_json(family) for family in model.long],
        "q": model.q, "metrics": model.metrics, "data_digest": model.data_digest,
        "minutes": model.minutes,
        "libraries": libraries(),
    }  # fmt: skip
    skops_io = _skops_io()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        _put(archive, "model.json", json.dumps(raw).encode())
        for window, families in (("short", model.short), ("long", model.long)):
            for family in families:
                if family.forest is not None:
                    body = skops_io.dumps(family.forest.get())
                    _put(archive, f"{window}/{family.name}.skops", body)
    return buffer.getvalue()


def libraries() -> dict[str, str]:
    """Versions of the libraries whose objects a model holds."""
    return {name: library_version(name) for name in LIBRARIES}


def _put(archive: zipfile.ZipFile, name: str, body: bytes) -> None:
    archive.writestr(zipfile.ZipInfo(name, _EPOCH), body, zipfile.ZIP_DEFLATED)


def digest(body: bytes) -> str:
    """SHA-256 of a model's bytes."""
    return hashlib.sha256(body).hexdigest()


def load(body: bytes, sha256: str) -> Model:
    """The model from its bytes.

    Forests are read when they are first needed, and their types are checked then.

    Raises:
        RackpulseError: the hash differs, or the format is of another version.
    """
    if digest(body) != sha256:
        raise RackpulseError(
            "A stored model does not have the hash that it was stored with: train again"
        )
    with zipfile.ZipFile(io.BytesIO(body)) as archive:
        raw = json.loads(archive.read("model.json"))
        if raw.get("format") != FORMAT:
            raise RackpulseError(f"A stored model has format {raw.get('format')}: train again")
        names = set(archive.namelist())

        def forest(window: str, name: str) -> LazyForest | None:
            file = f"{window}/{name}.skops"
            if file not in names:
                return None
            part = archive.read(file)
            return LazyForest(lambda: _forest(part))

        short = [family_from_json(f, forest("short", f["name"])) for f in raw["short"]]
        long = [family_from_json(f, forest("long", f["name"])) for f in raw["long"]]
    return Model(
        raw["detector"], raw["version"], raw["spec_digest"], raw["contract_digest"],
        datetime.fromisoformat(raw["trained_from"]), datetime.fromisoformat(raw["trained_until"]),
        {name: Baseline(**base) for name, base in raw["baselines"].items()},
        short, long, raw["q"], raw["metrics"], raw["data_digest"], raw["minutes"],
    )  # fmt: skip


def _skops_io() -> ModuleType:
    """``skops.io``, without its search for the home of NumPy's and SciPy's functions.

    At import it asks every loaded module for each of them that does not name its own. In an
    Airflow process that are thousands, many of which warn of deprecated names: a thousand lines
    in a task's log, and more time than the rest of the import.
    """
    import scipy.special

    for home in (np, scipy.special):
        for function in vars(home).values():
            if isinstance(function, np.ufunc) and not getattr(function, "__module__", None):
                # An older NumPy has no room for it, and goes the long way.
                with contextlib.suppress(AttributeError):
                    function.__module__ = home.__name__
    return importlib.import_module("skops.io")


def _forest(body: bytes) -> IsolationForest:
    from sklearn.ensemble import IsolationForest

    skops_io = _skops_io()
    unknown = set(skops_io.get_untrusted_types(data=body)) - set(ALLOWED_TYPES)
    if unknown:
        raise RackpulseError(f"A stored model holds types that are not allowed: {sorted(unknown)}")
    found = skops_io.loads(body, trusted=list(ALLOWED_TYPES))
    if not isinstance(found, IsolationForest):
        raise RackpulseError("A stored model holds something that is no isolation forest")
    return found
