"""Launches as people write them are cut: lists at column 0, unknown variables, old names, files alone, other mains."""

from __future__ import annotations

import itertools
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from attncheck.cli.commands.smoke import make_rehearsal_request
from attncheck.core.facts import Absent
from attncheck.core.io.errors import Unanswered
from attncheck.core.launch import NOWHERE, Launch, Setting, Source, SourceLocation, Word
from attncheck.core.program import Program, ProgramOption
from attncheck.core.rehearsal import UNDOCUMENTED, JobCut, PolicyGradient
from attncheck.core.results.rehearsal import Difference
from attncheck.core.results.smoke import CheckResult
from attncheck.lint.fields.rehearsing import resolve_options
from attncheck.lint.fields.script_options import find_data_option
from attncheck.lint.rewriting import read_launches
from attncheck.rehearsal import cutting
from attncheck.rehearsal.columns import find_below, find_marker, list_folders_above
from attncheck.rehearsal.fidelity import ROLLOUTS, leave_unasked, list_differences
from attncheck.rehearsal.reading import read_launches_of
from attncheck.rehearsal.substitutions import runs_command
from tests.lint.frameworks.test_rehearsal_cuts import LLAMAFACTORY as LLAMAFACTORY_FILE
from tests.lint.frameworks.test_rehearsal_cuts import OPENRLHF, STAGE, VERL_GRPO, cut_text, read_file
from tests.snapshots import laptop, with_package

TRL = "trl sft --model_name_or_path Qwen/Qwen2.5-7B --dataset_name own/data --output_dir out --max_length 4096"
SFT = TRL.replace("trl sft", "sft.py")
GRPO = "trl grpo --model_name_or_path Qwen/Qwen2.5-7B --dataset_name own/data --output_dir out --num_generations 8"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("model_name_or_path: a/b\ndataset_name: c/d\nreport_to:\n- wandb\n# tracked\noutput_dir: o\n", "report_to"),
        ("base_model: a/b\ndatasets:\n- path: c/d\n  type: alpaca\n\noutput_dir: o\nmicro_batch_size: 2\n", "datasets"),
        ("#--------\nmodel_name_or_path: a/b\ndataset_name: c/d\nbf16: true\noutput_dir: o\n", "max_steps"),
    ],
)
def test_a_yaml_file_is_cut_by_its_nodes(text: str, name: str) -> None:
    """A list in the column of its key, as PyYAML writes it, and a first line that looks like a document's marker."""
    launch = cut_text(text, "yaml")[1]
    entries = read_file(launch)
    assert name in entries and len(entries) > 10
    assert ("# tracked" in text) == ("# tracked" in "".join(launch.files.values()))


def test_a_configuration_alone_is_started_by_its_framework() -> None:
    text = "model_name_or_path: a/b\ndataset_name: c/d\nlearning_rate: 1.0e-5\noutput_dir: o\npacking: true\n"
    assert cut_text(text, "yaml")[1].command == "trl sft --config /stage/rehearsed_x.yaml"
    # trl 0.15.2 cli.py: `parse_args` refuses --config
    former = cut_text(text, "yaml", trl="0.15.2")[1].command
    assert former == "python -m trl.scripts.sft --config /stage/rehearsed_x.yaml"
    text = "actor_rollout_ref:\n  model:\n    path: a/b\n  rollout:\n    n: 4\ntrainer:\n  logger: wandb\n"
    launch = cut_text(text, "yaml", verl="0.9.1")[1]
    assert launch.command.endswith("-m verl.trainer.main_ppo --config-dir /stage --config-name rehearsed_x")
    assert read_file(launch)["defaults"] == '["ppo_trainer", "_self_"]'


def test_a_configuration_keeps_what_its_framework_takes() -> None:
    """Keys of the user's own program go, old names are new ones, and what is set goes by those."""
    keys = (
        "dataset_mixer:\n  a/b: 1.0\nsystem_prompt: hey\nmax_seq_length: 4096\nuse_liger: true\ntorch_dtype: bfloat16\n"
    )
    text = f"model_name_or_path: a/b\ndataset_name: c/d\nlearning_rate: 1.0e-5\noutput_dir: o\npacking: true\n{keys}"
    cut, launch = cut_text(text, "yaml", trl="1.16.0")
    entries = read_file(launch)
    assert "dataset_mixer" not in "".join(launch.files.values())
    assert not entries.keys() & {"system_prompt", "max_seq_length", "use_liger", "use_liger_kernel", "torch_dtype"}
    assert (entries["max_length"], entries["dtype"]) == ("256", "bfloat16")
    assert any("does not know them: dataset_mixer.a/b, system_prompt" in remark for remark in cut.remarks)


