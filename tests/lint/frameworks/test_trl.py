"""TRL and transformers' Trainer: how launches are read and judged; corrected ones are given to the real parser."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attncheck.core.facts import Known
from attncheck.core.job import Job
from attncheck.core.launch import Launch, Source
from attncheck.core.model import Tower
from attncheck.core.snapshot import Snapshot
from attncheck.lint import launches, run
from attncheck.lint.context import Request
from attncheck.lint.fields.names import build_parser_options
from attncheck.lint.fields.releases import list_releases
from attncheck.lint.files import editing
from attncheck.lint.frameworks import Framework
from attncheck.lint.frameworks.transformers import FRAMEWORK as TRAINER
from attncheck.lint.frameworks.trl import FRAMEWORK as TRL
from attncheck.lint.frameworks.trl import tables
from tests import wheels
from tests.lint.frameworks.ranges import check_range
from tests.snapshots import h200, h200x2, laptop, with_model, with_package

LAUNCHES = Path(__file__).parents[2] / "data" / "launch"
SFT_COMMAND = "trl sft --model_name_or_path a/b --dataset_name c "


def parse_launch(text: str, files: Mapping[str, str] | None = None, name: str = "run.sh") -> Launch:
    """Return the first launch of a text."""
    kinds: dict[str, Any] = {".sh": "shell", "yaml": "yaml", "json": "json"}

    def read(path: str) -> Source | None:
        return Source(path, files[path], "yaml") if files and path in files else None

    return launches.find_launches(Source(name, text, kinds[name[-4:] if name[-3:] != ".sh" else ".sh"]), read)[0]


def read_job(
    text: str,
    version: str = "1.16.0",
    snapshot: Snapshot | None = None,
    framework: Framework = TRL,
    name: str = "run.sh",
    files: Mapping[str, str] | None = None,
) -> Job:
    return framework.read(parse_launch(text, files, name), version, snapshot or h200())


def summarize_problems(job: Job) -> list[tuple[str, str]]:
    """Return the problems in short: the consequence, and the settings or the advice that fix it."""
    return [(problem.consequence, ",".join(problem.sets) or problem.advice) for problem in job.problems]


def correct(framework: Framework, launch: Launch, version: str, sets: Mapping[str, str], snapshot: Snapshot) -> str:
    """Return the text of a launch after its job's renames and `sets`."""
    job = framework.read(launch, version, snapshot)
    source = launch.file or launch.source
    edits = [edit for edit in framework.write(launch, job, sets) if edit.source == source.name]
    return editing.apply_edits(source, edits)


def test_names_by_version() -> None:
    job = read_job(
        SFT_COMMAND + "--max_seq_length 512 --torch_dtype bfloat16 --evaluation_strategy no --nonsense 3 --max_lenght 4"
    )
    assert [(unknown.name, unknown.now, unknown.near) for unknown in job.unknown_settings] == [
        ("--max_seq_length", ("--max_length",), ""),
        ("--torch_dtype", ("--dtype",), ""),
        ("--evaluation_strategy", ("--eval_strategy",), ""),
        ("--nonsense", (), ""),
        ("--max_lenght", (), "--max_length"),
    ]
    assert job.unknown_settings[0].since == "trl 0.20.0" and job.plan.max_length == 512 and job.plan.precision == "bf16"
    old = with_package(h200(), "transformers", "4.46.3")
    assert not read_job(
        SFT_COMMAND + "--max_seq_length 512 --torch_dtype bfloat16 --evaluation_strategy no", "0.19.0", old
    ).unknown_settings
    renamed_back = read_job(SFT_COMMAND + "--dtype float32", "0.19.1")
    assert [unknown.now for unknown in renamed_back.unknown_settings] == [("--torch_dtype",)]


def test_argparse_takes_beginnings_and_hyphens() -> None:
    job = read_job(
        SFT_COMMAND
        + "--use_liger --per-device-train-batch-size 3 --no_gradient_checkpointing --lora_target_modules a b"
    )
    assert not job.unknown_settings and not [o for o in job.problems if o.consequence == "refuses"]
    assert job.plan.liger and job.plan.batch == 3 and not job.plan.gradient_checkpointing
    assert [unknown.near for unknown in read_job(SFT_COMMAND + "--packi").unknown_settings] == ["--packing"], (
        "two options begin so"
    )


