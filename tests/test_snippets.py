"""Every fenced block of the pages that users read is run as it is written, or read by what it is written for."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from attncheck.cli.app import command_names
from attncheck.cli.commands.demo import INPUTS
from attncheck.core import codec
from attncheck.gate.policy import load_policy
from attncheck.rehearsal.worker.judging import CHECKS
from attncheck.report import formats
from tests import snapshots as s
from tests.conftest import Run
from tests.doctor import fake_nvidia_smi
from tests.own_environment import make_own_environment
from tests.report.test_github import load_action, read_step_outputs, run_step
from tests.snapshots import FOLDER
from tests.snippets import (
    PAGES,
    PYTHON,
    REPOSITORY,
    ROOT,
    TAG,
    Snippet,
    Workshop,
    fill,
    find_argument_error,
    find_snippets,
)
from tests.test_extending import EXAMPLES

SNIPPETS = [snippet for page in PAGES for snippet in find_snippets(page)]
LAUNCH = """\
#!/bin/bash
torchrun --nproc-per-node 8 -m openrlhf.cli.train_sft --model.model_name_or_path Qwen/Qwen2.5-7B \\
   --data.dataset data.jsonl --ds.attn_implementation flash_attention_2 --ds.packing_samples
"""
LOCK = """\
version = 1
[[package]]
name = "project"
version = "0.1"
source = { virtual = "." }
dependencies = [{ name = "torch" }]
[[package]]
name = "torch"
version = "2.9.0"
"""
REQUIREMENTS = "torch==2.9.0\ntransformers==5.15.0\nflash-attn==2.8.3\n"
QWEN = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "num_hidden_layers": 28, "hidden_size": 3584}
QWEN |= {"num_attention_heads": 28, "num_key_value_heads": 4, "max_position_embeddings": 131072}
# A finding, and a question without an answer, are what a machine without GPU and torch gives; a usage error is not.
ALLOWED_CODES = {1, 3}
DATA = ("tests/data/surface.txt", "tests/data/words.json")  # that modules of the repository rewrite
READERS = ("sh", "console", "yaml", "toml", "python", "text", "dockerfile")


def of_language(*languages: str) -> list[Any]:
    """Return the blocks in these languages as parameters of a test."""
    return [pytest.param(snippet, id=str(snippet)) for snippet in SNIPPETS if snippet.language in languages]


def find_unread(snippets: list[Snippet]) -> list[Snippet]:
    """Return the blocks that no test of this file runs or reads."""
    return [snippet for snippet in snippets if snippet.language not in READERS]


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("workshop"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a folder as a reader has it: a launch, its requirements, a configuration, an environment."""
    folder = tmp_path / "project"
    (folder / "scripts").mkdir(parents=True)
    for path in ("train.sh", "scripts/train.sh"):
        (folder / path).write_text(LAUNCH, encoding="utf-8")
    (folder / "requirements.txt").write_text(REQUIREMENTS, encoding="utf-8")
    (folder / "runtime_env.yaml").write_text("pip: [transformers==5.1.0]\n", encoding="utf-8")
    (folder / "uv.lock").write_text(LOCK, encoding="utf-8")
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv" / "bin" / "python").symlink_to(sys.executable)
    return folder


def test_every_block_is_of_a_language_that_is_run_or_read() -> None:
    assert not find_unread(SNIPPETS), "say in READERS, and in a test, what runs it"
    assert len(SNIPPETS) >= 25
    counts = Counter(snippet.language for snippet in SNIPPETS)
    print(f"{len(SNIPPETS)} blocks: {dict(counts)}")


