"""Real commands among hostile files, packages, models, variables, policies and words, in every format at once.

Every stream and file is read as bytes: nothing in them acts on a terminal or hides, GitHub's runner finds no command in
the streams but attncheck's annotations, each format's own parser reads its document, and the foreign text is there.
"""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from attncheck.core import codec
from attncheck.core.io.streams import SIGNS
from attncheck.report import document
from tests import snapshots as s
from tests.adversary import hostile_text as hostile
from tests.adversary.hostile_text import find_invisible, find_runner_commands
from tests.adversary.test_foreign_text import assert_only_text

FILES = {
    "json": "r.json",
    "markdown": "r.md",
    "junit": "r.xml",
    "sarif": "r.sarif",
    "text": "r.txt",
    "github": "r.github",
}
ANNOTATIONS = {"error", "warning", "notice"}
# One of each kind in one string; without "/", so that it can be a file's name too.
NAME = (
    "E\x1b[31m\x1b]0;t\x07\r\x9b2J\u202e\u200b\x7f\n::stop-commands::x\n \u00a0::add-mask::y ##[error]z\n"
    "ATN000 error [a](b) ![c](d) @octocat #12 GH-3 <img src=x> &lt; `e` *f* __g__ ~~h~~ www.i.example j@k.example "
    "[red]l ]]> %0A::error::m | # n"
)
TEXT = NAME + " http://evil.example/ \\ end"


def run_attncheck(
    *argv: str, cwd: Path, environ: dict[str, str] | None = None, github: str = "true"
) -> subprocess.CompletedProcess[bytes]:
    """Run the command as a step of GitHub Actions, or not as one."""
    environment = {**os.environ, "GITHUB_ACTIONS": github, **(environ or {})}
    environment.pop("GITHUB_WORKSPACE", None)
    command = [sys.executable, "-m", "attncheck", *argv]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, timeout=300)


def run_in_every_format(folder: Path, *argv: str, **environ: str) -> dict[str, str]:
    """Run a command with all outputs and a job summary; return all that it wrote, checked."""
    folder.mkdir(exist_ok=True)
    summary = folder / "summary.md"
    options = [word for name, file in FILES.items() for word in ("--output", f"{name}={folder / file}")]
    process = run_attncheck(
        argv[0], *options, *argv[1:], cwd=folder, environ={**environ, "GITHUB_STEP_SUMMARY": str(summary)}
    )
    assert process.returncode in (0, 1), process.stderr.decode()
    streams = {"stdout": process.stdout, "stderr": process.stderr, "summary": summary.read_bytes()}
    contents = {**{name: (folder / file).read_bytes() for name, file in FILES.items()}, **streams}
    texts = {name: content.decode() for name, content in contents.items()}
    check_texts(texts)
    return texts


def check_texts(texts: dict[str, str]) -> None:
    for name, text in texts.items():
        assert not find_invisible(text), name
    assert not find_runner_commands(texts["stdout"])
    assert set(find_runner_commands(texts["stderr"])) <= ANNOTATIONS
    assert set(find_runner_commands(texts["github"])) <= ANNOTATIONS
    document.loads(texts["json"])
    json.loads(texts["sarif"])
    ET.fromstring(texts["junit"].encode())
    for name in ("markdown", "summary"):
        assert_only_text(MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(texts[name]))
    for text in (texts["stdout"], texts["text"]):
        assert not [line for line in text.split("\n") if line.startswith("ATN000")]


def count_places(texts: dict[str, str]) -> int:
    """Return how often the hostile text is there, by its escaped beginning."""
    return sum(text.count("x1b[31m") for text in texts.values())


def test_a_launch_script(tmp_path: Path) -> None:
    words = [
        "accelerate",
        "launch",
        "-m",
        "trl.scripts.sft",
        "--model_name_or_path",
        TEXT,
        "--attn_implementation",
        TEXT,
    ]
    script = tmp_path / f"{NAME}.sh"
    script.write_text(
        shlex.join([*words, "--packing", "true", f"--{NAME}", TEXT, "--max_length", TEXT]) + "\n", "utf-8"
    )
    texts = run_in_every_format(tmp_path, "lint", script.name, "--framework", "trl", "--target", "v100x8", "-v")
    assert "\\x1b[31m" in texts["stdout"] and json.loads(texts["json"])["findings"]
    print(f"a launch script: {count_places(texts)} places")


def test_words_of_a_command(tmp_path: Path) -> None:
    words = ["torchrun", "-m", "openrlhf.cli.train_sft", "--pretrain", TEXT, "--packing_samples", f"--{TEXT}", TEXT]
    texts = run_in_every_format(tmp_path, "lint", "--target", "v100x8", "-v", "--", *words)
    assert "\\x1b[31m" in texts["stdout"]
    print(f"words: {count_places(texts)} places")


