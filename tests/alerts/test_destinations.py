from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr

from pipeline.alerts.destinations import Destination, load_destinations
from pipeline.errors import ConfigError
from tests.alerts.helpers import alert

GOOD = """
[[destination]]
name = "on-call"
url = "https://hooks.example.org:8443/secret-path"

[[destination]]
name = "pager"
kind = "pagerduty"
routing_key_file = "pager.key"
min_severity = "critical"
drills = false

[[destination]]
name = "chat"
kind = "slack"
url_file = "slack.url"
"""


def test_reads_a_file(tmp_path: Path) -> None:
    path = tmp_path / "alerts.toml"
    path.write_text(GOOD)
    (tmp_path / "slack.url").write_text("https://hooks.example.org/T000/B000/xyz\n")
    webhook, pager, chat = load_destinations(path)
    assert webhook.address() == "https://hooks.example.org:8443/secret-path"
    assert webhook.shown() == "https://hooks.example.org:8443"
    assert pager.address() == "https://events.pagerduty.com/v2/enqueue"
    assert pager.routing_key_file == tmp_path / "pager.key"
    assert chat.address() == "https://hooks.example.org/T000/B000/xyz"
    assert chat.shown() == "https://hooks.example.org"


def test_an_address_is_not_shown_by_accident() -> None:
    destination = Destination(name="x", url=SecretStr("https://h.example.org/secret-path"))
    assert "secret-path" not in repr(destination)
    assert "secret-path" not in str(destination.model_dump())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "at least one"),
        ("[[destination]\n", "not TOML"),
        ('[[destination]]\nname = "a"\n', "give url or url_file"),
        ('[[destination]]\nname = "A b"\nurl = "https://h/x"\n', "A b: name"),
        ('[[destination]]\nname = "a"\nurl = "ftp://h/geheim"\n', "https://host/path"),
        ('[[destination]]\nname = "a"\nurl = "https://u:geheim@h/"\n', "must not hold a password"),
        ('[[destination]]\nname = "a"\nkind = "pagerduty"\n', "routing_key_file"),
        ('[[destination]]\nname = "a"\nurl = "https://h/"\ncolour = 1\n', "colour"),
        ('[[destination]]\nname = "a"\nurl = "https://h/"\ntimeout_s = 600\n', "timeout_s"),
        ('[[destination]]\nname = "a"\nurl = "https://h/"\n' * 2, "same name"),
    ],
)
def test_says_what_is_wrong_and_nothing_secret(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "alerts.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=says) as caught:
        load_destinations(path)
    assert "geheim" not in str(caught.value)


def test_asks_for_grave_ones_only() -> None:
    pager = Destination(name="p", url=SecretStr("https://h/"), min_severity="critical")
    assert not pager.wants(alert(severity="warning"), told_before=False)
    assert pager.wants(alert(severity="critical"), told_before=False)
    # Whoever was told of the beginning is told of the end, however grave it is by then.
    end = alert(severity="warning", transition="resolved")
    assert pager.wants(end, told_before=True)
    assert not pager.wants(end, told_before=False)


def test_drills_can_be_left_out() -> None:
    quiet = Destination(name="p", url=SecretStr("https://h/"), drills=False)
    assert not quiet.wants(alert(drill=True), told_before=True)
    assert quiet.wants(alert(drill=False), told_before=False)