def test_a_planted_block_is_noticed(tmp_path: Path, workshop: Workshop, project: Path) -> None:
    """A language nobody reads, a command and an option that are not there, a wrong fix, an unknown key."""
    page = tmp_path / "page.md"
    page.write_text(
        "```rust\nfn main() {}\n```\n\n```\nno language\n```\n\n- x\n\n  ```sh\n  attncheck doktor\n  ```\n"
    )
    planted = find_snippets(page)
    assert [str(snippet) for snippet in find_unread(planted)] == ["page.md:2", "page.md:6"]
    assert {code for code, _ in workshop.run(planted[2], project)} == {2}
    lines = (
        "attncheck parity --ring 8",
        "attncheck lint --target h10x8 train.sh",
        "pip install attncheck",
        f"pip install git+{REPOSITORY}@v99.9.9",
        "srun --ntasks-per-node 8 attncheck parity --no-such-option",
        f"git clone {REPOSITORY} && cd attncheck && make no-such-target",
        "no-such-program",
    )
    failures = workshop.run(Snippet(page, 1, "sh", "\n".join(lines)), project)
    assert sorted(code for code, _ in failures) == [2, 2, 2, 2, 2, 2, 127], failures
    with pytest.raises(AssertionError):
        read_yaml(Snippet(page, 1, "yaml", "- uses: attncheck/attncheck@main\n"))
    with pytest.raises(AssertionError):
        read_yaml(Snippet(page, 1, "yaml", "key: value\n"))


@pytest.mark.parametrize("snippet", of_language("sh"))
def test_a_block_of_a_shell_runs(snippet: Snippet, workshop: Workshop, project: Path, tmp_path: Path) -> None:
    if snippet.page.name == "CONTRIBUTING.md":
        project = copy_repository(tmp_path / "repository", workshop)
    if "attncheck trust" in snippet.text:
        (project / "attncheck.toml").write_text('launch = ["train.sh"]\n', encoding="utf-8")
    failures = workshop.run(snippet, project)
    assert {code for code, _ in failures} <= ALLOWED_CODES, failures


def find_snippet(language: str, text: str) -> Snippet:
    """Return the one block in a language that holds a text."""
    (snippet,) = (snippet for snippet in SNIPPETS if snippet.language == language and text in snippet.text)
    return snippet


@pytest.mark.parametrize(
    ("fabric", "codes"), [("Completed", []), ("In Progress", [1])], ids=["a healthy node", "a fabric that is not up"]
)
def test_the_prolog_drains_a_node_for_its_devices_alone(
    fabric: str, codes: list[int], workshop: Workshop, project: Path
) -> None:
    """A real run alongside an nvidia-smi that prints what a node's would, in an environment with nothing of torch."""
    header = fake_nvidia_smi.HEADER.replace(": Completed", f": {fabric}")
    fake_nvidia_smi.install_healthy(project / "programs", header=header)
    failures = workshop.run(find_snippet("sh", "/opt/attncheck/bin"), project, str(project / "programs"))
    assert [code for code, _ in failures] == codes, failures


@pytest.mark.parametrize("name", ["h200", "laptop"])
def test_the_prolog_drains_no_node_for_a_package(name: str, attncheck: Run, tmp_path: Path) -> None:
    """Whatever is broken among the packages: the codes that the prolog names judge devices."""
    words = find_snippet("sh", "/opt/attncheck/bin").text.partition(">&2")[0].split()[1:]
    options = [word for index, word in enumerate(words) if "--lane" not in words[max(index - 1, 0) : index + 1]]
    assert options[:2] == ["doctor", "--select"]
    snapshot = s.without_packages(s.load_snapshot(name), "flash-attn", "transformers")
    snapshot = s.with_import(s.with_torch(snapshot, cuda=s.Absent("a CPU build")), "torch", "raised", message="broken")
    failing = replace(snapshot, devices=s.Unreadable("nvidia-smi: Failed to initialize NVML: Driver/library mismatch"))
    for facts, code in ((snapshot, 0), (failing, 1)):
        (tmp_path / "facts.json").write_text(codec.dumps(facts), encoding="utf-8")
        done = attncheck(*options, "--facts", "facts.json")
        assert done.returncode == code, done.stdout + done.stderr


def copy_repository(folder: Path, workshop: Workshop) -> Path:
    """Return a copy of this checkout, with the environment of `make test` in it: its blocks write into it."""
    names = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file() and (not name.startswith("tests/data/") or name in DATA):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    programs = folder / ".venv-test" / "bin"
    workshop.write_program("python", fill(PYTHON, python=sys.executable), programs)
    (programs / "attncheck").symlink_to(workshop.programs / "attncheck")
    return folder


@pytest.mark.parametrize("snippet", of_language("yaml"))
def test_yaml_is_what_its_reader_takes(snippet: Snippet) -> None:
    read_yaml(snippet)


