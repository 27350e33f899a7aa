"""What the error of a statement means for the one who sent it.

Decided by ClickHouse's error code, never by its message: messages are for people and
change between versions.
"""

from __future__ import annotations

from enum import Enum

from clickhouse_connect.driver.exceptions import ClickHouseError


class Outcome(Enum):
    """What to do after an error.

    Attributes:
        SLOW_DOWN: nothing was stored; the same block is tried again later.
        UNCLEAR: it may have been stored; ask the table before going on.
        BAD_DATA: this block can never be stored; its messages are set aside.
        FATAL: no block can be stored until a person has acted.
    """

    SLOW_DOWN = "slow_down"
    UNCLEAR = "unclear"
    BAD_DATA = "bad_data"
    FATAL = "fatal"


# Code: (outcome, short stable word for counters). The numbers are ClickHouse's own.
_CODES: dict[int, tuple[Outcome, str]] = {
    # The server has too much to do, or refuses writes for now.
    202: (Outcome.SLOW_DOWN, "too_many_queries"),
    241: (Outcome.SLOW_DOWN, "memory_limit"),
    242: (Outcome.SLOW_DOWN, "read_only"),
    243: (Outcome.SLOW_DOWN, "disk_full"),
    252: (Outcome.SLOW_DOWN, "too_many_parts"),
    225: (Outcome.SLOW_DOWN, "no_keeper"),
    285: (Outcome.SLOW_DOWN, "too_few_replicas"),
    364: (Outcome.SLOW_DOWN, "import_table_dropping"),
    # It may be stored, or not.
    159: (Outcome.UNCLEAR, "timeout"),
    198: (Outcome.UNCLEAR, "dns"),
    209: (Outcome.UNCLEAR, "socket_timeout"),
    210: (Outcome.UNCLEAR, "network"),
    236: (Outcome.UNCLEAR, "aborted"),
    279: (Outcome.UNCLEAR, "connections_failed"),
    286: (Outcome.UNCLEAR, "quorum_not_satisfied"),
    319: (Outcome.UNCLEAR, "unknown_insert_status"),
    373: (Outcome.SLOW_DOWN, "session_busy"),
    394: (Outcome.UNCLEAR, "cancelled"),
    999: (Outcome.UNCLEAR, "keeper"),
    1000: (Outcome.UNCLEAR, "system_error"),
    1001: (Outcome.UNCLEAR, "system_error"),
    1002: (Outcome.UNCLEAR, "unknown_error"),
    75: (Outcome.UNCLEAR, "cannot_write"),
    76: (Outcome.UNCLEAR, "cannot_open"),
    # The bytes are not what they say.
    6: (Outcome.BAD_DATA, "cannot_parse"),
    26: (Outcome.BAD_DATA, "cannot_parse"),
    27: (Outcome.BAD_DATA, "cannot_parse"),
    33: (Outcome.BAD_DATA, "cannot_read_all"),
    38: (Outcome.BAD_DATA, "cannot_parse"),
    41: (Outcome.BAD_DATA, "cannot_parse"),
    69: (Outcome.BAD_DATA, "out_of_range"),
    72: (Outcome.BAD_DATA, "cannot_parse"),
    117: (Outcome.BAD_DATA, "incorrect_data"),
    131: (Outcome.BAD_DATA, "too_large_string"),
    349: (Outcome.BAD_DATA, "null_in_required"),
    # The table is not the one that the block was made for, or this user may not.
    10: (Outcome.FATAL, "no_such_column"),
    16: (Outcome.FATAL, "no_such_column"),
    20: (Outcome.FATAL, "column_count"),
    47: (Outcome.FATAL, "unknown_identifier"),
    53: (Outcome.FATAL, "type_mismatch"),
    60: (Outcome.FATAL, "unknown_table"),
    62: (Outcome.FATAL, "syntax"),
    70: (Outcome.FATAL, "cannot_convert"),
    81: (Outcome.FATAL, "unknown_database"),
    115: (Outcome.FATAL, "unknown_setting"),
    164: (Outcome.FATAL, "readonly_user"),
    192: (Outcome.FATAL, "unknown_user"),
    193: (Outcome.FATAL, "wrong_password"),
    497: (Outcome.FATAL, "access_denied"),
    516: (Outcome.FATAL, "authentication_failed"),
}


def _code_of(exc: BaseException) -> int | None:
    code = getattr(exc, "code", None)
    return code if isinstance(code, int) and not isinstance(code, bool) else None


def classify(exc: BaseException) -> Outcome:
    """What to do after this error of a ClickHouse statement.

    An error without a known code is UNCLEAR: asking the table is always safe.
    """
    code = _code_of(exc)
    if code is not None and code in _CODES:
        return _CODES[code][0]
    return Outcome.UNCLEAR


def reason(exc: BaseException) -> str:
    """Short, stable word for the error, for counters and logs."""
    code = _code_of(exc)
    if code is None:
        return "connection" if isinstance(exc, ClickHouseError | OSError) else type(exc).__name__
    if code in _CODES:
        return _CODES[code][1]
    return f"code_{code}"