def test_a_switch_without_a_default_needs_a_value() -> None:
    job = read_job(SFT_COMMAND + "--bf16 --packing")
    assert [
        (problem.message.split(" has")[0], problem.sets) for problem in job.problems if problem.consequence == "refuses"
    ] == [("--bf16", {"bf16": "true"})]
    assert read_job(SFT_COMMAND + "--bf16 --packing", "0.18.2").problems[0].consequence == "wrong", (
        "a plain bool until 0.18"
    )
    assert "refuses" not in dict(summarize_problems(read_job(SFT_COMMAND + "--bf16 true")))
    assert ("refuses", "packing_strategy") in summarize_problems(
        read_job(SFT_COMMAND + "--packing --packing_strategy ffd")
    )


def test_packing_by_version() -> None:
    assert read_job(SFT_COMMAND + "--packing").plan.packing == "cu_seqlens"
    assert read_job(SFT_COMMAND + "--packing", "1.15.0").plan.packing == "position_ids"
    assert ("wrong", "packing_strategy") in summarize_problems(
        read_job(SFT_COMMAND + "--packing --packing_strategy wrapped")
    )
    assert ("wrong", "packing_strategy") in summarize_problems(
        read_job(SFT_COMMAND + "--packing --packing_strategy bfd-requeue", "0.29.1")
    )
    assert ("wrong", "packing") in summarize_problems(read_job(SFT_COMMAND + "--packing", "0.18.2"))
    bare = read_job(SFT_COMMAND + "--packing", "0.22.2")
    assert ("wrong", "attn_implementation") in summarize_problems(bare) and bare.plan.packing == "mask_2d"
    flash = read_job(SFT_COMMAND + "--packing --attn_implementation flash_attention_2", "0.22.2")
    assert not summarize_problems(flash) and flash.plan.packing == "position_ids"
    assert not summarize_problems(read_job(SFT_COMMAND + "--packing --attn_implementation flash_attention_2"))
    dense = read_job(SFT_COMMAND + "--packing").problems[0]
    assert dense.mild and "8192 × 8192" in dense.message and dense.sets
    assert not read_job(SFT_COMMAND + "--packing", snapshot=laptop()).problems[0].sets, "no flash-attn there"


def test_padding_free() -> None:
    assert ("refuses", "padding_free") in summarize_problems(read_job(SFT_COMMAND + "--padding_free"))
    assert ("refuses", "padding_free") not in summarize_problems(
        read_job(SFT_COMMAND + "--padding_free --max_length none")
    )
    assert ("refuses", "padding_free") not in summarize_problems(read_job(SFT_COMMAND + "--padding_free", "0.29.1"))
    assert ("refuses", "max_length") in summarize_problems(read_job(SFT_COMMAND + "--packing --max_length none"))
    dpo = "trl dpo --model_name_or_path a/b --padding_free"
    assert summarize_problems(read_job(dpo)) == [("ignores", "padding_free")]
    assert [problem.consequence for problem in read_job(dpo, "0.28.0").problems] == ["replaces"], "a dense mask"


def test_context_parallelism() -> None:
    command = "accelerate launch --num_machines 1 --num_processes 4 --parallelism_config_cp_size 2 trl/scripts/"
    job = read_job(command + "sft.py --model_name_or_path a/b --packing")
    assert job.scheme == "torch" and job.hooked == ("sdpa",) and job.plan.ring_size == 2
    assert job.world_size == Known(4) and ("refuses", "packing") in summarize_problems(job)
    assert ("wrong", "packing") in summarize_problems(
        read_job(command + "sft.py --model_name_or_path a/b --packing", "1.10.0")
    )
    assert ("refuses", "ring_size") in summarize_problems(read_job(command + "grpo.py --model_name_or_path a/b"))
    plain = read_job(command + "sft.py --model_name_or_path a/b --attn_implementation sdpa")
    assert not summarize_problems(plain)
    text = correct(TRL, parse_launch(command + "sft.py --model_name_or_path a/b"), "1.16.0", {"ring_size": "1"}, h200())
    assert "--parallelism_config_cp_size 1 " in text
    ulysses = read_job("trl sft --model_name_or_path a/b --num_processes 2 --parallelism_config_sp_size 2")
    assert ulysses.scheme == "ulysses" and ulysses.plan.scheme == "ulysses" and not ulysses.unknown_settings


