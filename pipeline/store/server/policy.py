"""What an analyst may run: kinds of statements, functions and settings by list.

The engine's own parser is asked, never a parser of ours: the statement is formatted by the
engine, and that text, not the client's, is looked at and run. Whatever stands on no list is
refused, so what a new version of the engine brings stays shut until it was looked at.
"""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.store.server.engine import ANALYST_SECONDS, Connection
from pipeline.store.server.failure import StoreError
from pipeline.store.sql_text import Token, tokens

# Kinds of statements, as EXPLAIN AST names them.
_KINDS = frozenset(
    {
        "SelectWithUnionQuery", "SelectIntersectExceptQuery", "Explain", "DescribeQuery",
        "ShowTables", "ShowColumns", "ShowIndexes", "ShowFunctions", "ShowSetting",
        "ShowEngineQuery", "ShowProcesslistQuery", "ShowCreateTableQuery", "ShowCreateViewQuery",
        "ShowCreateDatabaseQuery", "ExistsTableQuery", "ExistsViewQuery", "ExistsDatabaseQuery",
    }
)  # fmt: skip
# What may be explained.
_EXPLAINED = frozenset({"SelectWithUnionQuery", "SelectIntersectExceptQuery", "Set"})

# Categories of functions that only compute, as system.functions names them.
_CATEGORIES = frozenset(
    {
        "Aggregate Functions", "Type Conversion", "Dates and Times", "Arrays", "String", "Geo",
        "Hash", "String Search", "JSON", "Dictionary", "Mathematical", "URL", "Arithmetic",
        "Geo Polygon", "Map", "IP Address", "Comparison", "Tuple", "Time Series", "Distance",
        "Random Number", "Bitmap", "NumericIndexedVector", "Bit", "Encoding", "UUID",
        "String Splitting", "String Replacement", "Null", "Rounding", "Time Window",
        "Conditional", "Logical", "Financial", "QBit", "Nullable", "Internal",
    }
)  # fmt: skip
# Functions of other categories that only compute or tell of the statement itself.
_FUNCTIONS = frozenset(
    {
        "bar", "blockNumber", "blockSize", "blockSerializedSize", "byteSize", "countDigits",
        "currentDatabase", "currentSchemas", "currentUser", "currentRoles", "currentProfiles",
        "defaultValueOfArgumentType", "defaultValueOfTypeName", "displayName",
        "dumpColumnStructure", "enabledRoles", "enabledProfiles", "defaultRoles",
        "defaultProfiles", "errorCodeToName", "finalizeAggregation", "flipCoordinates",
        "formatQuery", "formatQueryOrNull", "formatQuerySingleLine",
        "formatQuerySingleLineOrNull", "formatReadableDecimalSize", "formatReadableQuantity",
        "formatReadableSize", "formatReadableTimeDelta", "getSetting", "getSettingOrDefault",
        "getSizeOfEnumType", "getSubcolumn", "globalVariable", "hostName", "FQDN", "identity",
        "ignore", "indexHint", "initialQueryID", "initialQueryStartTime", "initializeAggregation",
        "isConstant", "isDecimalOverflow", "lowCardinalityIndices", "lowCardinalityKeys",
        "materialize", "minSampleSizeContinuous", "minSampleSizeConversion", "neighbor",
        "normalizeQuery", "normalizeQueryKeepNames", "normalizedQueryHash",
        "normalizedQueryHashKeepNames", "parseReadableSize", "parseReadableSizeOrNull",
        "parseReadableSizeOrZero", "parseTimeDelta", "pgGetUserById", "pgTableIsVisible",
        "queryID", "revision", "rowNumberInAllBlocks", "rowNumberInBlock", "runningAccumulate",
        "runningConcurrency", "runningDifference", "runningDifferenceStartingWithFirstValue",
        "shardCount", "shardNum", "throwIf", "tid", "toColumnTypeName", "toTypeName",
        "transform", "uptime", "variantElement", "variantType", "version", "visibleWidth",
        "tcpPort", "tokenizeQuery", "highlightQuery", "stochasticLinearRegression",
        "stochasticLogisticRegression", "MACNumToString", "MACStringToNum", "demangle",
        "serverUUID", "currentQueryID", "connectionId", "authenticatedUser", "sleep",
    }
)  # fmt: skip
# Table functions that make rows of nothing but their arguments, or of a query inside them.
_TABLE_FUNCTIONS = frozenset(
    {
        "numbers", "numbers_mt", "zeros", "zeros_mt", "generateseries", "generate_series",
        "primes", "values", "sqlstandardvalues", "view", "generaterandom", "format", "null",
        "dictionary",
    }
)  # fmt: skip
# Engines of databases whose tables are tables, not files or other servers.
_DATABASE_ENGINES = ("Atomic", "Memory", "Ordinary", "Lazy", "Replicated", "Shared")
_HOME = "telemetry"