def read_yaml(snippet: Snippet) -> None:
    """Judge steps of a workflow, repositories of pre-commit and containers of Kubernetes by what they name."""
    document = YAML(typ="safe").load(snippet.text)
    items: list[dict[str, Any]] = document if isinstance(document, list) else [document]
    for item in items:
        if "uses" in item:
            name, _, reference = item["uses"].partition("@")
            assert re.fullmatch(r"[\w.-]+/[\w.-]+(/[\w.-]+)*", name) and reference
            if name == "attncheck/attncheck":
                assert reference == TAG
                assert item["with"].keys() <= load_action()["inputs"].keys()
                assert item["with"]["command"] in command_names()
        elif "repo" in item:
            (hook,) = YAML(typ="safe").load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
            assert (item["repo"], item["rev"]) == (REPOSITORY, TAG)
            assert [used["id"] for used in item["hooks"]] == [hook["id"]]
        else:
            assert list(item) == ["initContainers"], f"{snippet}: say in read_yaml what reads this"
            (container,) = item["initContainers"]
            assert container.keys() == {"name", "image", "command", "resources", "volumeMounts"}
            assert container["command"][0] == "attncheck" and container["command"][1] in command_names()


@pytest.mark.parametrize("snippet", of_language("yaml"))
def test_what_yaml_starts_runs(snippet: Snippet, workshop: Workshop, project: Path) -> None:
    """The action's steps and the hook call a right launch right; the init container's command is one."""
    document = YAML(typ="safe").load(snippet.text)
    for item in document if isinstance(document, list) else [document]:
        if item.get("uses", "").startswith("attncheck/attncheck@"):
            runner = make_own_environment(project / "runner")  # a hosted runner's Python: nothing in it
            step = run_step(
                "run",
                project,
                ATTNCHECK=str(workshop.own / "python"),
                ATTNCHECK_COMMAND=item["with"]["command"],
                ATTNCHECK_ARGS=item["with"]["args"],
                ATTNCHECK_SARIF=item["with"]["sarif"],
                PATH=f"{runner}:{os.environ['PATH']}",
            )
            assert step.returncode == 0 and read_step_outputs(project)["sarif"], step.stdout + step.stderr
            assert "ATN452" not in step.stdout and "ATN101" not in step.stdout
        elif "repo" in item:
            for arguments in (item["hooks"][0]["args"], list[str]()):
                done = run_hook(workshop, project, arguments)
                assert done.returncode == 0, done.stdout + done.stderr
                assert "ATN452" not in done.stdout and "ATN101" not in done.stdout and "ATN905" in done.stdout
        elif "initContainers" in item:
            command = item["initContainers"][0]["command"]
            text = " ".join(command)
            codes = {code for code, _ in workshop.run(Snippet(snippet.page, snippet.line, "sh", text), project)}
            assert codes <= ALLOWED_CODES