def test_vision_models() -> None:
    pictures = with_model(h200(), towers=(object(),))
    assert ("refuses", "packing") in summarize_problems(read_job(SFT_COMMAND + "--packing", "1.9.2", pictures))
    assert ("refuses", "packing") not in summarize_problems(read_job(SFT_COMMAND + "--packing", "1.10.0", pictures)), (
        "it asks the dataset since"
    )
    vlm = "accelerate launch examples/scripts/sft_vlm.py --model_name_or_path a/b --packing"
    assert ("refuses", "packing") in summarize_problems(read_job(vlm))


def test_recurrent_layers() -> None:
    hybrid = with_model(h200(), model_type="qwen3_next", layer_types=("linear_attention", "full_attention"))
    flash = SFT_COMMAND + "--packing --attn_implementation flash_attention_2"
    assert ("wrong", "packing") in summarize_problems(read_job(flash, "1.15.0", hybrid))
    silent = read_job(flash, "1.16.0", hybrid)  # transformers 5.17 and no kernels
    assert [problem.consequence for problem in silent.problems] == ["wrong"]
    raising = read_job(flash, "1.16.0", with_package(hybrid, "transformers", "5.23.0"))
    assert [problem.consequence for problem in raising.problems] == ["refuses"]
    kernels = with_package(with_package(hybrid, "flash-linear-attention", "0.4.1"), "causal-conv1d", "1.5.0")
    assert not read_job(flash, "1.16.0", kernels).problems
    assert not read_job(SFT_COMMAND, "1.15.0", hybrid).problems


def test_one_process_with_two_gpus() -> None:
    text = "python trl/scripts/sft.py --model_name_or_path a/b"
    assert [problem.consequence for problem in read_job(text, snapshot=h200x2()).problems] == ["refuses"]
    assert not read_job(text).problems and not read_job("CUDA_VISIBLE_DEVICES=0 " + text, snapshot=h200x2()).problems
    assert not read_job(text, "1.14.0", h200x2()).problems


def test_generation_batches() -> None:
    text = "trl grpo --model_name_or_path a/b --num_processes 3 --per_device_train_batch_size 2"
    assert "2 × 3 ranks × 1 steps = 6" in read_job(text).problems[0].message
    assert not read_job(text.replace("3", "4")).problems
    assert ("refuses", "num_generations") in summarize_problems(read_job(text + " --num_generations 1"))


def test_reward_weights_are_as_many_as_functions() -> None:
    text = "trl grpo --model_name_or_path a/b --num_processes 4 --per_device_train_batch_size 2 --reward_funcs a b c"
    for version in ("0.16.1", "1.16.0"):  # reward_funcs is a script's own before 0.22
        found = [read_job(f"{text} {more}", version).problems for more in ("--reward_weights 1.0 2.0", "")]
        assert [[problem.message for problem in problems] for problems in found] == [
            ["2 reward_weights for 3 reward_funcs: ValueError"],
            [],
        ]


CP_COMMAND = "accelerate launch --num_machines 1 --num_processes 4 --parallelism_config_cp_size 2 trl/scripts/"
GRPO_COMMAND = (
    "accelerate launch --num_machines 1 --num_processes 3 trl/scripts/grpo.py --model_name_or_path a/b "
    "--per_device_train_batch_size 2"
)
OLD = with_package(h200(), "transformers", "4.52.4")
PICTURES = with_model(h200(), towers=(object(),))
HYBRID = with_model(h200(), model_type="qwen3_next", layer_types=("linear_attention", "full_attention"))
FLASH = f"{SFT_COMMAND} --packing --attn_implementation flash_attention_2"


