"""Small line plots as SVG text: no plotting library is needed to look at a signature."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH = 760
PANEL = 130
_LEFT, _RIGHT, _TOP, _GAP = 64, 150, 40, 34
_INK, _GRID = "#222222", "#dddddd"


@dataclass(frozen=True)
class Line:
    """One line: values at the plot's times; not a number makes a gap."""

    label: str
    values: Sequence[float]
    colour: str
    width: float = 1.6


@dataclass(frozen=True)
class Panel:
    """One pair of axes. ``band`` is the range of the peers: low and high at each time."""

    title: str
    lines: Sequence[Line]
    band: tuple[Sequence[float], Sequence[float]] | None = None
    marks: Sequence[float] = field(default_factory=tuple)


def plot(title: str, times: Sequence[float], panels: Sequence[Panel], x_label: str) -> str:
    """An SVG of panels above each other with one time axis.

    Args:
        times: minutes, rising.
    """
    height = _TOP + len(panels) * (PANEL + _GAP) + 24
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{_LEFT}" y="20" font-size="14" fill="{_INK}">{escape(title)}</text>',
    ]
    for number, panel in enumerate(panels):
        parts += _panel(panel, times, _TOP + number * (PANEL + _GAP) + 12)
    parts.append(
        f'<text x="{(_LEFT + WIDTH - _RIGHT) / 2:.0f}" y="{height - 6}" '
        f'text-anchor="middle" fill="{_INK}">{escape(x_label)}</text></svg>'
    )
    return "\n".join(parts) + "\n"


def _panel(panel: Panel, times: Sequence[float], top: float) -> list[str]:
    values = [v for line in panel.lines for v in line.values if math.isfinite(v)]
    if panel.band is not None:
        values += [v for side in panel.band for v in side if math.isfinite(v)]
    low, high = _nice(min(values), max(values))
    right = WIDTH - _RIGHT

    def x(at: float) -> float:
        return _LEFT + (at - times[0]) / (times[-1] - times[0]) * (right - _LEFT)

    def y(value: float) -> float:
        return top + PANEL - (value - low) / (high - low) * PANEL

    parts = [
        f'<text x="{_LEFT}" y="{top - 5:.1f}" fill="{_INK}">{escape(panel.title)}</text>',
        f'<rect x="{_LEFT}" y="{top:.1f}" width="{right - _LEFT}" height="{PANEL}" '
        f'fill="none" stroke="{_GRID}"/>',
    ]
    for step in range(5):
        value = low + (high - low) * step / 4
        parts.append(
            f'<line x1="{_LEFT}" x2="{right}" y1="{y(value):.1f}" y2="{y(value):.1f}" '
            f'stroke="{_GRID}"/><text x="{_LEFT - 6}" y="{y(value) + 4:.1f}" '
            f'text-anchor="end" fill="{_INK}">{value:.4g}</text>'
        )
    parts += [
        f'<text x="{x(at):.1f}" y="{top + PANEL + 13:.1f}" text-anchor="middle" '
        f'fill="{_INK}">{at:g}</text>'
        for at in _ticks(times[0], times[-1])
    ]
    parts += [
        f'<line x1="{x(mark):.1f}" x2="{x(mark):.1f}" y1="{top:.1f}" '
        f'y2="{top + PANEL:.1f}" stroke="#888888" stroke-dasharray="4 3"/>'
        for mark in panel.marks
    ]
    if panel.band is not None:
        under, over = panel.band
        corners = [(x(t), y(v)) for t, v in zip(times, over, strict=True)]
        corners += [(x(t), y(v)) for t, v in zip(times, under, strict=True)][::-1]
        text = " ".join(f"{a:.1f},{b:.1f}" for a, b in corners)
        parts.append(f'<polygon points="{text}" fill="#9db7d5" fill-opacity="0.55"/>')
    for number, line in enumerate(panel.lines):
        parts.append(_path(line, times, x, y))
        label_y = top + 12 + 15 * number
        parts.append(
            f'<line x1="{right + 10}" x2="{right + 28}" y1="{label_y}" y2="{label_y}" '
            f'stroke="{line.colour}" stroke-width="2"/>'
            f'<text x="{right + 33}" y="{label_y + 4}" fill="{_INK}">{escape(line.label)}</text>'
        )
    return parts


def _path(line: Line, times: Sequence[float], x: object, y: object) -> str:
    assert callable(x)
    assert callable(y)
    words = []
    pen = "M"
    for at, value in zip(times, line.values, strict=True):
        if not math.isfinite(value):
            pen = "M"
            continue
        words.append(f"{pen}{x(at):.1f},{y(value):.1f}")
        pen = "L"
    return (
        f'<path d="{" ".join(words)}" fill="none" stroke="{line.colour}" '
        f'stroke-width="{line.width}"/>'
    )


def _nice(low: float, high: float) -> tuple[float, float]:
    """Ends of an axis: round numbers around the values."""
    if high <= low:
        high = low + max(abs(low) * 0.1, 1e-6)
    step = 10.0 ** math.floor(math.log10(high - low))
    for factor in (0.2, 0.4, 0.5, 1.0, 2.0):
        if (high - low) / (step * factor) <= 8:
            step *= factor
            break
    return math.floor(low / step) * step, math.ceil(high / step) * step


def _ticks(low: float, high: float) -> list[float]:
    step = next(s for s in (1, 2, 5, 10, 20, 30, 60, 120, 240) if (high - low) / s <= 10)
    first = math.ceil(low / step) * step
    return [first + step * number for number in range(int((high - first) / step) + 1)]