@pytest.mark.parametrize(
    ("text", "left_out", "kept"),
    [
        (f"{TRL} --seed $SEED --packing\n", "--seed", "--packing"),
        (f"export WANDB_API_KEY=$KEY LIMIT=$N\n{TRL}\n", "LIMIT=", "WANDB_API_KEY="),
        (f"export PYTHONPATH=$PYTHONPATH:src\n{TRL}\n", "nothing", "PYTHONPATH=$PYTHONPATH:src"),
        (f"cd /no/such/folder\n{TRL}\n", "cd ", "trl sft"),
        (f"{TRL} --bf16 $EXTRA_ARGS\n", "EXTRA_ARGS", "--bf16"),
        (f"{TRL} --seed $(date +%s) --packing\n", "date", "--packing"),
        (
            f"torchrun --nproc_per_node $N --master_port $PORT {TRL.replace('trl sft', 'sft.py')}\n",
            "master_port",
            "sft",
        ),
    ],
)
def test_what_only_the_script_knows_is_left_out(
    text: str, left_out: str, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An option whose value is not known has its default; a key is found, whatever it is."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    _, launch = cut_text(text)
    assert left_out not in launch.command and kept in launch.command, launch.command
    assert left_out == "nothing" or any("the value is unknown" in remark for remark in launch.cut.remarks)


LLAMAFACTORY = "src/train.py --stage sft --model_name_or_path a/b --dataset x --template qwen --output_dir o"


@pytest.mark.parametrize(
    ("text", "command"),
    [
        (
            f"torchrun --nproc_per_node 2 {LLAMAFACTORY} --enable_liger_kernel\n",
            "--nproc_per_node 2 -m llamafactory.launcher --stage sft",
        ),
        (f"accelerate launch examples/scripts/{SFT}\n", "accelerate launch -m trl.scripts.sft --model_name_or_path"),
        (f"accelerate launch {SFT}\n", "accelerate launch sft.py"),
    ],
)
def test_the_installed_program_replaces_one_of_a_checkout_that_is_not_here(text: str, command: str) -> None:
    cut, launch = cut_text(text)
    assert command in launch.command, launch.command
    assert "liger" not in launch.command
    assert any("was not found" in remark for remark in cut.remarks) == ("-m " in command)


def test_a_program_is_given_no_option_that_it_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TRL's max_length is an option of its own configurations, and this script reads another one."""
    monkeypatch.chdir(tmp_path)
    script = (
        "from transformers import HfArgumentParser, TrainingArguments\nfrom trl import SFTTrainer\n"
        "from dataclasses import dataclass\n@dataclass\nclass Own:\n    model_name: str = ''\n"
        "own, training = HfArgumentParser((Own, TrainingArguments)).parse_args_into_dataclasses()\n"
        "SFTTrainer(model=own.model_name, args=training).train()\n"
    )
    Path("sft.py").write_text(script)
    command = "python sft.py --model_name a/b --output_dir o --learning_rate 1e-5\n"
    assert "--max_length" not in cut_text(command)[1].command
    assert "--max_steps" in cut_text(command)[1].command


@pytest.mark.parametrize("text", [f"{TRL} --config $CONFIG\n", f"{TRL} --config $(find . -name x.yaml)\n"])
def test_a_configuration_that_only_the_script_knows_is_needed(text: str) -> None:
    with pytest.raises(Unanswered, match=r"needs \$.*, which only its script sets"):
        cut_text(text)


def test_arguments_of_a_script_are_asked_for() -> None:
    with pytest.raises(Unanswered, match=r"pass the script's arguments: attncheck smoke -- bash run.sh ARGUMENTS"):
        cut_text(f"CONFIG=${{1:?which}}\n{TRL} --config $CONFIG\n")


def test_a_variable_of_this_shell_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPERATURE", "0.7")
    cut, launch = cut_text(f"{GRPO} --temperature $TEMPERATURE\n", trl="1.16.0")
    assert cut.objective.policy == PolicyGradient(temperature=0.7)
    assert "$TEMPERATURE" in launch.command
    monkeypatch.delenv("TEMPERATURE")
    cut, launch = cut_text(f"{GRPO} --temperature $TEMPERATURE\n", trl="1.16.0")
    assert cut.objective.policy == PolicyGradient() and "temperature" not in launch.command


def test_names_that_the_installed_release_refuses_are_corrected() -> None:
    command = cut_text(f"{TRL} --evaluation_strategy no --torch_dtype bfloat16\n", trl="1.16.0")[1].command
    assert "--dtype bfloat16" in command and "--torch_dtype" not in command
    command = cut_text(OPENRLHF.replace("--data.max_len", "--max_len"), openrlhf="0.11.2")[1].command
    assert "--data.max_len 256" in command and " --max_len" not in command


@pytest.mark.parametrize(
    ("options", "normalisation", "policy"),
    [
        ("", "step_tokens", PolicyGradient()),
        ("--loss_type grpo --beta 0.04 --temperature 0.9", "document_tokens", PolicyGradient(temperature=0.9)),
        ("--loss_type dr_grpo", "document_sums", PolicyGradient(divisor=64.0)),
        ("--loss_type cispo --epsilon_high 5", "step_tokens", PolicyGradient(of_ratio=False)),
        ("--loss_type bnpo --use_vllm true --vllm_mode colocate", "batch_tokens", PolicyGradient()),
    ],
)
def test_trl_grpo_is_cut_to_its_update(options: str, normalisation: str, policy: PolicyGradient) -> None:
    cut, launch = cut_text(f"{GRPO} {options}\n", trl="1.16.0")
    assert cut.objective.policy == policy and cut.objective.normalisations == (normalisation,)
    assert cut.form == "prompts" and cut.environ["ATTNCHECK_DRIVER"] == "trl"
    assert "--num_generations 2" in launch.command and "vllm" not in launch.command


def test_older_trl_has_other_defaults() -> None:
    cut = cut_text(f"python grpo.py {GRPO.removeprefix('trl grpo ')}\n", trl="0.16.1")[0]
    assert (cut.form, cut.objective.normalisations) == ("prompt_texts", ("batch_tokens",))
    assert cut.objective.policy == PolicyGradient(temperature=0.9)


def test_losses_of_grpo_that_nobody_has_watched_are_refused() -> None:
    with pytest.raises(cutting.NothingToRehearse, match="GRPO loss luspo is not rehearsed yet"):
        cut_text(f"{GRPO} --loss_type luspo\n", trl="1.16.0")


@pytest.mark.parametrize("main", ["recipe.dapo.main_dapo", "recipe/dapo/main_dapo.py", "own.verl.trainer.main_ppo"])
def test_another_main_of_verls_shape_stands_for_verls(main: str) -> None:
    """Its settings that verl does not know are left out, which is reported."""
    start = f"-m {main}" if "/" not in main else main
    text = VERL_GRPO.replace("-m verl.trainer.main_ppo", start).replace("trainer.nnodes=2", "data.own_key=3")
    cut, launch = cut_text(text, verl="0.9.1")
    assert "python3 -m verl.trainer.main_ppo " in launch.command and "own_key" not in launch.command
    assert any(remark.startswith(f"{main} is not run") for remark in cut.remarks)


@pytest.mark.parametrize(("version", "is_first"), [("4.6.0", True), ("4.0.0", False)])
def test_ms_swifts_file_comes_first_if_its_release_has_no_option_for_it(version: str, is_first: bool) -> None:
    text = "swift rlhf --rlhf_type grpo --config own.yaml\n"
    own = Source("own.yaml", "model: a/b\ndataset: c.jsonl\nnum_generations: 8\n", "yaml")
    snapshot = with_package(laptop(), "ms-swift", version)
    (read,) = read_launches(
        snapshot, Source("run.sh", text, "shell"), lambda name: Absent("not available here"), {"own.yaml": own}.get
    )
    materials = cutting.make_materials(read, STAGE, 30, False, 2)
    cut = cutting.cut_job(read, materials)
    command = cutting.cut_launch(read, cut, {}, STAGE, materials).command
    assert ("--config" not in command and f"rlhf {STAGE}/own.yaml --rlhf_type" in command) == is_first
    assert ("the first argument" in cutting.describe_corrections(read, cut)) == is_first


@pytest.mark.parametrize("imported", ["verl.trainer.main_ppo", "own.main_ppo"])
def test_an_own_script_that_calls_verls_main_ppo_runs_itself(
    imported: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its configuration file has the keys that show what it trains; another program's keys show nothing."""
    monkeypatch.chdir(tmp_path)
    text = f"import hydra\nfrom {imported} import run_ppo\n@hydra.main(config_path='.', config_name='own')\n"
    (tmp_path / "start.py").write_text(f"{text}def main(config):\n    run_ppo(config)\nmain()\n")
    (tmp_path / "own.yaml").write_text("actor_rollout_ref:\n  model:\n    path: a/b\n")
    source = Source("run.sh", "python3 start.py data.train_files=a trainer.total_training_steps=9\n", "shell")
    snapshot = with_package(laptop(), "verl", "0.9.1")
    found = read_launches(snapshot, source, lambda name: Absent("not available here"), lambda path: None)
    is_known = imported.startswith("verl.")
    assert [read.job.framework for read in found] == ["verl"] * is_known
    for read in found:
        materials = cutting.make_materials(read, STAGE, 30, False, 2)
        cut = cutting.cut_job(read, materials)
        launch = cutting.cut_launch(read, cut, {}, STAGE, materials)
        assert cut.driver == "verl" and launch.command.startswith("python3 start.py "), launch.command
        assert cutting.name_model(read) == "a/b"


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("/gone/venv/bin/python sft.py", "python sft.py"),
        ("/gone/bin/torchrun --nproc_per_node 2 sft.py", "torchrun --nproc_per_node 2 sft.py"),
        (
            "accelerate launch --config_file gone.yaml --num_processes 2 sft.py",
            "accelerate launch --multi_gpu --num_processes 2 sft",
        ),
        ("accelerate launch --config_file=gone.yaml sft.py", "accelerate launch sft.py"),
    ],
)
def test_a_launcher_of_another_machine_is_the_one_here(start: str, expected: str) -> None:
    launch = cut_text(f"{start} {TRL.removeprefix('trl sft ')}")[1]
    assert launch.command.startswith(expected), launch.command
    assert ("gone.yaml" in start) == any("gone.yaml was not found" in remark for remark in launch.cut.remarks)


