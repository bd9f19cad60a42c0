"""Launches: launchers parsed, configuration files found, and arguments parsed as argparse and Hydra do."""

from __future__ import annotations

import io
import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from attncheck.core.facts import Absent, Known, Unreadable
from attncheck.core.io.errors import BadUsage
from attncheck.core.launch import NOWHERE, Launch, Source, Word
from attncheck.lint.arguments import parse_options, parse_overrides
from attncheck.lint.inputs import Inputs, make_readers
from attncheck.lint.launchers import torchrun
from attncheck.lint.launchers.options import EVERY_GPU
from attncheck.lint.launches import find_launches, read_source, source_from_argv

ACCELERATE = "num_machines: 2\nnum_processes: 16\nmixed_precision: bf16\n"
FILES = {
    "ds.yaml": ACCELERATE,
    "a.yaml": "lr: 1\n",
    "conf/ppo.yaml": "x: {y: 2}\n",
    "b.json": '{"c": 1}',
    "broken.yaml": "a: [1\n",
}


def read_file(path: str) -> Source | None:
    return Source(path, FILES[path], "json" if path.endswith("json") else "yaml") if path in FILES else None


def parse_script(text: str) -> list[Launch]:
    return find_launches(Source("run.sh", text, "shell"), read_file)


def parse_single(text: str) -> Launch:
    launches = parse_script(text)
    assert len(launches) == 1
    return launches[0]


def join_words(launch: Launch) -> str:
    return " ".join(word.text for word in launch.words)


GPUS = "every GPU"
RAY = Absent("Ray places the processes as the program requests")


