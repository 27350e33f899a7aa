"""Errors that decide what happens next.

Two control errors carry the flow: :class:`SlowDownError` (try this again later) and
:class:`PoisonMessageError` (never try this again, set it aside). Everything that a person
must act on is a :class:`RackpulseError`, whose text says what to do.
"""

from __future__ import annotations


class RackpulseError(Exception):
    """An error for a person: the text says what is wrong and what to do."""


class ConfigError(RackpulseError):
    """A setting, contract, topology or target file is wrong."""


class ContractError(ConfigError):
    """A stream contract in ``schemas/`` is wrong."""


class IncompatibleContractError(RackpulseError):
    """Data of a contract version that cannot be taken: the partition waits for a person."""


class PoisonMessageError(Exception):
    """A message that cannot be read, now or later; it goes to the dead-letter topic.

    Args:
        reason: short, stable word for the counter, such as ``not_arrow``.
        detail: text for the person who looks at the dead letter.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


class SlowDownError(Exception):
    """The other side cannot take more now; the same thing is tried again later.

    Args:
        reason: short, stable word for the counter, such as ``too_many_parts``.
        retry_after_s: how long to wait before the next try, in seconds.
    """

    def __init__(self, reason: str, retry_after_s: float = 1.0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after_s = retry_after_s


def missing_extra(package: str, extra: str) -> RackpulseError:
    """Tell which optional part of the installation is missing."""
    return RackpulseError(
        f'The package "{package}" is missing: install it with  pip install "rackpulse[{extra}]"'
    )