def test_a_script_that_hydra_configures_is_cut_in_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes no options; its files name the model and the data, which are replaced where it loads them."""
    monkeypatch.chdir(tmp_path)
    text = "import hydra\nfrom trl import DPOConfig, DPOTrainer\n@hydra.main(config_path='conf', config_name='dpo')\n"
    text += "def main(cfg):\n    args = DPOConfig(**cfg.args)\n    DPOTrainer(cfg.model, args=args).train()\nmain()\n"
    (tmp_path / "dpo.py").write_text(text)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "dpo.yaml").write_text("model: a/b\nargs:\n  output_dir: o\n")
    cut, launch = cut_text("python dpo.py --config-name=dpo", trl="1.16.0", transformers="5.24.0")
    assert launch.command.startswith("python dpo.py --config-name=dpo") and "max_steps" not in launch.command
    assert '"max_steps": "30"' in launch.cut.environ["ATTNCHECK_SETTINGS"] and "ATTNCHECK_MODEL" in cut.environ
    (tmp_path / "conf" / "dpo.yaml").unlink()
    assert "max_steps" not in cut_text("python dpo.py --config-name=dpo", trl="1.16.0")[1].command


def test_a_script_with_a_parser_gets_the_columns_that_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows are texts as well as messages, and it labels them itself."""
    monkeypatch.chdir(tmp_path)
    text = "from trl import ModelConfig, SFTConfig, SFTTrainer, TrlParser\nfrom data import load\n"
    text += "args, model = TrlParser((SFTConfig, ModelConfig)).parse_args_and_config()\n"
    (tmp_path / "sft.py").write_text(
        f"{text}SFTTrainer(model.model_name_or_path, args=args, train_dataset=load()).train()"
    )
    (tmp_path / "data.py").write_text("def load():\n    return []\n")
    command = f"python sft.py {TRL.removeprefix('trl sft ')}"
    assert cut_text(command, trl="1.16.0")[0].form == "messages"
    (tmp_path / "data.py").write_text("def load():\n    return [{'text': row['instruction']} for row in rows]\n")
    cut = cut_text(command, trl="1.16.0")[0]
    assert (cut.form, cut.objective.targets) == ("every", "labelled")
    (tmp_path / "data.py").write_text("MARKER = '<|im_start|>assistant'\n")
    (read,) = read_launches(laptop(), Source("run.sh", command, "shell"), lambda name: Absent("x"), lambda path: None)
    assert find_marker(read) == "<|im_start|>"


def test_switches_that_now_need_a_value_get_one() -> None:
    """transformers 5.24 refuses `--bf16` alone."""
    command = cut_text(f"{TRL} --bf16 --tf32 --packing", trl="1.16.0", transformers="5.24.0")[1].command
    assert "--bf16 true" in command and "--tf32" not in command and "--packing" in command
    snapshot = with_package(with_package(laptop(), "trl", "1.16.0"), "transformers", "5.24.0")
    source = Source("run.sh", f"{TRL} --bf16 --tf32", "shell")
    (read,) = read_launches(snapshot, source, lambda name: Absent("not cached"), lambda path: None)
    cut = cutting.cut_job(read, cutting.make_materials(read, "/stage", 30, False, 2))
    assert cutting.describe_corrections(read, cut).endswith("with these corrections: bf16 is true")


def test_a_file_of_another_machine_is_found_near_the_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By as much of its path as is here; one that is not stays as it is written."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "acc.yaml").touch()
    (tmp_path / "train_sft.py").touch()
    start = "accelerate launch --config_file /root/own/configs/acc.yaml /root/own/train_sft.py --own=/root/none.txt"
    options = f"{TRL.removeprefix('trl sft ')} --per_device_train_batch_size 2"
    command = cut_text(f"{start} {options}\n")[1].command
    expected = f"--config_file {tmp_path}/configs/acc.yaml {tmp_path}/train_sft.py --own=/root/none.txt"
    assert expected in command
    start = "accelerate launch --config_file ~/own/configs/acc.yaml $ROOT/train_sft.py --own=/root/none.txt"
    assert expected in cut_text(f"{start} {options}\n")[1].command
    start = "accelerate launch --config_file own/configs/acc.yaml own/train_sft.py --own=/root/none.txt"
    assert expected in cut_text(f"{start} {options}\n")[1].command  # from the folder above


@pytest.mark.parametrize(
    ("trainer", "form", "text"),
    [
        (
            "rloo",
            "prompts",
            "the sum over each document's target tokens, averaged over documents, of -advantage × ratio",
        ),
        ("kto", "preference", "the preference loss kto with beta 0.1, the mean over answers"),
        ("kto --desirable_weight 2.0", "preference", "a mean over target tokens, as its author defines it"),
        ("reward", "implicit_preference", "a mean over target tokens, as its author defines it"),
        (
            "cpo --loss_type simpo --cpo_alpha 0 --simpo_gamma 1.6",
            "preference",
            "the preference loss simpo with beta 0.1, the mean over pairs, without a reference, a margin of 1.6",
        ),
        ("cpo --alpha 0.3", "preference", "a mean over target tokens, as its author defines it"),
        ("bco --beta 0.2", "preference", "the preference loss bco with beta 0.2, the mean over answers"),
    ],
)
def test_trainers_of_trl_are_cut(trainer: str, form: str, text: str) -> None:
    cut, launch = cut_text(TRL.replace("sft", trainer, 1).replace("--max_length 4096", ""), trl="1.16.0")
    assert (cut.form, cut.objective.text) == (form, text)
    assert launch.command.startswith(f"trl {trainer.split()[0]} ") and "--max_steps=30" in launch.command.replace(
        "--max_steps 30", "--max_steps=30"
    )


COPY = """
from dataclasses import dataclass
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments
@dataclass
class GRPOConfig(TrainingArguments):
    {field}: int = 8
    max_completion_length: int = 1024
@dataclass
class Arguments:
    model_name_or_path: str = ""
    dataset_name: str = ""
class GRPOTrainer(Trainer):
    pass
arguments, settings = HfArgumentParser((Arguments, GRPOConfig)).parse_args_into_dataclasses()
GRPOTrainer(AutoModelForCausalLM.from_pretrained(arguments.model_name_or_path), settings).train()
"""