@pytest.mark.parametrize(
    ("command", "started", "launchers", "nodes", "processes"),
    [
        ("torchrun --nproc_per_node=8 --nnodes 2 t.py -m 1", "t.py -m 1", ["torchrun"], 2, 8),
        ("torchrun --standalone --nproc-per-node 4 -m a.b --c", "a.b --c", ["torchrun"], 1, 4),
        ("torchrun --nproc 4 --nnodes 2:2 t.py", "t.py", ["torchrun"], 2, 4),
        ("torchrun t.py", "t.py", ["torchrun"], 1, 1),
        ("torchrun --nproc_per_node gpu t.py", "t.py", ["torchrun"], 1, GPUS),
        ("CUDA_VISIBLE_DEVICES=0,3 torchrun --nproc_per_node gpu t.py", "t.py", ["torchrun"], 1, 2),
        ("torchrun --nproc_per_node $(nproc) --nnodes $N t.py", "t.py", ["torchrun"], Unreadable, Unreadable),
        ("python -m torch.distributed.run --nproc_per_node 2 t.py", "t.py", ["python", "torchrun"], 1, 2),
        ("python3.11 -u -m torch.distributed.launch --use_env t.py", "t.py", ["python", "torchrun"], 1, 1),
        ("deepspeed --module a.b --c", "a.b --c", ["deepspeed"], 1, GPUS),
        ("deepspeed --num_gpus 4 --num_nodes=2 --master_port 1 t.py", "t.py", ["deepspeed"], 2, 4),
        ("deepspeed --include localhost:0,1,2 t.py --deepspeed x", "t.py --deepspeed x", ["deepspeed"], 1, 3),
        ("deepspeed --include a:0,1@b:0,1 t.py", "t.py", ["deepspeed"], 2, 2),
        ("deepspeed --include a:0@b:0,1 t.py", "t.py", ["deepspeed"], 2, Absent),
        ("deepspeed --hostfile h --num_gpus 8 t.py", "t.py", ["deepspeed"], Absent, 8),
        ("deepspeed --num_gpus 4 ${ARGUMENTS} $MORE t.py --c", "t.py --c", ["deepspeed"], Unreadable, 4),
        ('deepspeed "$PROGRAM" t.py', "$PROGRAM t.py", ["deepspeed"], 1, GPUS),
        ("accelerate launch t.py", "t.py", ["accelerate"], 1, GPUS),
        ("accelerate launch --multi_gpu --num_processes 8 -m a.b", "a.b", ["accelerate"], 1, 8),
        ("accelerate launch --num-processes 16 --num-machines 2 --log_dir x t.py", "t.py", ["accelerate"], 2, 8),
        ("accelerate launch --config_file ds.yaml t.py --bf16", "t.py --bf16", ["accelerate"], 2, 8),
        ("accelerate launch --config_file ds.yaml --num_processes 4 t.py", "t.py", ["accelerate"], 2, 2),
        ("accelerate launch --config_file gone.yaml t.py", "t.py", ["accelerate"], Absent, Absent),
        ("accelerate launch --fsdp_version 2 --use_fsdp t.py", "t.py", ["accelerate"], 1, GPUS),
        ("ray job submit --address=x --no-wait -- python3 -m a.b c=1", "a.b c=1", ["ray", "python"], RAY, RAY),
        ("srun --nodes=1 ray job submit --working-dir . -- python3 t.py", "t.py", ["srun", "ray", "python"], RAY, RAY),
        ("srun -N 2 --ntasks-per-node=8 python t.py", "t.py", ["srun", "python"], 2, 8),
        ("srun -N2 -n16 --gres=gpu:8 --exclusive python t.py", "t.py", ["srun", "python"], 2, 8),
        ("srun -N 2 -n 2 torchrun --nnodes $N --nproc_per_node 8 t.py", "t.py", ["srun", "torchrun"], 2, 8),
        ("#SBATCH -N 4\n#SBATCH --ntasks-per-node=2\nsrun python t.py", "t.py", ["srun", "python"], 4, 2),
        ("#SBATCH -N 4\ntorchrun --nproc_per_node ${SLURM_GPUS_ON_NODE:-2} t.py", "t.py", ["torchrun"], 1, Unreadable),
        ("torchrun --nproc_per_node ${SLURM_GPUS_ON_NODE:-2} t.py", "t.py", ["torchrun"], 1, 2),
        ('srun bash -c "cd x && torchrun --nproc_per_node 2 t.py"', "t.py", ["srun", "torchrun"], 1, 2),
        ("mpirun -np 8 -x A=1 --mca btl tcp python t.py", "t.py", ["mpirun", "python"], 1, 8),
        ("mpirun -np 16 -npernode 8 -hostfile h python t.py", "t.py", ["mpirun", "python"], 2, 8),
        ("mpirun -np 16 -H a,b python t.py", "t.py", ["mpirun", "python"], Absent, Unreadable),
        ("/isaac-sim/python.sh -m a.b c=1", "a.b c=1", ["python"], Absent, Absent),
        ("python -W ignore -X dev -O t.py a.b=c", "t.py a.b=c", ["python"], Absent, Absent),
        ("uv run --with x --extra y torchrun --nproc_per_node 2 t.py", "t.py", ["uv", "torchrun"], 1, 2),
        ("uv run t.py", "t.py", ["uv"], Absent, Absent),
        ("poetry run conda run -n e --no-capture-output python t.py", "t.py", ["uv", "uv", "python"], Absent, Absent),
        ("env -u X A=b nohup nice -n 5 numactl -N 0 timeout 5h x", "x", ["prefix"] * 5, Absent, Absent),
        ("time sudo -E python t.py > log 2>&1 &", "t.py", ["prefix", "prefix", "python"], Absent, Absent),
        ("D=--no_ssh; [ -z $O ] || D=$O; deepspeed $D t.py --x", "t.py --x", ["deepspeed"], Unreadable, Unreadable),
        (
            'if [ $N = 1 ]; then A=(--num_processes 2); else A=(--tee 3); fi; accelerate launch "${A[@]}" t.py --x',
            "t.py --x", ["accelerate"], Unreadable, Unreadable,
        ),
        ('accelerate launch "${A[0]}" t.py', "${A[0]} t.py", ["accelerate"], 1, GPUS),
        ("torchrun $ARGS t.py", "t.py", ["torchrun"], Unreadable, Unreadable),
        ("accelerate launch $A --num_processes 2 t.py --x", "t.py --x", ["accelerate"], Unreadable, Absent),
        ("accelerate launch $PROGRAM --x 2 t.py", "$PROGRAM --x 2 t.py", ["accelerate"], 1, GPUS),
        ("torchrun $PROGRAM --x t", "$PROGRAM --x t", ["torchrun"], Known(1), Known(1)),
        ("llamafactory-cli train gone", "llamafactory-cli train gone", [], Absent, Absent),
    ],
)  # fmt: skip
def test_launchers(command: str, started: str, launchers: list[str], nodes: Any, processes: Any) -> None:
    launch = parse_single(command)
    assert join_words(launch) == started
    assert list(launch.launchers) == launchers
    for fact, expected in ((launch.nodes, nodes), (launch.processes, processes)):
        if expected == GPUS:
            assert isinstance(fact, Absent) and EVERY_GPU in fact.reason
        elif isinstance(expected, type):
            assert isinstance(fact, (Absent, Unreadable)) and isinstance(fact, expected) and fact.reason
        else:
            assert fact == (Known(expected) if isinstance(expected, int) else expected)


