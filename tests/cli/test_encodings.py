"""Standard output that is not UTF-8: no report is lost, none ends in a traceback, and all can be read."""

from __future__ import annotations

import html
import json
import os
import pty
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from attncheck.core.io import streams
from tests.conftest import without_progress
from tests.snapshots import FOLDER

FACTS = str(FOLDER / "h200.json")
ENCODINGS = {
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "ascii, strict": {"PYTHONIOENCODING": "ascii:strict"},
    "a C locale": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "cp1252": {"PYTHONIOENCODING": "cp1252:strict"},
}
FORMATS = ("text", "json", "markdown", "html", "junit", "sarif", "github")
DOCTOR = ("doctor", "--facts", FACTS, "--profile", "all", "-v")
LAUNCH = "torchrun --nproc_per_node 8 -m openrlhf.cli.train_sft --data.max_len 4096 --ds.packing_samples\n"
COMMANDS = {  # with the exit code, and a part of what it prints
    "doctor": (DOCTOR, 1, "1 error (ATN140) · "),
    "lint": (("lint", "é.sh", "--target", "h100x8,openrlhf=0.11.2,flash-attn=none"), 1, "ATN"),
    "explain": (("explain", "eager-only-model"), 0, "heads × length² × 6 bytes"),
    "rules": (("rules",), 0, "ATN101"),
    "help": (("doctor", "--help"), 0, "Arguments"),
    "selftest list": (("selftest", "--list"), 0, "ATN102"),
    "a mistake": (("doctor", "--facts", "é.json"), 2, ".json"),
}


def all_encodings(quick: str) -> list[object]:
    """Return the encodings: one in every run of the tests, the others nightly."""
    return [quick, *(pytest.param(name, marks=pytest.mark.nightly) for name in ENCODINGS if name != quick)]


def run(argv: tuple[str, ...], folder: Path, variables: dict[str, str]) -> subprocess.CompletedProcess[bytes]:
    (folder / "é.sh").write_text(LAUNCH)
    environ = {name: value for name, value in os.environ.items() if name not in ("LANG", "LC_ALL", "PYTHONUTF8")}
    command = [sys.executable, "-m", "attncheck", *argv]
    return subprocess.run(command, cwd=folder, env={**environ, **variables}, capture_output=True, timeout=120)


def encoding_of(variables: dict[str, str]) -> str:
    return variables.get("PYTHONIOENCODING", "ascii").partition(":")[0]


@pytest.mark.parametrize("name", all_encodings("ascii, strict"))
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_readable(tmp_path: Path, command: str, name: str) -> None:
    argv, code, expected = COMMANDS[command]
    result = run(argv, tmp_path, ENCODINGS[name])
    text = (result.stderr if code == 2 else result.stdout).decode(encoding_of(ENCODINGS[name]))
    assert result.returncode == code, result.stderr
    encoding = encoding_of(ENCODINGS[name])
    assert expected.encode(encoding, streams.READABLE).decode(encoding) in text
    errors = without_progress(result.stderr.decode(encoding, "replace"))
    assert "Traceback" not in errors and (code == 2) == bool(errors)
    escapes = set(re.findall(r"\\(?:x..|u....|U.{8})", text))
    assert escapes <= {"\\xe9", "\\udcc3", "\\udca9"}, "a sign of ours is shown as its escape"


@pytest.mark.nightly  # tests/adversary/test_foreign_text_in_commands.py does it for ASCII in every run
@pytest.mark.parametrize("name", ENCODINGS)
def test_every_format_is_whole_and_documents_stay_valid(tmp_path: Path, name: str) -> None:
    files = [word for form in FORMATS for word in ("--output", f"{form}={tmp_path / form}")]
    assert run((*DOCTOR, *files), tmp_path, ENCODINGS[name]).returncode == 1
    for form in FORMATS:
        usual = (tmp_path / form).read_text("utf-8")
        result = run((*DOCTOR, "--format", form), tmp_path, ENCODINGS[name])
        shown = result.stdout.decode(encoding_of(ENCODINGS[name]))
        assert (result.returncode, result.stderr) == (1, b"")
        if form in ("json", "sarif"):
            assert json.loads(shown) == json.loads(usual)
        elif form == "junit":
            assert ET.canonicalize(shown) == ET.canonicalize(usual)
        elif form == "html":
            assert html.unescape(shown) == html.unescape(usual)
        else:
            assert len(shown.splitlines()) == len(usual.splitlines()) and "\\x" not in shown
            assert shown.encode().count(b"\n") == usual.encode().count(b"\n")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8", "koi8-r", "shift_jis"])
def test_a_sign_is_readable_and_a_foreign_word_keeps_its_letters(encoding: str) -> None:
    for sign, ascii_sign in streams.SIGNS.items():
        fitted = streams.fit_text(f"3 {sign} 4", encoding)
        assert fitted in (f"3 {sign} 4", f"3 {ascii_sign} 4")
        assert fitted.encode(encoding)
    assert streams.fit_text("col·lecció", "ascii") == "col\\xb7lecci\\xf3"
    assert streams.fit_text("a · b … \udc80 🦊", "ascii") == "a - b ... \\udc80 \\U0001f98a"


@pytest.mark.parametrize(("encoding", "frames"), [("ascii", "-\\|/"), ("utf-8", "⠋⠙⠹")])
def test_the_line_of_progress_is_readable(tmp_path: Path, encoding: str, frames: str) -> None:
    code = (
        "import sys, time; from attncheck.cli import streams; streams.prepare_streams()\n"
        "from attncheck.cli.progress import with_progress\n"
        "with_progress(lambda report: (report('reading · files …'), time.sleep(0.3)))"
    )
    leader, follower = pty.openpty()
    environ = {**os.environ, "PYTHONIOENCODING": encoding, "TERM": "xterm"}
    process = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stderr=follower, env=environ)
    os.close(follower)
    data = b""
    try:
        while chunk := os.read(leader, 65536):
            data += chunk
    except OSError:  # Linux ends a pseudo-terminal so
        pass
    assert process.wait(30) == 0
    os.close(leader)
    text = data.decode(encoding)
    assert any(frame in text for frame in frames) and not re.search(r"\\[xu]", text)
    assert ("reading - files ..." if encoding == "ascii" else "reading · files …") in text
