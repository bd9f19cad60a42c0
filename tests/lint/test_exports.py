"""What a launch sets in its environment is hidden in every form of setting it; everything else stays."""

from __future__ import annotations

import difflib
import json
import shlex
import subprocess
from pathlib import Path

import pytest

from attncheck.lint.exports import REFERENCE, hide_environment, hide_exports, hide_exports_in_diff
from attncheck.lint.shell import exports

# Each with the text that must be left; "SECRET" and "HIDDEN" are values that must go.
FORMS = {
    "export A=SECRET; torchrun t.py": "export A=…; torchrun t.py",
    "export A='SECRET it' B=\"HIDDEN $C\"": "export A=… B=…",
    "A=SECRET B=HIDDEN torchrun t.py lr=1 --x y=2": "A=… B=… torchrun t.py lr=1 --x y=2",
    "(export A=SECRET B=HIDDEN; cd /x && torchrun t.py)": "(export A=… B=…; cd /x && torchrun t.py)",
    "cd /x && A=SECRET nohup python t.py &": "cd /x && A=… nohup python t.py &",
    "env A=SECRET python t.py a=b": "env A=… python t.py a=b",
    "env -i -u B A=SECRET python t.py": "env -i -u B A=… python t.py",
    "timeout 5 /usr/bin/env A=SECRET B=HIDDEN python t.py": "timeout 5 /usr/bin/env A=… B=… python t.py",
    "sudo -E A=SECRET python t.py": "sudo -E A=… python t.py",
    "declare -x A=SECRET": "declare -x A=…",
    "typeset -gx A=SECRET": "typeset -gx A=…",
    "A=SECRET\nexport A\ntorchrun t.py": "A=…\nexport A\ntorchrun t.py",
    "set -a\nA=SECRET\ntorchrun t.py": "set -a\nA=…\ntorchrun t.py",
    "set -eo allexport\nA=SECRET": "set -eo allexport\nA=…",
    "A+=SECRET torchrun t.py": "A+=… torchrun t.py",
    "export A=$'SECRET\\nx'": "export A=…",
    'export A="SECRET\nHIDDEN" B=1': "export A=… B=…",
    "export A=$(echo SECRET)": "export A=…",
    "A=(SECRET HIDDEN); export A": "A=(…); export A",
    "if true; then export A=SECRET; fi": "if true; then export A=…; fi",
    "f() { export A=SECRET; }; f": "f() { export A=…; }; f",
    "bash -c 'export A=SECRET; B=HIDDEN python t.py'": "bash -c 'export A=…; B=… python t.py'",
    "bash -c \"export A='SECRET x'; python t.py\"": 'bash -c "export A=…; python t.py"',
    'bash -c "export A=\\"SECRET x\\"; python t.py"': 'bash -c "export A=…; python t.py"',
    "bash <<'EOF'\nexport A=SECRET\ntorchrun t.py\nEOF": "bash <<'EOF'\nexport A=…\ntorchrun t.py\nEOF",
    "ssh host 'A=SECRET torchrun t.py'": "ssh host 'A=… torchrun t.py'",
    "sbatch --wrap='A=SECRET torchrun t.py'": "sbatch --wrap='A=… torchrun t.py'",
    "eval 'export A=SECRET'": "eval 'export A=…'",
    "srun --export=ALL,A=SECRET,B=HIDDEN t.sh": "srun --export=ALL,A=…,B=… t.sh",
    "mpirun -x A=SECRET -x B t.sh": "mpirun -x A=… -x B t.sh",
    "docker run -e A=SECRET --env=B=HIDDEN --env C=HIDDEN img t.sh": "docker run -e A=… --env=B=… --env C=… img t.sh",
    'ray job submit --runtime-env-json \'{"pip": "p", "env_vars": {"A": "SECRET"}}\' -- python t.py': (
        'ray job submit --runtime-env-json \'{"pip": "p", "env_vars": {"A": …}}\' -- python t.py'
    ),
    "python t.py +ray_init.runtime_env.env_vars.A=SECRET trainer.lr=1": (
        "python t.py +ray_init.runtime_env.env_vars.A=… trainer.lr=1"
    ),
    "python t.py '+ray_init.runtime_env.env_vars={A: SECRET, B: \"HIDDEN\"}'": (
        "python t.py '+ray_init.runtime_env.env_vars={A: …, B: …}'"
    ),
}
KEPT = [
    "CUDA_VISIBLE_DEVICES=0,1 NCCL_ALGO=Ring torchrun --nproc-per-node 2 t.py",
    "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    'WANDB_API_KEY="$WANDB_API_KEY" A=${B} C=${D:-} torchrun t.py',
    "python t.py lr=1 seed=2 --x=y trainer.z=3",
    "A=plain\ntorchrun t.py",
    "set -eo pipefail\nMODEL=qwen\ntorchrun t.py $MODEL",
    "declare -r A=plain",
    "export A",
    "echo 'A=b c'",
    "A= torchrun t.py",
]


