"""Nothing that a hostile launch starts outlives it, however it hides, and however attncheck and the launch end."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.adversary.rehearsal import drive
from tests.adversary.rehearsal.ground import Ground, lay_ground

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is Linux's")
REPOSITORY = Path(__file__).parents[3]
PYTHON = f"{shlex.quote(sys.executable)} -I -S -c"
ISOLATIONS = ("all", "landlock")
GONE_SECONDS = 30.0
FORKS = 30
# Each starts processes whose command line holds TOKEN, and returns at once.
DAEMONS = {
    "background": "bash -c 'exec -a TOKEN sleep 600' &",
    "nohup": "nohup bash -c 'exec -a TOKEN sleep 600' > /dev/null 2>&1 &",
    "setsid": "setsid bash -c 'exec -a TOKEN sleep 600' > /dev/null 2>&1 &",
    "empty_environment": "setsid env -i /bin/bash -c 'exec -a TOKEN /bin/sleep 600' > /dev/null 2>&1 &",
    "double_fork": "(setsid bash -c '(exec -a TOKEN sleep 600) & disown' &) > /dev/null 2>&1",
    "disowned": "bash -c 'exec -a TOKEN sleep 600' > /dev/null 2>&1 & disown -a",
    "deaf": "setsid bash -c 'trap \"\" TERM INT HUP; while :; do sleep 600; done; : TOKEN' > /dev/null 2>&1 &",
    "respawning": 'setsid bash -c \'trap "setsid bash -c \\"exec -a TOKEN sleep 600\\" &" EXIT TERM;'
    " sleep 600 & wait; : TOKEN' > /dev/null 2>&1 &",
    "stopped": "setsid bash -c 'kill -STOP $$; : TOKEN' > /dev/null 2>&1 &",
    "forks": f"for n in $(seq {FORKS}); do setsid bash -c 'exec -a TOKEN sleep 600' > /dev/null 2>&1 & done",
    "python_exit": f'{PYTHON} "import atexit, subprocess; atexit.register(lambda: subprocess.Popen('
    "['bash', '-c', 'exec -a TOKEN sleep 600'], start_new_session=True, stdout=-3, stderr=-3))\"",
    "named_as_ours": "setsid bash -c 'exec -a attncheck-TOKEN sleep 600' > /dev/null 2>&1 &",
    "moved": "cd /; setsid bash -c 'exec -a TOKEN sleep 600' < /dev/null > /dev/null 2>&1 &",
    "nested_namespace": "unshare -Urp --fork bash -c 'exec -a TOKEN sleep 600' > /dev/null 2>&1 &",
}


def find_processes(token: str) -> list[int]:
    """Return the processes whose command line holds a text, but for ours and those that were handed it as an order."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            text = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if token.encode() in text and int(folder.name) != os.getpid():
            pids.append(int(folder.name))
    return pids


