from __future__ import annotations

import base64
import hashlib
import hmac
import stat
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from pipeline.alerts import signing
from pipeline.errors import ConfigError, RackpulseError

# The example of the Standard Webhooks specification.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
MESSAGE_ID = "msg_p5jXN8AQM9LWM0D4loKWxJek"
SENT = datetime.fromtimestamp(1614265330, UTC)
BODY = b'{"test": 2432232314}'
SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_signs_as_the_specification_does() -> None:
    headers = signing.sign(MESSAGE_ID, SENT, BODY, [SECRET])
    assert headers == {
        "webhook-id": MESSAGE_ID,
        "webhook-timestamp": "1614265330",
        "webhook-signature": SIGNATURE,
    }


def test_signs_the_same_moment_the_same_in_every_time_zone() -> None:
    elsewhere = SENT.astimezone(timezone(timedelta(hours=9)))
    assert signing.sign(MESSAGE_ID, elsewhere, BODY, [SECRET])["webhook-signature"] == SIGNATURE


def test_signs_with_every_secret_while_they_are_changed() -> None:
    other = signing.new_secret()
    found = signing.sign(MESSAGE_ID, SENT, BODY, [other, SECRET])["webhook-signature"].split(" ")
    key = base64.b64decode(other.removeprefix("whsec_"))
    content = f"{MESSAGE_ID}.1614265330.".encode() + BODY
    expected = base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
    assert found == [f"v1,{expected}", SIGNATURE]


def test_knows_its_own_signature_and_no_other() -> None:
    now = datetime.now(UTC)
    headers = signing.sign(MESSAGE_ID, now, BODY, [SECRET])
    assert signing.is_signed(BODY, headers, [signing.new_secret(), SECRET])
    assert not signing.is_signed(BODY + b" ", headers, [SECRET])
    assert not signing.is_signed(BODY, headers, [signing.new_secret()])
    assert not signing.is_signed(BODY, headers | {"webhook-id": "other"}, [SECRET])
    assert not signing.is_signed(BODY, {}, [SECRET])
    assert not signing.is_signed(BODY, headers | {"webhook-signature": "rubbish"}, [SECRET])
    assert not signing.is_signed(b"\xff", headers, [SECRET])


def test_a_replayed_message_is_refused() -> None:
    old = datetime.now(UTC) - timedelta(minutes=6)
    assert not signing.is_signed(BODY, signing.sign(MESSAGE_ID, old, BODY, [SECRET]), [SECRET])


def test_makes_a_secret_that_only_its_owner_can_read(tmp_path: Path) -> None:
    path = tmp_path / "alerts" / "webhook-secret"
    keys = signing.load_secrets(path, create=True)
    assert len(base64.b64decode(keys[0].removeprefix("whsec_"))) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert signing.load_secrets(path, create=True) == keys


def test_rotates(tmp_path: Path) -> None:
    path = tmp_path / "webhook-secret"
    first = signing.load_secrets(path, create=True)
    with pytest.raises(RackpulseError, match="one secret only"):
        signing.rotate(path, drop_old=True)
    assert signing.rotate(path) == 2
    both = signing.load_secrets(path)
    assert both[1:] == first
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert signing.rotate(path, drop_old=True) == 1
    assert signing.load_secrets(path) == both[:1]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no secret"),
        ("# nothing\n", "holds no secret"),
        ("whsec_c2hvcnQ=\n", "24 to 64 bytes"),
        ("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n", "a secret is whsec_"),
    ],
)
def test_refuses_a_bad_file_without_showing_it(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "webhook-secret"
    path.write_text(text)
    with pytest.raises(ConfigError, match=says) as caught:
        signing.load_secrets(path)
    assert "c2hvcnQ" not in str(caught.value)
    assert "MfKQ9r8G" not in str(caught.value)


def test_a_missing_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="RACKPULSE_WEBHOOK_SECRET_FILE"):
        signing.load_secrets(tmp_path / "none")
