"""Numbers as the exporters print them."""

from __future__ import annotations

from collections.abc import Iterable


def whole(values: Iterable[float]) -> list[str]:
    """Whole numbers as dcgm-exporter prints them."""
    return [str(int(value)) for value in values]


def fixed(values: Iterable[float]) -> list[str]:
    """Fractions as dcgm-exporter prints them: six digits behind the point."""
    return [f"{value:.6f}" for value in values]


def go_whole(value: float) -> str:
    """A whole number as Go's Prometheus client prints a float64: ``7.1516662870894e+14``."""
    if value < 1e6:
        return str(int(value))
    digits = str(int(value))
    power = len(digits) - 1
    mantissa = digits.rstrip("0")
    if len(mantissa) == 1:
        return f"{mantissa}e+{power:02d}"
    return f"{mantissa[0]}.{mantissa[1:]}e+{power:02d}"


def escape(label: str) -> str:
    """A label value as it stands between quotes."""
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
