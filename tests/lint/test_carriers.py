"""What carries a launch: wrappers, containers, other machines, terminals, other scripts, job files, Python."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from attncheck.core.facts import Known
from attncheck.core.io.errors import AttncheckError
from attncheck.core.io.secrets import mask_secrets
from attncheck.core.job import LintedLaunch
from attncheck.core.launch import NOWHERE, Kind, Launch, Source
from attncheck.core.results.lint import launches_of
from attncheck.lint import frameworks, python_scripts, run
from attncheck.lint.called_scripts import resolve_path
from attncheck.lint.context import Request
from attncheck.lint.correcting import NEEDS_QUOTES
from attncheck.lint.embedded import align_text
from attncheck.lint.files.editing import apply_edits, remove_setting
from attncheck.lint.launches import find_launches
from attncheck.lint.sources import detect_kind
from tests.lint import launches
from tests.lint.test_fuzz_launch import damage

TRAIN = "python -m openrlhf.cli.train_sft --pretrain m --max_len 4"
WORDS = "openrlhf.cli.train_sft --pretrain m --max_len 4"


def starts_training(launch: Launch) -> bool:
    return any(framework.trainer(launch) for framework in frameworks.load())


def find_trainings(text: str, kind: Kind = "shell", name: str = "run.sh", **files: str) -> list[Launch]:
    """Return the launches that start training; in the names of `files` "_" represents "." and "__" for "/"."""
    named = {path.replace("__", "/").replace("_", "."): content for path, content in files.items()}

    def read_file(path: str) -> Source | None:
        return Source(path, named[path], detect_kind(path, named[path])) if path in named else None

    return list(filter(starts_training, find_launches(Source(name, text, kind), read_file, starts_training)))


def find_training(text: str, kind: Kind = "shell", name: str = "run.sh", **files: str) -> Launch:
    found = find_trainings(text, kind, name, **files)
    assert [join_words(launch) for launch in found] == [join_words(found[0])]
    return found[0]


def join_words(launch: Launch) -> str:
    return " ".join(word.text for word in launch.words)


def spelled(launch: Launch) -> list[str]:
    """Return what is in the source where each word of a launch is said to are."""
    return [launch.source.text[slice(*word.span)] if word.span != NOWHERE else "" for word in launch.words]


# After NVIDIA-NeMo/Skills' and Kubeflow's wrappers, om-ai-lab/VLM-R1 run_scripts/multinode_training_demo.sh (ssh and
# docker-compose), OncoReason/Clinical-Reasoning-LLMs train_sft.sh (tmux).
CARRIERS = [
    f"my_wrapper --gpus 8 -- {TRAIN}",
    f"kubectl exec -it trainer-0 -- {TRAIN}",
    f"docker run --gpus all -it --rm -v $PWD:/w --shm-size=16g nvcr.io/x:1 {TRAIN}",
    "docker run --entrypoint python image -m openrlhf.cli.train_sft --pretrain m --max_len 4",
    f"sudo docker exec -w /w trainer bash -lc 'cd sub && {TRAIN}'",
    f'docker run image bash -c "{TRAIN}"',
    f"sudo -E docker-compose -f a.yml run --rm trainer {TRAIN}",
    f"podman run -itd image sh -c '{TRAIN}'",
    f"singularity exec --nv -B /data:/data image.sif {TRAIN}",
    f"apptainer run --nv image.sif bash -c '{TRAIN}'",
    f"ssh -p 22 -o StrictHostKeyChecking=no user@host 'cd /w && {TRAIN}'",
    f"ssh host {TRAIN}",
    f"ssh host 'bash -s' <<'EOF'\n{TRAIN}\nEOF",
    f"ssh host <<'EOF'\ncd /w\n{TRAIN}\nEOF",
    f"bash <<'EOF'\n{TRAIN}\nEOF",
    f"pdsh -w host[1-4] '{TRAIN}'",
    f"tmux new-session -d -s x -c /w '{TRAIN}'",
    f'tmux new -d -s x\ntmux send-keys -t x "{TRAIN}" C-m',
    f'tmux send-keys -t x "source venv/bin/activate; {TRAIN}" Enter',
    f"screen -dmS x {TRAIN}",
    f"screen -dmS x bash -c '{TRAIN}'",
    f"sbatch -N 2 --wrap '{TRAIN}'",
    f"flock /tmp/lock {TRAIN}",
    f"nohup timeout -k 5 10h env A=1 {TRAIN} > log 2>&1 &",
]


@pytest.mark.parametrize("text", CARRIERS, ids=[text[:40] for text in CARRIERS])
def test_the_launch_is_what_is_carried_and_stands_where_it_is_written(text: str) -> None:
    launch = find_training(text)
    assert join_words(launch) == WORDS
    assert " ".join(spelled(launch)) == WORDS


@pytest.mark.parametrize(
    "text",
    [
        f"echo ssh host '{TRAIN}'",
        f"echo docker run image {TRAIN}",
        f"tmux send-keys -t x '{TRAIN}'",  # typed, and never run
        "tmux new-session -d -s x",
        "tmux has-session -t x",
        "docker run -d image",
        "ssh host",
        f"cat > other.txt <<'EOF'\n{TRAIN}\nEOF",
        "grep -rn train -- train_sft.py",
        "git checkout -- train_sft.py",
        "sbatch --wrap",
        "sbatch -N 2 --wrap",
        # HuihuiChyan/Think-J train_grpo.sh: a script that writes verl's configuration is no launch of it
        "python change.py --file a.hist --output a.yaml --key-value actor_rollout_ref.model.path=x data.max_length=1",
    ],
)
def test_what_only_looks_like_a_launch_is_none(text: str) -> None:
    assert [join_words(launch) for launch in find_trainings(text)] == []


def test_a_known_trainer_keeps_what_stands_behind_its_own_dashes() -> None:
    launch = find_training(f"{TRAIN} -- {TRAIN}")
    assert join_words(launch) == f"{WORDS} -- {TRAIN}"


def test_a_container_has_its_own_environment() -> None:
    outer = "export A=1 B=2\n"
    assert find_training(f"{outer}docker run -e A -e C=3 --env D image {TRAIN}").environ == {"A": "1", "C": "3"}
    assert find_training(f"{outer}docker run image bash -c 'E=5 {TRAIN}'").environ == {"E": "5"}
    assert find_training(f"{outer}apptainer exec --env C=3,D=4 image {TRAIN}").environ == {
        "A": "1",
        "B": "2",
        "C": "3",
        "D": "4",
    }
    assert find_training(f"{outer}apptainer exec --cleanenv image {TRAIN}").environ == {}
    launch = find_training(f"docker run --env-file vars.env -w /w image {TRAIN}")
    assert launch.folder == "/w" and launch.notes == ("the variables of --env-file vars.env are not read",)


def test_another_machine_has_none_of_the_variables_here() -> None:
    assert join_words(find_training(f"M=x\nssh host '{TRAIN} --save $M'")).endswith("--save $M")
    launch = find_training(f'export A=1\nM=x\nssh host "B=2 {TRAIN} --save $M"')
    assert launch.environ == {"B": "2"} and launch.words[-1].text == "x"


def test_slurm_counts_come_from_the_options_of_sbatch() -> None:
    launch = find_training(f"export A=1\nsbatch -N 2 --ntasks-per-node=8 --wrap='srun {TRAIN}'")
    assert (launch.nodes, launch.processes, launch.environ["A"]) == (Known(2), Known(8), "1")
    launch = find_training(f"sbatch <<EOF\n#!/bin/bash\n#SBATCH --nodes=4\nsrun {TRAIN}\nEOF")
    assert launch.nodes == Known(4)


def test_a_folder_of_another_shell_is_left_with_it() -> None:
    found = find_trainings(
        f"ssh host 'cd /w && {TRAIN}'\nbash -c 'cd inner; {TRAIN}'\n{TRAIN}\ncd x\nbash -c '{TRAIN}'"
    )
    assert [launch.folder for launch in found] == ["/w", "inner", "", "x"]


# --- scripts that a script runs or reads in


def test_a_called_script_gets_its_arguments_and_the_exported_variables() -> None:
    inner = (
        'set -e\ntorchrun --nproc_per_node $1 -m openrlhf.cli.train_sft --pretrain $2 "${@:3}" --save $A --load $B\n'
    )
    launch = find_training("export A=1\nB=2\nbash -x other.sh 4 m rest", other_sh=inner)
    assert join_words(launch) == "openrlhf.cli.train_sft --pretrain m --save 1 --load $B"
    assert (launch.source.name, launch.processes) == ("other.sh", Known(4))
    assert launch.words[0].location.line == 2 and not launch.source.editable
    assert "run.sh:3" in launch.notes[-1]


@pytest.mark.parametrize(
    "call", ["sh ./other.sh", "./other.sh", "nohup bash other.sh &", "source other.sh", ". ./other.sh"]
)
def test_each_way_to_run_a_script_is_followed(call: str) -> None:
    files = {path: Source(path, TRAIN, "shell") for path in ("other.sh", "./other.sh")}
    (launch,) = filter(starts_training, find_launches(Source("run.sh", call, "shell"), files.get, starts_training))
    assert join_words(launch) == WORDS


def test_what_stands_before_a_called_script_counts_for_its_launches() -> None:
    launch = find_training("srun -N 2 --ntasks-per-node 8 bash other.sh", other_sh=f"cd w\n{TRAIN}")
    assert (launch.launchers, launch.nodes, launch.processes) == (("srun", "python"), Known(2), Known(8))
    assert launch.folder == "w"


def test_variables_of_a_file_that_is_read_in_count() -> None:
    text = 'HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)\nsource "$HERE/env.sh"\n' + f"{TRAIN} --save $S"
    launch = find_training(text, name="scripts/run.sh", scripts__env_sh="S=/out\nexport A=1\n")
    assert launch.words[-1].text == "/out" and launch.environ == {"A": "1"} and launch.source.editable
    unread = find_training(text, name="scripts/run.sh")
    assert unread.words[-1].text == "$S" and any("are not followed" in note for note in unread.notes)


@pytest.mark.parametrize("name", [".env", ".env.local", "secrets.sh", "wandb_key.sh", "/opt/x/profile.d/conda.sh"])
def test_files_of_secrets_and_of_environments_stay_closed(name: str) -> None:
    opened: list[str] = []

    def read_file(path: str) -> Source | None:
        opened.append(path)
        return Source(path, "K=hidden\n", "shell")

    text = f"source {name}\n{TRAIN} --save $K"
    (launch,) = find_launches(Source("run.sh", text, "shell"), read_file, starts_training)
    assert [path for path in opened if not path.endswith(".py")] == [] and launch.words[-1].text == "$K"


def test_secrets_of_a_file_that_is_read_in_are_not_shown() -> None:
    env = "WANDB_API_KEY=9f8e7d6c5b4a39281706f5e4d3c2b1a0\nM=model\n"
    find_training(f"source env.sh\n{TRAIN} --use_wandb $WANDB_API_KEY", env_sh=env)
    assert "9f8e7d6c" not in mask_secrets("--use_wandb 9f8e7d6c5b4a39281706f5e4d3c2b1a0")


@pytest.mark.parametrize(
    "text",
    ["cat other.sh", "chmod +x other.sh", "grep bash other.sh", "echo bash other.sh", "bash -n", "bash missing.sh"],
)
def test_a_script_that_is_not_run_is_not_followed(text: str) -> None:
    assert find_trainings(text, other_sh=TRAIN) == []


def test_scripts_that_call_each_other_end() -> None:
    assert (
        find_trainings(
            "bash run.sh\nbash other.sh", run_sh="bash run.sh", other_sh="bash third.sh", third_sh="bash other.sh"
        )
        == []
    )
    assert find_trainings("source run.sh\n", run_sh="source run.sh\n" * 3) == []
    many = {f"s{number}_sh": "".join(f"bash s{n}.sh\n" for n in range(30)) for number in range(30)}
    assert find_trainings("bash s0.sh", "shell", "run.sh", **many) == []


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('$(dirname "$0")/a.sh', "s/a.sh"),
        ('$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/x/a.sh', "x/a.sh"),
        ('$( cd "$( dirname "${BASH_SOURCE[0]}" )" &>/dev/null && pwd )/a.sh', "s/a.sh"),
        ("$(dirname $(realpath $0))/a.sh", "s/a.sh"),
        ("${0%/*}/a.sh", "s/a.sh"),
        ("a.sh", "folder/a.sh"),
        ("$(pwd)/x/a.sh", "folder/x/a.sh"),
        ("${PWD}/a.sh", "folder/a.sh"),
        ("`pwd`/a.sh", "folder/a.sh"),
        ("$(pwd)/$X/a.sh", ""),
        ("/x/a.sh", "/x/a.sh"),
        ("$HOME/a.sh", ""),
        ("$(dirname $0)/$X/a.sh", ""),
        ("", ""),
    ],
)
def test_paths_beside_the_script_are_resolved(text: str, path: str) -> None:
    assert resolve_path(text, Source("s/run.sh", "", "shell"), "folder") == path


# --- files that a script writes before it uses them (after hiyouga/LLaMA-Factory issues and examples)

YAML = "stage: sft\nmodel_name_or_path: $M\noutput_dir: $OUT/x\n"


@pytest.mark.parametrize(
    "write", ["cat > c.yaml <<EOF", "cat <<EOF > c.yaml", "tee c.yaml <<EOF >/dev/null", "cat >./c.yaml << EOF"]
)
def test_a_file_that_a_heredoc_writes_is_the_configuration(write: str) -> None:
    launch = find_training(f"M=qwen\n{write}\n{YAML}EOF\nllamafactory-cli train c.yaml", c_yaml="stage: pt\n")
    entries = [(entry.name, entry.value, entry.known, entry.location.line) for entry in launch.entries]
    assert entries == [
        ("stage", "sft", True, 3),
        ("model_name_or_path", "qwen", True, 4),
        ("output_dir", "$OUT/x", False, 5),
    ]
    assert launch.file is not None and (launch.file.editable, launch.file.host) == (False, "run.sh")


def test_the_file_is_what_was_written_last_and_where_it_is_used() -> None:
    text = "for i in 1 2; do\ncat > $O/c.yaml <<'EOF'\nstage: sft\nEOF\nllamafactory-cli train $O/c.yaml\ndone"
    assert [entry.value for entry in find_training(text).entries] == ["sft"]
    text = "cd a\ncat > c.yaml <<EOF\nstage: sft\nEOF\ncat >> c.yaml <<EOF\nlora_rank: 8\nEOF\ncd ..\n"
    text += "llamafactory-cli train a/c.yaml"
    assert [entry.name for entry in find_training(text).entries] == ["stage", "lora_rank"]
    used_first = "llamafactory-cli train c.yaml\ncat > c.yaml <<EOF\nstage: sft\nEOF"
    assert find_trainings(used_first, c_yaml="stage: pt\n")[0].entries[0].value == "pt"


def test_what_is_added_or_changed_later_counts_as_far_as_it_is_certain() -> None:
    write, use = "cat > c.yaml <<EOF\nstage: sft\nEOF\n", "\nllamafactory-cli train c.yaml"

    def read_entries(between: str) -> list[tuple[str, str, bool]]:
        return [(entry.name, entry.value, entry.known) for entry in find_training(write + between + use).entries]

    stage = ("stage", "sft", True)
    assert read_entries('echo "bf16: true" >> c.yaml') == [stage, ("bf16", "true", True)]
    assert read_entries('if [ $1 ]; then echo "lr: 1" >> c.yaml; fi') == [stage, ("lr", "${lr}", False)]
    assert read_entries("if [ $1 ]; then\ncat > c.yaml <<EOF\nstage: pt\nEOF\nfi") == []
    assert read_entries("sed -i 's/sft/pt/' c.yaml") == []
    assert read_entries("sed -i 's/sft/pt/' d.yaml; echo x > d.yaml; echo c.yaml") == [stage]


def test_a_damaged_or_other_file_stays_unread() -> None:
    launch = find_training("cat > c.yaml <<EOF\na: [1\nEOF\nllamafactory-cli train c.yaml")
    assert launch.entries == () and launch.notes == ("the configuration file c.yaml could not be read",)
    assert find_training("cat > d.yaml <<EOF\na: 1\nEOF\nllamafactory-cli train c.yaml").entries == ()


def test_a_script_that_a_heredoc_writes_is_run() -> None:
    launch = find_training(f"cat > job.sh <<'EOF'\n#!/bin/bash\n{TRAIN}\nEOF\nsbatch job.sh")
    assert join_words(launch) == WORDS and launch.words[0].location.line == 3
    assert (launch.source.editable, launch.source.host) == (False, "run.sh")


# --- job files

CONTAINER = f"""kind: Job
spec:
  containers:
  - image: x
    env: [{{name: A, value: "1"}}, {{name: T, valueFrom: {{}}}}]
    command: [bash, -c]
    args:
    - |
      cd /w
      {TRAIN}