RUNTIME_ENV = r"""
DIR="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"
J="{\"env_vars\": {\"P\": \"/a:${DIR}\"}}"
ray job submit --runtime-env-json="${J}" -- python t.py
"""


def test_what_launchers_set_is_in_the_environment() -> None:
    assert parse_single("export A=1; env B=2 C=3 python t.py").environ == {"A": "1", "B": "2", "C": "3"}
    submitted = 'ray job submit --runtime-env-json=\'{"env_vars": {"D": "4"}, "x": 1}\' -- python t.py'
    assert parse_single(submitted).environ == {"D": "4"}
    [first] = parse_script("ray job submit -- B=2 python t.py --x")
    assert first.environ["B"] == "2" and [word.text for word in first.words] == ["t.py", "--x"]
    assert parse_single("mpirun -np 2 -x E=5 python t.py").environ == {"E": "5"}
    assert parse_single("srun --export=ALL,F=6 python t.py").environ == {"F": "6"}
    given = r'{\"env_vars\": {\"P\": \"$(cd "$(dirname "$0")" && pwd):/b\", \"D\": \"4\"}}'
    assert parse_single(f'ray job submit --runtime-env-json="{given}" -- python t.py').environ["D"] == "4"
    [computed] = parse_script(RUNTIME_ENV)
    assert computed.environ["P"].startswith("/a:") and computed.notes == ()
    damaged = parse_single("ray job submit --runtime-env-json='{' -- python t.py")
    assert damaged.notes == ("--runtime-env-json could not be read as JSON",)


def test_an_option_that_a_launcher_does_not_know_is_said() -> None:
    assert parse_single("torchrun --never t.py").notes == ("--never is not a known option of the launcher",)
    assert parse_single("torchrun --no-python t.py").notes == ()


@pytest.mark.parametrize(
    "copy", ["kubectl cp a.yaml pod:/a.yaml", "gsutil -m cp a.yaml gs://b", "aws s3 sync . s3://b"]
)
def test_what_copies_a_configuration_starts_no_job(copy: str) -> None:
    assert parse_script(copy) == []


def test_what_starts_no_job_is_left_out() -> None:
    commands = "set -x; cd x; mkdir y; echo z; pip install .; export A=1; ray start --head; sleep 1; [ a = b ]; wait"
    assert parse_script(commands) == parse_script("trl sft -h; torchrun t.py --help") == []
    script = "pip install x && python t.py; wait; trl sft"
    assert [join_words(launch) for launch in parse_script(script)] == ["t.py", "trl sft"]


@pytest.mark.parametrize(
    ("command", "path"),
    [
        ("llamafactory-cli train a.yaml lr=2", "a.yaml"),
        ("axolotl train a.yaml --launcher torchrun", "a.yaml"),
        ("accelerate launch --config_file ds.yaml -m trl.scripts.sft --config a.yaml", "a.yaml"),
        ("swift sft --config=b.json", "b.json"),
        ("python -m verl.trainer.main_ppo --config-path=conf --config-name='ppo' a=1", "conf/ppo.yaml"),
        ("python t.py b.json", "b.json"),
        ("python t.py --deepspeed b.json --lr 1", ""),
        ("python t.py data=a.yaml", ""),
    ],
)
def test_the_configuration_file_that_a_command_names(command: str, path: str) -> None:
    launch = parse_single(command)
    assert (launch.file.name if launch.file else "") == path
    assert bool(launch.entries) == bool(path)


def test_a_configuration_file_that_is_not_there_is_said() -> None:
    launch = parse_single("axolotl train gone.yaml")
    assert launch.file is None and launch.notes == ("the configuration file gone.yaml could not be read",)


def test_a_configuration_file_that_does_not_parse_is_bad_usage() -> None:
    with pytest.raises(BadUsage, match=r"broken.yaml:2:1"):
        parse_script("axolotl train broken.yaml")


def test_a_file_is_a_launch_of_its_own() -> None:
    source = Source("c.yaml", "a: 1\n", "yaml")
    (launch,) = find_launches(source, read_file)
    assert launch.file is source and [entry.name for entry in launch.entries] == ["a"] and not launch.words


def test_the_whole_command_is_kept() -> None:
    launch = parse_single("A=1 torchrun --nproc_per_node 2 t.py --x")
    assert [word.text for word in launch.whole] == ["torchrun", "--nproc_per_node", "2", "t.py", "--x"]


