"""What a launch leaves in the folder that it may write to hurts nobody who reads, judges or removes it afterwards."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from attncheck.rehearsal import execution
from attncheck.workers import scratch
from tests.adversary.rehearsal.ground import Ground, lay_ground, lay_victim, take_digest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is Linux's")
ISOLATIONS = (pytest.param("", id="all"), pytest.param("landlock", id="landlock", marks=pytest.mark.nightly))
SECONDS = 60.0
MAX_MEMORY_KIB = 1 << 20
PICKLE = "import os, sys; open(os.environ['ATTNCHECK_WATCH'] + '/rank-0.pt', 'wb').write(bytes.fromhex(sys.argv[1]))"
DEEP = "import os\nfor _ in range(1500):\n    os.mkdir('d'); os.chdir('d')\nopen('x', 'w')"
MANY = "import os\nfor n in range(1000): open(os.environ['ATTNCHECK_WATCH'] + f'/denied-{n}', 'w').write('x')"
WATCH, JOB = '"$ATTNCHECK_WATCH"', '"$ATTNCHECK_FOLDER"'
PIPES = ("entered", "steps-0.json", "rank-0.pt", "denied-1", "watcher-failed", "data-parallel")
# Each is a shell's command; $PRECIOUS is a folder that must stay unchanged.
RECORDS = {
    "watch_is_a_link": f"rm -rf {WATCH}; ln -s $PRECIOUS {WATCH}",
    "watch_is_a_file": f"rm -rf {WATCH}; echo x > {WATCH}",
    "watch_is_a_pipe": f"rm -rf {WATCH}; mkfifo {WATCH}",
    "no_watch": f"rm -rf {WATCH}",
    "output_is_a_link": f"rm -rf {JOB}/output; ln -s $PRECIOUS {JOB}/output",
    "all_is_a_link": f'for name in {JOB}/*; do rm -rf "$name"; ln -s $PRECIOUS "$name"; done',
    "records_are_links": f"for name in {' '.join(PIPES)}; do ln -s $PRECIOUS/precious.txt {WATCH}/$name; done",
    "records_lead_nowhere": f"for name in {' '.join(PIPES)}; do ln -s $name {WATCH}/$name; done",
    "records_are_pipes": f"for name in {' '.join(PIPES)}; do mkfifo {WATCH}/$name; done",
    "records_are_folders": f"for name in {' '.join(PIPES)}; do mkdir {WATCH}/$name; done",
    "records_are_devices": f"for name in {' '.join(PIPES)}; do ln -s /dev/zero {WATCH}/$name; done",
    "records_are_huge": f"for name in {' '.join(PIPES)}; do truncate -s 1T {WATCH}/$name; done",
    "records_are_noise": f"for name in {' '.join(PIPES)}; do head -c 100000 /dev/urandom > {WATCH}/$name; done",
    "steps_are_nested": f"printf '[%.0s' $(seq 100000) > {WATCH}/steps-0.json",
    "steps_are_forged": f"echo '{{\"steps\": 7}}' > {WATCH}/steps-0.json; echo '[]' > {WATCH}/steps-1.json",
    "steps_have_no_number": f"echo '{{\"steps\": []}}' > {WATCH}/steps-x.json",
    "report_is_forged": f'echo \'{{"files": "all"}}\' > {JOB}/../sandbox/report.json; rm -rf {JOB}/../sandbox',
    "unreadable": f"mkdir -p {JOB}/output/a/b; chmod 0 {JOB}/output/a/b {JOB}/output/a {JOB}/output {WATCH}",
    "immutable": f"touch {JOB}/output/x; chattr +i {JOB}/output/x {JOB}/output; chattr +a {WATCH}; true",
    "deep": f'cd {JOB}/output; {sys.executable} -I -S -c "{DEEP}"',
    "deep_in_overlay": f'cd $HOME; {sys.executable} -I -S -c "{DEEP}"',
    "many": f'{sys.executable} -I -S -c "{MANY}"',
    "one_long_line": "head -c 300000000 /dev/zero | tr '\\0' x",
    "one_long_line_of_errors": "head -c 300000000 /dev/zero | tr '\\0' x >&2",
    "much": "yes x | head -c 4000000",
    "escapes": "printf '\\033]0;owned\\007\\033[2J\\x9b31m\\u202e\\n'",
}

SLOW = ("deep", "deep_in_overlay", "many", "one_long_line_of_errors", "much")


@pytest.fixture(params=ISOLATIONS)
def ground(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ground]:
    """Yield a machine in which the tests work as its user does."""
    with lay_ground() as ground:
        monkeypatch.setenv("HOME", str(ground.home))
        monkeypatch.setenv("TMPDIR", str(ground.root / "tmp"))
        monkeypatch.setattr("tempfile.tempdir", str(ground.root / "tmp"))
        monkeypatch.setenv("ATTNCHECK_ISOLATION", request.param)
        monkeypatch.chdir(ground.project)
        lay_victim(ground.root / "elsewhere" / "precious", os.getuid())
        lay_victim(ground.home / "files" / "precious", os.getuid())
        monkeypatch.setenv("PRECIOUS", str(ground.root / "elsewhere" / "precious"))
        yield ground


def run_twice(command: str, folder: str) -> execution.Execution:
    """Run a command as a launch is run, twice in the same folder, and read what it left as a rehearsal does."""
    request = execution.RunRequest(command, {}, False, 30, SECONDS, needs_files=True)
    for _ in range(2):
        ended = execution.run_launch(request, folder, sys.executable, lambda text: None)
        execution.count_ranks(folder)
        execution.read_watcher_failures(folder)
        execution.describe_data_parallel(folder)
    return ended


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly if name in SLOW else ()) for name in RECORDS]
)
def test_what_is_left_behind_is_read_and_removed(name: str, ground: Ground, marker: str) -> None:
    before = take_digest(ground.root / "elsewhere"), take_digest(ground.home)
    began = time.monotonic()
    with scratch.scratch_folder() as folder:
        ended = run_twice(RECORDS[name], folder)
        if ended.isolation.files == "none":
            pytest.skip("this kernel isolates no files")
        assert ended.returncode is not None or time.monotonic() - began < 4 * SECONDS
        assert sum(map(len, ended.lines)) < 32 << 20
    assert list((ground.root / "tmp").iterdir()) == []
    assert (take_digest(ground.root / "elsewhere"), take_digest(ground.home)) == before


class Evil:
    """An object that runs a command when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {self.canary}",)