@pytest.mark.parametrize(
    ("text", "snapshot", "part", "since", "until"),
    [
        (f"{SFT_COMMAND} --packing --packing_strategy wrapped", h200(), "packing_strategy wrapped", "0.19.1", ""),
        (f"{SFT_COMMAND} --packing", h200(), "joins documents without boundaries", "", "0.19.1"),
        (f"{SFT_COMMAND} --packing --packing_strategy bfd-requeue", h200(), "a mask of ones", "0.29.1", "1.0.0"),
        (f"{SFT_COMMAND} --padding_free", h200(), "packs without positions", "0.19.1", "0.23.1"),
        (f"{SFT_COMMAND} --padding_free", OLD, "packs without positions", "0.16.1", "0.23.1"),
        (f"{SFT_COMMAND} --packing", h200(), "no longer warns", "1.16.0", ""),
        (f"{SFT_COMMAND} --packing", h200(), "a dense mask", "0.23.1", ""),
        (f"{SFT_COMMAND} --padding_free", h200(), "does not allow max_length", "1.0.0", ""),
        (f"{SFT_COMMAND} --packing --max_length none", h200(), "with max_length none", "0.16.1", ""),
        (f"{SFT_COMMAND} --packing", PICTURES, "vision-language models", "0.22.2", "1.10.0"),
        ("accelerate launch sft_vlm.py --model_name_or_path a/b --packing", h200(), "vision datasets", "1.10.0", ""),
        (f"{CP_COMMAND}sft.py --model_name_or_path a/b --packing", h200(), "ranks: ValueError", "1.11.0", ""),
        (f"{CP_COMMAND}sft.py --model_name_or_path a/b --packing", h200(), "the mask is dropped", "0.19.1", "1.11.0"),
        ("trl dpo --model_name_or_path a/b --padding_free", h200(), "has no effect in DPO", "0.29.1", ""),
        ("python trl/scripts/sft.py --model_name_or_path a/b", h200x2(), "nn.DataParallel", "1.15.0", ""),
        (f"{GRPO_COMMAND} --num_generations 1", h200(), "at least 2", "0.15.2", ""),
        (f"{GRPO_COMMAND} --num_generations 4", h200(), "1 steps = 6 is not a multiple", "0.15.2", ""),
        (f"{GRPO_COMMAND} --num_generations 4 --gradient_accumulation_steps 2", h200(), "is not a multiple", "0.15.2",
         "0.17.0"),
        (f"{GRPO_COMMAND} --num_generations 4".replace("grpo", "rloo"), h200(), "is not a multiple", "0.22.2", ""),
        (FLASH, HYBRID, "by position_ids only", "0.19.1", "1.16.0"),
        (f"{SFT_COMMAND} --use_liger_kernel", h200(), "patches only layers", "1.15.0", ""),
    ],
)  # fmt: skip
def test_problems_hold_in_their_releases_alone(
    text: str, snapshot: Snapshot, part: str, since: str, until: str
) -> None:
    def fires(version: str) -> bool:
        return any(part in problem.message for problem in read_job(text, version, snapshot).problems)

    check_range(fires, list_releases("trl"), since, until)


def test_values_are_refused_where_the_parser_was_read() -> None:
    def fires(version: str) -> bool:
        job = read_job("python train.py --output_dir o --per_device_train_batch_size 1 --fp16 maybe", version, h200(),
                       TRAINER)  # fmt: skip
        return any("neither true nor false" in problem.message for problem in job.problems)

    check_range(fires, list_releases("transformers"))
    assert not fires("4.20.0")


YAML_TEXT = """# a comment
model_name_or_path: a/b
dataset_name: c   # data
max_seq_length: 512
torch_dtype: bfloat16
packing: true
env:
  NAME: value
"""


def test_files() -> None:
    assert (
        TRL.trainer(parse_launch(YAML_TEXT, name="a.yaml")) == "sft"
        and TRL.model(parse_launch(YAML_TEXT, name="a.yaml")) == "a/b"
    )
    text = correct(
        TRL, parse_launch(YAML_TEXT, name="a.yaml"), "1.16.0", {"attn_implementation": "flash_attention_2"}, h200()
    )
    assert text == YAML_TEXT.replace("max_seq_length", "max_length").replace("torch_dtype", "dtype") + (
        "attn_implementation: flash_attention_2\n"
    )
    launch = parse_launch("trl sft --config c.yaml --packing false", {"c.yaml": YAML_TEXT})
    job = TRL.read(launch, "1.16.0", h200())
    assert job.plan.packing == "padding" and job.unknown_settings[0].location.source == "c.yaml"
    assert dict(job.plan.environ)["NAME"] == "value"