@pytest.mark.parametrize(("field", "driver"), [("num_generations", "trl"), ("num_samples", "")])
def test_a_scripts_own_copy_of_grpo_is_cut_as_trls(
    field: str, driver: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its settings are set in its process, because transformers' own do not include them."""
    options = "--model_name_or_path a/b --dataset_name c/d --output_dir o --per_device_train_batch_size 1"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(COPY.format(field=field))
    cut = cut_text(f"python train.py {options} --max_completion_length 2048\n")[0]
    assert cut.driver == driver and cut.objective.is_documented == (not driver)
    settings = json.loads(cut.environ.get("ATTNCHECK_SETTINGS", "{}"))
    assert (settings.get("num_generations"), settings.get("use_vllm")) == (("2", "false") if driver else (None, None))
    assert cut.sets["per_device_train_batch_size"] == ("2" if driver else "1")
    source = Source("run.sh", f"python train.py {options}\n", "shell")
    (read,) = read_launches(laptop(), source, lambda name: Absent("no"), lambda path: None)
    materials = cutting.make_materials(read, "/stage", 30, False, 2)
    unknown = [difference.dimension for difference in list_differences(read, cut, materials, 2)]
    assert (ROLLOUTS in unknown) == bool(driver)


MS_SWIFT: Any = {"ms-swift": "4.6.0"}
SWIFT = "swift rlhf --model Qwen/Qwen2.5-0.5B-Instruct --dataset a/b --output_dir out --rlhf_type"


@pytest.mark.parametrize(
    ("options", "form", "driver"),
    [
        ("dpo --ref_model c/d", "rejected_response", ""),
        ("simpo", "rejected_response", ""),
        ("grpo --num_generations 8 --use_vllm true --reward_funcs accuracy", "rejected_response", "trl"),
    ],
)
def test_trainers_of_ms_swift_are_cut(options: str, form: str, driver: str) -> None:
    cut, launch = cut_text(f"{SWIFT} {options}\n", **MS_SWIFT)
    assert (cut.form, cut.driver, cut.objective.is_documented) == (form, driver, options.startswith("dpo"))
    assert any("reference c/d" in remark for remark in cut.remarks) == options.startswith("dpo")
    assert "c/d" not in launch.command and "use_vllm" not in launch.command


def test_the_dtype_of_ms_swift_stays() -> None:
    """Of float32 weights it trains under autocast: they are not to become float16 ones."""
    text = "swift sft --model Qwen/Qwen2.5-0.5B-Instruct --dataset a/b --output_dir out --torch_dtype float32\n"
    assert "float16" not in cut_text(text, **MS_SWIFT)[1].command


ZERO = "distributed_type: DEEPSPEED\nmixed_precision: bf16\nnum_processes: 8\n"


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (
            "accelerate launch --config_file zero.yaml train_sft.py",
            "torchrun --standalone --nproc_per_node=2 train_sft.py ",
        ),
        (
            "accelerate launch --use_deepspeed -m own.train_sft",
            "torchrun --standalone --nproc_per_node=2 -m own.train_sft ",
        ),
        ("deepspeed --num_gpus 4 train_sft.py", "torchrun --standalone --nproc_per_node=2 train_sft.py "),
        ("accelerate launch --multi_gpu --num_processes 8 train_sft.py", "accelerate launch --multi_gpu "),
    ],
)
def test_torchrun_starts_what_needs_deepspeed_without_it(start: str, expected: str) -> None:
    """On a machine without a GPU, where DeepSpeed would shard nothing; with DeepSpeed its own launcher stays."""
    text = f"{start} {SFT.removeprefix('sft.py ')} --per_device_train_batch_size 2"
    launch = cut_text(text, files={"zero.yaml": ZERO}, trl="1.16.0")[1]
    assert launch.command.startswith(expected), launch.command
    is_replaced = expected.startswith("torchrun")
    assert any(remark.startswith("DeepSpeed is not installed") for remark in launch.cut.remarks) == is_replaced
    kept = cut_text(text, files={"zero.yaml": ZERO}, trl="1.16.0", deepspeed="0.19.8")[1].command
    assert kept.startswith(start.split()[0])


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("deepspeed --num_gpus 4 --module own.train_sft", "python -m own.train_sft --local_rank=0 --"),
        ("deepspeed --num_gpus 4 --no_local_rank train_sft.py", "python train_sft.py --model"),
        ("deepspeed --num_gpus 4 --no_python train_sft", "deepspeed --num_gpus 1 --no_python train_sft --model"),
    ],
)
def test_deepspeed_does_not_start_one_process(start: str, expected: str) -> None:
    """deepspeed 0.19.8 launcher/launch.py: its two processes import torch and DeepSpeed before the program does."""
    text = f"{start} {SFT.removeprefix('sft.py ')} --per_device_train_batch_size 2"
    launch = cut_text(text, trl="1.16.0", deepspeed="0.19.8", processes=1)[1]
    assert launch.command.startswith(expected), launch.command
    assert launch.cut.environ.get("WORLD_SIZE") == (None if "--no_python" in start else "1")
    two = cut_text(text, trl="1.16.0", deepspeed="0.19.8")[1].command
    assert two.startswith(start.replace("4", "2"))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("--include localhost:0,1,2,3", "--include localhost:0,1"),
        ("--include=worker-1:4,5,6", "--include=localhost:0,1"),
        ("-i localhost:7", "-i localhost:0"),
        ("--include localhost", "--include localhost:0,1"),
    ],
)
def test_deepspeed_starts_no_more_processes_than_possible(given: str, expected: str) -> None:
    """deepspeed 0.19.8 launcher/runner.py: a process per slot, also without GPUs."""
    text = f"deepspeed {given} train_{SFT} --per_device_train_batch_size 2"
    launch = cut_text(text, trl="1.16.0", deepspeed="0.19.8")[1]
    assert launch.command.startswith(f"deepspeed {expected} train_sft.py "), launch.command