---
kind: Pod
spec:
  containers:
  - {{image: y, command: [python, -m, openrlhf.cli.train_sft], args: [--pretrain, "$(M)", --save_path, "a b'c"]}}
"""


def test_the_command_of_a_container_is_read_in_every_document() -> None:
    first, second = find_trainings(CONTAINER, "yaml")
    assert join_words(first) == WORDS == " ".join(spelled(first))
    assert (first.environ, first.folder, first.words[0].location.line) == ({"A": "1"}, "/w", 10)
    assert [word.text for word in second.words[1:]] == ["--pretrain", "$(M)", "--save_path", "a b'c"]
    assert not second.words[2].known and not second.source.editable


# After JackLingjie/LLama-Factory amlt_job/*.yaml, skypilot-org/skypilot llm/*, dstackai/dstack examples.
JOBS = {
    "amlt": f"search:\n  job_template:\n    sku: 1xG8\n    command:\n    - pip install -e .\n    - {TRAIN}\n",
    "skypilot": f"resources: {{}}\nenvs:\n  A: 1\nsetup: |\n  pip install x\n\nrun: |\n  cd w\n  {TRAIN}\n",
    "dstack": f"type: task\nenv:\n  - A=1\ncommands:\n  - pip install x\n  - {TRAIN}\n",
    "compose": f"services:\n  t:\n    image: x\n    environment:\n      A: 1\n    command: >\n      {TRAIN}\n",
    "ray": f"kind: RayJob\nspec:\n  entrypoint: {TRAIN}\n",
    "actions": f"jobs:\n  t:\n    steps:\n    - name: train\n      run: |\n        {TRAIN}\n",
    "folded": f"run: >-\n  {TRAIN.replace(' --', chr(10) + '  --')}\n",
    "quoted": f'run: "{TRAIN}"\n',
}


@pytest.mark.parametrize("name", JOBS)
def test_scripts_in_job_files_are_read_with_their_places(name: str) -> None:
    launch = find_training(JOBS[name], "yaml", "job.yaml")
    assert join_words(launch) == WORDS == " ".join(spelled(launch))
    assert launch.source.editable == (name in ("skypilot", "actions"))
    assert launch.environ == ({"A": "1"} if name in ("skypilot", "dstack", "compose") else {})


@pytest.mark.parametrize(
    "text",
    [
        f"description: {TRAIN}\n",
        f"# run: {TRAIN}\nname: x\n",
        "run: [1, {a: b}]\ncommand: {}\nargs: []\n",
        "a: 1\n---\nrun: &a\n  - run: *a\n  - run: *a\n",
        f"a: 1\n---\nrun: {TRAIN}\nb: [\n",
        "image: x\ncommand: null\n",
    ],
)
def test_other_yaml_starts_nothing(text: str) -> None:
    assert find_trainings(text, "yaml") == []


def test_a_training_configuration_is_read_as_one() -> None:
    text = f"base_model: x\nsequence_len: 1\nmicro_batch_size: 1\ndatasets:\n  - path: x\n    type: y\nrun: {TRAIN}\n"
    launch = find_training(text, "yaml")
    assert (
        launch.words == () and len(find_launches(Source("a.yaml", text, "yaml"), lambda _: None, starts_training)) == 1
    )


def test_edits_in_a_block_of_yaml_change_only_the_setting() -> None:
    text = f"run: |\n  cd w\n  {TRAIN.replace(' --max', ' ' + chr(92) + chr(10) + '    --max')}\nother: 1\n"
    launch = find_training(text, "yaml")
    start, end = launch.words[-2].span[0], launch.words[-1].span[1]
    assert apply_edits(launch.source, [remove_setting(launch.source, (start, end))]) == (
        "run: |\n  cd w\n  python -m openrlhf.cli.train_sft --pretrain m\nother: 1\n"
    )


def test_texts_are_aligned_with_what_differs_in_blanks_only() -> None:
    assert align_text("a b\nc", "  a b\n  c", 10) is not None
    assert align_text("a b", "a\n  b", 0) is not None
    assert align_text("a\tb", '"a\\tb"', 0) is None


# --- Python


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f'import os\nos.system("{TRAIN}")', WORDS),
        (f'import subprocess\nsubprocess.Popen("{TRAIN}", shell=True)', WORDS),
        (f"import subprocess\nsubprocess.run({TRAIN.split()!r}, check=True)", WORDS),
        (f"import subprocess\nsubprocess.run(['bash', '-c', ' '.join({TRAIN.split()!r})])", WORDS),
        (
            "import sys, subprocess\nM = 'm'\n"
            "def main(n):\n    cmd = [sys.executable, '-m', 'openrlhf.cli.train_sft']\n"
            "    cmd += ['--pretrain', M]\n    cmd.extend(['--max_len', str(n)])\n    subprocess.check_call(cmd)\n",
            "openrlhf.cli.train_sft --pretrain m --max_len ${n}",
        ),
        (
            "import subprocess\nc = ['python', '-m', 'openrlhf.cli.train_sft', f'--save={out}']\n"
            "if x:\n    c.append('--bf16')\nfor k in y:\n    c += [k]\nsubprocess.run(c + ['--pretrain', 'm'])\n",
            "openrlhf.cli.train_sft --save=${out} ${c[@]} --pretrain m",
        ),
    ],
)
def test_commands_that_python_starts_are_read(text: str, words: str) -> None:
    launch = find_training(text, "python", "launch.py")
    assert join_words(launch) == words
    assert all(word.known == ("$" not in word.text) for word in launch.words)
    assert launch.words[0].location.line == text.rstrip().count("\n") + 1
    assert all(word.span == NOWHERE for word in launch.words) and not launch.source.editable


@pytest.mark.parametrize(
    "text",
    [
        f'"""{TRAIN}"""\nprint("{TRAIN}")',
        f'import subprocess\ncmd = "{TRAIN}"\n',
        f'import subprocess\ncmd = "ls"\ncmd = "{TRAIN}"\nsubprocess.run(other)',
        f'trainer.run("{TRAIN}")',
        f'run("{TRAIN}")',
        "import subprocess\nsubprocess.run(",
        "import subprocess\nx = x + x\nx = [x, *x]\nsubprocess.run(x)\nsubprocess.run()",
        "a = b\nb = a\nimport os\nos.system(a)",
    ],
)
def test_python_that_starts_nothing_is_no_launch(text: str) -> None:
    assert find_trainings(text, "python", "x.py") == []


def test_names_that_grow_without_end_are_bounded() -> None:
    lines = ["import os", "a0 = ['x'] * 2 + ['y']", *(f"a{n} = [*a{n - 1}, *a{n - 1}]" for n in range(1, 60))]
    assert list(python_scripts.find_scripts(Source("x.py", "\n".join([*lines, "os.execv('x', a59)"]), "python")))
    lines = ["import os", "a0 = 'x'", *(f"a{n} = a{n - 1} + a{n - 1}" for n in range(1, 60))]
    assert find_trainings("\n".join([*lines, "os.system(a59)"]), "python") == []


def test_kinds_of_python_files(tmp_path: Path) -> None:
    assert detect_kind("x.py", "") == detect_kind("launch", "#!/usr/bin/env python3\n") == "python"
    assert detect_kind("launch", "#!/bin/bash\n# python\n") == "shell"


# --- what is reported and written

OLD_NAMES = "deepspeed --module openrlhf.cli.train_sft --pretrain m --max_len 4"


def lint_source(text: str, kind: Kind, other: str = "") -> LintedLaunch:
    files = {"other.sh": Source("other.sh", other, "shell")} if other else {}
    request = Request((Source("given", text, kind),), version="0.11.2")
    (linted,) = launches_of(run.run(launches.make_environments()["h200"], request, launches.read_model, files.get))
    return linted


def test_a_launch_in_another_file_is_reported_there_and_not_edited() -> None:
    linted = lint_source("bash other.sh", "shell", f"set -e\n{OLD_NAMES}\n")
    assert (linted.job.location.source, linted.job.location.line, linted.edits) == ("other.sh", 2, ())
    assert any("lint other.sh itself" in remark for remark in linted.job.remarks)


def test_a_launch_in_a_file_that_the_script_writes_is_reported_in_the_script() -> None:
    linted = lint_source(f"cat > j.sh <<'EOF'\n{OLD_NAMES}\nEOF\nbash j.sh", "shell")
    assert (linted.job.location.source, linted.job.location.line, linted.edits) == ("given", 2, ())
    assert {setting.location.source for setting in linted.job.settings} == {"given"}


def test_a_block_of_yaml_is_corrected_in_place_and_other_text_is_not() -> None:
    linted = lint_source(f"a: 1\nrun: |\n  cd w\n  {OLD_NAMES}\n", "yaml")
    corrected = OLD_NAMES.replace("--pretrain", "--model.model_name_or_path").replace("--max_len", "--data.max_len")
    assert f"+  {corrected}\n" in linted.diff
    for text in (f'a: 1\nrun: "{OLD_NAMES}"\n', f"a: 1\nrun: >\n  {OLD_NAMES}\n"):
        linted = lint_source(text, "yaml")
        assert (linted.job.location.line, linted.edits, linted.safe) == (2 + (">" in text), (), ())


def test_a_script_in_a_string_is_corrected_there() -> None:
    linted = lint_source(f"ssh host 'cd /w && {OLD_NAMES}'", "shell")
    assert "--data.max_len 4'" in linted.diff


@pytest.mark.parametrize(("text", "is_safe"), [("--a b", True), (" \\\n  --a", True), ("'a b'", False), ("$X", False)])
def test_what_needs_quotes_is_not_written_into_a_string(text: str, is_safe: bool) -> None:
    assert (NEEDS_QUOTES.search(text) is None) is is_safe


def test_a_damaged_script_that_is_called_leaves_the_others_read() -> None:
    text = f"bash other.sh\n{TRAIN}"
    broken = "(" * 300 + "if x; then " * 300 + "llamafactory-cli train broken.yaml"
    files = {"other.sh": Source("other.sh", broken, "shell"), "broken.yaml": Source("broken.yaml", "a: [", "yaml")}
    found = find_launches(Source("run.sh", text, "shell"), files.get, starts_training)
    assert [join_words(launch) for launch in found if starts_training(launch)] == [WORDS]


# --- nothing raises or hangs

ORIGINALS: list[tuple[str, Kind]] = [
    *((text, "shell") for text in CARRIERS),
    (f"M=x\ncat > c.yaml <<EOF\n{YAML}EOF\nllamafactory-cli train c.yaml\nsource a.sh\nbash a.sh 1", "shell"),
    (CONTAINER, "yaml"),
    *((text, "yaml") for text in JOBS.values()),
    (f"import subprocess\nc = ['python', f'{{x}}']\nc += {TRAIN.split()!r}\nsubprocess.run(c)\n", "python"),
]


def check_damaged(seed: int, count: int) -> None:
    chance = random.Random(seed)
    for _ in range(count):
        text, kind = chance.choice(ORIGINALS)
        source = Source("damaged", damage(text, chance), kind)
        inner = Source("a.sh", damage(text, chance), "shell")
        try:
            found = find_launches(source, {"a.sh": inner}.get, lambda launch: bool(launch.words))
        except AttncheckError:
            continue
        for launch in found:
            length = len(launch.source.text)
            spans = [word.span for word in launch.words if word.span != NOWHERE]
            assert all(0 <= start <= end <= length for start, end in spans)


def test_damaged_carriers_raise_nothing() -> None:
    check_damaged(1, 400)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(2, 12))
def test_many_damaged_carriers_raise_nothing(seed: int) -> None:
    check_damaged(seed, 2000)


@pytest.mark.parametrize("opening", ["bash -c '", 'ssh h "', 'docker run x bash -c "', "tmux new -d 'ssh h ", "-- "])
def test_deep_nesting_ends(opening: str) -> None:
    find_trainings(opening * 300 + TRAIN)
    find_trainings(f"run: |\n  {opening * 300}{TRAIN}\n", "yaml")


@pytest.mark.parametrize(
    ("command", "environ"),
    [
        ("docker exec c bash -c 'A=1 trl sft --model_name_or_path m'", {"A": "1"}),
        ("export A=1\ndocker exec c bash -c 'export B=2; trl sft --model_name_or_path m'", {"B": "2"}),
        ("A=1 docker exec -e C=3 c bash -c 'B=2 trl sft --model_name_or_path m'", {"B": "2", "C": "3"}),
        ("A=1 docker exec c trl sft --model_name_or_path m", {}),
        ("ssh host 'export A=1; docker exec c trl sft --model_name_or_path m'", {}),
    ],
)
def test_a_variable_that_is_set_inside_a_container_reaches_the_job(command: str, environ: dict[str, str]) -> None:
    assert dict(find_training(command).environ) == environ


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('export COMMAND="python a.py --config x.yaml"\nCMD=(sbatch --nodes=2 ray.sub)\n"${CMD[@]}"\n', 1),
        ('COMMAND="python a.py --config x.yaml" sbatch --nodes=2 /opt/nemo-rl/ray.sub\n', 1),
        ('COMMAND="python a.py --config x.yaml"\nsbatch --nodes=2 ray.sub\n', 0),  # it is not exported
        ('export COMMAND="python a.py --config x.yaml"\nsbatch --nodes=2 other.sub\n', 0),
    ],
)
def test_the_job_of_nemo_rl_s_batch_script_is_its_command(text: str, count: int) -> None:
    found = find_launches(Source("run.sh", text, "shell"), lambda name: None)
    assert sum(launch.words[0].text == "a.py" for launch in found) == count


@pytest.mark.parametrize(
    ("boot", "program"),
    [
        ("import runpy, sys\nsys.argv = sys.argv[1:]\nrunpy.run_path(sys.argv[0])\n", "b.py"),
        ("import sys\nprint(sys.argv[1])\n", "scripts/boot.py"),
    ],
)
def test_a_program_that_runs_its_first_argument_is_a_launcher(boot: str, program: str) -> None:
    script = Source("scripts/run.sh", "torchrun --nproc_per_node 2 scripts/boot.py b.py --config x.yaml\n", "shell")
    read = {"scripts/boot.py": Source("scripts/boot.py", boot, "python")}.get
    (launch,) = find_launches(script, read)
    assert launch.words[0].text == program
    assert launch.launcher_words[0].text == "torchrun"