def test_a_configuration_file(tmp_path: Path) -> None:
    keys = {
        "model_name_or_path": TEXT, "stage": "sft", "do_train": True, "finetuning_type": "full", "flash_attn": TEXT,
        "packing": True, TEXT: TEXT, "neat_packing": TEXT,
    }  # fmt: skip
    path = tmp_path / f"{NAME}.yaml"
    path.write_text(json.dumps(keys), "utf-8")
    texts = run_in_every_format(tmp_path, "lint", path.name, "--framework", "llamafactory", "--target", "v100x8", "-v")
    assert "\\x1b[31m" in texts["stdout"]
    print(f"a configuration file: {count_places(texts)} places")


def test_a_snapshot_from_elsewhere(tmp_path: Path) -> None:
    total = 0
    for number, recorded in enumerate((s.with_model(s.h200()), s.with_model(s.laptop()))):
        planted = hostile.plant(recorded, lambda own: own + TEXT)
        planted = replace(planted, environ={**planted.environ, "CUDA_VISIBLE_DEVICES": TEXT})
        path = tmp_path / f"facts-{number}.json"
        path.write_text(codec.dumps(planted), "utf-8")
        texts = run_in_every_format(tmp_path / str(number), "doctor", "--facts", str(path), "--profile", "all", "-v")
        assert "\\x1b[31m" in texts["stdout"]
        total += count_places(texts)
    print(f"snapshots: {total} places")


def make_environment(folder: Path) -> Path:
    """Make a virtual environment whose packages' metadata and exceptions are hostile; return its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    site = next(folder.glob("lib/python3*/site-packages"))
    value = " ".join(TEXT.split("\n"))
    for name in ("flash_attn", "torch", "transformers", "ring_flash_attn"):
        metadata = site / f"{name}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0{value}\nRequires-Dist: torch>=9 ; {value}\n"
            f"Summary: {value}\n", "utf-8",
        )  # fmt: skip
        (metadata / "RECORD").write_text(f"{name}.py,,\n", "utf-8")
        (metadata / "direct_url.json").write_text(json.dumps({"url": TEXT, "dir_info": {}}), "utf-8")
        (site / f"{name}.py").write_text(f"__version__ = {TEXT!r}\nraise ImportError({TEXT!r})\n", "utf-8")
    return folder / "bin" / "python"


def test_packages_and_their_exceptions(tmp_path: Path) -> None:
    python = make_environment(tmp_path / "env")
    lanes = ("--lane", "static", "--lane", "import")
    texts = run_in_every_format(
        tmp_path / "out", "doctor", "--python", str(python), *lanes, "--profile", "all", "-v",
        LD_LIBRARY_PATH=TEXT, CUDA_VISIBLE_DEVICES=TEXT, NCCL_DEBUG=TEXT, PYTORCH_CUDA_ALLOC_CONF=TEXT,
    )  # fmt: skip
    assert "\\x1b[31m" in texts["stdout"]
    probe = run_attncheck("probe", "--python", str(python), *lanes, cwd=tmp_path).stdout.decode()
    assert not find_invisible(probe) and not find_runner_commands(probe)
    outcomes = json.loads(probe)["imports"]
    assert TEXT.split("\n")[0] in json.dumps(outcomes, ensure_ascii=False).replace("\\u001b", "\x1b").replace(
        "\\u0007", "\x07"
    ).replace("\\r", "\r"), "a snapshot keeps the very text"
    print(f"packages: {count_places(texts)} places")


def test_a_model_folder(tmp_path: Path) -> None:
    folder = tmp_path / NAME
    folder.mkdir()
    config = {"model_type": TEXT, "architectures": [TEXT], "hidden_size": 64, "num_attention_heads": 4, "dtype": TEXT}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    texts = run_in_every_format(tmp_path / "out", "doctor", str(folder), "--lane", "static", "--profile", "all", "-v")
    assert "\\x1b[31m" in texts["stdout"]
    print(f"a model: {count_places(texts)} places")


def test_a_policy(tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.sh").write_text("torchrun -m openrlhf.cli.train_sft --packing_samples --nope 1\n")
    reason = json.dumps(TEXT).replace("\x7f", "\\u007f")
    allowances = [f'{{code = "ATN{digit}", reason = {reason}, until = "2099-01-01"}}' for digit in (1, 2, 4)]
    name = json.dumps(f"{NAME}.sh").replace("\x7f", "\\u007f")
    (tmp_path / "attncheck.toml").write_text(
        f'checks = ["lint"]\nlaunch = [{name}]\nignore = [{", ".join(allowances)}]\n', "utf-8"
    )
    texts = run_in_every_format(tmp_path, "gate", "-v")
    assert "\\x1b[31m" in texts["stdout"]
    print(f"a policy: {count_places(texts)} places")


ERRORS = (
    ("doctor", "--target", TEXT), ("doctor", "--select", TEXT), ("doctor", "--facts", TEXT),
    ("doctor", "--python", TEXT), ("doctor", "--format", TEXT), ("doctor", f"--{TEXT}"), ("doctor", "--output", TEXT),
    ("doctor", "--output", f"json={TEXT}/x"), ("lint", TEXT), ("lint", "--framework-version", TEXT, "x"), (TEXT,),
    ("explain", TEXT), ("run", "--", TEXT), ("gate", "--checks", TEXT), ("parity", "--backend", TEXT),
)  # fmt: skip


@pytest.mark.parametrize("argv", ERRORS, ids=lambda argv: " ".join(argv)[:20].encode("unicode_escape").decode())
def test_an_error_is_one_line(argv: tuple[str, ...], tmp_path: Path) -> None:
    process = run_attncheck(*argv, cwd=tmp_path)
    text = process.stderr.decode()
    assert process.returncode not in (0, 1) and not process.stdout, process.stdout
    assert text.count("\n") == 1 and text.startswith("attncheck: "), text
    assert not find_invisible(text) and not find_runner_commands(text)


SCRIPT = "torchrun -m openrlhf.cli.train_sft --pretrain {} --packing_samples --attn eager --nope 1\n"


def read_terminal(argv: list[str], cwd: Path) -> str:
    """Return what a command prints on a pseudo-terminal that both its streams are."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "COLUMNS": "100", "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen(argv, cwd=cwd, stdout=follower, stderr=follower, env=environment)
    os.close(follower)
    chunks = []
    try:
        while chunk := os.read(leader, 65536):
            chunks.append(chunk)
    except OSError:  # Linux ends a pseudo-terminal so
        pass
    process.wait(60)
    os.close(leader)
    return b"".join(chunks).decode().replace("\r\n", "\n")