def test_a_pickle_is_not_run_by_who_judges(ground: Ground) -> None:
    """torch reads it as weights alone; a plain unpickling makes the canary (the control)."""
    from attncheck.rehearsal.worker import records

    canary = ground.root / "canary"
    text = pickle.dumps(Evil(canary))
    with scratch.scratch_folder() as folder:
        run_twice(f'{sys.executable} -I -S -c "{PICKLE}" {text.hex()}', folder)
        watch = Path(folder) / "watch"
        assert (watch / "rank-0.pt").read_bytes() == text
        with pytest.raises(Exception, match=r"[Ww]eights|[Uu]npickl|GLOBAL|load"):
            records.read_ranks(watch)
        assert not canary.exists()
        pickle.loads((watch / "rank-0.pt").read_bytes())
        assert canary.exists()


def test_a_library_that_the_launch_loads_is_loaded_in_the_sandbox_alone(ground: Ground) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if not compiler:
        pytest.skip("no C compiler")
    target = ground.root / "elsewhere" / "loaded"
    source, library = ground.root / "evil.c", ground.root / "evil.so"
    source.write_text(
        "#include <stdio.h>\n__attribute__((constructor)) static void run(void) {"
        f' FILE *stream = fopen("{target}", "a"); if (stream) fclose(stream); puts("loaded"); fflush(stdout); }}\n'
    )
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    request = execution.RunRequest("true", {"LD_PRELOAD": str(library)}, False, 30, SECONDS, needs_files=True)
    with scratch.scratch_folder() as folder:
        ended = execution.run_launch(request, folder, sys.executable, lambda text: None)
    assert "loaded" in ended.lines  # the launch itself has it
    assert not target.exists()
