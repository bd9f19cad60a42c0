"""The command to paste: valid bash that starts the program as the script does, with its environment and its folder."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from attncheck.core.job import Job, LintedLaunch
from attncheck.core.launch import Launch, Source
from attncheck.core.results.lint import LintSection
from attncheck.lint import frameworks
from attncheck.lint.launches import find_launches
from attncheck.lint.pasting import format_command
from attncheck.report.sections.lint import list_corrections
from tests.lint import launches

STUB = """#!/bin/sh
exec {python} -IS -c 'import json, os, sys
log = open(os.environ["STUB_LOG"], "a")
log.write(json.dumps([os.path.basename(sys.argv[1]), sys.argv[2:], os.getcwd(), dict(os.environ)]) + "\\n")
' "$0" "$@"
"""
# Set by the shell itself, or by the test.
SHELLS_OWN = ("_", "OLDPWD", "PWD", "SHLVL", "STUB_LOG", "PATH", "HOME", "LC_CTYPE")
TOOLS = ("dirname", "basename", "cat", "expr", "seq", "true", "readlink", "realpath")


def find_jobs(source: Source) -> list[Launch]:
    """Return the launches of a script that a framework recognises."""
    known = frameworks.load()
    found = find_launches(source, lambda name: None)
    return [launch for launch in found if any(framework.trainer(launch) for framework in known)]


def run_stubbed(folder: Path, programs: set[str], script: str, **variables: str) -> list[list[object]]:
    """Return what a script starts of `programs`: name, argv, folder and variables of each; nothing else can start."""
    stubs, log = folder / "stubs", folder / "log"
    shutil.rmtree(stubs, ignore_errors=True)
    stubs.mkdir()
    log.write_text("")
    for program in programs:
        (stubs / program).write_text(STUB.format(python=sys.executable))
        (stubs / program).chmod(0o755)
    for tool in TOOLS:
        (stubs / tool).symlink_to(shutil.which(tool) or "/bin/true")
    environ = {"PATH": str(stubs), "HOME": "/home/someone", "STUB_LOG": str(log), **variables}
    bash = shutil.which("bash")
    assert bash is not None
    subprocess.run([bash, script], cwd=folder, env=environ, capture_output=True, timeout=20, stdin=subprocess.DEVNULL)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return [
        [name, argv, cwd, {key: value for key, value in environ.items() if key not in SHELLS_OWN}]
        for name, argv, cwd, environ in lines
    ]


def assert_same_start(folder: Path, text: str, **variables: str) -> None:
    """Assert that the pasted commands of a script start what the script starts, one after the other."""
    (folder / "run.sh").write_text(text)
    jobs = find_jobs(Source("run.sh", text, "shell"))
    assert jobs
    pasted = [format_command(job).text for job in jobs]
    (folder / "pasted.sh").write_text("".join(f"({command}\n)\n" for command in pasted))
    checked = subprocess.run(["bash", "-n", "pasted.sh"], cwd=folder, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    programs = {job.whole[0].text for job in jobs}
    expected = run_stubbed(folder, programs, "run.sh", **variables)
    assert run_stubbed(folder, programs, "pasted.sh", **variables) == expected
    assert expected


SCRIPTS = {
    "prefix": "NPROC_PER_NODE=8 CUDA_VISIBLE_DEVICES=0,1 swift sft --model a --train_type lora\n",
    "exports and a folder": 'export NCCL_DEBUG=INFO\nA=1\nexport A\ncd sub\nswift sft --model "x y" --a $A\n',
    "the script's own folder": 'cd "$(dirname "$0")/sub"\nswift sft --model a --script "${BASH_SOURCE[0]}"\n',
    "set before the folder": "export ROOT=$PWD\ncd sub\nswift sft --model m\n",
    "left to the shell": 'swift sft --model $MODEL_ROOT/m --output "$OUT dir/x" --note "a \\"b\\" $OUT \\$5 it\'s"\n',
    "lists in quotes": "swift sft --model a --list \"['$OUT/a','b']\" --json '{\"a\": [1, \"$OUT\"]}' --x '*.js'\n",
    "what bash expands": "touch x\nswift sft --model ~/m --files *.md {a,b}.json --tail=~ --q \\*.md\n",
    "line ends": "swift sft --model a --system 'one\ntwo $OUT' --x \"three\n$OUT!\"\n",
    "arrays": 'ARGS=(--model "a b" --lr 1e-5 --out "$OUT")\nswift sft "${ARGS[@]}" --last\n',
    "env and torchrun": "export OMP_NUM_THREADS=4\nenv A=b torchrun --nproc_per_node 8 -m swift.cli.sft --model $OUT\n",
    "functions": "run() {\nlocal size=$1\nX=$size swift sft --model m$size\n}\nrun 7\n",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_pasted_command_starts_what_the_script_starts(tmp_path: Path, name: str) -> None:
    (tmp_path / "sub").mkdir()
    assert_same_start(
        tmp_path, SCRIPTS[name], MODEL_ROOT="/models", OUT="/out put" if name == "lists in quotes" else "/out"
    )


def paste(text: str) -> tuple[str, tuple[str, ...]]:
    """Return the command to paste of a script's first job, and the variables that the shell must hold."""
    pasted = format_command(find_jobs(Source("run.sh", text, "shell"))[0])
    return pasted.text, pasted.variables


def test_what_the_shell_must_hold_is_listed() -> None:
    assert paste("for lr in 1 2; do\nswift sft --lr $lr --out $HOME/$RUN_NAME --n ${COUNT} $(nproc)\ndone\n") == (
        "swift sft --lr $lr --out $HOME/$RUN_NAME --n ${COUNT} $(nproc)",
        ("lr", "RUN_NAME", "COUNT"),
    )
    assert paste("A=1\nswift sft --a $A --b 'it costs $5' --c \\$X\n")[1] == ()
    conditional = 'if [ -n "$DEBUG" ]; then\nexport NCCL_DEBUG=INFO\nfi\nswift sft --model a\n'
    assert paste(conditional) == ("swift sft --model a", ("NCCL_DEBUG",))
    assert paste("swift sft --model $1\n") == ("swift sft --model $1", ("$1",))


def test_secrets_are_references() -> None:
    text = "export HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz0123456789\ncd x\nswift sft --model a\n"
    assert paste(text) == ('cd x && HF_TOKEN="$HF_TOKEN" swift sft --model a', ("HF_TOKEN",))


def test_what_slurm_sets_is_left_to_slurm() -> None:
    assert paste("#SBATCH --nodes=2\nsrun swift sft --nnodes $SLURM_NNODES\n") == ("srun swift sft --nnodes 2", ())


def test_a_configuration_file_has_no_command() -> None:
    source = Source("a.yaml", "base_model: a\ndatasets: []\n", "yaml")
    assert format_command(Launch(source)).text == ""


def test_the_heading_names_what_the_shell_must_hold() -> None:
    launch = LintedLaunch(Job("trl", "1.0", "sft"), "", "trl sft --lr $lr", shell_variables=("lr",))
    headings = [heading for heading, _ in list_corrections(LintSection((launch,)))]
    assert headings == ["to paste (the shell must set lr, which the script does not set)"]


CORPUS = [path for path in launches.iter_corpus() if path.suffix == ".sh"]


@pytest.mark.nightly
@pytest.mark.parametrize("path", CORPUS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_pasted_commands_of_the_corpus_start_what_the_scripts_start(tmp_path: Path, path: Path) -> None:
    assert_same_start(tmp_path, path.read_text(encoding="utf-8"))