def test_settings_are_written() -> None:
    launch = parse_launch(
        "trl sft --model_name_or_path a/b --no_gradient_checkpointing --dtype bfloat16 --max_length 5"
    )
    sets = {"gradient_checkpointing": "on", "precision": "fp16", "packing": "on", "max_length": "9", "liger": "on"}
    text = correct(TRL, launch, "1.16.0", sets, h200())
    assert text == (
        "trl sft --model_name_or_path a/b --gradient_checkpointing --dtype float32 --max_length 9 "
        "--bf16 false --fp16 --packing --use_liger_kernel"
    )
    assert correct(TRL, parse_launch(text), "1.16.0", {}, h200()) == text


def test_the_trainer_of_ones_own() -> None:
    text = "torchrun --nproc_per_node 2 train.py --output_dir o --per_device_train_batch_size 4 --mine 3 "
    assert TRAINER.trainer(parse_launch(text)) == "trainer" and not TRAINER.trainer(
        parse_launch("python train.py --mine 3")
    )
    assert not TRAINER.trainer(parse_launch(text.replace("train.py", "run_clm_no_trainer.py")))
    job = read_job(text + "--warmup_ratio 0.1 --logging_dir x --gradient_checkpointing", "5.23.0", framework=TRAINER)
    assert [(unknown.name, unknown.now) for unknown in job.unknown_settings] == [
        ("--warmup_ratio", ("--warmup_steps",)), ("--logging_dir", ())
    ]  # fmt: skip
    assert summarize_problems(job) == [("refuses", "gradient_checkpointing")] and job.world_size == Known(2)
    assert not summarize_problems(read_job(text + "--gradient_checkpointing", "5.17.0", framework=TRAINER))
    sets = {"attn_implementation": "sdpa", "packing": "on", "precision": "fp16"}
    launch = parse_launch(text + "--warmup_ratio 0.1 --bf16 True")
    assert correct(TRAINER, launch, "5.23.0", sets, h200()).endswith("--mine 3 --warmup_steps 0.1 --bf16 false --fp16")


@pytest.mark.parametrize("path", sorted(LAUNCHES.glob("trl/*")) + sorted(LAUNCHES.glob("transformers/*")), ids=str)
def test_the_corpus_is_read(path: Path) -> None:
    framework = TRL if path.parent.name == "trl" else TRAINER
    [launch] = launches.find_launches(launches.read_source(str(path)), lambda name: None)
    assert framework.trainer(launch)
    for version in ("0.9.6", "0.19.1", "1.16.0") if framework is TRL else ("4.40.2", "5.23.0"):
        snapshot = with_package(h200(), "transformers", "4.46.3" if version[0] in "04" else "5.23.0")
        job = framework.read(launch, version, snapshot)
        text = correct(framework, launch, version, {}, snapshot)
        source = replace(launch.source, text=text)
        again = framework.read(launches.find_launches(source, lambda name: None)[0], version, snapshot)
        assert not again.unknown_settings and job.plan.max_length > 0


# The real parser, out of the wheel: prints what it leaves over of each argv, null if it refuses them.
PARSER_SCRIPT = """
import json, sys
sys.path.insert(0, sys.argv[1])
from trl.scripts.utils import DatasetMixtureConfig, ScriptArguments, TrlParser
from trl.trainer.sft_config import SFTConfig
from trl.trainer.model_config import ModelConfig
parser = TrlParser((ScriptArguments, SFTConfig, ModelConfig, DatasetMixtureConfig))
leftovers = []
for argv in json.load(sys.stdin):
    try:
        leftovers.append(parser.parse_known_args(argv)[1])
    except SystemExit:
        leftovers.append(None)
json.dump({"leftovers": leftovers, "options": sorted(parser._option_string_actions)}, sys.stdout)
"""


