"""The walks of docs/walks, replayed as they are: a broken environment, CI and jobs, a rule and a plugin.

No package index is asked: the `uv` on PATH is a stand-in that lays the stub of the release that it is told to install.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.doctor.venvs import TORCH_FILES, make_venv, write_script
from tests.snapshots import FOLDER
from tests.test_extending import EXAMPLES

ROOT = Path(__file__).parents[1]
WALKS = ROOT / "docs" / "walks"
NAME = "def is_flash_attn_greater_or_equal_2_10():\n    return True\n"
RING = "from transformers.modeling_flash_attention_utils import is_flash_attn_greater_or_equal_2_10\n"
UV = """\
version = "5.1.0"  # the newest of those with the name that divides gradients once
assert "transformers==5.1.0" in sys.argv, sys.argv
site = Path(sys.argv[sys.argv.index("--python") + 1]).parents[1].glob("lib/python*/site-packages").__next__()
old = next(site.glob("transformers-*.dist-info"))
old.rename(site / f"transformers-{version}.dist-info")
(site / f"transformers-{version}.dist-info" / "METADATA").write_text(
    f"Metadata-Version: 2.1\\nName: transformers\\nVersion: {version}\\n")
(site / "transformers" / "__init__.py").write_text(f"__version__ = {version!r}\\n")
(site / "transformers" / "modeling_flash_attention_utils.py").write_text(NAME)
"""


def write_metadata(name: str, version: str) -> dict[str, str]:
    return {f"{name}-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"}


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Return the variables of a walk: a training environment with a fault, and the programs it calls on PATH."""
    files = {
        **TORCH_FILES,
        "transformers/__init__.py": "__version__ = '5.17.0'\n",
        "transformers/modeling_flash_attention_utils.py": "",
        **write_metadata("transformers", "5.17.0"),
        "ring_flash_attn/__init__.py": "from .adapters import hf_adapter\n",
        "ring_flash_attn/adapters/__init__.py": "",
        "ring_flash_attn/adapters/hf_adapter.py": RING,
        **write_metadata("ring_flash_attn", "0.1.8"),
    }
    python = make_venv(tmp_path / "environment", files)
    programs = tmp_path / "bin"
    (tmp_path / "walk").mkdir()
    examples = tmp_path / "examples"
    examples.mkdir()
    for group, text in EXAMPLES.items():
        (examples / f"{group}.py").write_text(text, encoding="utf-8")
    write_script(programs / "attncheck", f"#!{sys.executable}", f"import sys; sys.path.insert(0, {str(ROOT)!r})",
                 "from attncheck.__main__ import main; main()")  # fmt: skip
    write_script(
        programs / "uv", f"#!{sys.executable}", "import sys", "from pathlib import Path", f"NAME = {NAME!r}", UV
    )
    return {
        **os.environ,
        "PATH": os.pathsep.join((str(programs), os.environ["PATH"])),
        "HOME": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PYTHON": sys.executable,
        "ENVIRONMENT": str(python),
        "EXAMPLES": str(examples),
        "FACTS": str(FOLDER / "h200.json"),
        "NO_COLOR": "1",
    }


COMMANDS = {"broken-environment.sh": 7, "ci-and-jobs.sh": 9, "rule-and-plugin.sh": 8}  # at fca601f


def test_a_walk_has_at_most_half_of_the_commands_that_it_had() -> None:
    for walk, before in COMMANDS.items():
        lines = (WALKS / walk).read_text(encoding="utf-8").splitlines()
        assert 2 * sum(line.startswith("attncheck ") for line in lines) <= before, walk


@pytest.mark.parametrize("walk", sorted(path.name for path in WALKS.glob("*.sh")))
def test_a_walk_ends_where_it_says(walk: str, environ: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "-x", str(WALKS / walk)],
        cwd=tmp_path / "walk",
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


def test_a_walk_that_goes_wrong_is_seen(environ: dict[str, str], tmp_path: Path) -> None:
    script = (WALKS / "broken-environment.sh").read_text(encoding="utf-8").replace("^ATN140 error", "^ATN141 error")
    (tmp_path / "wrong.sh").write_text(script, encoding="utf-8")
    done = subprocess.run(
        ["bash", str(tmp_path / "wrong.sh")], cwd=tmp_path / "walk", env=environ, capture_output=True, timeout=300
    )
    assert done.returncode == 1