@pytest.mark.parametrize("has_flash_attn", [True, False])
def test_a_model_of_the_scripts_own_gets_the_flash_attn_that_it_imports(
    has_flash_attn: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own = "from flash_attn.flash_attn_interface import flash_attn_varlen_func\n" if has_flash_attn else "x = 1\n"
    (tmp_path / "own_model.py").write_text(own)
    (tmp_path / "train_sft.py").write_text("import own_model\nfrom trl import SFTTrainer\n")
    text = f"python train_{SFT} --per_device_train_batch_size 2"
    (read,) = read_launches(laptop(), Source("run.sh", text, "shell"), lambda name: Absent("no"), lambda path: None)
    cut = cutting.cut_job(read, cutting.make_materials(read, "/stage", 30, False, 2))
    assert cut.emulates_flash_attn == has_flash_attn


def test_torchrun_starts_what_accelerate_shards_by_fsdp() -> None:
    """accelerate 1.15.0 has no FSDP on a CPU."""
    text = f"accelerate launch --config_file fsdp.yaml {SFT.removeprefix('sft.py ')} --per_device_train_batch_size 2"
    files = {"fsdp.yaml": "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 4\n"}
    launch = cut_text(text.replace("fsdp.yaml ", "fsdp.yaml train_sft.py "), files=files, trl="1.16.0")[1]
    assert launch.command.startswith("torchrun --standalone --nproc_per_node=2 train_sft.py ")
    assert launch.cut.environ["ACCELERATE_MIXED_PRECISION"] == "bf16"
    assert "FSDP needs a GPU: torchrun starts the processes, without sharding" in launch.cut.remarks


def test_a_file_of_an_installed_package_is_its_module() -> None:
    script = '$(python -c "import swift; print(swift.__path__[0])")/cli/sft.py'
    command = cut_text(f"torchrun --nproc_per_node 2 {script} {SWIFT.partition('rlhf ')[2]} x\n", **MS_SWIFT)[1].command
    assert command.startswith("torchrun --nproc_per_node 2 -m swift.cli.sft --model ")


def test_a_program_of_another_machine_is_the_examined_environments() -> None:
    command = cut_text(f"/data2/anaconda3/envs/vcts/bin/{SWIFT} dpo --beta 0.2\n", **MS_SWIFT)[1].command
    assert command.startswith("swift rlhf --model ")


def test_uv_does_not_choose_the_environment() -> None:
    for start in ("uv run python", "uv run", "uv run --no-sync torchrun"):
        command = cut_text(f"{start} train_{SFT} --per_device_train_batch_size 2", trl="1.16.0")[1].command
        assert command.startswith("torchrun train_sft.py " if "torchrun" in start else "python train_sft.py ")


def test_a_framework_next_to_the_launch_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own templates and names are those of the launch, not the installed release's."""
    monkeypatch.chdir(tmp_path)
    package = tmp_path / "src" / "llamafactory" / "hparams"
    package.mkdir(parents=True)
    for name in ("__init__.py", "../__init__.py", "parser.py"):
        (package / name).touch()
    launch = Launch(Source("x.yaml", "", "yaml"), program=Program("src/llamafactory/hparams/parser.py", "dataclasses"))
    cut = cutting.take_vendored(launch, JobCut({}, "messages", UNDOCUMENTED), "llamafactory")
    assert cut.environ["PYTHONPATH"] == str(tmp_path / "src")
    assert cut.remarks == ("llamafactory is taken from the launch's folder, src",)
    installed = replace(launch, program=Program("/x/site-packages/llamafactory/hparams/parser.py", "dataclasses"))
    assert cutting.take_vendored(installed, cut, "llamafactory") == cut
    word = Word("verl.trainer.sft_trainer", (0, 0), SourceLocation())
    shown = replace(launch, program=Program("verl/trainer/sft_trainer.py", "hydra"), words=(word,))
    assert cutting.take_vendored(shown, cut, "verl") == cut  # a configuration of an installed package
    script = replace(launch, program=Program("src/train.py", "dataclasses"))
    assert cutting.take_vendored(script, cut, "trl") == cut
    assert cutting.take_vendored(script, cut, "llamafactory").environ["DISABLE_VERSION_CHECK"] == "1"
    monkeypatch.chdir(tmp_path.parent)  # a script that enters the framework's folder
    entered = cutting.take_vendored(replace(launch, directories=(tmp_path.name,)), cut, "llamafactory")
    assert entered.environ["PYTHONPATH"].startswith(str(tmp_path / "src"))


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("pyproject.toml", '[project.scripts]\nown-cli = "own.cli:main"\n'),
        ("setup.py", 'setup(entry_points={"console_scripts": ["own-cli=own.cli:main"]})\n'),
        ("setup.cfg", "[options.entry_points]\nconsole_scripts =\n    own-cli = own.cli:main\n"),
        ("setup.cfg", "[options.entry_points]\nconsole_scripts =\n    its-own-cli = own.cli:main\n"),
    ],
)
def test_a_console_script_of_the_project_starts(
    file: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after `pip install -e .`, also without it; another project's stays as it is written."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / file).write_text(text)
    options = "--model_name_or_path a/b --data_path x.json --output_dir o --per_device_train_batch_size 2"
    launch = cut_text(f"own-cli dpo {options} --gradient_accumulation_steps 4 --launcher $LEFT_OUT $ARGS\n")[1]
    if "its-own" in text:
        assert launch.command.startswith("own-cli dpo ") and not launch.files
        return
    ((path, code),) = launch.files.items()
    assert (
        launch.command.startswith(f"python {path} dpo ")
        and launch.command.count(" dpo ") == 1
        and launch.cut.environ["NPROC_PER_NODE"] == "2"
    )
    assert code == "from own.cli import main\nmain()\n"


def test_a_configuration_alone_starts_its_checkouts_console_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text('[project.scripts]\nllamafactory-cli = "llamafactory.cli:main"\n')
    launch = cut_text(LLAMAFACTORY_FILE, "yaml", llamafactory="0.9.5")[1]
    assert launch.command == "python /stage/start-llamafactory-cli.py train /stage/rehearsed_x.yaml"
    assert launch.files["/stage/start-llamafactory-cli.py"].endswith("main()\n")


def test_a_script_takes_its_loss_from_its_own_options(tmp_path: Path) -> None:
    option = Setting("loss_type", "args.loss_type", SourceLocation(), (0, 0), known=False)
    (read,) = read_launches(laptop(), Source("run.sh", TRL, "shell"), lambda name: Absent("no"), lambda path: None)
    job, launch = replace(read.job, settings=(option,)), read.recognised.launch
    assert resolve_options(launch, job).settings == (option,)
    defaults = Program("train.py", "argparse", {"loss_type": ProgramOption("str", "ipo")})
    assert resolve_options(replace(launch, program=defaults), job).settings[0].value == "ipo"


def test_a_launch_starts_where_its_program_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that its users run in its own folder; and a project's packages are importable, as after installing."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "tasks"
    folder.mkdir()
    (folder / "train_sft.py").touch()
    source = Source("tasks/run.sh", f"python train_{SFT} --per_device_train_batch_size 2", "shell")
    (read,) = read_launches(laptop(), source, lambda name: Absent("no"), lambda path: None)
    materials = cutting.make_materials(read, "/stage", 30, False, 2)
    launch = cutting.cut_launch(read, cutting.cut_job(read, materials), {}, "/stage", materials)
    assert launch.command.startswith(f"cd {folder} && python train_sft.py ")
    assert "ATTNCHECK_PROJECT" not in launch.cut.environ
    (tmp_path / "pyproject.toml").touch()
    launch = cutting.cut_launch(read, cutting.cut_job(read, materials), {}, "/stage", materials)
    assert launch.cut.environ["ATTNCHECK_PROJECT"] == str(tmp_path)
    (tmp_path / "open-r1").mkdir()
    (tmp_path / "open-r1" / "setup.py").touch()  # a project inside the launch's, which its users install too
    launch = cutting.cut_launch(read, cutting.cut_job(read, materials), {}, "/stage", materials)
    assert launch.cut.environ["ATTNCHECK_PROJECT"] == f"{tmp_path}:{tmp_path / 'open-r1'}"
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", Mock(side_effect=PermissionError))
        launch = cutting.cut_launch(read, cutting.cut_job(read, materials), {}, "/stage", materials)
    assert launch.cut.environ["ATTNCHECK_PROJECT"] == str(tmp_path)  # its folder may be entered, but not listed
    (tmp_path / "train_sft.py").touch()
    launch = cutting.cut_launch(read, cutting.cut_job(read, materials), {}, "/stage", materials)
    assert launch.command.startswith("python train_sft.py ")


def test_the_project_of_a_launch_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script in a folder that the launch does not name, and a module of a package with a setup.py further down."""
    monkeypatch.chdir(tmp_path)
    inner = tmp_path / "parts" / "trainer"
    (inner / "src" / "own").mkdir(parents=True)
    (inner / "setup.py").touch()
    (inner / "train_sft.py").touch()
    options = f"{SFT.partition(' ')[2]} --per_device_train_batch_size 2"
    launches = {
        "run.sh": (f"cd gone\npython train_sft.py {options}", f"cd {inner} && python train_sft.py "),
        "parts/trainer/run.sh": (f"torchrun -m own.train_sft {options}", "torchrun -m own.train_sft "),
    }
    for name, (text, start) in launches.items():
        (read,) = read_launches(laptop(), Source(name, text, "shell"), lambda name: Absent("no"), lambda path: None)
        materials = cutting.make_materials(read, "/stage", 30, False, 2)
        launch = cutting.cut_launch(read, cutting.cut_job(read, materials), {}, "/stage", materials)
        assert launch.command.startswith(start)
        assert launch.cut.environ["ATTNCHECK_PROJECT"].split(":")[:2] == [str(inner / "src"), str(inner)]


def test_the_lengths_of_a_prompt_and_its_answer_are_cut(tmp_path: Path) -> None:
    """A script may pad every row to their sum."""
    options = (
        "--model_name_or_path m --data_path d.jsonl --output_dir o --max_source_length 1024 --max_target_length 256"
    )
    source = Source("run.sh", f"python train.py {options} --learning_rate 1e-4", "shell")
    (read,) = read_launches(laptop(), source, lambda name: Absent("no"), lambda path: None)
    materials = cutting.make_materials(read, str(tmp_path), 30, False, 2)
    cut = cutting.cut_job(read, materials).options
    assert {cut["max_source_length"], cut["max_target_length"]} == {str(materials.max_length)}


def test_a_file_of_unknown_place_is_found_if_it_is_the_only_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("a/parts/main.py", "a/parts/other.py", "b/parts/other.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    assert find_below("parts/main.py") == str(tmp_path / "a" / "parts" / "main.py")
    assert not find_below("parts/other.py") and not find_below("/parts/main.py") and not find_below("own.main")


def test_a_file_of_rows_is_the_data() -> None:
    text = "python train.py --model_path a/b --eval_file e.jsonl --rows_at x/y.jsonl --output_dir o --lr 1e-5"
    (read,) = read_launches(laptop(), Source("run.sh", text, "shell"), lambda name: Absent("no"), lambda path: None)
    assert find_data_option(read.recognised.launch) == "rows_at"


@pytest.mark.parametrize(
    ("script", "given", "expected"),
    [
        ("rows = load_dataset(args.dataset)", "own/data", "own/data"),  # the script may choose by it
        ("if args.dataset == 'alpaca': pass", "alpaca", "alpaca"),
        ("rows = load_dataset(args.dataset)", "alpaca", "/stage/data"),
        ("rows = load_from_disk(args.dataset)", "data/alpaca", "/stage/data"),
        ("rows = load_from_disk(args.dataset)", "./alpaca", "/stage/data"),
    ],
)
def test_the_name_of_a_data_set_that_the_script_loads_stays(
    script: str, given: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(f"from transformers import Trainer, TrainingArguments\n{script}\nTrainer()\n")
    options = "--model a/b --output_dir o --per_device_train_batch_size 2 --gradient_accumulation_steps 4"
    command = cut_text(f"python train.py {options} --dataset {given}\n")[1].command
    assert f"--dataset {expected}" in command


@pytest.mark.parametrize(
    ("read", "form"),
    [
        ("row['prompt'], row['chosen'], row['rejected']", "preference_text"),
        ("row['chosen']", "every"),
        ("row['messages'], row['chosen'], row['rejected']", "every"),
    ],
)
def test_a_script_that_compares_answers_gets_pairs(
    read: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = f"from transformers import Trainer, TrainingArguments\nprint({read})\nTrainer()\n"
    (tmp_path / "train.py").write_text(text)
    options = "--model a/b --dataset x.json --output_dir o --per_device_train_batch_size 2"
    assert cut_text(f"python train.py {options} --gradient_accumulation_steps 4\n")[0].form == form


def test_a_program_that_the_shell_looks_up_stays() -> None:
    text = "torchrun --nproc_per_node 2 $(which swift) sft --model a/b --dataset c --output_dir o\n"
    assert "$(which swift) sft" in cut_text(text, **MS_SWIFT)[1].command
    assert not runs_command("$(which swift)") and not runs_command("`command -v swift`")
    assert runs_command("$(which $(curl x))") and runs_command("$(which swift; curl x)")


def test_options_that_a_release_removed_are_left_out() -> None:
    text = "swift sft --model a/b --dataset c --output_dir o --ckpt_dir d --num_infer_workers 2 --train_type full\n"
    launch = cut_text(text, **MS_SWIFT)[1]
    assert "ckpt_dir" not in launch.command and "num_infer" not in launch.command and "--tuner_type" in launch.command


def test_a_folder_next_to_the_script_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`cd "$ROOT/x"`, with a ROOT that is computed from the script's own path."""
    monkeypatch.chdir(tmp_path)
    root = 'ROOT="$( cd "$( dirname "${BASH_SOURCE[0]}" )/.." && pwd )"'
    text = f"{root}\ncd $ROOT/parts\npython train_{SFT} --per_device_train_batch_size 2\n"
    source = Source("scripts/run.sh", text, "shell")
    (read,) = read_launches(laptop(), source, lambda name: Absent("no"), lambda path: None)
    assert read.recognised.launch.folder == "parts"


@pytest.mark.parametrize(("collator", "targets"), [("data_collator=own", "labelled"), ("data_collator=None", "all")])
def test_the_tokens_that_a_script_collates_itself_are_those_that_it_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, collator: str, targets: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train_sft.py").write_text(f"from trl import SFTTrainer\nSFTTrainer(model, args, {collator})\n")
    text = f"python train_{SFT} --per_device_train_batch_size 2"
    (read,) = read_launches(laptop(), Source("run.sh", text, "shell"), lambda name: Absent("no"), lambda path: None)
    cut = cutting.cut_job(read, cutting.make_materials(read, "/stage", 30, False, 2))
    assert cut.objective.targets == targets


def test_a_verl_next_to_the_launch_must_have_the_workers_that_are_driven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python imports it before the installed one, and older ones have other workers."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "verl" / "workers").mkdir(parents=True)
    (tmp_path / "verl" / "__init__.py").touch()
    with pytest.raises(Unanswered, match="the verl next to the launch has neither workers"):
        cut_text(VERL_GRPO, verl="0.9.1")
    (tmp_path / "verl" / "workers" / "engine_workers.py").touch()
    assert cut_text(VERL_GRPO, verl="0.9.1")[0].driver == "verl"


@pytest.mark.parametrize("folder", ["", "verl"])
def test_the_actor_of_an_old_verl_next_to_the_launch_is_driven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    """Its main function composes the configuration, and only names that the launch has are written into the command."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / folder / "verl" / "workers" / "actor").mkdir(parents=True)
    (tmp_path / folder / "verl" / "__init__.py").touch()
    (tmp_path / folder / "verl" / "workers" / "actor" / "dp_actor.py").touch()
    cut, launch = cut_text(VERL_GRPO.replace("verl.trainer.main_ppo", "recipe.mine.main"), verl="0.9.1")
    assert cut.driver == "verl_actor" and cut.program == "verl.trainer.main_ppo"
    assert launch.cut.environ["PYTHONPATH"].split(":")[0] == str(tmp_path / folder)
    assert cut.objective.normalisations == ("batch_tokens",)
    dynamic = cut_text(VERL_GRPO.replace("$@", "actor_rollout_ref.actor.use_dynamic_bsz=True"), verl="0.9.1")[0]
    assert dynamic.objective.normalisations == ("batch_rows", "batch_tokens")
    assert json.loads(cut.environ["ATTNCHECK_OVERRIDES"])["actor_rollout_ref.actor.ppo_max_token_len_per_gpu"] == "128"
    assert "ppo_mini_batch_size=6 " in launch.command and "ppo_max_token_len_per_gpu" not in launch.command
    (tmp_path / folder / "recipe" / "mine").mkdir(parents=True)
    (tmp_path / folder / "recipe" / "mine" / "main.py").touch()
    assert not cut_text(VERL_GRPO.replace("verl.trainer.main_ppo", "recipe.mine.main"), verl="0.9.1")[0].program


def test_values_of_an_old_verls_own_configuration_are_those_of_its_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in WangHanLinHenry/EVU: temperature 0.8, which no launch sets."""
    monkeypatch.chdir(tmp_path)
    config = "actor_rollout_ref: {actor: {loss_agg_mode: seq-mean-token-mean}, rollout: {temperature: 0.8}}\n"
    main = (
        "import hydra\n@hydra.main(config_path='config', config_name='ppo_trainer')\ndef main(config): pass\nmain()\n"
    )
    files = {"__init__.py": "", "workers/actor/dp_actor.py": "", "trainer/config/ppo_trainer.yaml": config}
    for name, text in {**files, "trainer/main_ppo.py": main}.items():
        (tmp_path / "verl" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "verl" / name).write_text(text)
    objective = cut_text(VERL_GRPO, verl="0.4.0")[0].objective
    assert objective.policy == PolicyGradient(temperature=0.8) and objective.normalisations == ("document_tokens",)
    objective = cut_text(VERL_GRPO.replace("$@", "actor_rollout_ref.rollout.temperature=0.5"), verl="0.4.0")[
        0
    ].objective
    assert objective.policy == PolicyGradient(temperature=0.5)


def test_a_users_module_starts_in_the_folder_that_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hydra's relative searchpath, and files of the job, are found from there; a framework's module is installed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub" / "recipe" / "mine").mkdir(parents=True)
    (tmp_path / "sub" / "recipe" / "mine" / "main.py").touch()
    text = "python3 -m recipe.mine.main --model_name_or_path a/b"
    launch = Launch(Source("x.sh", text, "shell"), words=(Word("recipe.mine.main", NOWHERE, SourceLocation("x.sh")),))
    assert cutting._enter_folder(launch).directories == (str(tmp_path / "sub"),)
    (tmp_path / "sub" / "verl").mkdir()
    (tmp_path / "sub" / "verl" / "main.py").touch()
    assert not cutting._enter_folder(
        replace(launch, words=(Word("verl.main", NOWHERE, SourceLocation("x.sh")),))
    ).directories


def test_keys_of_another_main_may_exist_in_verls_own_or_not() -> None:
    """A tree's own recipe has `data.gen_batch_size`, which its `main_ppo` refuses without "+"."""
    added = "+actor_rollout_ref.actor.fsdp_config.model_dtype=bfloat16 +data.mine=1"
    text = VERL_GRPO.replace("$@", added).replace("verl.trainer.main_ppo", "recipe.mine.main")
    command = cut_text(text, verl="0.9.1")[1].command
    assert "++actor_rollout_ref.actor.fsdp_config.model_dtype=bfloat16 ++data.mine=1" in command
    assert "++algorithm.adv_estimator=grpo" in command and "++actor_rollout_ref.model.path" not in command
    assert "++" not in cut_text(VERL_GRPO, verl="0.9.1")[1].command


def test_verls_activation_offload_needs_a_gpu() -> None:
    """It offloads to pinned memory, which needs one; a launch without it stays as it is."""
    key = "actor_rollout_ref.model.enable_activation_offload"
    cut, launch = cut_text(VERL_GRPO.replace("$@", f"{key}=True"), verl="0.9.1")
    assert f"{key}=False" in launch.command and any(f"activation offload ({key})" in text for text in cut.remarks)
    for text in (VERL_GRPO, VERL_GRPO.replace("$@", f"{key}=False")):
        assert not any("activation offload" in remark for remark in cut_text(text, verl="0.9.1")[0].remarks)


def test_a_key_that_is_written_twice_is_set_twice() -> None:
    """The last one counts, and a correction may have made it."""
    twice = "data.max_response_length=4096 data.max_response_length=8192"
    command = cut_text(VERL_GRPO.replace("$@", twice), verl="0.9.1")[1].command
    assert set(re.findall(r"data\.max_response_length=(\w+)", command)) == {"64"}


OLD_TREE = {
    "version/version": "0.1",
    "__init__.py": "",
    "trainer/__init__.py": "",
    "trainer/fsdp_sft_trainer.py": """import hydra
@hydra.main(config_path="config", config_name="sft_trainer", version_base=None)
def main(config):
    print(config)
""",
    "trainer/config/sft_trainer.yaml": """data:
  train_batch_size: 256
  micro_batch_size: 16
  train_files: ~/data/gsm8k/train.parquet
  val_files: ~/data/gsm8k/test.parquet
  prompt_key: question
  response_key: answer
  max_length: 1024
  balance_dp_token: False
model:
  partial_pretrain: ~/models/gemma-1.1-7b-it
optim:
  lr: 1e-5
  warmup_steps_ratio: 0.1
trainer:
  default_local_dir: /tmp/sft_model
  default_hdfs_dir: hdfs://tmp/experiments
  total_epochs: 4
  logger: ['console']
""",
}


@pytest.mark.parametrize("installed", ["0.9.1", "0.4.1"])
def test_the_source_next_to_the_launch_decides_the_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: str
) -> None:
    """`python -m` imports it first; only its own keys are set, and its loss is each micro-batch's mean."""
    monkeypatch.chdir(tmp_path)
    for name, text in OLD_TREE.items():
        (tmp_path / "verl" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "verl" / name).write_text(text)
    command = "torchrun --nproc_per_node=$1 -m verl.trainer.fsdp_sft_trainer data.prompt_key=prompt data.train_files=a"
    cut, launch = cut_text(f"{command} model.partial_pretrain=google/gemma-1.1-7b-it\n", verl=installed)
    assert "data.micro_batch_size=6 " in launch.command and "micro_batch_size_per_gpu" not in launch.command
    assert "total_training_steps" not in launch.command and "trainer.device" not in launch.command
    assert cut.objective.normalisations == ("batch_tokens",)
    assert cut.environ["ATTNCHECK_WITHOUT_GPU"] == "1" and "ATTNCHECK_VERL_DEVICE" not in cut.environ
    balanced = f"{command} data.balance_dp_token=True model.partial_pretrain=google/gemma-1.1-7b-it\n"
    assert not cut_text(balanced, verl=installed)[0].objective.is_documented


