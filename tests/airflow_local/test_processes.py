"""Sessions, the end with the parent, recovery: with real processes, without Airflow."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from pipeline.airflow_local import sessions
from pipeline.airflow_local.home import AirflowHome, write_private
from pipeline.airflow_local.serve import AirflowRun, only_one, remove_old_logs
from pipeline.clock import ManualClock, SystemClock
from pipeline.errors import RackpulseError
from tests.support.wait import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are read from /proc")

# A leader with a child in a process group of its own, as Airflow's tasks have; both say so. They
# are there to be ended, and end by themselves where a broken test leaves them.
FAMILY = """
import os, signal, subprocess, sys, time
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, lambda *_: None)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], process_group=0)
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def families() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        for pid in sessions.members([sessions.of_process(process.pid)]):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(10)


def family(started: list[subprocess.Popen[str]], *words: str) -> tuple[sessions.Session, int]:
    process = subprocess.Popen(
        [sys.executable, "-c", FAMILY, *words],
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    started.append(process)
    assert process.stdout is not None
    return sessions.of_process(process.pid), int(process.stdout.readline())


def test_finds_children_in_groups_of_their_own(families: list[subprocess.Popen[str]]) -> None:
    session, child = family(families)
    assert sorted(sessions.members([session])) == sorted([session.sid, child])


def test_ends_all_of_them(families: list[subprocess.Popen[str]]) -> None:
    session, _ = family(families)
    assert sessions.end([session], SystemClock(), grace_s=10) == []
    assert sessions.members([session]) == []


def test_kills_what_does_not_want_to_end(families: list[subprocess.Popen[str]]) -> None:
    session, _ = family(families, "stubborn")
    assert sessions.end([session], SystemClock(), grace_s=0.3) == [session.sid]
    assert sessions.members([session]) == []


def test_finds_what_is_left_when_the_leader_is_gone(families: list[subprocess.Popen[str]]) -> None:
    session, child = family(families)
    os.kill(session.sid, signal.SIGKILL)
    families[0].wait(10)
    assert sessions.members([session]) == [child]


def test_another_process_under_a_known_id_is_left_alone(
    families: list[subprocess.Popen[str]],
) -> None:
    session, _ = family(families)
    assert sessions.members([replace(session, started_ticks=session.started_ticks - 1)]) == []
    assert sessions.members([replace(session, boot_id="another boot")]) == []


def test_recovers_from_a_run_that_was_killed(
    families: list[subprocess.Popen[str]], tmp_path: Path
) -> None:
    home = AirflowHome(tmp_path)
    session, _ = family(families)
    write_private(home.run_file, {"sessions": [asdict(session)]})
    (home.path / "airflow-scheduler.pid").write_text("1")
    run = AirflowRun(home, {}, 1, SystemClock(), grace_s=10)
    assert run.recover() == 2
    assert sessions.members([session]) == []
    assert not list(home.path.glob("*.pid"))
    assert run.recover() == 0


@pytest.mark.parametrize("damage", ["{", "[]", '{"sessions": 1}', '{"sessions": [{"sid": 1}]}'])
def test_a_damaged_note_of_the_run_before_is_no_obstacle(tmp_path: Path, damage: str) -> None:
    home = AirflowHome(tmp_path)
    home.run_file.write_text(damage)
    assert AirflowRun(home, {}, 1, SystemClock()).recover() == 0


def test_ends_with_its_parent_even_when_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import os, signal, subprocess, sys\n"
        "inner = 'import sys; from pipeline.airflow_local.launch import end_with_parent;"
        ' end_with_parent(int(sys.argv[1])); print("up", flush=True);'
        " import time; time.sleep(600)'\n"
        "child = subprocess.Popen([sys.executable, '-c', inner, str(os.getpid())],"
        " stdout=subprocess.PIPE, text=True)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    child = int(done.stdout)
    wait_until(lambda: not Path(f"/proc/{child}/stat").exists() or _is_zombie(child),
               "the child to end")  # fmt: skip


def _is_zombie(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    return True


def test_an_ignored_interrupt_is_not_handed_on(tmp_path: Path) -> None:
    """A shell starts background jobs with SIGINT ignored; Airflow has to hear it again."""
    (tmp_path / "airflow").mkdir()
    (tmp_path / "airflow" / "__init__.py").write_text("")
    (tmp_path / "airflow" / "__main__.py").write_text(
        "import signal, sys; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN, sys.argv[1:])"
    )
    code = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN);"
        "sys.argv = ['launch', str(os.getppid()), 'scheduler', '--skip-serve-logs'];"
        "from pipeline.airflow_local.launch import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False,
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.stdout == "False ['scheduler', '--skip-serve-logs']\n", done.stderr


def test_one_at_a_time(tmp_path: Path) -> None:
    home = AirflowHome(tmp_path)
    with only_one(home), pytest.raises(RackpulseError, match="already runs"), only_one(home):
        pass
    with only_one(home):
        pass


def test_old_logs_go(tmp_path: Path) -> None:
    home = AirflowHome(tmp_path)
    clock = ManualClock()
    for name, days in (("old", 8), ("new", 6)):
        folder = home.logs / "dag_id=score_fleet" / f"run_id={name}"
        folder.mkdir(parents=True)
        (folder / "log").write_text("x")
        stamp = clock.now().timestamp() - days * 86400
        os.utime(folder, (stamp, stamp))
    assert remove_old_logs(home, clock) == 1
    assert [p.name for p in home.logs.glob("*/*")] == ["run_id=new"]


def test_a_taken_port_is_one_clear_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "pipeline", "airflow", "serve", "--port", str(port)],
            env={**os.environ, "RACKPULSE_STATE_DIR": str(tmp_path)},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == (
        f"rackpulse: Port {port} is taken: stop what listens there, or give another with --port\n"
    )


def test_login_before_the_first_start_says_what_to_do(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", "airflow", "login"],
        env={**os.environ, "RACKPULSE_STATE_DIR": str(tmp_path)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "rackpulse airflow serve" in done.stderr