@pytest.mark.parametrize("form", FORMS)
def test_a_value_is_hidden_however_it_is_set(form: str) -> None:
    assert hide_exports(form) == FORMS[form]
    assert hide_exports(FORMS[form]) == FORMS[form]


@pytest.mark.parametrize("script", KEPT)
def test_what_a_report_may_show_stays(script: str) -> None:
    assert hide_exports(script) == script


# Those that this machine can start; the others need another machine's shell, or a launcher.
STARTED = [
    form for form in FORMS if "python t.py" in form and form.startswith(("export", "env", "timeout", "bash", "cd"))
]


@pytest.mark.parametrize("form", STARTED)
def test_the_forms_set_what_they_claim(form: str, tmp_path: Path) -> None:
    """Run by bash, each form gives its program the value."""
    program = tmp_path / "python"
    program.write_text('#!/bin/sh\necho "$A"\n')
    program.chmod(0o755)
    script = f"export PATH={tmp_path}:$PATH\n" + form.replace("cd /x && ", "").replace(
        "env -i -u B", f"env -i PATH={tmp_path}:/bin:/usr/bin"
    )
    ended = subprocess.run(["/bin/bash", "-c", f"{script}\nwait"], capture_output=True, text=True, timeout=20)
    assert "SECRET" in ended.stdout, (script, ended.stderr)


def test_a_command_to_paste_refers_to_the_shell_that_runs_it() -> None:
    assert hide_exports("A=SECRET NCCL_ALGO=Ring torchrun t.py", REFERENCE) == 'A="$A" NCCL_ALGO=Ring torchrun t.py'


def test_what_cannot_be_read_is_hidden_whole() -> None:
    nested = "export A=SECRET"
    for _ in range(exports.MAX_DEPTH + 1):
        nested = f"bash -c {shlex.quote(nested)}"
    assert "SECRET" not in hide_exports(nested)
    assert "SECRET" not in hide_exports("if true; then " * 3000 + "export A=SECRET")


def make_diff(before: str, after: str, context: int = 3) -> str:
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), "a/run.sh", "b/run.sh", n=context
    )
    return "".join(lines)


@pytest.mark.parametrize("form", [form for form in FORMS if "EOF" not in form])
@pytest.mark.parametrize("context", [0, 3])
def test_a_value_is_hidden_in_a_diff(form: str, context: int) -> None:
    script = f"#!/bin/bash\n{form}\ntorchrun t.py \\\n  --lr 1\n"
    diff = make_diff(script, script.replace("--lr 1", "--lr 2"))
    hidden = hide_exports_in_diff(diff, exported={"A"})
    assert "SECRET" not in hidden and "HIDDEN" not in hidden
    assert len(hidden.splitlines()) == len(diff.splitlines()) and "-  --lr 1\n+  --lr 2\n" in hidden
    changed = make_diff(script, script.replace("SECRET", "SECRET2"), context)
    assert changed and "SECRET" not in hide_exports_in_diff(changed, exported={"A"})


def test_a_diff_that_sets_nothing_is_left_as_it_is() -> None:
    for script in KEPT:
        diff = make_diff(f"{script}\nx --lr 1\n", f"{script}\nx --lr 2\n")
        assert hide_exports_in_diff(diff) == diff


def test_a_hunk_that_begins_within_quotes_shows_no_export() -> None:
    diff = '@@ -9,4 +9,4 @@\n and so on"\n export A="SECRET x"\n # export B=HIDDEN\n-x\n+y\n'
    hidden = hide_exports_in_diff(diff)
    assert "SECRET" not in hidden and "HIDDEN" not in hidden and ' and so on"\n' in hidden


@pytest.mark.parametrize("printed", ["{!r}", "{!s}", "JSON", "environ({!r})", "error: {!r}\\n", "NAME=VALUE"])
def test_an_environment_that_a_program_prints_is_hidden(printed: str) -> None:
    environ = {"A": 'SECRET\'s "x" \\ é', "B": "HIDDEN", "CUDA_VISIBLE_DEVICES": "0,1", "EMPTY": "", "C": "1"}
    text = printed.format(environ)
    if printed == "JSON":
        text = json.dumps(environ)
    if printed == "NAME=VALUE":
        text = "\n".join(f"{name}={value}" for name, value in environ.items())
    hidden = hide_environment(text, environ)
    assert "SECRET" not in hidden and "HIDDEN" not in hidden and "é" not in hidden
    assert "0,1" in hidden and hidden.count("…") == 3
    assert hide_environment("B is HIDDEN, and A=other C: 2", environ) == "B is HIDDEN, and A=other C: 2"