def wait_until_gone(token: str) -> list[int]:
    """Return the processes that are left after a while; they are killed."""
    deadline = time.monotonic() + GONE_SECONDS
    while (left := find_processes(token)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return left


@pytest.fixture
def token() -> Iterator[str]:
    """Yield a text that the command lines of a test's processes hold; those that it leaves are killed."""
    value = f"hostile{uuid.uuid4().hex}"
    yield value
    for pid in find_processes(value):
        os.kill(pid, signal.SIGKILL)


def make_order(ground: Ground, command: str, means: str, seconds: float = 60.0) -> drive.Order:
    needs_files = means != "none"
    return drive.Order(
        command, str(ground.project), str(ground.job.parent), drive.MEANS[means], [], {}, needs_files, seconds
    )


def write_daemons(token: str, names: tuple[str, ...] = tuple(DAEMONS)) -> str:
    return "\n".join(DAEMONS[name].replace("TOKEN", f"{token}-{name}") for name in names)


@pytest.mark.parametrize("means", ISOLATIONS)
def test_daemons_end_with_the_launch(means: str, token: str) -> None:
    with lay_ground() as ground:
        ended = drive.run(make_order(ground, f"{write_daemons(token)}\nsleep 0.5; echo ready; exit 7", means))
    if ended.isolation.files == "none":
        pytest.skip(f"this kernel does not grant {means}")
    assert ended.status == 7 and "ready" in ended.lines
    assert wait_until_gone(token) == []


@pytest.mark.parametrize("name", DAEMONS)
def test_the_control(name: str, token: str) -> None:
    """Without a sandbox each daemon outlives its shell."""
    command = DAEMONS[name].replace("TOKEN", token)
    subprocess.run(["/bin/bash", "-c", f"{command}\nsleep 0.3"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if name == "nested_namespace" and not find_processes(token):
        pytest.skip("this kernel grants no user namespace")
    assert find_processes(token)


@pytest.mark.parametrize("means", ISOLATIONS)
@pytest.mark.parametrize(
    "ending",
    ["deadline", "SIGKILL", "SIGTERM", "SIGINT", "supervisor", pytest.param("supervisors", marks=pytest.mark.nightly)],
)
def test_daemons_end_however_attncheck_ends(ending: str, means: str, token: str) -> None:
    """The driver is attncheck's own process; its child is the supervisor."""
    with lay_ground() as ground:
        command = f"{write_daemons(token)}\ntouch {ground.job}/started; exec -a {token} sleep 600"
        order = make_order(ground, command, means, 3.0 if ending == "deadline" else 60.0)
        words = [sys.executable, "-m", "tests.adversary.rehearsal.drive", json.dumps(asdict(order))]
        driver = subprocess.Popen(words, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        _wait_for(ground.job / "started", driver)
        if ending == "supervisor":
            for pid in _list_children(driver.pid):
                os.kill(pid, signal.SIGKILL)
        elif ending == "supervisors":  # the inner ones first
            for pid in reversed(_list_supervisors(driver.pid)):
                os.kill(pid, signal.SIGKILL)
        elif ending != "deadline":
            driver.send_signal(getattr(signal, ending))
        driver.communicate(timeout=60)
        left = wait_until_gone(token)
        if ending == "supervisors" and means == "landlock" and left:
            pytest.skip("not isolated by landlock: what is no watched Python outlives a killed supervisor")
        assert left == []


def _wait_for(path: Path, driver: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while not path.exists() and driver.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    if not path.exists() and '"files": "none"' in driver.communicate(timeout=60)[0]:
        pytest.skip("this kernel does not grant it")
    assert path.exists()


def _list_children(parent: int) -> list[int]:
    text = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    return [int(word) for word in text.split()]


def _list_supervisors(parent: int) -> list[int]:
    """Return the processes below a driver that are the supervisor's, each before those that it started."""
    found = []
    for pid in _list_children(parent):
        if b"sandbox.supervisor" in Path(f"/proc/{pid}/cmdline").read_bytes():
            found += [pid, *_list_supervisors(pid)]
    return found


ATTACKS_ON_OURS = {
    "parent": "kill -9 $PPID; kill -TERM $PPID",
    "everything": "kill -9 -1",
    "all_that_are_seen": "for pid in $(ls /proc | grep -E '^[0-9]+$'); do [ $pid != $$ ] && kill -9 $pid; done",
    "supervisor": 'kill -9 "$ATTNCHECK_SUPERVISOR"',
    "driver": "kill -9 DRIVER; kill -STOP DRIVER",
    "traced": f'{PYTHON} "import ctypes; [ctypes.CDLL(None).ptrace(16, pid, 0, 0) for pid in (DRIVER, $PPID)]"',
    "report": "for fd in /proc/$PPID/fd/* /proc/*/fd/3; do echo forged > $fd; done",
}


@pytest.mark.parametrize("means", ISOLATIONS)
@pytest.mark.parametrize("name", ATTACKS_ON_OURS)
def test_a_launch_cannot_end_who_watches_it(name: str, means: str, token: str) -> None:
    with lay_ground() as ground:
        attack = ATTACKS_ON_OURS[name].replace("DRIVER", str(os.getpid()))
        command = f"({attack}) > /dev/null 2>&1\n{DAEMONS['setsid'].replace('TOKEN', token)}\nsleep 0.2; exit 7"
        # If signals got out, these would end the machine's processes, this one among them: signal 0 tries it first.
        probe = drive.run(make_order(ground, f"kill -0 {os.getpid()} && echo through", means))
        if probe.isolation.files == "none" or "through" in probe.lines:
            pytest.skip(f"not isolated by {means}: signals to other processes")
        if name == "everything" and probe.isolation.processes != "namespace":
            pytest.skip("kill -1 is tried in a PID namespace alone")
        ended = drive.run(make_order(ground, command, means))
    if ended.isolation.files == "none":
        pytest.skip(f"this kernel does not grant {means}")
    assert ended.isolation.processes in ("namespace", "subreaper")
    assert ended.status in (7, 128 + signal.SIGKILL)
    assert wait_until_gone(token) == []
