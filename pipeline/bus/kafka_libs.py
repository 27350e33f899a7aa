"""Java and Apache Kafka's jars on this machine."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

log = logging.getLogger(__name__)

POM = Path(__file__).parent / "kafka" / "pom.xml"
LEAST_JAVA = 17
_FETCH_TIMEOUT_S = 240


class NoKafkaError(Exception):
    """Apache Kafka cannot run here; the text says why."""


def find_java() -> str:
    """Path of Java 17 or newer.

    Raises:
        NoKafkaError: there is none on PATH.
    """
    java = shutil.which("java")
    if not java:
        raise NoKafkaError("no java on PATH")
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError) as exc:
        raise NoKafkaError(f"java does not run ({type(exc).__name__})") from exc
    found = re.search(r'version "(\d+)', answer.stderr + answer.stdout)
    if not found or int(found[1]) < LEAST_JAVA:
        version = found[1] if found else "unknown"
        raise NoKafkaError(f"java is version {version}, {LEAST_JAVA} is needed")
    return java


def cache_folder() -> Path:
    """Where the jars of this pom are kept, for all checkouts of this user."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "rackpulse" / f"kafka-{hashlib.sha256(POM.read_bytes()).hexdigest()[:12]}"


def fetch_libs(folder: Path | None = None) -> Path:
    """The folder of jars; Maven fetches them the first time.

    Safe when two processes do it at once, and when one was killed in between.

    Raises:
        NoKafkaError: Maven is missing or cannot fetch them.
    """
    folder = folder or cache_folder()
    libs = folder / "libs"
    if libs.is_dir():
        return libs
    maven = shutil.which("mvn")
    if not maven:
        raise NoKafkaError("no mvn on PATH to fetch Apache Kafka with")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not libs.is_dir():
                _fetch(maven, libs)
    except OSError as exc:
        raise NoKafkaError(f"cannot keep Apache Kafka in {folder}: {exc}") from exc
    return libs


def _fetch(maven: str, libs: Path) -> None:
    log.info("fetching Apache Kafka with Maven, once (about 45 MB)")
    with tempfile.TemporaryDirectory(dir=libs.parent, prefix="fetching-") as work:
        # Maven may write beside the pom: give it a copy of its own.
        pom = shutil.copy(POM, work)
        arguments = ["-q", "-B", "-f", pom, "dependency:copy-dependencies"]
        target = Path(work) / "libs"
        try:
            answer = subprocess.run(
                [maven, *arguments, f"-DoutputDirectory={target}"],
                capture_output=True, text=True, timeout=_FETCH_TIMEOUT_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as exc:
            raise NoKafkaError(f"Maven took longer than {_FETCH_TIMEOUT_S} s") from exc
        if answer.returncode or not list(target.glob("kafka-server-4*.jar")):
            lines = (answer.stdout + answer.stderr).strip().splitlines()
            raise NoKafkaError(f"Maven could not fetch it: {lines[0] if lines else 'no output'}")
        target.rename(libs)
