from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from pipeline.fleet_page import MEDIA_TYPES, security, static_file

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


def test_a_token_is_good_for_its_user_key_and_day() -> None:
    token = security.csrf_token("key", "kim", NOW)
    assert security.is_csrf_token(token, "key", "kim", NOW)
    assert not security.is_csrf_token(token, "key", "lee", NOW)
    assert not security.is_csrf_token(token, "other", "kim", NOW)
    assert not security.is_csrf_token(token, "key", "kim", NOW + timedelta(days=1))
    assert not security.is_csrf_token(None, "key", "kim", NOW)
    assert not security.is_csrf_token("", "key", "kim", NOW)


def test_a_page_that_is_open_at_midnight_goes_on_working() -> None:
    token = security.csrf_token("key", "kim", datetime(2026, 11, 30, 23, 59, tzinfo=UTC))
    assert security.is_csrf_token(token, "key", "kim", datetime(2026, 12, 1, 0, 30, tzinfo=UTC))
    assert not security.is_csrf_token(token, "key", "kim", datetime(2026, 12, 1, 1, 30, tzinfo=UTC))


@pytest.mark.parametrize(
    ("origin", "site", "host", "good"),
    [
        ("http://127.0.0.1:18081", "same-origin", "127.0.0.1:18081", True),
        (None, None, "127.0.0.1:18081", True),
        ("http://evil.example.org", "cross-site", "127.0.0.1:18081", False),
        ("http://evil.example.org", None, "127.0.0.1:18081", False),
        ("http://127.0.0.1:9999", "same-site", "127.0.0.1:18081", False),
        (None, "cross-site", "127.0.0.1:18081", False),
        ("null", "same-origin", "127.0.0.1:18081", False),
        ("http://127.0.0.1:18081", None, None, False),
    ],
)
def test_same_origin(origin: str | None, site: str | None, host: str | None, good: bool) -> None:
    assert security.is_same_origin(origin, site, host) is good


def test_files_are_those_of_the_list_only() -> None:
    for name in MEDIA_TYPES:
        assert static_file(name)
    with pytest.raises(KeyError):
        static_file("../__init__.py")


def test_the_script_never_sets_html() -> None:
    script = static_file("fleet.js")
    for bad in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert bad not in script