OLD_SFT = "torchrun -m verl.trainer.fsdp_sft_trainer model.partial_pretrain=a/b\n"


@pytest.mark.parametrize(
    ("place", "text", "version"),
    [
        ("fork/examples", OLD_SFT, "0.1"),
        ("fork/examples", VERL_GRPO.replace("verl.trainer.main_ppo", "recipe.mine.main"), "0.1"),
        ("elsewhere", OLD_SFT, "0.9.1"),
    ],
)
def test_the_source_above_the_launch_decides_the_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, text: str, version: str
) -> None:
    """A launch is often started from a folder above its project; another project's source does not count.

    A recipe next to the source is no package by an `__init__.py`.
    """
    monkeypatch.chdir(tmp_path)
    own = {"main.py": "fsdp_sft_trainer.py", "config/sft_trainer.yaml": "config/sft_trainer.yaml"}
    (tmp_path / "fork" / "recipe" / "mine" / "config").mkdir(parents=True)
    for name, other in own.items():
        (tmp_path / "fork" / "recipe" / "mine" / name).write_text(
            "import verl\n" * (name == "main.py") + OLD_TREE[f"trainer/{other}"]
        )
    for name, content in OLD_TREE.items():
        (tmp_path / "fork" / "verl" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "fork" / "verl" / name).write_text(content)
    snapshot = with_package(laptop(), "verl", "0.9.1")
    source = Source(f"{place}/run.sh", text, "shell")
    (read,) = read_launches(snapshot, source, lambda name: Absent("not available here"), lambda name: None)
    assert read.job.version == version


