"""Errors as ClickHouse's HTTP interface gives them: code, name, text, HTTP status."""

from __future__ import annotations

import re

_CODE = re.compile(r"Code: (\d+)\. DB::")
_STATUS = {
    # Who are you, and may you?
    **dict.fromkeys((192, 193, 194, 497, 516), 403),
    # The request is wrong.
    **dict.fromkeys(
        (6, 26, 27, 36, 38, 41, 43, 53, 62, 69, 70, 72, 117, 131, 349, 386, 456, 457), 400
    ),
    # There is no such thing.
    **dict.fromkeys((16, 47, 60, 63, 73, 81, 111, 115, 372), 404),
    158: 413,
    159: 408,
    202: 503,
    373: 423,
    **dict.fromkeys((48, 344), 501),
}
STATUS_OTHERWISE = 500

NAMES = {
    36: "BAD_ARGUMENTS",
    62: "SYNTAX_ERROR",
    81: "UNKNOWN_DATABASE",
    115: "UNKNOWN_SETTING",
    158: "TOO_MANY_ROWS_OR_BYTES",
    164: "READONLY",
    202: "TOO_MANY_SIMULTANEOUS_QUERIES",
    210: "NETWORK_ERROR",
    243: "NOT_ENOUGH_SPACE",
    344: "SUPPORT_IS_DISABLED",
    372: "SESSION_NOT_FOUND",
    373: "SESSION_IS_LOCKED",
    394: "QUERY_WAS_CANCELLED",
    497: "ACCESS_DENIED",
    516: "AUTHENTICATION_FAILED",
    1002: "UNKNOWN_EXCEPTION",
    33: "CANNOT_READ_ALL_DATA",
    271: "CANNOT_DECOMPRESS",
}


class StoreError(Exception):
    """A statement failed.

    Attributes:
        code: ClickHouse's number for the error.
        text: what the client is shown, beginning with ``Code: N. DB::``.
    """

    def __init__(self, code: int, message: str) -> None:
        name = NAMES.get(code, "UNKNOWN_EXCEPTION")
        self.code = code
        self.text = f"Code: {code}. DB::Exception: {message} ({name})"
        super().__init__(self.text)

    @property
    def status(self) -> int:
        """The HTTP status that goes with the code."""
        return _STATUS.get(self.code, STATUS_OTHERWISE)

    @classmethod
    def of_engine(cls, message: str) -> StoreError:
        """From the engine's own text, without what chDB puts before it."""
        error = cls.__new__(cls)
        found = _CODE.search(message)
        if found is None:
            error.code = 1002
            error.text = f"Code: 1002. DB::Exception: {message} (UNKNOWN_EXCEPTION)"
        else:
            error.code = int(found[1])
            error.text = message[found.start() :].strip()
        Exception.__init__(error, error.text)
        return error
