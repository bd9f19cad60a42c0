"""Packages alongside an environment: workers see them first, the environment never changes, nothing is left behind."""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from attncheck.core.findings import Fix
from attncheck.core.io.errors import Unanswered
from attncheck.workers.overlay import package_overlay, parse_fix_requirements
from attncheck.workers.pool import Event, Job, Pool, Worker, overlay_environment
from attncheck.workers.process import kill_all

PACKAGE, VERSION = "iniconfig", "2.1.0"
PRINT_VERSION = f"import importlib.metadata as m, iniconfig; print(m.version({PACKAGE!r}), iniconfig.__file__)"
INSTALLERS = ["uv", "pip"]


@pytest.fixture(params=INSTALLERS)
def installer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let one installer alone be found."""
    uv = shutil.which("uv", path=os.path.dirname(sys.executable)) or shutil.which("uv")
    if request.param == "uv" and uv is None:
        pytest.skip("uv is not installed")
    monkeypatch.setattr(shutil, "which", lambda name: uv if request.param == name else None)
    return str(request.param)


@pytest.fixture
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Keep temporary folders below one folder, and fail the test if one is left."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    yield tmp_path
    assert list(tmp_path.glob("attncheck-*")) == []


def imported_package(extra_path: str = "") -> list[str]:
    """Return the version and the path of the small package, as a child of this interpreter finds them."""
    answer = subprocess.run(
        [sys.executable, "-B", "-c", PRINT_VERSION],
        env={**os.environ, **overlay_environment(extra_path)},
        capture_output=True,
        check=True,
    )
    return answer.stdout.decode().split()


def environment_files() -> dict[str, float]:
    """Return the files of the environment's site-packages and when each was written."""
    import iniconfig

    folder = Path(iniconfig.__file__).parents[1]
    return {str(path): path.stat().st_mtime for path in (*folder.glob("*"), *folder.glob("iniconfig*/*"))}


@pytest.mark.slow
def test_a_child_sees_the_overlay_and_the_environment_is_as_it_was(
    installer: str, temporary_folder: Path, marker: str
) -> None:
    own_package, own_files = imported_package(), environment_files()
    progress: list[str] = []
    assert own_package[0] != VERSION, "the environment happens to have the version that is tried"
    with package_overlay(sys.executable, [f"{PACKAGE}=={VERSION}"], progress.append) as folder:
        version, path = imported_package(str(folder))
        assert version == VERSION and Path(path).is_relative_to(folder)
        assert {path.name for path in folder.iterdir()} <= {PACKAGE, f"{PACKAGE}-{VERSION}.dist-info", ".lock"}
    assert not folder.exists() and not folder.parent.exists()
    assert imported_package() == own_package and environment_files() == own_files
    assert all(line.startswith(f"installing {PACKAGE}=={VERSION} into a temporary folder") for line in progress)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "message"),
    [
        ("iniconfig==99.0", "no such version"),
        ("iniconfig==0.1", "no such version, or no wheel"),  # released as source alone
        ("no such name", "cannot be installed next to the environment: "),
    ],
)
def test_what_cannot_be_had_is_one_line(
    installer: str, package: str, message: str, temporary_folder: Path, marker: str
) -> None:
    with pytest.raises(Unanswered, match=message) as caught, package_overlay(sys.executable, [package], print):
        pytest.fail("there is no such package")
    assert "\n" not in str(caught.value) and str(caught.value).startswith(f"{package} cannot be installed")


def test_an_error_inside_leaves_no_folder(temporary_folder: Path, marker: str) -> None:
    with pytest.raises(Unanswered), package_overlay(sys.executable, [], print):
        pytest.fail("nothing was to be installed")


