"""Continuations of lines as bash reads them, and folders that a script computes from where it is."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from attncheck.core.launch import Launch, Source
from attncheck.core.results.lint import launches_of
from attncheck.lint import launches, run
from attncheck.lint.context import Request
from attncheck.lint.inputs import make_file_reader
from attncheck.lint.lost_words import find_script_faults
from attncheck.lint.sources import read_source
from attncheck.workers.bash_syntax import PLAIN
from tests import snapshots as s
from tests.lint.launches import read_model, read_no_file
from tests.lint.programs.trees import write_tree

COMMAND = "torchrun train.py --output_dir o --per_device_train_batch_size 1"


def read_script(folder: Path, text: str, name: str = "run.sh", files: dict[str, str] | None = None) -> list[Launch]:
    write_tree(folder, {**(files or {}), name: text})
    source = read_source(str(folder / name))
    return launches.find_launches(source, make_file_reader((source,)))


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        (f"{COMMAND}\n  --bf16 True \\\n  --tf32 True\n", "--bf16 True --tf32 True"),
        (f"ray job submit --address a \\\n  #-- python b.py \\\n  -- {COMMAND[9:]}\n", f"-- {COMMAND[9:]}"),
        (f"ray job submit --address a \\\n  -- {COMMAND[9:]}\n", ""),
        (f"{COMMAND} \\ \n  --bf16 True\n", "--bf16 True"),
        (f"{COMMAND} \\\n  # --tf32 True \\\n  --bf16 True\n", "--bf16 True"),
        ("python -m verl.trainer.main_ppo a.b=1\n  data.c=2\n", "data.c=2"),
        ("python -m verl.trainer.main_ppo a.b=1 \\\n  # a.c=2 \\\n  max_turns=3 \\\n  2>&1 | tee log\n", "max_turns=3"),
        ("python -m verl.trainer.main_ppo a.b=1 \\\n  # a.c=2 \\\nNAME=3 \\\n  2>&1\n", ""),
        ("python -m verl.trainer.main_ppo a.b=1 \\\n  # a.c=2\n  name=3\n", ""),
        (f"{COMMAND}\n  --bf16 True\n  --tf32 True\n", "--bf16 True --tf32 True"),
        (f'{COMMAND}\n  "$@" \\\n  --bf16 True\n', "$@ --bf16 True"),
        (f"{COMMAND} \\ \n  $EXTRA --bf16 True\n", "$EXTRA --bf16 True"),
        (f"{COMMAND} \\ \n\n$OTHER --bf16 True\n", ""),
        (f"{COMMAND} \\ \npython eval.py --bf16 True\n", ""),
        (f"DATA=<folder> \\ \n\n{COMMAND}\n", ""),
        (f'{COMMAND}\n"$@"\n', ""),
        (f"{COMMAND} \\\n  --bf16 True\n", ""),
        (f"{COMMAND}\necho done\n", ""),
        (f"{COMMAND}\nNAME=value\n", ""),
    ],
)
def test_what_follows_a_broken_continuation_is_lost(tmp_path: Path, text: str, lost: str) -> None:
    launch = read_script(tmp_path, text)[0]
    assert " ".join(word.text for word in launch.lost) == lost
    assert all(word.text.strip() for word in launch.words), "a blank behind a backslash is not a setting"


SIZES = "".join(
    f" {name}micro_batch_size_per_gpu=1"
    for name in (
        "actor_rollout_ref.actor.ppo_",
        "actor_rollout_ref.rollout.log_prob_",
        "actor_rollout_ref.ref.log_prob_",
        "critic.ppo_",
    )
)


@pytest.mark.parametrize(
    ("words", "is_lost", "is_unset"),
    [(f" \\\n{SIZES}\n", False, False), (f"\n{SIZES}\n", True, False), ("\n", False, True)],
    ids=["passed", "lost", "absent"],
)
def test_what_lost_words_would_set_is_no_other_finding(
    tmp_path: Path, words: str, is_lost: bool, is_unset: bool
) -> None:
    write_tree(tmp_path, {"run.sh": f"python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=m{words}"})
    source = read_source(str(tmp_path / "run.sh"))
    snapshot = s.with_package(s.h200(), "verl", "0.5.0")
    report = run.run(snapshot, Request((source,)), read_model, make_file_reader((source,)))
    assert any("not passed to it" in finding.message for finding in report.findings) == is_lost
    assert any("both unset" in finding.message for finding in report.findings) == is_unset


@pytest.mark.parametrize(
    ("text", "programs"),
    [
        (f"{COMMAND}\n  --output_dir o --per_device_train_batch_size 1\n", ["train.py"]),
        (f"{COMMAND} | tee log\n  --output_dir o --per_device_train_batch_size 1\n", ["train.py"]),
        (f"accelerate launch --num_processes 8\n  {COMMAND[9:]}\n", ["train.py"]),
        (f"{COMMAND}\ntrain.py --output_dir o --per_device_train_batch_size 1\n", ["train.py", "train.py"]),
        ("$@ train.py --output_dir o --per_device_train_batch_size 1\n", ["train.py"]),
    ],
)
def test_lost_words_are_no_launch(tmp_path: Path, text: str, programs: list[str]) -> None:
    found = read_script(tmp_path, text)
    assert [launch.words[0].text for launch in found if launch.words] == programs


def test_lost_words_are_named_once_with_the_line_at_which_the_command_ends(tmp_path: Path) -> None:
    text = f"accelerate launch --num_processes 8\n  {COMMAND[9:]}\n  --bf16 True\n"
    write_tree(tmp_path, {"run.sh": text})
    request = Request((read_source(str(tmp_path / "run.sh")),))
    report = run.run(s.h200(), request, read_model, read_no_file)
    [finding] = [finding for finding in report.findings if finding.code == "ATN443"]
    assert "ends at line 1" in finding.message and "train.py" in finding.message and "--bf16" in finding.message
    [linted] = launches_of(report)
    assert linted.job.trainer == "trainer"


@pytest.mark.parametrize(
    "root",
    [
        '$(cd "$(dirname "$0")/.." && pwd)',
        '$(cd "$HERE/.." && pwd)',
        '$(dirname "$HERE")',
        '$(dirname "$(dirname "$(realpath "$0")")")',
        '$(dirname $(readlink -f "$0"))/..',
        '$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")',
        "$(git rev-parse --show-toplevel)",
    ],
)
def test_folders_that_a_script_computes_are_computed(tmp_path: Path, root: str) -> None:
    text = (
        f'HERE="$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)"\nROOT={root}\nllamafactory-cli train "$ROOT/x.yaml"\n'
    )
    files = {"x.yaml": "stage: sft\n", ".git/HEAD": ""}
    launch = read_script(tmp_path, text, "scripts/run.sh", files)[-1]
    assert [entry.value for entry in launch.entries] == ["sft"]
    assert "$(" in launch.words[2].shell, "a shell still computes it"


@pytest.mark.parametrize(
    ("arrays", "launchers"),
    [
        ("if command -v uv; then L=(uv run python3); else L=(python3); fi", [("python",)]),
        (
            'L=(python3)\nif [ -n "$A" ]; then L=(accelerate launch); elif [ -n "$B" ]; then L=(torchrun); fi',
            [("python",), ("accelerate",), ("torchrun",)],
        ),
    ],
)
def test_an_array_that_differs_by_branch_is_followed_in_each(
    tmp_path: Path, arrays: str, launchers: list[tuple[str, ...]]
) -> None:
    commands = read_script(tmp_path, f'{arrays}\n"${{L[@]}}" train.py --output_dir o --per_device_train_batch_size 1\n')
    starts = [launch for launch in commands if launch.words[0].text == "train.py"]
    assert [launch.launchers for launch in starts] == launchers


ARRAYS = """{0}
GEPO_ARGS=(
   --bf16 True
   # --fp16 True
   --tf32 True
)
{1}
torchrun train.py --output_dir o --per_device_train_batch_size 1 "${{GRPO_ARGS[@]}}" ${{EXTRA[@]}}
"""


@pytest.mark.parametrize(
    ("before", "after", "is_said"),
    [
        ("", "", True),
        ("# GRPO_ARGS=()", "# uses ${GEPO_ARGS[@]}", True),
        ("", "# ${GEPO_ARGS[@]} \\", False),  # switched off
        ("GRPO_ARGS=()", "", False),
        ("", 'GRPO_ARGS+=("${GEPO_ARGS[@]}")', False),
        ("", "mapfile -t GRPO_ARGS < options.txt", False),
        ("source env.sh", "", False),
        ("", "echo ${#GEPO_ARGS[@]}", False),
    ],
)
def test_a_misspelled_array_passes_nothing(tmp_path: Path, before: str, after: str, is_said: bool) -> None:
    write_tree(tmp_path, {"run.sh": ARRAYS.format(before, after)})
    request = Request((read_source(str(tmp_path / "run.sh")),))
    report = run.run(s.h200(), request, read_model, read_no_file)
    messages = [finding.message for finding in report.findings if finding.code == "ATN443"]
    assert [("GRPO_ARGS" in message, "--bf16, --tf32" in message) for message in messages] == [(True, True)] * is_said


EMPTY_VALUE = "--data_path $DATA --bf16 True"


@pytest.mark.parametrize(
    ("before", "option", "severity"),
    [
        ("DATA=''\n", EMPTY_VALUE, "error"),
        ("DATA=d.json\n", EMPTY_VALUE, ""),
        ("# DATA=d.json\n", EMPTY_VALUE, "warning"),
        ("# DATA=d.json\n", "--bf16 True --data_path ${DATA}", "warning"),
        ("DATA = d.json\n", EMPTY_VALUE, "warning"),  # a command
        ("DATA = d.json\nDATA=d.json\n", EMPTY_VALUE, ""),
        ("DATA == d.json\n", EMPTY_VALUE, ""),
        ("ON = True\n", "--is_on $ON --data_path d --bf16 True", ""),  # a switch, which needs no value
        ("data_path = d.json\n", "--data_path $data_path --bf16 True", "warning"),  # the option's own name
        ("# DATA=d.json\n", '--data_path "$DATA" --bf16 True', ""),  # quoted, it is an empty value
        ("# DATA=d.json\n: ${DATA:=e.json}\n", EMPTY_VALUE, ""),
        ("# DATA=d.json\nread DATA\n", EMPTY_VALUE, ""),
        ("# DATA=d.json\nsource env.sh\n", EMPTY_VALUE, ""),  # it may set it
        ("# where the DATA is\n", EMPTY_VALUE, ""),  # the environment sets it
        ("data_path=d.json\n", "--data_path $data --bf16 True", "warning"),
        ("data_path=d.json\n", '--data_path "$data" --bf16 True', ""),
        ("data_path=d.json\n", "--is_on $data --bf16 True", ""),
        ("for data in a b; do\n", "--data_path $data --bf16 True; done", ""),
        ('declare "${1#--}=$2"\n', "--data_path $data --bf16 True", ""),
        ("data_path=d.json\nsource env.sh\n", "--data_path $data --bf16 True", ""),
    ],
)
def test_an_unquoted_variable_without_a_value_leaves_an_option_without_one(
    tmp_path: Path, before: str, option: str, severity: str
) -> None:
    program = (
        "from dataclasses import dataclass\nfrom transformers import HfArgumentParser, Trainer, TrainingArguments\n"
        "@dataclass\nclass Data:\n    data_path: str\n    is_on: bool = False\n"
        "HfArgumentParser((Data, TrainingArguments)).parse_args_into_dataclasses()\nTrainer()\n"
    )
    write_tree(tmp_path, {"run.sh": f"{before}{COMMAND} {option}\n", "train.py": program, ".git/HEAD": ""})
    source = read_source(str(tmp_path / "run.sh"))
    report = run.run(s.h200(), Request((source,)), read_model, make_file_reader((source,)))
    assert [f.severity for f in report.findings or () if "has no value" in f.message] == [severity] * bool(severity)


@pytest.mark.parametrize(("end", "count"), [("\\ \\", 1), ("\\", 0)])
def test_an_escaped_blank_is_a_word(end: str, count: int) -> None:
    text = (
        f"apptainer exec --env FORCE_TORCHRUN=1 image.sif {end}\n  llamafactory-cli train --template ' ' --stage sft\n"
    )
    request = Request((Source("run.sh", text, "shell"),))
    report = run.run(s.h200(), request, read_model, read_no_file)
    [launch] = launches_of(report)
    assert launch.job.framework == "llamafactory"
    assert len([item for item in report.findings if "makes the blank a word" in item.message]) == count


@pytest.mark.parametrize(
    ("script", "count"),
    [
        ('{} "$@"\n', 0),
        ('run() {{ shift; {} "$@"; }}\nrun a\n', 1),
        ('run() {{ while [[ "$1" != -- ]]; do shift; done; shift; {} "$@"; }}\nrun a -- d\n', 0),
    ],
)
def test_arguments_of_a_script_may_be_an_option_s_value(tmp_path: Path, script: str, count: int) -> None:
    command = "swift sft --model m --output_dir o --dataset"
    (tmp_path / "run.sh").write_text(script.format(command))
    request = Request((read_source(str(tmp_path / "run.sh")),))
    report = run.run(s.h200(), request, read_model, read_no_file)
    assert launches_of(report)
    assert len([item for item in report.findings or () if "has no value" in item.message]) == count


@pytest.mark.parametrize(
    ("start", "word", "is_said"),
    [
        ("set -xeuo pipefail", '"${OUT}"', True),
        ("set -o nounset", "$OUT/a", True),
        ("set -e", '"${OUT}"', False),
        ("set -eu", '"${OUT:-o}"', False),
        ("set -eu\nOUT=o", '"${OUT}"', False),
        ("set -eu\n: ${OUT:?}", '"${OUT}"', False),
        ("set -eu\nsource env.sh", '"${OUT}"', False),
        ("# set -eu", '"${OUT}"', False),
    ],
)
def test_a_variable_that_ends_a_strict_script(tmp_path: Path, start: str, word: str, is_said: bool) -> None:
    (tmp_path / "run.sh").write_text(f"{start}\nswift sft --model m --dataset d --output_dir {word}\n")
    request = Request((read_source(str(tmp_path / "run.sh")),))
    [launch] = launches_of(run.run(s.h200(), request, read_model, read_no_file))
    assert any("unless the environment sets OUT" in remark for remark in launch.job.remarks) == is_said


@pytest.mark.parametrize(("word", "count"), [("$data", 1), ("${data}", 1), ("${name}_rl", 0), ('"$data"', 0)])
def test_a_variable_with_more_in_its_word_is_no_missing_value(tmp_path: Path, word: str, count: int) -> None:
    (tmp_path / "run.sh").write_text(f"name=$data\nswift sft --model m --output_dir o --dataset {word}\n")
    request = Request((read_source(str(tmp_path / "run.sh")),))
    report = run.run(s.h200(), request, read_model, read_no_file)
    assert len([item for item in report.findings or () if "has no value" in item.message]) == count


@pytest.mark.parametrize(
    ("name", "text", "count"),
    [
        ("run.py", 'import os, sys\npath = sys.argv[1]\nos.system(f"{} --data_path {path} --bf16 True")\n', 0),
        ("run.sh", "{} --data_path $path --bf16 True\n", 1),
    ],
)
def test_a_value_of_python_s_own_is_not_a_variable_of_the_shell(
    tmp_path: Path, name: str, text: str, count: int
) -> None:
    command = "torchrun train.py --output_dir o --model_name_or_path m --per_device_train_batch_size 1"
    (tmp_path / name).write_text(text.replace("{}", command))
    request = Request((read_source(str(tmp_path / name)),))
    report = run.run(s.h200(), request, read_model, read_no_file)
    assert launches_of(report)
    assert len([item for item in report.findings or () if "has no value" in item.message]) == count


@pytest.mark.parametrize(
    ("text", "severities"),
    [
        (f"{COMMAND} \\\r\n  --bf16 true \\\r\n  --tf32 true\r\n", ["error"]),
        (f"{COMMAND} --bf16 true\r\n", ["warning"]),
        (f"{COMMAND} \\\n  --bf16 true \\\n  --tf32 true\n", []),
        (f"echo a \\\r\n{COMMAND} \\\n  --bf16 true\n", []),  # mixed: the launch itself has none
    ],
)
def test_windows_line_ends_end_the_command(tmp_path: Path, text: str, severities: list[str]) -> None:
    folder = tmp_path / "tree"
    write_tree(folder, {"train.py": "from transformers import Trainer\nTrainer()\n"})
    (folder / "run.sh").write_bytes(text.encode())
    source = read_source(str(folder / "run.sh"))
    report = run.run(s.h200(), Request((source,)), read_model, make_file_reader((source,)))
    found = [item for item in report.findings if "Windows line ends" in item.message]
    assert [item.severity for item in found] == severities
    if severities == ["error"]:
        assert found[0].locations[0].line == 2 and "--bf16, --tf32" in found[0].message


@pytest.mark.parametrize(
    ("value", "messages"), [("<your_model>", ["bash refuses"]), ("", ["--model_name_or_path has no value"]), ("m", [])]
)
def test_an_option_without_a_value_is_not_said_of_a_script_that_bash_refuses(
    tmp_path: Path, value: str, messages: list[str]
) -> None:
    text = f"model={value}\ntrl sft --model_name_or_path $model --dataset_name d --output_dir o\n"
    write_tree(tmp_path, {"run.sh": text})
    request = Request((read_source(str(tmp_path / "run.sh")),))
    report = run.run(s.h200(), request, read_model, read_no_file)
    found = [item.message for item in report.findings if item.code == "ATN441"]
    assert (
        [message.startswith(start) for message, start in zip(found, messages)]
        == [True] * len(messages)
        == [True] * len(found)
    )


@pytest.mark.parametrize(("name", "count"), [("run.sh", 1), ("README.md", 0)])
def test_prose_is_no_script(tmp_path: Path, name: str, count: int) -> None:
    text = "model=<your_model>\ntrl sft --model_name_or_path $model --dataset_name d --output_dir o\n"
    write_tree(tmp_path, {name: text})
    request = Request((read_source(str(tmp_path / name)),))
    report = run.run(s.h200(), request, read_model, read_no_file)
    assert len([item for item in report.findings if "bash refuses" in item.message]) == count


def test_rows_of_data_are_no_configuration(tmp_path: Path) -> None:
    files = {"rows.json": '[{"text": "a"}]', "c.json": '{"model_name_or_path": "n"}'}
    start = "python train.py {} --model_name_or_path m --output_dir o --per_device_train_batch_size 1\n"
    (data,) = read_script(tmp_path, f"cd {tmp_path}\n{start.format('rows.json')}", files=files)
    assert data.file is None and not data.entries
    (configured,) = read_script(tmp_path, f"cd {tmp_path}\n{start.format('c.json')}", files=files)
    assert [entry.value for entry in configured.entries] == ["n"]


def test_a_file_that_a_command_writes_is_not_the_one_that_is_committed(tmp_path: Path) -> None:
    run_file = "envsubst < template.yaml > config.yaml\n"
    start = "trl sft --config config.yaml --output_dir o\n"
    files = {"config.yaml": "model_name_or_path: other\n", "template.yaml": "model_name_or_path: m\n"}
    (written,) = read_script(tmp_path, f"cd {tmp_path}\n{run_file}{start}", files=files)[-1:]
    assert written.file is None and any("could not be read" in note for note in written.notes)
    guarded = f"cd {tmp_path}\nif [ ! -f config.yaml ]; then\n{run_file}fi\n{start}"
    (committed,) = read_script(tmp_path, guarded, files=files)[-1:]
    assert [entry.value for entry in committed.entries] == ["other"]


SET_X = "set -x\npython a.py \\\n  --b=\"$c\" --d=\"['e']\" f=['g'] # it's\n"
FAULTS = (
    *("fi", "done", "'", '"', "a[", "(", ")", "`", "${x", "x=(", ";;", "&& ;", "|", "<", "if x", "[[ x", "]]"),
    *("d\\\none", "a\\\n#'", "\\", "$(", "{ x"),
)


@pytest.mark.parametrize("fault", ["", *FAULTS])
@pytest.mark.parametrize("before", [SET_X, "python ${a:-b} 'c d' \\\n  e \\x\n"])
def test_plain_scripts_are_right(before: str, fault: str) -> None:
    """Of a script that bash is not asked about, bash finds no error either."""
    script = before + fault + "\n"
    is_plain = len(PLAIN.match(script)[0]) == len(script)  # type: ignore[index]
    ended = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert is_plain == (not fault) and (fault or ended.returncode == 0), (script, ended.stderr)


@pytest.mark.parametrize(
    ("words", "text", "count"),
    [
        ("--model_name_or_path <MODELS>/qwen --bf16 True", "<MODELS>/qwen", 1),
        ("--model_name_or_path=<your model> --bf16 True", "--model_name_or_path=<your model>", 1),
        ('--model_name_or_path "<MODELS>/qwen" --bf16 True', "<MODELS>/qwen", 0),
        ('--model_name_or_path "<MODELS>/$SIZE" --bf16 True', "<MODELS>/$SIZE", 0),
        ("--model_name_or_path m <in.txt >out.txt", "m", 0),
        ("--model_name_or_path m --bf16 <in.txt>>out.txt", "m", 0),
        ("--model_name_or_path <there>/qwen", "<there>/qwen", 0),
    ],
)
def test_a_placeholder_outside_quotes_is_a_value_that_bash_does_not_pass(
    tmp_path: Path, words: str, text: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tree(tmp_path, {"in.txt": "", "there": ""})
    monkeypatch.chdir(tmp_path)
    [launch] = read_script(Path(), f"{COMMAND} {words}\n")
    assert text in [word.text for word in launch.words]
    faults = [fault for fault in find_script_faults(launch) if fault.consequence == "refuses"]
    assert len(faults) == count
    script = (tmp_path / "run.sh").read_text().replace("torchrun", "true")
    ended = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert count == 0 or "No such file or directory" in ended.stderr


@pytest.mark.parametrize(("comment", "codes"), [("  # --batch 2 \\\n", {"ATN443"}), ("", set())])
def test_what_a_launch_of_an_unknown_program_loses_is_said(tmp_path: Path, comment: str, codes: set[str]) -> None:
    write_tree(tmp_path, {"run.sh": f"python own/train.py --rows a.json \\\n{comment}  --epochs 1\n"})
    request = Request((read_source(str(tmp_path / "run.sh")),))
    report = run.run(s.h200(), request, read_model, read_no_file)
    assert {item.code for item in report.findings} & {"ATN441", "ATN443"} == codes


@pytest.mark.parametrize(("blank", "count"), [("", 1), (" ", 0)])
def test_a_variable_right_behind_a_backslash_is_not_set(tmp_path: Path, blank: str, count: int) -> None:
    write_tree(tmp_path, {"run.sh": f"NAME=a-2{blank}\\\nCUDA_VISIBLE_DEVICES=0 \\\n{COMMAND}\n"})
    report = run.run(s.h200(), Request((read_source(str(tmp_path / "run.sh")),)), read_model, read_no_file)
    assert len([item for item in report.findings if "CUDA_VISIBLE_DEVICES is not set" in item.message]) == count
