from __future__ import annotations

import io
import pickle  # only to show that it is refused
import subprocess
import sys
import zipfile
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
import skops.io

from pipeline.detection import model as models
from pipeline.detection.families import aggregates, fit_family
from pipeline.detection.model import Model, digest, dump, load
from pipeline.detection.residuals import Baseline
from pipeline.detection.spec import DetectorSpec
from pipeline.errors import RackpulseError
from tests.detection.specs import small_spec

RNG = np.random.default_rng(3)


def healthy(spec: DetectorSpec, minutes: int = 60, entities: int = 40) -> dict[str, np.ndarray]:
    return {feature.name: RNG.normal(size=(minutes, entities)) for feature in spec.feature}


def trained() -> tuple[DetectorSpec, Model]:
    spec = small_spec()
    z = healthy(spec)
    early = np.zeros((60, 40), dtype=bool)
    early[:36] = True
    families = [fit_family(name, spec, z, early, ~early, seed=1) for name in spec.families]
    now = datetime(2026, 3, 2, 8, tzinfo=UTC)
    base = {feature.name: Baseline(0.5, 1.0, 0.4, {"e1": 2.5}) for feature in spec.feature}
    return spec, Model("small", "v1", "s", "c", now, now, base, families, families, 0.02)


def test_a_model_comes_back_from_its_bytes_with_equal_scores() -> None:
    spec, model = trained()
    body = dump(model)
    again = load(body, digest(body))
    z = healthy(spec, 10, 40)
    for before, after in zip(model.short, again.short, strict=True):
        for method, score in before.scores(z, spec).items():
            np.testing.assert_array_equal(score, after.scores(z, spec)[method])
    assert again.baselines == model.baselines


def test_reading_a_forest_asks_no_other_module_for_functions(tmp_path: Path) -> None:
    _, model = trained()
    body = dump(model)
    (tmp_path / "model").write_bytes(body)
    # As in an Airflow process: a loaded module that warns at each name that it is asked for.
    told = """
import sys, types
from pathlib import Path
asked = []
loud = types.ModuleType("loud")
loud.__getattr__ = lambda name: asked.append(name)
sys.modules["loud"] = loud
from pipeline.detection.model import digest, load
body = Path(sys.argv[1]).read_bytes()
for family in load(body, digest(body)).short:
    if family.forest is not None:
        family.forest.get()
assert "skops.io" in sys.modules
print([name for name in asked if not name.startswith("__")])
"""
    done = subprocess.run(
        [sys.executable, "-c", told, str(tmp_path / "model")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "[]"


def test_bytes_that_do_not_have_their_hash_are_refused() -> None:
    _, model = trained()
    body = dump(model)
    with pytest.raises(RackpulseError, match="hash"):
        load(body + b"x", digest(body))


def replaced(body: bytes, part: bytes) -> bytes:
    """The model's file with another forest in it."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(body)) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            new.writestr(name, part if name.endswith(".skops") else old.read(name))
    return out.getvalue()


def test_a_forest_of_other_types_is_refused() -> None:
    spec, model = trained()
    evil = replaced(dump(model), skops.io.dumps({"run": print}))
    again = load(evil, digest(evil))
    with pytest.raises(RackpulseError, match=r"not allowed|no isolation forest"):
        again.short[0].scores(healthy(spec, 5, 40), spec)


def test_a_pickle_is_never_read() -> None:
    spec, model = trained()
    evil = replaced(dump(model), pickle.dumps({"a": 1}))
    again = load(evil, digest(evil))
    with pytest.raises((zipfile.BadZipFile, RackpulseError)):
        again.short[0].scores(healthy(spec, 5, 40), spec)


def test_only_one_type_is_trusted() -> None:
    assert models.ALLOWED_TYPES == ("sklearn.tree._tree.Tree",)
    _, model = trained()
    forest = model.short[0].forest
    assert forest is not None
    found = skops.io.get_untrusted_types(data=skops.io.dumps(forest.get()))
    assert found == list(models.ALLOWED_TYPES)


def test_aggregates_are_top_three_rms_and_count() -> None:
    rows = np.array([[1.0, -4.0, 2.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    found = aggregates(rows)
    np.testing.assert_allclose(found[0], [4, 2, 1, np.sqrt(21 / 4), 1])
    np.testing.assert_allclose(found[1], 0)


def test_nothing_unknown_reaches_a_forest() -> None:
    spec, model = trained()
    z = healthy(spec, 3, 40)
    z["b"][1, 7] = np.nan
    for family in model.short:
        scores = family.scores(z, spec)
        if "b" in family.features:
            assert np.isnan(scores["forest"][1, 7])
            assert np.isnan(scores["pca"][1, 7])
        assert np.isfinite(scores["forest"][0]).all()


def test_one_feature_far_out_is_seen_by_the_guard_where_a_forest_is_blind() -> None:
    # facts: a 20-sigma outlier in one of many features is caught by a forest 1 to 3 % of the
    # time; the guard and the aggregates are there for it.
    spec, model = trained()
    z = healthy(spec, 1, 200)
    z["c"][0, 5] = 20.0
    p = model.short[0].p_values({name: values[0] for name, values in z.items()}, spec)
    assert p[5] == p.min()
    assert p[5] < 1e-5


def test_the_harmless_direction_does_not_worry_the_guard() -> None:
    spec, model = trained()
    z = {feature.name: np.zeros((1, 2)) for feature in spec.feature}
    # "c" is bad when high, "d" when low.
    z["c"][0, 0] = -30.0
    z["d"][0, 1] = 30.0
    scores = model.short[0].scores(z, spec, methods=("max_z",))["max_z"]
    assert scores.tolist() == [[0.0, 0.0]]


def test_faults_that_hide_in_training_do_not_mask_their_like() -> None:
    # facts: an 8-sigma cluster of 5 % of the training rows hides its like from a forest of
    # large samples; trimmed and refitted it is found.
    spec = small_spec()
    z = healthy(spec, 100, 60)
    hidden = RNG.random((100, 60)) < 0.03
    for name in ("a", "b", "c"):
        z[name][hidden] += 8.0
    early = np.zeros((100, 60), dtype=bool)
    early[:60] = True
    family = fit_family("one", spec, z, early, ~early & ~hidden, seed=1)
    fresh = {name: np.zeros((1, 50)) + RNG.normal(size=(1, 50)) * 0.5 for name in z}
    for name in ("a", "b", "c"):
        fresh[name][0, 0] = 8.0
    scores = family.scores(fresh, spec)["forest"][0]
    assert scores[0] > np.max(scores[1:])