def test_the_real_parser_agrees() -> None:
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    try:
        wheel = wheels.fetch_wheel("trl", "1.16.0")
    except (subprocess.SubprocessError, OSError, IndexError):
        pytest.skip("the wheel of trl cannot be had")
    snapshot = with_package(h200(), "transformers", transformers.__version__)
    texts = [path.read_text() for path in sorted(LAUNCHES.glob("trl/*sft*.sh")) if "vlm" not in path.name]
    texts += [
        SFT_COMMAND + options for options in ("--bf16 --packing", "--max_lenght 3", "--packi", "--packing_strategy ffd")
    ]
    before = [parse_launch(text) for text in texts]
    after = []
    for launch in before:
        job = TRL.read(launch, "1.16.0", snapshot)
        sets = {name: value for problem in job.problems if not problem.mild for name, value in problem.sets.items()}
        after.append(parse_launch(correct(TRL, launch, "1.16.0", sets, snapshot)))
    argvs = [
        [word.text for word in launch.words[2 if tables.is_trl_command(launch) else 1 :]]
        for launch in (*before, *after)
    ]
    process = subprocess.run(
        [sys.executable, "-c", PARSER_SCRIPT, str(wheel.path)], input=json.dumps(argvs), capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    answer = json.loads(process.stdout)
    refused, accepted = answer["leftovers"][: len(before)], answer["leftovers"][len(before) :]
    assert accepted == [[]] * len(after)
    expected = [bool(TRL.read(launch, "1.16.0", snapshot).unknown_settings) or "--bf16 -" in text or "ffd" in text
                for launch, text in zip(before, texts)]  # fmt: skip
    assert [leftover != [] for leftover in refused] == expected and sum(expected) >= 5
    options = tables.load_parser_options("sft", "1.16.0", transformers.__version__).current
    parser_options = {name[2:] for name in answer["options"] if "-" not in name[2:] and not name.startswith("--no_")}
    assert parser_options - {"help", ""} == set(options)


def test_tables_hold_what_was_read() -> None:
    options = build_parser_options(
        ("transformers", "5.23.0", ("TrainingArguments",)), ("trl", "1.16.0", ("SFTConfig",))
    ).current
    assert options["gradient_checkpointing"].kind == "bool" and options["gradient_checkpointing"].default is True
    assert options["packing_strategy"].choices == ("bfd", "bfd_split", "wrapped")
    assert (
        build_parser_options(("transformers", "5.23.0", ("TrainingArguments",))).current["gradient_checkpointing"].kind
        == "bool?"
    )


RECIPE = "--model_name_or_path m --dataset_name d --output_dir o --per_device_train_batch_size 1"


# After trl examples/scripts, huggingface/alignment-handbook scripts/run_dpo.py, QingyangZhang/EMPO src/open_r1/empo.py,
# taishan1994/DPO-Finetuning finetune_dpo.py, xavierliu34/GUI-AiF src/open_r1/gaussian_grpo.py
@pytest.mark.parametrize(
    ("command", "trainer"),
    [
        ("trl reward", "reward"),
        ("trl orpo", "orpo"),
        ("python examples/scripts/ppo/ppo_tldr.py --num_ppo_epochs 1", "ppo"),
        ("python examples/scripts/rloo/rloo.py", "rloo"),
        ("python examples/scripts/nash_md.py", "nash_md"),
        ("python examples/scripts/dpo_online.py", "online_dpo"),
        ("python examples/scripts/prm.py", "prm"),
        ("python -m trl.experimental.gkd.gkd", "gkd"),
        ("accelerate launch scripts/run_dpo.py --beta 0.1", "dpo"),
        ("accelerate launch run_online_dpo.py --missing_eos_penalty 1", "online_dpo"),
        ("accelerate launch finetune_dpo.py --max_prompt_length 128", "dpo"),
        ("accelerate launch train_rm.py --center_rewards_coefficient 0.01", "reward"),
        ("accelerate launch src/open_r1/gaussian_grpo.py --num_generations 4", "grpo"),
        ("accelerate launch src/open_r1/empo.py --num_generations 4 --max_completion_length 9", "grpo"),
        ("python run_sft.py --packing true", "sft"),
    ],
)
def test_trainers_are_recognised(command: str, trainer: str) -> None:
    assert TRL.trainer(parse_launch(f"{command} {RECIPE}")) == trainer


@pytest.mark.parametrize(
    "command",
    [
        "python train_sft.py --use_liger True",  # after 2U1/Qwen2-VL-Finetune, its own trainer
        "python train_dpo.py",  # nothing but the name says so
        "python sft_then_dpo.py",  # either
        "python train_dpo.py --beta 0.1 --stage dpo",  # LLaMA-Factory's
        "python run_clm.py --num_generations 4",
        "accelerate launch run_simpo.py --beta 2",
    ],
)
def test_what_is_not_certain_is_none_of_trls(command: str) -> None:
    assert TRL.trainer(parse_launch(f"{command} {RECIPE}")) == ""


@pytest.mark.parametrize(
    ("name", "keys", "trainer"),
    [
        ("qwen2_dpo_config.yaml", "max_length: 4096", "dpo"),
        ("train_dpo.yaml", "max_completion_length: 512\nbeta: 0.1", "dpo"),  # DPOConfig had it too
        ("config.yaml", "num_generations: 4\nbeta: 0.1", "grpo"),
        ("config.yaml", "desirable_weight: 1.0\nbeta: 0.1", "kto"),
        ("config.yaml", "rpo_alpha: 1.0\nmax_completion_length: 1", "dpo"),
        ("config.yaml", "packing: true", "sft"),
    ],
)
def test_a_files_trainer(name: str, keys: str, trainer: str) -> None:
    text = f"model_name_or_path: m\nlora_r: 8\nlearning_rate: 1.0e-5\noutput_dir: o\n{keys}\n"
    assert TRL.trainer(launches.find_launches(Source(name, text, "yaml"), lambda _: None)[0]) == trainer


@pytest.mark.parametrize(
    ("name", "version", "has"),
    [
        ("kto", "0.9.6", False),
        ("kto", "0.12.2", True),
        ("grpo", "0.13.0", False),
        ("grpo", "0.14.0", True),
        ("reward", "0.23.1", False),
        ("reward", "0.24.0", True),
        ("orpo", "1.16.0", False),
        ("sft", "1.16.0", True),
    ],
)
def test_commands_by_release(name: str, version: str, has: bool) -> None:
    job = read_job(f"trl {name} {RECIPE}", version)
    assert any("has no command" in problem.message for problem in job.problems) is not has


@pytest.mark.parametrize(
    ("trainer", "version", "known", "unknown"),
    [
        ("orpo", "1.16.0", "max_completion_length", "max_prompt_length"),  # gone in 0.28
        ("orpo", "0.24.0", "max_prompt_length", "cpo_alpha"),
        ("cpo", "1.16.0", "cpo_alpha", "truncation_mode"),
        ("gkd", "0.29.1", "lmbda", "max_seq_length"),  # trl.experimental, and its bases
        ("xpo", "0.27.2", "missing_eos_penalty", "gpu_memory_utilization"),
        ("kto", "0.29.1", "desirable_weight", "max_prompt_length"),
    ],
)
def test_names_of_configurations_that_moved(trainer: str, version: str, known: str, unknown: str) -> None:
    options = tables.load_parser_options(trainer, version, "5.1.0").current
    assert known in options and unknown not in options


def test_a_configuration_that_is_gone_is_read_by_the_nearest_release() -> None:
    job = read_job(f"python examples/scripts/ppo/ppo.py --num_ppo_epochs 1 {RECIPE}")
    assert "trl 1.16.0 has no PPOConfig: using the names of 1.12.0, the nearest release that has it" in job.remarks
    assert "num_ppo_epochs" not in {unknown.name.lstrip("-") for unknown in job.unknown_settings}
    assert not any(unknown.proof for unknown in job.unknown_settings)


@pytest.mark.parametrize(
    ("implementation", "version", "isolates"),
    [
        ("flash_attention_3", "0.21.0", False),
        ("flash_attention_3", "0.22.0", True),
        ("kernels-community/vllm-flash-attn3", "0.20.0", False),
        ("kernels-community/vllm-flash-attn3", "0.21.0", True),
        ("kernels-community/flash-attn2", "0.22.2", False),
        ("flash_attention_2", "0.19.1", True),
        ("sdpa", "0.23.0", False),
        ("sdpa", "0.23.1", True),
    ],
)
def test_positions_by_release_and_name_of_the_attention(implementation: str, version: str, isolates: bool) -> None:
    job = read_job(SFT_COMMAND + f"--packing --attn_implementation {implementation}", version)
    assert (job.plan.packing == "position_ids") == isolates
    assert ("wrong" in dict(summarize_problems(job))) != isolates


def test_without_flash_attn_another_release_of_trl_gives_positions() -> None:
    job = read_job(SFT_COMMAND + "--packing --attn_implementation flash_attention_3", "0.21.0", laptop())
    assert not job.problems[0].sets and job.problems[0].installs == ("trl>=0.23.1,<1",)


def test_ulysses_needs_positions() -> None:
    command = "accelerate launch --num_processes 4 --parallelism_config_sp_size 4 trl/scripts/sft.py "
    command += "--model_name_or_path a/b --attn_implementation flash_attention_2"
    assert ("refuses", "packing") in summarize_problems(read_job(command, "1.10.0"))
    assert not summarize_problems(read_job(command, "1.11.0"))
    assert not summarize_problems(read_job(command + " --packing", "1.10.0"))


def test_images_are_cut_at_the_default_length() -> None:
    command = "accelerate launch examples/scripts/sft_vlm.py --model_name_or_path a/b"
    problem = read_job(command, "0.23.0").problems[0]
    assert problem.mild and problem.sets == {"max_length": "32768"}
    assert not read_job(command + " --max_length 4096", "0.23.0").problems
    assert not read_job(command, "0.24.0").problems, "whose example sets None"
    assert not read_job(SFT_COMMAND, "0.23.0").problems


def test_data_parallel_divides_by_the_replicas() -> None:
    command = "python trl/scripts/sft.py --model_name_or_path a/b"
    wrong = with_package(h200x2(), "transformers", "4.56.2")
    assert "about 1/2 of" in read_job(command, "0.21.0", wrong).problems[0].message
    assert not read_job(command, "0.24.0", with_package(h200x2(), "transformers", "4.57.6")).problems
    assert not read_job(f"CUDA_VISIBLE_DEVICES=0 {command}", "0.21.0", wrong).problems
    assert not read_job(f"torchrun --nproc-per-node 2 {command[7:]}", "0.21.0", wrong).problems


def test_a_batch_that_is_not_cut_has_a_mask_of_unknown_size() -> None:
    job = read_job(SFT_COMMAND + "--padding_free --max_length none", "1.16.0")
    assert "all 8 documents of a batch" in job.problems[0].message


def test_text_has_no_token_types() -> None:
    def read_with(model_type: str, transformers: str, command: str = SFT_COMMAND) -> list[tuple[str, ...]]:
        snapshot = with_model(with_package(h200(), "transformers", transformers), model_type=model_type)
        job = read_job(command, "1.0.0", snapshot)
        return [(problem.consequence, *problem.installs) for problem in job.problems if problem.installs]

    assert read_with("gemma3", "5.5.0") == [("refuses", "transformers>=5.6")]
    assert not read_with("gemma3", "5.6.0") and not read_with("gemma3", "4.57.6")
    assert not read_with("gemma3_text", "5.5.0"), "the class of text alone takes none"
    assert not read_with("gemma3", "5.5.0", "accelerate launch examples/scripts/sft_vlm.py --model_name_or_path a/b")


def test_a_fix_that_brings_another_problem_is_not_offered() -> None:
    command = "accelerate launch --num_processes 8 examples/scripts/sft_vlm.py --model_name_or_path a/b "
    command += "--per_device_train_batch_size 2 --attn_implementation flash_attention_2 --max_length 4096"
    pictures = with_model(with_package(h200(), "trl", "0.23.0"), towers=(Tower("encoder", 16, 64),))

    def list_fixes(snapshot: Snapshot) -> list[tuple[str, int]]:
        request = Request((Source("run.sh", command, "shell"),))
        report = run.run(snapshot, request, lambda name: snapshot.model, lambda path: None)
        return [(finding.code, len(finding.fixes)) for finding in report.findings if finding.code == "ATN820"]

    assert list_fixes(pictures) == [("ATN820", 0)], "packing is refused for models with a tower"
    text = with_model(with_package(h200(), "trl", "0.23.0"))
    command = command.replace("sft_vlm", "sft")
    assert list_fixes(text) == [("ATN820", 1)]


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("--padding_free True", "--padding_free false"),
        ("--packing --padding_free True", "--packing false --padding_free false"),
        ("--packing", "--packing false"),
        ("--packing --padding_free False", "--packing false --padding_free False"),
    ],
)
def test_a_launch_without_packing_joins_no_rows(written: str, kept: str) -> None:
    """A batch of padding_free is joined into one row as well; --packing false changed nothing of it."""
    launch = parse_launch(f"{SFT_COMMAND}{written}\n")
    edits = TRL.write(launch, TRL.read(launch, "0.21.0", h200()), {"packing": "off"})
    changed = editing.apply_edits(launch.source, edits)
    assert changed.strip() == f"{SFT_COMMAND}{kept}"
    assert not read_job(changed, "0.21.0").plan.packed