# Settings that change how an answer looks or how long a statement may take.
_SETTINGS = frozenset(
    {
        "max_threads", "max_block_size", "max_execution_time", "max_result_rows",
        "max_result_bytes", "result_overflow_mode", "max_rows_to_read", "read_overflow_mode",
        "timeout_overflow_mode", "max_rows_to_group_by", "group_by_overflow_mode", "extremes",
        "limit", "offset", "log_comment", "join_use_nulls", "join_algorithm", "session_timezone",
        "date_time_output_format", "date_time_input_format", "group_by_use_nulls",
        "union_default_mode", "prefer_column_name_to_alias", "aggregate_functions_null_for_empty",
        "optimize_read_in_order", "use_query_cache", "query_cache_tag", "query_cache_ttl",
        "send_progress_in_http_headers", "http_headers_progress_interval_ms", "wait_end_of_query",
        "connect_timeout", "send_timeout", "receive_timeout", "max_query_size", "final",
        "allow_experimental_analyzer", "enable_analyzer", "enable_optimize_predicate_expression",
        "optimize_move_to_prewhere", "readonly", "max_columns_to_read", "totals_mode",
        "format_csv_delimiter", "format_csv_null_representation", "format_tsv_null_representation",
        "format_custom_field_delimiter", "bool_true_representation", "bool_false_representation",
        "cast_string_to_dynamic_use_inference",
        "allow_experimental_json_type", "allow_experimental_variant_type",
        "allow_experimental_dynamic_type", "show_table_uuid_in_table_create_query_if_not_nil",
    }
)  # fmt: skip
_SETTING_PREFIX = "output_format_"
_NOT_SETTINGS = frozenset({"output_format_schema"})
# Highest values; 0 would mean without end.
CAPS: Mapping[str, float] = {"max_execution_time": ANALYST_SECONDS, "max_threads": 64}


# Words that end a SETTINGS clause.
_AFTER_SETTINGS = ("UNION", "INTERSECT", "EXCEPT", "FORMAT", "SELECT", "INTO")


def _refuse(what: str) -> StoreError:
    return StoreError(497, f"analyst: Not enough privileges. {what}")


