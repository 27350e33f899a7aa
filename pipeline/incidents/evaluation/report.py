"""``rackpulse evaluate``: detectors and simple methods on labelled sets, side by side."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.detection.frame import MINUTE, Frame, read_frame
from pipeline.detection.model import Model
from pipeline.detection.spec import DetectorSpec, load_specs
from pipeline.detection.train import SHORTEST_MINUTES, fit_model, minute_hashes
from pipeline.errors import ConfigError, RackpulseError
from pipeline.incidents.evaluation.events import Tally, tally
from pipeline.incidents.evaluation.labelled import LabelledSet, load_set, purpose_of, scratch_store
from pipeline.incidents.evaluation.methods import simple_alarms
from pipeline.incidents.evaluation.pages import incidents_of, pages_of_alarms
from pipeline.incidents.evaluation.replay import Played
from pipeline.settings import Settings
from pipeline.streams import load_contracts

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

# Minutes before the first fault that are left out of training: its label may be late.
MARGIN = 5
OURS = "rackpulse"
Say = Callable[[str], object]


def evaluate_sets(
    settings: Settings, folders: list[Path], *, train_on: list[Path] | None = None,
    detectors: list[str] | None = None, baselines: bool = True, say: Say | None = None,
    specs: dict[str, DetectorSpec] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Evaluate on labelled sets.

    Args:
        train_on: sets of the same halls to train on; without one a set's minutes before its
            first fault train, and only what follows is judged.

    Returns:
        ``sets`` (one entry per folder) and ``total``: by detector and method, the numbers of
        :meth:`Tally.as_json`.

    Raises:
        RackpulseError: a folder is no labelled set, has too little before its first fault, or
            holds minutes that were trained on, or a set to train on is reserved for judging.
    """
    specs = specs or load_specs()
    if detectors:
        unknown = set(detectors) - set(specs)
        if unknown:
            raise ConfigError(f"No detector {', '.join(sorted(unknown))}")
        specs = {name: specs[name] for name in detectors}
    for folder in train_on or []:
        refuse_reserved(folder)
    say = say or (lambda text: None)
    totals: dict[str, dict[str, Tally]] = {name: {} for name in specs}
    sets = []
    with scratch_store(settings) as client:
        trained = [_train_set(client, folder, specs, say) for folder in train_on or []]
        for folder in folders:
            one = _one_set(client, folder, specs, trained, baselines, say)
            sets.append(
                {
                    "folder": folder.name,
                    "detectors": {
                        name: {method: t.as_json() for method, t in found.items()}
                        for name, found in one.items()
                    },
                }
            )
            for name, found in one.items():
                for method, count in found.items():
                    totals[name].setdefault(method, Tally()).add(count)
    total = {
        name: {method: count.as_json() for method, count in found.items()}
        for name, found in totals.items()
    }
    return {"sets": sets, "total": total}


def _train_set(
    client: Client, folder: Path, specs: dict[str, DetectorSpec], say: Say
) -> dict[str, Model]:
    found = load_set(client, folder, load_contracts(), _streams(specs))
    start, end = _span(found)
    say(f"training on {folder}: {(end - start) / MINUTE:.0f} minutes")
    models = {}
    for name, spec in specs.items():
        frame = read_frame(client, spec, found.cluster, start, end)
        models[name] = fit_model(frame, spec, _labelled(frame, found), None, "")
    return models


def _one_set(
    client: Client, folder: Path, specs: dict[str, DetectorSpec],
    trained: list[dict[str, Model]], baselines: bool, say: Say,
) -> dict[str, dict[str, Tally]]:  # fmt: skip
    found = load_set(client, folder, load_contracts(), _streams(specs))
    start, end = _span(found)
    frames = {
        name: read_frame(client, spec, found.cluster, start, end) for name, spec in specs.items()
    }
    head = 0 if trained else training_minutes(found, start, end)
    played = []
    for name, spec in specs.items():
        frame = frames[name]
        model = _best(trained, name, frame) if trained else fit_model(
            frame.minutes(np.arange(head)), spec,
            np.zeros((head, len(frame.entities)), dtype=bool), None, "",
        )  # fmt: skip
        refuse_overlap(model, frame, head, folder)
        played.append(Played.of(spec, model, frame, head))
    begin = start + head * MINUTE
    say(
        f"{folder.name}: trained on {head or 'other sets'} minutes, judging"
        f" {(end - begin) / MINUTE:.0f} minutes, {len(found.real)} faults"
    )
    ours = incidents_of(played, specs, found.cluster)
    out: dict[str, dict[str, Tally]] = {}
    for item in played:
        name = item.spec.id
        faults = [fault for fault in found.real if fault.detector == name]
        mine = [page for page in ours if page.detector == name]
        out[name] = {OURS: tally(faults, mine, begin, end)}
        if not baselines:
            continue
        learn = head or min(item.frame.shape[0], 180)
        for method, alarms in simple_alarms(item.frame, item.spec, learn).items():
            pages = pages_of_alarms(alarms, item, faults)
            out[name][method] = tally(faults, pages, begin, end)
    return out