# Arguments.


def parse_arguments(text: str) -> tuple[Source, tuple[Word, ...]]:
    launch = parse_single(f"t {text}")
    return launch.source, launch.words[1:]


def nargs(name: str) -> str:
    return {"--switch": "none", "--many": "many", "--maybe": "optional"}.get(name, "one")


def test_options() -> None:
    text = "--one 1 --switch x --many a b c --maybe --maybe yes --neg -1 --lr -1e-5 --eq=v=w --last -- --not"
    settings = {(setting.name, setting.value) for setting in parse_options(parse_arguments(text)[1], nargs)}
    assert settings == {
        ("--one", "1"), ("--switch", ""), ("--many", "a b c"), ("--maybe", ""), ("--maybe", "yes"), ("--neg", "-1"),
        ("--lr", "-1e-5"), ("--eq", "v=w"), ("--last", ""),
    }  # fmt: skip


def test_an_empty_word_of_an_array_is_a_value() -> None:
    text = 'A=(--org "${ORG:-}" --many)\nray job submit -- python train.py "${A[@]}"\n'
    [launch] = find_launches(Source("run.sh", text, "shell"), lambda name: None)
    empty, missing = parse_options(launch.words[1:], nargs)
    assert (empty.value, missing.value) == ("", "")
    assert empty.value_span != NOWHERE and missing.value_span == NOWHERE


def test_the_spans_of_options() -> None:
    source, words = parse_arguments("--one 1 \\\n  --many a 'b c' \\\n  --eq=\"v\" --split \\\n x $(y) --unknown $Z")
    settings = {setting.name: setting for setting in parse_options(words, nargs, source)}
    texts = {
        name: (source.text[slice(*setting.span)], source.text[slice(*setting.value_span)])
        for name, setting in settings.items()
    }
    assert texts == {
        "--one": ("--one 1", "1"),
        "--many": ("--many a 'b c'", "a 'b c'"),
        "--eq": ('--eq="v"', '"v"'),
        "--split": ("--split \\\n x", "x"),
        "--unknown": ("--unknown $Z", "$Z"),
    }
    assert [name for name, setting in settings.items() if not setting.known] == ["--unknown"]


def test_an_option_and_a_value_from_different_places_have_no_span_together() -> None:
    source = Source("x.sh", 'A=(1 2)\nt --one "${A[@]}" --two 2\n', "shell")
    (launch,) = find_launches(source, read_file)
    first, second = parse_options(launch.words[1:], nargs, source)
    assert first.span == NOWHERE and source.text[slice(*first.value_span)] == "1"
    assert source.text[slice(*second.span)] == "--two 2"


def test_overrides() -> None:
    source, words = parse_arguments(
        "a.b=c +d=1 ++e.f='[\"x\"]' ~g 'h=i j' k=\"${L}\" --config-name n m@n=o p= --flag q=\"'r s'\" word"
    )
    settings = parse_overrides(words, source)
    assert [(setting.name, setting.value) for setting in settings] == [
        ("a.b", "c"), ("+d", "1"), ("++e.f", '["x"]'), ("~g", ""), ("h", "i j"), ("k", "${L}"), ("m@n", "o"), ("p", ""),
        ("q", "r s"),
    ]  # fmt: skip
    spans = {
        setting.name: "" if setting.value_span == NOWHERE else source.text[slice(*setting.value_span)]
        for setting in settings
    }
    assert spans["++e.f"] == "'[\"x\"]'" and spans["h"] == spans["~g"] == "" and spans["k"] == '"${L}"'
    assert [setting.name for setting in settings if not setting.known] == ["k"]


# Where sources come from.


def write_file(folder: Path, name: str, data: bytes) -> str:
    (folder / name).write_bytes(data)
    return str(folder / name)


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("a.sh", "x", "shell"), ("a.slurm", "x", "shell"), ("a.yml", "x: 1", "yaml"), ("a.json", "{}", "json"),
        ("a.toml", "", "toml"), ("a", "#!/bin/bash\nx", "shell"), ("a", "# c\nkey: 1\n", "yaml"),
        ("a", "---\nx: 1", "yaml"),         ("a", '{\n "a": 1}', "json"), ("a", "[t]\na = 1", "toml"),
        ("a", "a = 1", "toml"), ("a", "python t.py a=1", "shell"),
        ("a", "A=1\npython t.py", "shell"), ("a.txt", "torchrun x: y", "shell"),
    ],
)  # fmt: skip
def test_the_kind_of_a_file(tmp_path: Path, name: str, text: str, kind: str) -> None:
    assert read_source(write_file(tmp_path, name, text.encode())).kind == kind