@pytest.mark.parametrize(("stated", "version"), [("", "0.10"), ("0.6.0", "0.6.0")])
def test_the_names_of_a_source_without_a_version_date_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stated: str, version: str
) -> None:
    """The source next to the launch runs, and takes no names of the installed release; before 0.11 a batch's mean."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "openrlhf" / "cli").mkdir(parents=True)
    for name in ("__init__.py", "cli/__init__.py"):
        (tmp_path / "openrlhf" / name).touch()
    if stated:
        (tmp_path / "version.txt").write_text(stated)
    options = ("pretrain", "dataset", "input_key", "max_len", "max_samples", "micro_train_batch_size", "save_path")
    lines = "\n".join(f"parser.add_argument('--{name}')" for name in (*options, "train_batch_size", "learning_rate"))
    own = f"import argparse\nif __name__ == '__main__':\n    parser = argparse.ArgumentParser()\n{lines}\n"
    own = own.replace("\nparser.add", "\n    parser.add") + "    args = parser.parse_args()\n    print(args)\n"
    (tmp_path / "openrlhf" / "cli" / "train_sft.py").write_text(own)
    text = "deepspeed --module openrlhf.cli.train_sft --pretrain a/b --dataset c --input_key text --max_len 4096\n"
    cut, launch = cut_text(text, openrlhf="0.11.2", deepspeed="0.19.6")
    assert "--pretrain a/b" not in launch.command and "--model.model_name_or_path" not in launch.command
    assert cut.objective.normalisations == ("batch_tokens",) and f"openrlhf {version}" in cut.objective.source


EASYR1 = (
    "python3 -m verl.trainer.main worker.actor.model.model_path=Qwen/Qwen3-4B worker.rollout.n=5 "
    "trainer.n_gpus_per_node=8\n"
)


@pytest.mark.parametrize(("actor", "mean"), [("total_response_tokens = 0", "step_tokens"), ("", "batch_tokens")])
def test_the_actor_of_easyr1_next_to_the_launch_is_driven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, actor: str, mean: str
) -> None:
    """Its source decides how micro-batches are weighted; without it, nothing can be driven."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Unanswered, match="is not next to the launch"):
        cut_text(EASYR1)
    (tmp_path / "verl" / "workers" / "actor").mkdir(parents=True)
    (tmp_path / "verl" / "__init__.py").touch()
    (tmp_path / "verl" / "workers" / "actor" / "dp_actor.py").write_text(actor)
    cut, launch = cut_text(EASYR1)
    assert cut.driver == "easyr1" and cut.objective.normalisations == (mean,)
    assert "worker.actor.global_batch_size=6 " in launch.command and "worker.rollout.n=2 " in launch.command
    assert "Qwen/Qwen3-4B" not in launch.command
    with pytest.raises(Unanswered, match="loss sapo with the mean token is not rehearsed yet"):
        cut_text(EASYR1.replace("n=5", "n=5 worker.actor.loss_type=sapo"))


def test_an_adapter_of_an_old_verl_is_rehearsed() -> None:
    text = VERL_GRPO.replace("$@", "actor_rollout_ref.model.lora_rank=32")
    cut, launch = cut_text(text, verl="0.5.0")
    assert cut.driver == "verl_actor" and "actor_rollout_ref.model.lora_rank=32" in launch.command