def run_hook(workshop: Workshop, folder: Path, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Run the hook as pre-commit does: its entry, its arguments, the files that it takes, in its environment."""
    (hook,) = YAML(typ="safe").load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    files = [name for name in ("train.sh", "requirements.txt") if re.search(hook["files"], name)]
    environ = {**os.environ, "PATH": f"{workshop.own}:{os.environ['PATH']}", "VIRTUAL_ENV": str(workshop.own.parent)}
    words = [*hook["entry"].split(), *arguments, *files]
    return subprocess.run(words, cwd=folder, env=environ, capture_output=True, text=True, timeout=120)


def test_the_hook_as_documented_stops_a_launch_that_trains_wrongly(workshop: Workshop, project: Path) -> None:
    """At fca601f the documented arguments let README's wrong launch pass, and pre-commit hid the warning."""
    shutil.copy(INPUTS / "train.sh", project / "train.sh")
    block = YAML(typ="safe").load(find_snippet("yaml", "- repo:").text)
    done = run_hook(workshop, project, block[0]["hooks"][0]["args"])
    assert done.returncode == 1 and "ATN444" in done.stdout, done.stdout + done.stderr
    (hook,) = YAML(typ="safe").load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    assert hook["verbose"] is True


def test_the_hook_still_finds_what_the_launch_itself_proves(workshop: Workshop, project: Path) -> None:
    (project / "train.sh").write_text(LAUNCH.replace("--ds.packing_samples", "--ds.packing_sample5"), encoding="utf-8")
    done = run_hook(workshop, project, [])
    assert done.returncode == 0 and "ATN440" not in done.stdout, "nothing here proves that the name is refused"
    parser = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--ds.packing_samples')\n"
    (project / "openrlhf" / "cli").mkdir(parents=True)
    (project / "openrlhf" / "cli" / "train_sft.py").write_text(parser + "parser.parse_args()\n", encoding="utf-8")
    done = run_hook(workshop, project, [])
    assert done.returncode == 1 and "ATN440 error" in done.stdout, done.stdout
    shutil.rmtree(project / "openrlhf")
    named = run_hook(workshop, project, ["--target", "h100x8,openrlhf=0.11.2,flash-attn=none"])
    assert "ATN452" in named.stdout, "what is named as missing is missing"


@pytest.mark.parametrize("snippet", of_language("toml"))
def test_toml_is_what_its_reader_takes(snippet: Snippet, tmp_path: Path) -> None:
    tables = re.findall(r"^\[([^\]\n]+)\]$", snippet.text, re.MULTILINE)
    if "tool.attncheck" in tables:
        (tmp_path / "pyproject.toml").write_text(snippet.text, encoding="utf-8")
        policy = load_policy(tmp_path)
        keys = re.findall(r"^([\w-]+) = ", snippet.text.partition("[tool.attncheck.")[0], re.MULTILINE)
        assert len(keys) >= 10 and all(getattr(policy, key.replace("-", "_"), None) for key in keys if key != "ignore")
    else:
        (table,) = tables
        group = table.split('"')[1]
        assert table == f'project.entry-points."{group}"' and group in EXAMPLES


@pytest.mark.parametrize("snippet", of_language("python"))
def test_python_is_an_example_that_is_installed_and_run(snippet: Snippet) -> None:
    assert snippet.text in EXAMPLES.values(), "tests/test_extending.py runs the blocks under `<!-- example: GROUP -->`"
    assert formats  # the room of the last of them


@pytest.mark.parametrize("snippet", of_language("text"))
def test_text_is_a_drawing_of_the_rooms(snippet: Snippet) -> None:
    """tests/test_readme.py compares the rooms; the other one is the way of a fact through them."""
    assert snippet.text.startswith(("attncheck/\n", "probes → facts"))


@pytest.mark.parametrize("snippet", of_language("dockerfile"))
def test_a_dockerfile_installs_this_version_and_runs_commands_that_exist(snippet: Snippet) -> None:
    text = snippet.text.replace("\\\n", " ")
    assert re.fullmatch(r"(FROM|COPY|RUN)( .+)", text.splitlines()[0]) and f"git+{REPOSITORY}@{TAG}" in text
    commands = re.findall(r"^RUN \S*/attncheck (.+)$", text, re.MULTILINE)
    assert commands and not any(find_argument_error(shlex.split(command)) for command in commands)


@pytest.mark.parametrize("snippet", of_language("console"))
def test_a_transcript_is_what_the_command_says(snippet: Snippet, attncheck: Run, tmp_path: Path) -> None:
    """What machine and minutes need is judged from a recording, or is a nightly test: smoke trains for minutes."""
    command, _, output = snippet.text.removeprefix("$ ").partition("\n")
    words = command.split()
    if command == "attncheck doctor":
        done = attncheck("doctor", "--facts", str(FOLDER / "h200.json"))
        assert output.strip() == done.stdout.strip()
    elif words[:3] == ["attncheck", "lint", "train.sh"]:
        diff = output.partition("+++ b/train.sh\n")[2].partition("\n\n")[0].splitlines()[1:]
        (tmp_path / "train.sh").write_text(
            "".join(f"{line[5:]}\n" for line in diff if line[4] != "+"), encoding="utf-8"
        )
        (tmp_path / "Qwen" / "Qwen2.5-7B").mkdir(parents=True)
        (tmp_path / "Qwen" / "Qwen2.5-7B" / "config.json").write_text(json.dumps(QWEN), encoding="utf-8")
        done = attncheck(*words[1:])
        assert find_findings(output) == find_findings(done.stdout), done.stdout
        assert done.stdout.partition("Corrected train.sh:")[2] == output.partition("Corrected train.sh:")[2]
    else:
        assert words[:2] in (["attncheck", "smoke"], ["attncheck", "labels"], ["attncheck", "agree"]), (
            f"{snippet}: say here what replays it"
        )
        assert not find_argument_error(words[1:])
        if words[1:] == ["smoke", "train.sh"]:
            rows = re.findall(r"^(\w+) +(?:pass|warn|fail|skipped)\b", output, re.MULTILINE)
            shown = [row for row in rows if row != "repeat"]  # of launches that save or have a second epoch
            assert shown == ["run", *CHECKS], "run this launch again, and paste what it prints"


def find_findings(text: str) -> set[str]:
    """Return the lines of a report that begin a finding."""
    return set(re.findall(r"^ATN\d{3} (?:error|warning|note) .*$", text, re.MULTILINE))


@pytest.mark.nightly
@pytest.mark.parametrize("snippet", [param for param in of_language("console") if "smoke" in param.values[0].text])
def test_the_transcript_of_smoke_is_what_it_says(snippet: Snippet, attncheck: Run) -> None:
    pytest.importorskip("transformers")
    command, _, output = snippet.text.removeprefix("$ ").partition("\n")
    if command.endswith("train.sh"):
        pytest.skip("a rehearsal of TRL: tests/rehearsal runs it if TRL is installed")
    done = attncheck(*command.split()[1:], timeout=1800)
    assert {line.split(" ")[0] for line in find_findings(output)} <= {
        line.split(" ")[0] for line in find_findings(done.stdout)
    }
    outcomes = re.compile(r"^(what ran|isolation|training) +(pass|fail).*(pass|fail)", re.MULTILINE)
    assert outcomes.findall(output) == outcomes.findall(done.stdout)


@pytest.mark.nightly
def test_the_commands_that_measure_do(attncheck: Run) -> None:
    """What the quick test reads only, run: those of docs/measuring.md that need no GPU, cut small."""
    if importlib.util.find_spec("ring_flash_attn") is None:  # it is imported alongside an emulated flash_attn
        pytest.skip("ring-flash-attn is not installed")
    done = attncheck("parity", "--ring-size", "4", "--device", "cpu", "--suite", "quick", timeout=1800)
    assert done.returncode in (0, 1), done.stderr
    done = attncheck("parity", "--device", "cpu", "--suite", "quick", "--format", "json", timeout=1800)
    assert {verdict["answer"] for verdict in json.loads(done.stdout)["parity"]["verdicts"]} >= {"pass"}


@pytest.mark.nightly
@pytest.mark.slow
def test_pip_installs_attncheck_from_the_repository(workshop: Workshop, tmp_path: Path) -> None:
    """For real: git clones, pip builds the wheel and fetches what it requires from the package index."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    environ = {**os.environ, **workshop.git_settings}
    python = tmp_path / "venv" / "bin" / "python"
    done = subprocess.run(
        [str(python), "-m", "pip", "install", "-q", f"git+{REPOSITORY}@{TAG}"],
        env=environ,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    version = subprocess.run([str(python), "-m", "attncheck", "--version"], capture_output=True, text=True)
    assert version.stdout == f"attncheck {TAG[1:]}\n"


@pytest.mark.slow
@pytest.mark.nightly
def test_pre_commit_runs_the_hook(workshop: Workshop, project: Path) -> None:
    """For real: pre-commit from the package index, with the block of docs/ci-and-clusters.md, on a right launch."""
    block = find_snippet("yaml", "- repo:")
    programs = project.parent / "pre-commit"
    subprocess.run([sys.executable, "-m", "venv", str(programs)], check=True)
    subprocess.run([str(programs / "bin" / "pip"), "install", "-q", "pre-commit"], check=True, timeout=600)
    configuration = "repos:\n" + block.text
    (project / ".pre-commit-config.yaml").write_text(configuration, encoding="utf-8")
    environ = {
        **os.environ,
        **workshop.git_settings,
        "PRE_COMMIT_HOME": str(project.parent / "cache"),
        "PYTHONPATH": "",
    }
    for words in (["git", "init", "-q"], ["git", "add", "train.sh", ".pre-commit-config.yaml"]):
        subprocess.run(words, cwd=project, env=environ, check=True)
    done = subprocess.run(
        [str(programs / "bin" / "pre-commit"), "run", "--all-files", "--verbose"],
        cwd=project,
        env=environ,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ATN905" in done.stdout and "[WARNING]" not in done.stdout + done.stderr, done.stdout + done.stderr