def limited(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings that an analyst asked for, within what is allowed.

    Raises:
        StoreError: 164, a setting is not on the list.
    """
    found = {}
    for name, value in settings.items():
        _check_setting(name)
        if name in CAPS:
            try:
                number = float(value)
            except ValueError as exc:
                raise StoreError(36, f"{name} must be a number") from exc
            value = str(int(min(number, CAPS[name]))) if number > 0 else str(int(CAPS[name]))
        found[name] = value
    return found


def _check_setting(name: str) -> None:
    if name in _NOT_SETTINGS or not (name in _SETTINGS or name.startswith(_SETTING_PREFIX)):
        raise StoreError(164, f"analyst: Setting {name[:100]} cannot be changed by this user")


def database(name: str | None, connection: Connection) -> str:
    """The database that an analyst works in.

    Raises:
        StoreError: 81, there is no such one.
    """
    if not name or name == "default" or name in _foreign(connection):
        return _HOME
    return name


class Policy:
    """Judges the statements of analysts."""

    def __init__(self) -> None:
        self._functions: _Functions | None = None

    def forget(self) -> None:
        """The owner made or dropped a function: the list is read again."""
        self._functions = None

    def allowed(self, connection: Connection, sql: bytes, params: Mapping[str, str]) -> bytes:
        """Judge a statement.

        Args:
            params: query parameters; names among them are put in before it is looked at.

        Returns:
            The text to run: the engine's own writing of the statement.

        Raises:
            StoreError: it is refused, or is not SQL.
        """
        kind, count = connection.kind(sql)
        if count == 1 and kind != "READ_ONLY":
            raise _refuse("This user may only read")
        text = connection.run(
            "SELECT formatQuerySingleLine({statement:String})",
            "RawBLOB",
            {"statement": _escaped(sql)},
        ).answer
        if connection.kind(text) != ("READ_ONLY", 1):
            raise _refuse("This user may only read")
        _check_settings(text)
        lines = _tree(connection, text, params)
        _check_kind(lines)
        foreign = _foreign(connection)
        functions = self._functions or _Functions(connection)
        self._functions = functions
        for line in lines:
            node, _, rest = line.strip().partition(" ")
            if node == "Function":
                functions.check(rest.partition(" ")[0])
            elif node in ("Identifier", "TableIdentifier"):
                _check_name(rest, foreign)
        return text


def _escaped(sql: bytes) -> str:
    text = sql.decode("utf-8", "surrogateescape")
    return text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n")


def _tree(connection: Connection, text: bytes, params: Mapping[str, str]) -> list[str]:
    answer = connection.run(b"EXPLAIN AST " + text, "TabSeparatedRaw", params).answer
    return answer.decode("utf-8", "replace").splitlines()


def _check_kind(lines: list[str]) -> None:
    kind = lines[0].split()[0] if lines and lines[0].split() else ""
    if kind not in _KINDS:
        raise _refuse(f"Statements of kind {kind or '?'} are not on the list")
    if kind == "Explain":
        children = {
            line.split()[0]
            for line in lines
            if line.startswith(" ") and not line.startswith("  ") and line.split()
        }
        if not children <= _EXPLAINED:
            raise _refuse("Only SELECT may be explained")


def _check_name(name: str, foreign: frozenset[str]) -> None:
    for database_name in foreign:
        if name == database_name or name.startswith((f"{database_name}.", f"{database_name} ")):
            raise _refuse(f"The database {database_name} is not open to this user")


def _foreign(connection: Connection) -> frozenset[str]:
    """Databases that reach beyond tables: bare names in ``default`` are files to chDB."""
    engines = ", ".join(f"'{engine}'" for engine in _DATABASE_ENGINES)
    rows = connection.rows(f"SELECT name FROM system.databases WHERE engine NOT IN ({engines})")
    return frozenset(row[0] for row in rows if row)


def _check_settings(text: bytes) -> None:
    """Check the names in SETTINGS clauses, wherever they stand.

    Raises:
        StoreError: 164, a name is not on the list.
    """
    found: list[Token] = list(tokens(text))
    clause: int | None = None
    for index in range(len(found) - 2):
        token, name, sign = found[index : index + 3]
        previous = found[index - 1] if index else None
        pair = name.kind in ("word", "quoted") and sign.text == b"="
        if token.says("SETTINGS") and pair:
            clause = token.depth
        elif clause is not None and (
            token.depth < clause
            or (token.says(*_AFTER_SETTINGS) and not (previous and previous.text == b"="))
        ):
            clause = None
        if clause == token.depth and pair and (token.says("SETTINGS") or token.text == b","):
            setting = name.text.strip(b'`"').decode("utf-8", "replace")
            _check_setting(setting)
            value = found[index + 3] if index + 3 < len(found) else None
            if setting in CAPS and not (value and _within(value, CAPS[setting])):
                raise StoreError(164, f"analyst: {setting} is a number up to {CAPS[setting]:g}")


def _within(value: Token, cap: float) -> bool:
    try:
        return value.kind == "number" and 0 < float(value.text) <= cap
    except ValueError:
        return False


class _Functions:
    """Functions of the engine, and which of them are on the list."""

    def __init__(self, connection: Connection) -> None:
        allowed_here: set[str] = set()
        known: set[str] = set()
        aliases: list[tuple[str, str]] = []
        rows = connection.run(
            "SELECT name, alias_to, categories, origin FROM system.functions", "TabSeparatedRaw"
        ).answer.decode()
        listed = {name.lower() for name in _FUNCTIONS}
        for row in rows.splitlines():
            name, alias_to, categories, origin = row.split("\t")
            known.add(name.lower())
            if alias_to:
                aliases.append((name.lower(), alias_to.lower()))
                continue
            pure = categories and set(categories.split(",")) <= _CATEGORIES
            if pure or name.lower() in listed or origin == "SQLUserDefined":
                allowed_here.add(name.lower())
        for name, target in aliases:
            if target in allowed_here:
                allowed_here.add(name)
        self._known = frozenset(known)
        self._allowed = frozenset(allowed_here)
        self._tables = frozenset(
            row[0].lower() for row in connection.rows("SELECT name FROM system.table_functions")
        )

    def check(self, name: str) -> None:
        """Raise for a function that is not on the list."""
        lower = name.lower()
        if lower in self._tables and lower not in _TABLE_FUNCTIONS:
            raise _refuse(f"The table function {name[:100]} is not on the list")
        # A name that the engine does not list is an aggregate function with a combinator,
        # such as sumIf, a lambda, or nothing at all.
        if lower in self._known and lower not in self._allowed and lower not in _TABLE_FUNCTIONS:
            raise _refuse(f"The function {name[:100]} is not on the list")
