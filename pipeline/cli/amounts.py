"""Numbers of the command line, with their bounds."""

from __future__ import annotations

import math
from typing import Any

import click


class Amount(click.FloatRange):
    """A number within bounds; ``nan`` passes every comparison, so it is refused by name."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The number, or a usage error."""
        found = float(super().convert(value, param, ctx))
        if math.isnan(found):
            self.fail(f"{value!r} is not a number", param, ctx)
        return found