def _streams(specs: dict[str, DetectorSpec]) -> set[str]:
    return {stream for spec in specs.values() for stream in spec.streams}


def training_minutes(found: LabelledSet, start: datetime, end: datetime) -> int:
    """Minutes of a set before its first fault, that is what it can be trained on.

    Raises:
        RackpulseError: they are fewer than training needs.
    """
    first = min((fault.start for fault in found.real), default=None)
    if first is None:
        # Nothing but healthy time: the first half trains, the second is judged.
        minutes = int((end - start) / MINUTE) // 2
    else:
        minutes = int((first - start) / MINUTE) - MARGIN
    if minutes < SHORTEST_MINUTES:
        raise RackpulseError(
            f"{found.folder} has {max(minutes, 0)} healthy minutes before its first fault; training"
            f" needs {SHORTEST_MINUTES}: name a set of the same hall with --train"
        )
    return minutes


def refuse_reserved(folder: Path) -> None:
    """Refuse to train on a hall that is kept for judging, whatever part of it was recorded.

    Raises:
        RackpulseError: the set's scenario has the purpose ``reserve``.
    """
    if purpose_of(folder) == "reserve":
        raise RackpulseError(
            f"{folder} is of a hall that is reserved for judging: train on another set"
        )


def refuse_overlap(model: Model, frame: Frame, first: int, folder: Path) -> None:
    """Refuse to judge what was learnt.

    Raises:
        RackpulseError: a judged minute is among the training minutes.
    """
    judged = frame.minutes(np.arange(first, frame.shape[0]))
    same = (set(minute_hashes(judged)) - {""}) & set(model.minutes)
    if same:
        raise RackpulseError(
            f"{folder} holds {len(same)} minutes that {model.detector} was trained on: judge it on"
            " another set"
        )


def _span(found: LabelledSet) -> tuple[datetime, datetime]:
    start = found.first.replace(second=0, microsecond=0) + MINUTE
    return start, found.last.replace(second=0, microsecond=0)


def _labelled(frame: Frame, found: LabelledSet) -> np.ndarray:
    """Minutes x entities inside a labelled fault, with some minutes around it."""
    out = np.zeros(frame.shape, dtype=bool)
    for fault in found.real:
        when = np.array([
            fault.start - timedelta(minutes=MARGIN) <= end
            and (end - timedelta(minutes=3 * MARGIN) <= fault.end)
            for end in frame.ends
        ])  # fmt: skip
        named = np.array([entity in fault.entities for entity in frame.entities])
        # A fault of something above the entities (a loop) is kept out everywhere.
        out |= when[:, None] & (named if named.any() else True)
    return out


def _best(trained: list[dict[str, Model]], detector: str, frame: Frame) -> Model:
    """The model that knows most of a set's entities.

    Raises:
        RackpulseError: none knows any: it is another hall.
    """

    def known(model: Model) -> int:
        entities = set(frame.entities)
        return max(
            (len(entities & set(base.offset)) for base in model.baselines.values()), default=0
        )

    best = max((models[detector] for models in trained), key=known)
    if not known(best):
        raise RackpulseError(f"No set of --train is of the hall that {detector} is judged on")
    return best


def as_text(found: dict[str, Any]) -> str:
    """The totals as a table."""
    lines = []
    for name, methods in found["total"].items():
        lines.append(name)
        lines.append(
            f"  {'method':16}{'found':>9}{'precision':>11}{'false/week':>12}"
            f"{'p50 min':>9}{'p95 min':>9}{'cause':>7}"
        )
        for method, n in methods.items():
            lines.append(
                f"  {method:16}{n['found']:>4}/{n['faults']:<4}{_text(n['precision']):>11}"
                f"{_text(n['false_pages_per_week']):>12}{_text(n['detect_p50_min']):>9}"
                f"{_text(n['detect_p95_min']):>9}{_text(n['cause_right']):>7}"
            )
        ours = methods[OURS]
        lines.append(f"  {ours['hours']} hours judged")
        lines += [f"  missed: {text}" for text in ours["missed"]]
        lines += [f"  false: {text}" for text in ours["false"]]
    return "\n".join(lines)


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"
