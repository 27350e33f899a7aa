"""What the command line must print of each capture, and the captures that no reader fits.

Every value is from the page that came with the captures. A missing reading has no key in a row,
so a column under ``lacks`` is one that no row may have.
"""

from __future__ import annotations

from tests.collectors.capture_cases.case import Case
from tests.collectors.capture_cases.gpu import GPU
from tests.collectors.capture_cases.ib import INFINIBAND
from tests.collectors.capture_cases.not_read import NOT_READ, Otherwise
from tests.collectors.capture_cases.redfish import REDFISH

CASES: tuple[Case, ...] = (*GPU, *INFINIBAND, *REDFISH)

__all__ = ["CASES", "NOT_READ", "Case", "Otherwise"]
