"""One request, understood: statement, parameters, settings, formats."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pipeline.store.server.failure import StoreError

# What the HTTP interface itself understands; everything else is a setting or a parameter.
OWN = frozenset(
    {
        "query", "database", "default_format", "user", "password", "query_id", "quota_key",
        "session_id", "session_timeout", "session_check", "close_session", "compress",
        "decompress", "wait_end_of_query", "buffer_size", "client_protocol_version", "role",
        "stacktrace", "enable_http_compression", "send_progress_in_http_headers",
        "http_headers_progress_interval_ms", "cancel_http_readonly_queries_on_client_close",
        "http_zlib_compression_level", "add_http_cors_header",
    }
)  # fmt: skip
_SETTING_NAME = re.compile(r"^[a-z][a-z0-9_]*$", re.IGNORECASE)
_TEXT_ID = re.compile(r"^[\x21-\x7e][\x20-\x7e]{0,255}$")


@dataclass
class Request:
    """What a client asks for.

    Attributes:
        own: parameters of the HTTP interface itself.
        params: query parameters, without ``param_``, as the client escaped them.
        settings: settings for this statement.
        external: parameters that describe external tables.
        read_only: the request came by GET.
    """

    own: dict[str, str] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    external: dict[str, str] = field(default_factory=dict)
    read_only: bool = False

    def take(
        self, pairs: Iterable[tuple[str, str]], known: frozenset[str], tables: Iterable[str] = ()
    ) -> None:
        """Sort parameters into their kinds; the first value of a name counts.

        Args:
            known: names of the engine's settings.
            tables: names of external tables that came with the request.

        Raises:
            StoreError: a setting is unknown.
        """
        about_tables = {
            f"{table}_{what}" for table in tables for what in ("format", "types", "structure")
        }
        for name, value in pairs:
            if name in OWN:
                self.own.setdefault(name, value)
            elif name.startswith("param_"):
                self.params.setdefault(name.removeprefix("param_"), value)
            elif name in about_tables:
                self.external.setdefault(name, value)
            elif _SETTING_NAME.match(name) and name in known:
                self.settings.setdefault(name, value)
            else:
                raise StoreError(
                    115, f"Setting {name[:100]!r} is neither a setting nor a parameter"
                )

    def take_headers(self, headers: Mapping[str, str]) -> None:
        """What the JDBC driver says in headers; a parameter of the URL goes first."""
        for header, name in (
            ("x-clickhouse-database", "database"),
            ("x-clickhouse-format", "default_format"),
        ):
            if header in headers:
                self.own.setdefault(name, headers[header])

    @property
    def statement(self) -> bytes:
        """The statement of the URL or form; a body goes on behind it, on a new line."""
        text = self.own.get("query", "")
        return text.encode("utf-8", "surrogateescape") + b"\n" if text.strip() else b""

    def flag(self, name: str, default: bool = False) -> bool:
        """A parameter that says yes or no."""
        value = self.own.get(name)
        return default if value is None else value.lower() in ("1", "true", "yes", "on")

    @property
    def query_id(self) -> str | None:
        """The client's id for the statement.

        Raises:
            StoreError: it holds characters that no header may hold.
        """
        return _identifier(self.own, "query_id")

    @property
    def session_id(self) -> str | None:
        """The client's session.

        Raises:
            StoreError: it holds characters that no header may hold.
        """
        return _identifier(self.own, "session_id")


def _identifier(own: Mapping[str, str], name: str) -> str | None:
    value = own.get(name)
    if not value:
        return None
    if not _TEXT_ID.match(value):
        raise StoreError(36, f"{name} must be at most 256 printable characters")
    return value