@pytest.mark.parametrize(("version", "driver"), [("0.5.0", "verl_actor"), ("0.7.1", "verl_actor"), ("0.9.1", "verl")])
def test_the_actor_of_a_release_is_driven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, driver: str
) -> None:
    """The trainer's workers are the engine's from 0.8.0, installed or next to the launch; 0.7 has both."""
    assert cut_text(VERL_GRPO, verl=version)[0].driver == driver
    monkeypatch.chdir(tmp_path)
    for name in ("__init__.py", "workers/actor/dp_actor.py", "workers/engine_workers.py", "trainer/__init__.py"):
        (tmp_path / "verl" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "verl" / name).touch()
    own = {
        "trainer/main_ppo.py": OLD_TREE["trainer/fsdp_sft_trainer.py"].replace("sft_trainer", "ppo_trainer"),
        "trainer/config/ppo_trainer.yaml": "trainer:\n  nnodes: 1\n",
        "version/version": version,
    }
    for name, text in own.items():
        (tmp_path / "verl" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "verl" / name).write_text(text)
    assert cut_text(VERL_GRPO, verl="0.9.1")[0].driver == driver


@pytest.mark.parametrize("written", ["python3.10", "/opt/conda/bin/python3.9"])
def test_another_pythons_release_is_the_examined_one(written: str) -> None:
    command = cut_text(TRL.replace("trl sft", f"{written} -m trl.scripts.sft"), trl="1.16.0")[1].command
    assert command.startswith("python -m trl.scripts.sft ")


def test_a_length_that_is_off_stays_off() -> None:
    """TRL 1.16.0 refuses a length for rows without padding that are not packed."""
    text = TRL.replace("--max_length 4096", "--padding_free --max_length null")
    assert "--max_length null" in cut_text(text, trl="1.16.0")[1].command


def test_settings_under_old_names_are_read_under_their_new_ones() -> None:
    """Which rows OpenRLHF's DPO takes, and whether its loss is known, as its 0.8 wrote it."""
    text = (
        "deepspeed --module openrlhf.cli.train_dpo --save_path o --pretrain a/b --dataset c/d --apply_chat_template "
        "--chosen_key chosen --rejected_key rejected --beta 0.1 --train_batch_size 8 --micro_train_batch_size 2"
    )
    assert cut_text(text, openrlhf="0.11.2")[0].form == "preference"
    preference = cut_text(f"{text} --nll_loss_coef 0.25", openrlhf="0.11.2")[0].objective.preference
    assert preference is not None and preference.chosen_weight == 0.25


def test_flash_attn_in_the_script_alone_is_emulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = f"python train_{SFT} --per_device_train_batch_size 2"
    for kind in ("sdpa", "flash_attention_2"):
        (tmp_path / "train_sft.py").write_text(f"from trl import SFTTrainer\nload(attn_implementation='{kind}')\n")
        (read,) = read_launches(laptop(), Source("run.sh", text, "shell"), lambda name: Absent("no"), lambda path: None)
        cut = cutting.cut_job(read, cutting.make_materials(read, "/stage", 30, False, 2))
        assert cut.emulates_flash_attn == (kind != "sdpa")


def test_an_adapter_and_a_server_of_another_job_are_left_out() -> None:
    text = (
        "model: a/b\nrlhf_type: grpo\ndataset: c\noutput_dir: o\ntrain_type: lora\nadapters:\n  - out/checkpoint-120\n"
    )
    more = "use_vllm: true\nvllm_mode: server\nvllm_server_base_url:\n  - http://x\nnum_generations: 8\n"
    files = {"grpo.yaml": text + more}
    cut, launch = cut_text("swift rlhf --config grpo.yaml --rlhf_type grpo\n", files=files, **MS_SWIFT)
    (content,) = launch.files.values()
    assert "vllm" not in content and "adapters" not in content and "tuner_type: lora" in content
    assert "the adapter's checkpoint is not loaded: a new adapter is trained" in cut.remarks


def test_trl_prepares_the_rows_of_a_configuration_alone() -> None:
    """Its own program may have done so, and told TRL to skip it."""
    text = "model_name_or_path: a/b\ndataset_name: c/d\noutput_dir: o\nlearning_rate: 1.0e-5\npacking: false\n"
    skips = "dataset_kwargs:\n  skip_prepare_dataset: true\n"
    for own in ("num_exclude: 3\n", ""):
        launch = cut_text(f"{text}{skips}{own}", "yaml", trl="1.16.0")[1]
        assert ("skip_prepare_dataset" in read_file(launch).get("dataset_kwargs", "skip_prepare_dataset")) != bool(own)


def test_a_configuration_of_another_place_is_read_next_to_the_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is cut as if it were where the launch names it, and said; one that is there comes first."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "qlora.yml").write_text("base_model: a/near\ndatasets:\n- path: x\n  type: alpaca\n")
    (tmp_path / "run.sh").write_text("accelerate launch -m axolotl.cli.train examples/llama-2/qlora.yml\n")
    request = make_rehearsal_request(("run.sh",), None, False, 0)
    snapshot = with_package(laptop(), "axolotl", "0.19.0")

    def cut() -> tuple[str, cutting.CutLaunch]:
        (read,) = read_launches_of(snapshot, request, request.sources[0])
        materials = cutting.make_materials(read, "/stage", 30, False, 2)
        return cutting.name_model(read), cutting.cut_launch(
            read, cutting.cut_job(read, materials), {}, "/stage", materials
        )

    def differ() -> tuple[Difference, ...]:
        (read,) = read_launches_of(snapshot, request, request.sources[0])
        materials = cutting.make_materials(read, "/stage", 30, False, 2)
        return list_differences(read, cutting.cut_job(read, materials), materials, 1)

    model, launch = cut()
    assert model == "a/near" and launch.command.endswith("axolotl.cli.train /stage/qlora.yml")
    assert any("examples/llama-2/qlora.yml was not found" in remark for remark in launch.cut.remarks)
    assert [own.dimension for own in differ()] == ["configuration file"]
    faulty = CheckResult("documents", violations=("they influence each other",))
    assert leave_unasked([faulty], differ())[0].outcome == "skipped"  # another file's fault is not the launch's
    (tmp_path / "examples" / "llama-2").mkdir(parents=True)
    (tmp_path / "examples" / "llama-2" / "qlora.yml").write_text("base_model: a/there\n")
    request = make_rehearsal_request(("run.sh",), None, False, 0)
    model, launch = cut()
    assert model == "a/there" and not any("was not found" in remark for remark in launch.cut.remarks)
    assert not differ()


def test_a_configuration_that_a_script_writes_or_that_is_above_it_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "repo" / "jobs").mkdir(parents=True)
    (tmp_path / "repo" / ".git").mkdir()
    monkeypatch.chdir(tmp_path / "repo" / "jobs")
    settings = "base_model: a/own\ndatasets:\n- path: x\n  type: alpaca\n"
    (tmp_path / "repo" / "above.yml").write_text(settings)
    command = "accelerate launch -m axolotl.cli.train"
    Path("written.sh").write_text(f"cat > own.yml <<'EOF'\n{settings}EOF\n{command} own.yml\n")
    Path("run.sh").write_text(f"{command} above.yml\n")
    snapshot = with_package(laptop(), "axolotl", "0.19.0")
    for name in ("written.sh", "run.sh"):
        request = make_rehearsal_request((name,), None, False, 0)
        (read,) = read_launches_of(snapshot, request, request.sources[0])
        materials = cutting.make_materials(read, "/stage", 30, False, 2)
        assert cutting.name_model(read) == "a/own"
        assert not list_differences(read, cutting.cut_job(read, materials), materials, 1), name


def test_the_folders_above_a_launch_end_at_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.sh").write_text("trl sft --model_name_or_path a/b --dataset_name c/d --output_dir o\n")
    for folder, last in ((tmp_path, tmp_path), (Path("/"), Path("/"))):
        monkeypatch.chdir(folder)
        request = make_rehearsal_request((str(tmp_path / "run.sh"),), None, False, 0)
        (read,) = read_launches_of(laptop(), request, request.sources[0])
        folders = list(itertools.islice(list_folders_above(read.recognised.launch), 50))
        assert folders[0] == str(tmp_path) and folders[-1] == str(last) and len(folders) < 50