def test_newlines_and_byte_order_marks_do_not_matter(tmp_path: Path) -> None:
    assert read_source(write_file(tmp_path, "a.sh", b"\xef\xbb\xbfa \\\r\n b\r\n")).text == "a \\\n b\n"


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"python t.py")))
    assert read_source("-") == Source("-", "python t.py", "shell")


def test_what_is_no_text_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attncheck.core.io.files.FIRST_BYTE_SECONDS", 0.2)  # the pipe has no writer
    os.mkfifo(tmp_path / "pipe")
    paths = [str(tmp_path), str(tmp_path / "gone"), str(tmp_path / "pipe"), "a\0b"]
    paths += [
        write_file(tmp_path, "a.sh", b"a\0b"),
        write_file(tmp_path, "b.sh", b"a\xff"),
        write_file(tmp_path, "c.sh", b" " * (5 << 20)),
    ]
    for path in paths:
        with pytest.raises(BadUsage) as raised:
            read_source(path)
        assert "\n" not in str(raised.value)


def test_words_are_quoted_so_that_nothing_is_expanded() -> None:
    argv = ["torchrun", "t.py", "--x", "$HOME 'a' \"b\"", "*", ""]
    source = source_from_argv(argv)
    (launch,) = find_launches(source, read_file)
    assert [word.text for word in launch.whole] == argv == shlex.split(source.text)
    assert all(word.known for word in launch.whole)
    assert str(launch.words[0].location) == "command line"


def test_the_options_of_torchrun_are_those_of_torch() -> None:
    run = pytest.importorskip("torch.distributed.run")
    valued: set[str] = set()
    switches: set[str] = set()
    for action in run.get_args_parser()._actions:
        names = {f"--{name[2:].replace('-', '_')}" if name.startswith("--") else name for name in action.option_strings}
        (switches if action.nargs == 0 else valued).update(names)
    assert valued <= torchrun.VALUE_OPTIONS and not valued & torchrun.SWITCHES
    assert switches - {"-h", "--help"} <= torchrun.SWITCHES and not switches & torchrun.VALUE_OPTIONS


IN_PROJECT = {
    ".git/HEAD": "",
    "project/src/train.py": "from llamafactory.train.tuner import run_exp\nrun_exp()\n",
    "project/conf/sft.yaml": "stage: sft\ndo_train: true\ndeepspeed: conf/ds.json\ngradient_accumulation_steps: 8\n",
    "project/conf/ds.json": '{"zero_optimization": {"stage": 3}}',
    "project/conf/acc.yaml": "distributed_type: MULTI_GPU\nnum_processes: 4\nnum_machines: 1\n",
    "project/scripts/a/run.sh": "accelerate launch --config_file conf/acc.yaml src/train.py conf/sft.yaml\n",
}


@pytest.mark.parametrize(
    ("more", "accumulation"),
    [
        ({}, "8"),
        ({"conf/sft.yaml": "gradient_accumulation_steps: 1\n"}, "8"),  # of another project
        ({"src/train.py": "", "conf/sft.yaml": "gradient_accumulation_steps: 1\n"}, "1"),  # both programs exist
    ],
)
def test_the_folder_of_the_program_is_that_of_the_other_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, str], accumulation: str
) -> None:
    for name, text in (IN_PROJECT | more).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    source = read_source("project/scripts/a/run.sh")
    (launch,) = find_launches(source, make_readers(Inputs((source,)))(source))
    values = {entry.name: entry.value for entry in launch.entries}
    assert values["gradient_accumulation_steps"] == accumulation
    assert not any("could not be read" in note for note in launch.notes)
    if accumulation == "8":
        assert launch.processes == Known(4)
        assert [(entry.name, entry.value) for entry in launch.deepspeed] == [("zero_optimization.stage", "3")]


def test_a_file_that_is_nowhere_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere/conf").mkdir(parents=True)
    (tmp_path / "elsewhere/conf/sft.yaml").write_text("bf16: true\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.sh").write_text("accelerate launch src/train.py conf/sft.yaml\n", encoding="utf-8")
    source = read_source("run.sh")
    (launch,) = find_launches(source, make_readers(Inputs((source,)))(source))
    assert launch.entries == () and any("could not be read" in note for note in launch.notes)