OWN_SEQUENCES = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?25[hl]|\x1b\[2K|\x1b\[1A|\x1b\[[0-9]*G")  # colours, rich's status


def test_a_terminal_gets_our_colours_alone(tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.sh").write_text(SCRIPT.format(shlex.quote(TEXT)), "utf-8")
    argv = [sys.executable, "-m", "attncheck", "lint", f"{NAME}.sh", "-v", "--target", "v100x8"]
    text = read_terminal(argv, tmp_path)
    assert "\x1b[" in text and "\\x1b[31m" in text and "[red]l" in text
    assert not find_invisible(OWN_SEQUENCES.sub("", text).replace("\r", ""))


def test_progress_is_shown_as_it_is(tmp_path: Path) -> None:
    code = (
        "import time; from attncheck.cli.progress import with_progress\n"
        f"with_progress(lambda report: (report({TEXT + ' :warning: [link=file:///x]y[/link] [/]'!r}), time.sleep(0.4)))"
    )
    text = read_terminal([sys.executable, "-c", code], tmp_path)
    joined = "".join(OWN_SEQUENCES.sub("", text).split())
    assert "\\x1b[31m" in joined and "[red]l" in joined and ":warning:[link=file:///x]y[/link][/]" in joined
    assert not find_invisible(OWN_SEQUENCES.sub("", text).replace("\r", ""))


NIGHTLY = [pytest.param(encoding, marks=pytest.mark.nightly) for encoding in ("latin-1", "cp1252")]


@pytest.mark.parametrize("encoding", ["ascii", *NIGHTLY])
def test_no_encoding_of_standard_output_loses_a_document(tmp_path: Path, encoding: str) -> None:
    facts = tmp_path / "facts.json"
    facts.write_text(codec.dumps(hostile.plant(s.with_model(s.laptop()), lambda own: own + "é·注🦊")), "utf-8")
    options = [word for name, file in FILES.items() for word in ("--output", f"{name}={tmp_path / file}")]
    argv = ("doctor", "--facts", str(facts), "-v")
    run_attncheck(*argv, *options, cwd=tmp_path, github="")
    for name, file in FILES.items():
        usual = (tmp_path / file).read_text("utf-8")
        variables = {"LC_ALL": "C", "PYTHONIOENCODING": encoding}
        process = run_attncheck(*argv, "--format", name, cwd=tmp_path, github="", environ=variables)
        assert process.returncode in (0, 1) and not process.stderr
        if name in ("json", "sarif"):
            assert json.loads(process.stdout.decode()) == json.loads(usual)
        elif name == "junit":
            assert ET.canonicalize(process.stdout.decode()) == ET.canonicalize(usual)
        else:
            text = process.stdout.decode(encoding)
            restored = re.sub(r"\\(?:x(..)|u(....)|U(.{8}))", lambda m: chr(int(m.group(m.lastindex or 0), 16)), text)
            own_signs = str.maketrans(dict(SIGNS))  # these are shown in ASCII, what is foreign as its escape
            assert restored.translate(own_signs) == usual.translate(own_signs)
            assert restored.count("é·注🦊") == usual.count("é·注🦊") > 0


def test_init_writes_a_policy_that_foreign_text_adds_nothing_to(tmp_path: Path) -> None:
    python = make_environment(tmp_path / "env")
    process = run_attncheck("init", "--python", str(python), cwd=tmp_path)
    text = process.stdout.decode()
    assert process.returncode == 0 and not find_invisible(text) and not find_runner_commands(text)


def test_lists_under_github_actions(tmp_path: Path) -> None:
    for argv in (("rules",), ("explain", "ATN140"), ("selftest", "--list"), ("--help",)):
        process = run_attncheck(*argv, cwd=tmp_path)
        text = OWN_SEQUENCES.sub("", process.stdout.decode())
        assert process.returncode == 0 and not find_runner_commands(text) and not find_invisible(text)
