"""Signatures of Standard Webhooks 1.0.0: secrets in a file, several while they are changed."""

from __future__ import annotations

import base64
import binascii
import os
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from pipeline.errors import ConfigError, RackpulseError
from pipeline.settings import Settings

_PREFIX = "whsec_"
_KEY_BYTES = 32


def secret_file(settings: Settings) -> Path:
    """Where the secrets lie: as configured, else in the state folder."""
    return settings.webhook_secret_file or settings.state_dir / "alerts" / "webhook-secret"


def new_secret() -> str:
    """A fresh secret in the standard's form."""
    return _PREFIX + base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode()


def load_secrets(path: Path, *, create: bool = False) -> list[str]:
    """The secrets of a file, one per line, the newest first; ``#`` starts a comment.

    Args:
        create: make the file with a fresh secret when it is missing.

    Raises:
        ConfigError: it is missing, unreadable, or a line is no secret; the secret itself
            never stands in the text.
    """
    if create and not path.exists():
        _create(path)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "it is no text"
        raise ConfigError(
            f"The webhook secret {path} cannot be read ({why}): name a file with"
            " RACKPULSE_WEBHOOK_SECRET_FILE"
        ) from exc
    found = []
    for number, raw in enumerate(lines, start=1):
        line = raw.split("#", 1)[0].strip()
        if line:
            _check(line, path, number)
            found.append(line)
    if not found:
        raise ConfigError(f"{path} holds no secret: put one line  whsec_…  into it")
    return found


def _check(line: str, path: Path, number: int) -> None:
    try:
        key = base64.b64decode(line.removeprefix(_PREFIX) + "==", validate=False)
    except (binascii.Error, ValueError) as exc:
        raise ConfigError(f"{path}, line {number}: this is not base64") from exc
    if not line.startswith(_PREFIX) or not 24 <= len(key) <= 64:
        raise ConfigError(f"{path}, line {number}: a secret is whsec_ and 24 to 64 bytes in base64")


def _create(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as out:
        out.write(new_secret() + "\n")
    try:
        # Whoever comes first wins, so that sender and receiver never make two.
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        draft.unlink(missing_ok=True)


def rotate(path: Path, *, drop_old: bool = False) -> int:
    """Put a fresh secret first, or drop all but the first; returns how many there are now.

    Messages carry a signature of every secret in the file, so receivers can move to the new
    one at their own pace.

    Raises:
        RackpulseError: there is nothing to drop.
    """
    known = load_secrets(path, create=True)
    if drop_old:
        if len(known) == 1:
            raise RackpulseError(f"{path} holds one secret only: rotate first")
        kept = known[:1]
    else:
        kept = [new_secret(), *known]
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as out:
        out.write("".join(f"{secret}\n" for secret in kept))
    draft.replace(path)
    return len(kept)


def sign(message_id: str, at: datetime, body: bytes, keys: Sequence[str]) -> dict[str, str]:
    """The headers that go with exactly these bytes.

    Args:
        message_id: the same over all attempts; receivers know a repeat by it.
        at: time of the attempt, aware.
        keys: secrets; one signature each.
    """
    # The library reads a time that is not UTC as if it were.
    moment = at.astimezone(UTC)
    text = body.decode("utf-8")
    signatures = [Webhook(key).sign(message_id, moment, text) for key in keys]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(int(moment.timestamp())),
        "webhook-signature": " ".join(signatures),
    }


def is_signed(body: bytes, headers: dict[str, str], keys: Sequence[str]) -> bool:
    """Whether one of the secrets signed these bytes, within five minutes of now."""
    for key in keys:
        try:
            Webhook(key).verify(body, headers, json_parse=False)
        except (WebhookVerificationError, ValueError):
            continue
        return True
    return False
