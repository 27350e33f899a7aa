"""Shared fixtures. A part that cannot be installed without root is skipped, saying so;
with RACKPULSE_REQUIRE_ALL=1 such a skip is a failure."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

import hypothesis
import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from pipeline.streams import Contracts, load_contracts

ROOT = Path(__file__).resolve().parents[1]
# No test is about time: the first example of a module imports what it needs.
hypothesis.settings.register_profile("rackpulse", deadline=None)
hypothesis.settings.load_profile("rackpulse")


def skip_or_fail(reason: str) -> None:
    """Skip the test, or fail it where everything is required."""
    if os.environ.get("RACKPULSE_REQUIRE_ALL"):
        pytest.fail(f"required here: {reason}")
    pytest.skip(reason)


def need_program(*names: str) -> None:
    """Skip when none of these programs is on PATH."""
    if not any(shutil.which(name) for name in names):
        skip_or_fail(f"needs {' or '.join(names)} on PATH")


# What runs long starts first. A worker that got the first of these gets one more file at once,
# which waits until the first is done: the fourth is a short one.
_FIRST = (
    "tests/e2e/",
    "tests/faults/",
    "tests/store/test_migrate.py",
    "tests/up/",
    "tests/writer/test_protocol_model.py",
    "tests/store/",
)
# Tests of this folder share brokers and a store: one worker runs them.
_TOGETHER = "tests/faults/"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the tests."""

    def rank(item: pytest.Item) -> int:
        return next((at for at, path in enumerate(_FIRST) if item.nodeid.startswith(path)), 99)

    items.sort(key=rank)


class _ByFile(LoadScopeScheduling):
    """Gives whole files to the workers, so that each part of a file is set up once."""

    def _split_scope(self, nodeid: str) -> str:
        return _TOGETHER if nodeid.startswith(_TOGETHER) else nodeid.split("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    return _ByFile(config, log)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("kafka") or item.get_closest_marker("jdbc"):
        need_program("java")
        need_program("mvn")
    if item.get_closest_marker("browser"):
        need_program("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def contracts() -> Contracts:
    return load_contracts()


@pytest.fixture
def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def captures_folder() -> Path:
    """Folder of real captures: RACKPULSE_CAPTURES, else shared/captures beside the checkout."""
    return Path(os.environ.get("RACKPULSE_CAPTURES", ROOT.parent / "shared" / "captures"))


@pytest.fixture(scope="session")
def captures() -> Path:
    folder = captures_folder()
    if not folder.is_dir():
        pytest.skip(f"no captures at {folder}: set RACKPULSE_CAPTURES")
    return folder