@pytest.fixture
def silent_index(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give the installers an index that takes requests and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        set_index(monkeypatch, server.getsockname()[1])
        yield


def set_index(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    for name in ("UV_DEFAULT_INDEX", "PIP_INDEX_URL"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{port}/simple")
    for name, value in {"UV_NO_CACHE": "1", "PIP_NO_CACHE_DIR": "1", "UV_HTTP_RETRIES": "0"}.items():
        monkeypatch.setenv(name, value)
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "UV_FIND_LINKS", "PIP_CONFIG_FILE"):
        monkeypatch.setenv(name, "" if name != "PIP_CONFIG_FILE" else os.devnull)
    monkeypatch.setenv("NO_PROXY", "*")


def test_a_deadline_is_kept(installer: str, temporary_folder: Path, marker: str, silent_index: None) -> None:
    began = time.monotonic()
    progress: list[str] = []
    with (
        pytest.raises(Unanswered, match="it took longer than 2 s"),
        package_overlay(sys.executable, ["iniconfig==2.1.0"], progress.append, 2.0),
    ):
        pytest.fail("the index never answers")
    assert time.monotonic() - began < 60 and any(line.endswith("(1 s)") for line in progress)


def test_no_network_is_said_so(
    installer: str, temporary_folder: Path, marker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_index(monkeypatch, 9)
    monkeypatch.setenv("PIP_RETRIES", "1")  # pip reports a broken connection only where it retries
    with (
        pytest.raises(Unanswered, match="the package index cannot be reached"),
        package_overlay(sys.executable, ["iniconfig==2.1.0"], print),
    ):
        pytest.fail("nobody listens there")


SCRIPT = """
import shutil, sys
if sys.argv[1] == "pip": shutil.which = lambda name: None
from attncheck.core.io import interrupts
from attncheck.workers.overlay import package_overlay
interrupts.install_handlers()
print("began", flush=True)
with package_overlay(sys.executable, ["iniconfig==2.1.0"], lambda text: print(text, flush=True)) as folder:
    print("inside", folder, flush=True)
    while True:
        import time; time.sleep(0.1)
"""


def run_interrupted(installer: str, number: int, at: str) -> int:
    """Start an overlay in its own process, and signal it when it prints `at`; return its exit status."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, installer], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        while (line := process.stdout.readline()) and at.encode() not in line:
            pass
        assert line, "it ended on its own"
        process.send_signal(number)
        _, errors = process.communicate(timeout=20)
        assert b"KeyboardInterrupt" in errors
        return process.returncode
    finally:
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_it_installs_leaves_nothing(
    installer: str, number: int, temporary_folder: Path, marker: str, silent_index: None
) -> None:
    assert run_interrupted(installer, number, "installing") != 0
    assert list(temporary_folder.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_it_is_used_leaves_nothing(
    installer: str, number: int, temporary_folder: Path, marker: str
) -> None:
    assert run_interrupted(installer, number, "inside") != 0
    assert list(temporary_folder.iterdir()) == []


def test_without_any_installer(
    temporary_folder: Path, marker: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with (
        pytest.raises(Unanswered, match="there is neither uv on PATH nor pip in the environment; install uv"),
        package_overlay(str(tmp_path / "bare/bin/python"), ["iniconfig==2.1.0"], print),
    ):
        pytest.fail("nothing can install here")


def write_package(folder: Path, name: str, version: str) -> Path:
    """Write a package as an installer would."""
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(f"__version__ = {version!r}\n")
    data = folder / f"{name}-{version}.dist-info"
    data.mkdir()
    (data / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return folder


def test_a_worker_finds_its_extra_path_first(tmp_path: Path, marker: str) -> None:
    extra, other = write_package(tmp_path / "a", "iniconfig", "9.9"), write_package(tmp_path / "b", "pluggy", "8.8")
    assert imported_package(str(extra)) == ["9.9", str(extra / "iniconfig/__init__.py")]
    os.environ["PYTHONPATH"], before = str(other), os.environ.get("PYTHONPATH")
    try:
        assert overlay_environment(str(extra))["PYTHONPATH"] == f"{extra}{os.pathsep}{other}"
        assert overlay_environment("") == {}
        message = {"task": "attncheck.measure.worker.tasks:list_backends"}
        assert worker_python_path(Job("it", message, ("backends",), 30, str(extra)))[:2] == [str(extra), str(other)]
        assert worker_python_path(Job("it", message, ("backends",), 30))[:1] == [str(other)]
    finally:
        os.environ.pop("PYTHONPATH") if before is None else os.environ.update(PYTHONPATH=before)


def worker_python_path(job: Job) -> list[str]:
    """Return the PYTHONPATH that a worker of this job got, read from the process itself."""
    with tempfile.TemporaryDirectory() as folder:
        worker = Worker(sys.executable, job, folder, queue.Queue())
        try:
            environ = Path(f"/proc/{worker._process.pid}/environ")
            deadline = time.monotonic() + 5
            while b"TORCHINDUCTOR_CACHE_DIR" not in environ.read_bytes() and time.monotonic() < deadline:
                time.sleep(0.01)  # the interpreter is not running yet
            variables = dict(entry.partition(b"=")[::2] for entry in environ.read_bytes().split(b"\0"))
            return variables.get(b"PYTHONPATH", b"").decode().split(os.pathsep)
        finally:
            kill_all()


def test_a_pool_gives_the_extra_path_to_its_workers(tmp_path: Path, marker: str) -> None:
    extra = write_package(tmp_path, "xformers", "9.9.9")
    versions = []
    for path in ("", str(extra)):
        events: list[Event] = []
        Pool(sys.executable, 1).run(
            [Job("backends", {"task": "attncheck.measure.worker.tasks:list_backends"}, ("backends",), 60, path)],
            events.append,
        )
        answers = [event.answer for event in events if event.kind == "answer"]
        assert answers, events
        versions.append(json.dumps(answers[0]["backends"]["xformers_cutlass"]))
    assert "9.9.9" not in versions[0] and "9.9.9" in versions[1], versions


@pytest.mark.parametrize(
    ("text", "packages"),
    [
        ("pip install 'transformers==5.3.0'", ("transformers==5.3.0",)),
        ("pip3 install transformers==5.3.0 kernels==0.12.0", ("transformers==5.3.0", "kernels==0.12.0")),
        ("/opt/venv/bin/python3 -m pip install --no-deps transformers==5.3.0", ("transformers==5.3.0",)),
        ("uv pip install --python /opt/venv/bin/python3 transformers==5.3.0", ("transformers==5.3.0",)),
        ("/a/bin/python -m ensurepip && /a/bin/python -m pip install iniconfig==2.1.0", ("iniconfig==2.1.0",)),
        ("pip install --no-deps --force-reinstall 'a[b]==1'", ("a[b]==1",)),
        ("pip install 'transformers>=4.51,<=5.3.0'", ("transformers>=4.51,<=5.3.0",)),
        ("pip install --no-deps https://x.org/flash_attn-2.8.3-cp311-linux_x86_64.whl", None),
        ("pip install transformers", ()),
        ("pip install 'transformers>=5'", ()),
        ("pip install -U transformers", ()),
        ("pip install transformers==5.3.0 einops", ()),
        ("pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cu130", ()),
        ("pip install --no-build-isolation --no-deps flash-attn==2.8.3", ()),
        ("MAX_JOBS=4 pip install flash-attn==2.8.3", ()),
        ("pip install ninja==1.13 && pip install flash-attn==2.8.3", ()),
        ("pip install -r requirements.txt", ()),
        ("pip install https://x.org/a-1.tar.gz", ()),
        ("pip install 'a @ git+https://x.org/a'", ()),
        ("pip install .", ()),
        ("pip install", ()),
        ("pip uninstall -y transformers", ()),
        ("conda install -c nvidia cuda-nvcc=13.0", ()),
        ("python -m venv ./verl-env", ()),
        ("sudo pip install a==1", ()),
        ("pip install 'a==1", ()),
        ("pip install a==1; rm -rf /", ()),
        ("", ()),
    ],
)
def test_packages_of_a_fix(text: str, packages: tuple[str, ...] | None) -> None:
    expected = tuple(text.split()[-1:]) if packages is None else packages
    assert parse_fix_requirements(Fix("a fix", "command", text)) == expected
    assert parse_fix_requirements(Fix("a fix", "setting", text)) == ()
