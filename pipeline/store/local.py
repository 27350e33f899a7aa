"""Files by which the embedded store and its clients find each other."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from pipeline.errors import RackpulseError

Role = Literal["owner", "analyst"]


class Login(BaseModel):
    """Name and password of one user of the embedded store."""

    model_config = ConfigDict(frozen=True)

    user: str
    password: str


class Users(BaseModel):
    """The two users: the owner may do all, the analyst may read."""

    model_config = ConfigDict(frozen=True)

    owner: Login
    analyst: Login


class Endpoint(BaseModel):
    """Where the embedded store listens, and which process it is."""

    model_config = ConfigDict(frozen=True)

    host: str
    port: int
    pid: int


def store_folder(state_dir: Path) -> Path:
    """The embedded store's folder."""
    return state_dir / "store"


def users_file(state_dir: Path) -> Path:
    """The file with the users' passwords; only its owner can read it."""
    return store_folder(state_dir) / "users.json"


def endpoint_file(state_dir: Path) -> Path:
    """The file that says where the store listens."""
    return store_folder(state_dir) / "endpoint.json"


def read_users(state_dir: Path) -> Users:
    """The users of the embedded store.

    Raises:
        RackpulseError: there is no store in this folder yet, or the file is damaged.
    """
    path = users_file(state_dir)
    try:
        return Users.model_validate_json(path.read_bytes())
    except FileNotFoundError as exc:
        raise RackpulseError(
            f"There is no embedded store in {store_folder(state_dir)}: start it with"
            " `rackpulse store serve` or `rackpulse up`, or set RACKPULSE_STORE_DSN"
        ) from exc
    except PermissionError as exc:
        raise RackpulseError(
            f"{path} belongs to another user: run as the user who started the store"
        ) from exc
    except ValidationError as exc:
        raise RackpulseError(
            f"{path} is damaged: stop the store, remove the file and start the store again;"
            " it makes new passwords"
        ) from exc


def ensure_users(state_dir: Path) -> Users:
    """The users, with new passwords where there are none yet."""
    path = users_file(state_dir)
    if path.exists():
        users = read_users(state_dir)
        path.chmod(0o600)
        return users
    users = Users(
        owner=Login(user="rackpulse", password=secrets.token_urlsafe(24)),
        analyst=Login(user="analyst", password=secrets.token_urlsafe(24)),
    )
    write_private(path, users.model_dump())
    return users


def read_endpoint(state_dir: Path) -> Endpoint | None:
    """Where the store listens, or None where nothing says so."""
    try:
        return Endpoint.model_validate_json(endpoint_file(state_dir).read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def write_private(path: Path, content: object) -> None:
    """Write JSON so that only this user can read it, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(content, file, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
