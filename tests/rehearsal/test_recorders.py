"""A package that records experiments and is not installed: the script's own import gets one that does nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import importlib.util
import sys
from attncheck.rehearsal.watcher.recorders import AbsentRecorders
sys.meta_path.append(AbsentRecorders(sys.argv[1]))
assert importlib.util.find_spec("neptune") is None  # how a package looks around
try:
    import none_such
except ImportError:
    pass
else:
    raise SystemExit("none_such")
import neptune
from neptune.integrations import Callback
run = neptune.init_run(project="p", config={"lr": 1})
run["a/b"] = 1
with neptune.new(x=1) as other:
    other.log({"loss": 0.5})
@neptune.watch
def kept():
    return 7
assert kept() == 7 and not run and not list(run)
Callback(run).stop()
"""


def test_a_script_imports_a_recorder_that_is_not_installed(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    command = [sys.executable, str(path), str(tmp_path)]
    environ = {"PYTHONPATH": str(Path(__file__).parents[2])}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environ)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "absent-neptune").exists() and not (tmp_path / "absent-none_such").exists()
