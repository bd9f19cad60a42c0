"""How launches of each framework are cut small: text in, the command and the file that would run out."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from attncheck.core.facts import Absent, Known
from attncheck.core.io.errors import Unanswered
from attncheck.core.job import DROP, Job
from attncheck.core.launch import NOWHERE, Kind, Setting, Source, SourceLocation
from attncheck.core.preferences import Preference
from attncheck.core.rehearsal import JobCut, Normalisation, PolicyGradient
from attncheck.lint.fields.preferring import read_preference
from attncheck.lint.files.configuration import parse_entries
from attncheck.lint.frameworks.trl.policy_rehearsal import cut_policy
from attncheck.lint.frameworks.verl.policy_rehearsal import _cut_sizes
from attncheck.lint.rewriting import read_launches
from attncheck.rehearsal import cutting
from tests import snapshots as s

STAGE = "/stage"
LLAMAFACTORY = """model_name_or_path: Qwen/Qwen2.5-0.5B-Instruct
stage: sft
do_train: true
finetuning_type: full
dataset: identity,alpaca_en_demo
template: qwen
cutoff_len: 2048
preprocessing_num_workers: 16
output_dir: saves/qwen
deepspeed: examples/deepspeed/ds_z3_config.json
per_device_train_batch_size: 4
gradient_accumulation_steps: 8
learning_rate: 1.0e-5
bf16: true
"""
LLAMAFACTORY_DPO = f"{LLAMAFACTORY.replace('stage: sft', 'stage: dpo')}pref_loss: sigmoid\npref_beta: 0.1\n"
MS_SWIFT = """NPROC_PER_NODE=8 swift sft --model Qwen/Qwen2.5-7B-Instruct --tuner_type full \\
    --dataset 'AI-ModelScope/alpaca-gpt4-data-zh#500' 'swift/self-cognition#500' --torch_dtype bfloat16 \\
    --per_device_train_batch_size 4 --gradient_accumulation_steps 16 --packing true --attn_impl flash_attn \\
    --max_length 2048 --use_liger_kernel true --output_dir output --model_author swift
"""
MS_SWIFT_DPO = """NPROC_PER_NODE=8 swift rlhf --rlhf_type dpo --model Qwen/Qwen2.5-7B-Instruct --tuner_type full \\
    --dataset hjh0119/shareAI-Llama3-DPO-zh-en-emoji --torch_dtype bfloat16 --per_device_train_batch_size 2 \\
    --gradient_accumulation_steps 8 --max_length 2048 --output_dir output --beta 0.2
"""
AXOLOTL = """base_model: NousResearch/Llama-3.2-1B
datasets:
  - path: teknium/GPT4-LLM-Cleaned
    type: alpaca
val_set_size: 0.1
output_dir: ./outputs/out
adapter: qlora
lora_r: 8
lora_alpha: 16
lora_target_linear: true
load_in_4bit: true
sequence_len: 2048
sample_packing: true
micro_batch_size: 2
gradient_accumulation_steps: 4
num_epochs: 1
optimizer: adamw_8bit
learning_rate: 0.0002
bf16: auto
attn_implementation: flash_attention_2
wandb_project: mine
plugins:
  - axolotl.integrations.liger.LigerPlugin
liger_rope: true
"""
OPENRLHF = """deepspeed --num_gpus 8 --module openrlhf.cli.train_sft --data.dataset Open-Orca/OpenOrca \\
   --data.input_key question --data.output_key response --train.batch_size 256 --train.micro_batch_size 2 \\
   --model.model_name_or_path meta-llama/Meta-Llama-3-8B --ds.packing_samples --ds.use_liger_kernel \\
   --ckpt.output_dir ./checkpoint --data.max_len 2048 --logger.wandb.key mine
"""
OPENRLHF_DPO = """deepspeed --num_gpus 8 --module openrlhf.cli.train_dpo --data.dataset own/pairs \\
   --data.apply_chat_template --data.chosen_key good --data.rejected_key bad --train.batch_size 256 \\
   --train.micro_batch_size 2 --model.model_name_or_path meta-llama/Meta-Llama-3-8B --model.beta 0.1 \\
   --ref.model_name_or_path own/reference --ds.packing_samples --ckpt.output_dir ./checkpoint --data.max_len 2048
"""
TRL = """trl sft --model_name_or_path Qwen/Qwen2.5-7B --dataset_name own/data --output_dir out --max_length 4096 \\
   --per_device_train_batch_size 4 --gradient_accumulation_steps 8 --learning_rate 2e-5 --packing
"""
TRL_DPO = """trl dpo --model_name_or_path Qwen/Qwen2.5-7B-Instruct --dataset_name trl-lib/ultrafeedback_binarized \\
   --output_dir out --per_device_train_batch_size 4 --gradient_accumulation_steps 8 --learning_rate 5e-7 --beta 0.05 \\
   --no_remove_unused_columns --eval_strategy steps --eval_steps 50
"""


VERL = """torchrun --nnodes=2 --node_rank=$((I % N)) --nproc_per_node=8 -m verl.trainer.sft_trainer \\
    data.train_files=$HOME/data/train.parquet data.val_files=$HOME/data/test.parquet data.train_batch_size=256 \\
    data.pad_mode=no_padding data.max_token_len_per_gpu=8192 model.path=Qwen/Qwen2.5-0.5B-Instruct \\
    model.use_remove_padding=True engine=fsdp engine.strategy=fsdp engine.ulysses_sequence_parallel_size=2 \\
    optim=fsdp optim.lr=1e-5 trainer.total_epochs=2 "trainer.logger=['console','wandb']"
"""
OLD_VERL = """torchrun --standalone --nnodes=1 --nproc_per_node=8 -m verl.trainer.fsdp_sft_trainer \\
    data.train_files=$HOME/data/gsm8k/train.parquet data.val_files=$HOME/data/gsm8k/test.parquet \\
    data.prompt_key=question data.response_key=answer data.train_batch_size=8 data.micro_batch_size_per_gpu=2 \\
    model.partial_pretrain=Qwen/Qwen2.5-0.5B-Instruct model.use_liger=True trainer.project_name=gsm8k-sft \\
    "trainer.logger=['console','wandb']" ulysses_sequence_parallel_size=2 use_remove_padding=true
"""
VERL_GRPO = """python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=$HOME/train.parquet \\
    data.train_batch_size=1024 data.max_prompt_length=512 data.max_response_length=1024 \\
    actor_rollout_ref.model.path=Qwen/Qwen3-8B actor_rollout_ref.model.use_remove_padding=True \\
    actor_rollout_ref.model.enable_gradient_checkpointing=True actor_rollout_ref.actor.optim.lr=1e-6 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=256 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32 \\
    actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_coef=0.001 \\
    actor_rollout_ref.actor.fsdp_config.param_offload=True actor_rollout_ref.rollout.name=vllm \\
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=32 actor_rollout_ref.rollout.n=5 \\
    trainer.n_gpus_per_node=8 trainer.nnodes=2 trainer.total_epochs=15 $@
"""
OPENRLHF_PPO = """ray job submit --address="http://127.0.0.1:8265" --runtime-env-json='{"env_vars": {"A": "1"}}' -- \\
   python3 -m openrlhf.cli.train_ppo_ray --actor.num_nodes 1 --actor.num_gpus_per_node 8 --vllm.num_engines 4 \\
   --train.colocate_all --algo.advantage.estimator reinforce_baseline --actor.model_name_or_path Qwen/Qwen3-4B \\
   --reward.remote_url http://localhost:5000/get_reward --train.micro_batch_size 8 --train.batch_size 128 \\
   --rollout.micro_batch_size 16 --rollout.batch_size 1024 --rollout.n_samples_per_prompt 8 --ds.zero_stage 2 \\
   --ds.param_dtype bf16 --actor.adam.lr 5e-7 --algo.kl.init_coef 1e-3 --algo.kl.use_loss --algo.kl.estimator k2 \\
   --data.prompt_dataset OpenRLHF/prompt-collection-v0.1 --ds.packing_samples --vllm.enable_sleep \\
   --ds.attn_implementation flash_attention_2 --actor.gradient_checkpointing_enable
"""
# In the names of the releases up to 0.10.1.
OLD_OPENRLHF_PPO = """ray job submit --address="http://127.0.0.1:8265" -- python3 -m openrlhf.cli.train_ppo_ray \\
   --actor_num_nodes 1 --actor_num_gpus_per_node 8 --vllm_num_engines 8 --pretrain Qwen/Qwen2.5-7B \\
   --reward_pretrain OpenRLHF/Llama-3-8b-rm-mixture --micro_train_batch_size 8 --train_batch_size 128 \\
   --micro_rollout_batch_size 16 --rollout_batch_size 1024 --n_samples_per_prompt 4 --advantage_estimator group_norm \\
   --zero_stage 2 --bf16 --actor_learning_rate 5e-7 --init_kl_coef 0.01 --use_kl_loss --save_path out \\
   --prompt_data OpenRLHF/prompt-collection-v0.1 --apply_chat_template --packing_samples --flash_attn \\
   --gradient_checkpointing --use_wandb key --temperature 0.6
"""
# Its batches are laid out by tokens, and its trainer is the one that pads.
VERL_DAPO = VERL_GRPO.replace("ppo_micro_batch_size_per_gpu=32", "use_dynamic_bsz=True").replace(
    "trainer.total_epochs=15", "trainer.use_v1=False actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum"
)


def cut_text(
    text: str,
    kind: Kind = "shell",
    uses_gpu: bool = False,
    full_model: bool = False,
    real_data: bool = False,
    processes: int = 2,
    files: Mapping[str, str] = MappingProxyType({}),
    has_tower: bool = False,
    **packages: str,
) -> tuple[JobCut, cutting.CutLaunch]:
    """Return how a launch is cut, and what would run; `files` are those next to it, `packages` what is installed."""
    name = "run.sh" if kind == "shell" else "x.yaml"
    snapshot = s.laptop()
    for package, version in packages.items():
        snapshot = s.with_package(snapshot, package, version)
    sources = {path: Source(path, content, "yaml") for path, content in files.items()}
    (read,) = read_launches(snapshot, Source(name, text, kind), lambda name: Absent("not available here"), sources.get)
    materials = cutting.make_materials(read, STAGE, 30, uses_gpu, processes, full_model, real_data)
    materials = replace(materials, has_tower=has_tower)
    cut = cutting.cut_job(read, materials)
    return cut, cutting.cut_launch(read, cut, {}, STAGE, materials)


def read_file(launch: cutting.CutLaunch) -> dict[str, str]:
    """Return the keys of the one configuration file of a cut launch, name to value."""
    ((path, text),) = launch.files.items()
    return {entry.name: entry.value for entry in parse_entries(Source(path, text, "yaml"))}


def test_trl_dpo_keeps_its_loss_and_takes_our_pairs() -> None:
    """The loss, beta and truncation stay the launch's own; the data are conversations with two answers."""
    cut, launch = cut_text(TRL_DPO.replace("trl dpo", "trl dpo --truncation_mode keep_end --loss_type ipo"))
    assert cut.form == "preference" and f"--dataset_name {STAGE}/data" in launch.command
    assert "--beta 0.05" in launch.command and "--truncation_mode keep_end" in launch.command
    assert "--per_device_train_batch_size 2" in launch.command and "eval" not in launch.command
    assert cut.objective.targets == "assistant" and cut.objective.preference == Preference("ipo", 0.05)
    assert "--learning_rate 0.005" in launch.command
    assert "--learning_rate 0.0001" in cut_text(TRL_DPO.replace("--beta", "--loss_type sppo_hard --beta"))[1].command
    assert cut.objective.text == "the preference loss ipo with beta 0.05, the mean over pairs"


@pytest.mark.parametrize(
    "option",
    ["--loss_type sigmoid sft", "--loss_type discopop", "--ld_alpha 0.5", "--use_weighting", "--beta 0",
     "--f_divergence_type js_divergence"],
)  # fmt: skip
def test_other_losses_of_pairs_are_not_judged(option: str) -> None:
    """A loss whose gradients at the first step hang on more than beta: batches, documents and updates are judged."""
    cut, _ = cut_text(TRL_DPO.replace("--beta 0.05", option))
    assert cut.form == "preference" and not cut.objective.is_documented
    assert "the loss of TRL's dpo is unknown" in cut.remarks


def test_trl_took_label_smoothing_from_sigmoid() -> None:
    """Up to 0.28 sigmoid is smoothed (0.28.0 and 0.29.1 trainer/dpo_trainer.py), since then it takes no notice."""
    launch = TRL_DPO.replace("--beta 0.05", "--label_smoothing 0.2")
    assert cut_text(launch)[0].objective.preference == Preference("sigmoid", 0.1)
    robust = cut_text(launch.replace("--label", "--loss_type robust --label"))[0].objective.preference
    assert robust == Preference("robust", 0.1, 0.2)
    assert read_preference("sigmoid", (None, 0.1), ("0.2", 0.0)) == Preference("sigmoid", 0.1, 0.2)


def test_llamafactory_reads_our_data_under_its_own_template() -> None:
    """The file's keys are cut in place; no is text for PyYAML; what needs a GPU is left out, and said."""
    cut, launch = cut_text(LLAMAFACTORY, "yaml")
    keys = read_file(launch)
    assert launch.command == f"llamafactory-cli train {STAGE}/rehearsed_x.yaml"
    assert keys["model_name_or_path"] == f"{STAGE}/model" and keys["dataset_dir"] == f"{STAGE}/data"
    assert keys["template"] == "qwen" and keys["save_strategy"] == "no" and keys["max_steps"] == "30"
    assert 'save_strategy: "no"' in next(iter(launch.files.values()))  # PyYAML reads a bare no as false
    assert "deepspeed" not in keys and any("deepspeed" in remark for remark in cut.remarks)
    assert cut.objective.targets == "assistant" and "rehearsal" in json.loads(cut.files["dataset_info.json"])
    assert not cut.emulates_flash_attn


def test_llamafactory_pretrains_on_one_stream_of_texts() -> None:
    """Its rows are cut from all texts, which nothing separates: usual in pre-training, so no error."""
    cut, launch = cut_text(LLAMAFACTORY.replace("stage: sft", "stage: pt"), "yaml")
    assert (cut.form, cut.objective.is_documented, cut.pictures) == ("text", False, "")
    entries = read_file(launch)
    assert entries["template"] == "default" and entries["dataset"] == "rehearsal"
    assert json.loads(cut.files["dataset_info.json"])["rehearsal"]["columns"] == {"prompt": "text"}


def test_llamafactory_learns_prompts_where_it_is_told_and_keeps_flash_attn() -> None:
    """train_on_prompt makes whole documents the target; fa2 is emulated under its own name."""
    cut, launch = cut_text(f"{LLAMAFACTORY}train_on_prompt: true\nflash_attn: fa2\n", "yaml")
    assert cut.objective.targets == "all" and cut.emulates_flash_attn
    assert read_file(launch)["flash_attn"] == "fa2"


@pytest.mark.parametrize(("devices", "is_forced"), [("4,5,6,7", True), ("0", False)])
def test_llamafactory_starts_a_process_for_each_of_several_gpus(devices: str, is_forced: bool) -> None:
    """0.9.5 launcher.py:60 starts torchrun if it sees several GPUs, or if it must."""
    options = (
        "--stage sft --do_train True --model_name_or_path Qwen/Qwen2.5-7B --dataset d --output_dir o --template qwen"
    )
    cut, _ = cut_text(f"export CUDA_VISIBLE_DEVICES={devices}\nllamafactory-cli train {options}\n")
    assert ("FORCE_TORCHRUN" in cut.environ) == is_forced


def test_llamafactory_trains_as_many_layers_as_the_small_model_has() -> None:
    """LLaMA Pro's number of layers must divide the model's; without it, more are no error."""
    text = f"{LLAMAFACTORY}freeze_trainable_layers: 8\n"
    assert read_file(cut_text(f"{text}use_llama_pro: true\n", "yaml")[1])["freeze_trainable_layers"] == "2"
    assert read_file(cut_text(text, "yaml")[1])["freeze_trainable_layers"] == "8"


def test_ms_swift_sees_the_models_own_name_and_few_processes() -> None:
    """The model's path ends as the user's does, for ms-swift reads its type there; 8 processes become 2."""
    cut, launch = cut_text(MS_SWIFT)
    assert cut.model_alias == f"{STAGE}/models/Qwen2.5-7B-Instruct" and f"--model {cut.model_alias}" in launch.command
    assert "NPROC_PER_NODE=2 " in launch.command and f"--dataset {STAGE}/data/train.jsonl" in launch.command
    assert "--packing true" in launch.command and "flash_att" in launch.command and cut.emulates_flash_attn
    assert "use_liger_kernel" not in launch.command and "model_author" not in launch.command
    assert cut.objective.targets == "assistant"


def test_a_system_prompt_of_another_machine_is_left_out(tmp_path: Path) -> None:
    """ms-swift ends without the file; one that is here, and a prompt as text, stay."""
    (tmp_path / "own.txt").touch()
    kept = {}
    for value in ("/data/absent/own.txt", str(tmp_path / "own.txt"), "Be brief."):
        cut, launch = cut_text(MS_SWIFT.replace("--packing true", f"--packing true --system '{value}'"))
        kept[value] = "--system" in launch.command, any("system prompt is left out" in line for line in cut.remarks)
    assert list(kept.values()) == [(False, True), (True, False), (True, False)]


@pytest.mark.parametrize(("text", "rows"), [("--padding_free true", "3"), ("--padding_free true --packing true", "1")])
def test_a_batch_that_padding_free_joins_has_several_rows(text: str, rows: str) -> None:
    """Otherwise no document would share a row, and none could influence another."""
    _, launch = cut_text(MS_SWIFT.replace("--packing true", text))
    assert f"--per_device_train_batch_size {rows} " in launch.command


@pytest.mark.parametrize(
    ("settings", "version", "is_known"),
    [
        ("", "4.6.0", True),
        ("--rpo_alpha 0.1", "4.6.0", True),
        ("--ld_alpha 0.1", "4.6.0", False),
        ("--packing true", "4.6.0", False),
        ("", "3.7.3", False),
    ],
)
def test_ms_swifts_dpo_is_judged_in_its_plain_and_its_rpo_form(settings: str, version: str, is_known: bool) -> None:
    packages: Any = {"ms-swift": version}
    cut, _ = cut_text(f"{MS_SWIFT_DPO.rstrip()} {settings}\n", **packages)
    assert cut.objective.is_documented == is_known
    weight = 0.1 if "rpo" in settings else 0.0
    assert cut.objective.preference == (Preference("sigmoid", 0.2, chosen_weight=weight) if is_known else None)
    assert is_known != any("loss of ms-swift's dpo is unknown" in remark for remark in cut.remarks)


def test_ms_swift_pretraining_learns_everything() -> None:
    """`swift pt` has loss_scale all."""
    cut, _ = cut_text(MS_SWIFT.replace("swift sft", "swift pt"))
    assert cut.objective.targets == "all"
    assert cut_text(MS_SWIFT.replace("swift sft", "swift sft --loss_scale last_round"))[0].objective.targets != "all"


def test_axolotl_keeps_its_prompts_and_leaves_the_gpus_settings_out() -> None:
    """The data set's type stays, its entry is ours; QLoRA becomes LoRA, an 8-bit optimiser torch's."""
    sharded = "fsdp_config:\n  fsdp_version: 2\n  reshard_after_forward: true\nquantize_moe_experts: true\n"
    cut, launch = cut_text(AXOLOTL + sharded, "yaml")
    keys = read_file(launch)
    assert launch.command == f"axolotl train {STAGE}/rehearsed_x.yaml" and cut.form == "instruction"
    assert json.loads(keys["datasets"]) == [{"path": f"{STAGE}/data/train.jsonl", "ds_type": "json", "type": "alpaca"}]
    assert keys["adapter"] == "lora" and keys["load_in_4bit"] == "false" and keys["optimizer"] == "adamw_torch"
    assert keys["lora_mlp_kernel"] == "false" and keys["liger_rope"] == "false" and keys["sample_packing"] == "true"
    assert "plugins" not in keys and "wandb_project" not in keys and "num_epochs" not in keys
    assert not keys["fsdp_config"] and keys["quantize_moe_experts"] == "false"
    assert keys["val_set_size"] == "0" and keys["bf16"] == "auto" and cut.environ["AXOLOTL_DO_NOT_TRACK"] == "1"
    assert cut.environ["AXOLOTL_DATASET_NUM_PROC"] == "1"


@pytest.mark.parametrize(
    ("version", "setting", "command"),
    [
        ("0.9.2", "sequence_parallel_degree", "torchrun --standalone --nproc_per_node=2 -m axolotl.cli.train FILE"),
        ("0.12.0", "context_parallel_size", "axolotl train FILE --launcher torchrun -- --nproc_per_node=2"),
    ],
)
def test_axolotl_starts_the_ranks_of_a_row_as_its_release_does(version: str, setting: str, command: str) -> None:
    """Before 0.12 `axolotl train` has no --launcher."""
    text = AXOLOTL.replace("micro_batch_size: 2", "micro_batch_size: 1")
    cut, launch = cut_text(f"{text}flash_attention: true\n{setting}: 2\n", "yaml", axolotl=version)
    assert launch.command == command.replace("FILE", f"{STAGE}/rehearsed_x.yaml") and cut.ring_size == 2


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("chat_template: llama3\n", ("eot_tokens", '["<|eot_id|>"]')),
        ("chat_template: llama3\neot_tokens:\n  - <|eom_id|>\n", ("chat_template", "llama3")),
        ("chat_template: mistral_v1\n", ("chat_template", "tokenizer_default")),
        ("", ("base_model", f"{STAGE}/models/Llama-3.2-1B")),
    ],
)
def test_axolotl_chat_templates_end_their_turns(settings: str, expected: tuple[str, str]) -> None:
    """A named template's end of turn counts as the model's own; what the small tokenizer cannot write is replaced."""
    cut, launch = cut_text(AXOLOTL.replace("type: alpaca", "type: chat_template") + settings, "yaml")
    keys = read_file(launch)
    assert cut.form == "messages" and keys[expected[0]] == expected[1]
    assert '"<|eot_id|>"' not in keys.get("eot_tokens", "") or expected[0] == "eot_tokens"


def test_openrlhf_has_a_step_of_as_many_rows_as_its_ranks_take() -> None:
    """batch_size is global: micro-batch × accumulation × the ranks that are left; max_samples bounds the steps."""
    cut, launch = cut_text(OPENRLHF)
    assert "--num_gpus 2" in launch.command and "--train.micro_batch_size 2" in launch.command
    words = launch.command.split()
    rows = int(words[words.index("--train.batch_size") + 1])
    assert rows % (2 * 2) == 0 and f"--data.max_samples {rows * 30}" in launch.command
    assert "--data.input_key prompt" in launch.command and "--data.output_key completion" in launch.command
    assert "--ds.packing_samples" in launch.command and cut.emulates_flash_attn
    assert "liger" not in launch.command and "wandb" not in launch.command
    assert cut.form == "prompt_completion" and cut.environ["DS_ACCELERATOR"] == "cpu"


def test_openrlhf_dpo_takes_pairs_and_the_model_as_reference() -> None:
    """The keys are our own; its own reference becomes the small model, which is said."""
    cut, launch = cut_text(OPENRLHF_DPO)
    assert cut.form == "preference" and "--data.prompt_key prompt" in launch.command
    assert "--data.chosen_key chosen --data.rejected_key rejected" in launch.command and "ref." not in launch.command
    assert any("own/reference (ref.model_name_or_path) is not meta-llama" in remark for remark in cut.remarks)
    assert cut.objective.preference == Preference("sigmoid", 0.1, averages_chosen=True)
    text = OPENRLHF_DPO.replace("--data.apply_chat_template", "--model.ipo_enable")
    cut, _ = cut_text(text)
    assert cut.form == "preference_text"
    assert cut.objective.preference == Preference("ipo_of_sums", 0.1, averages_chosen=True)
    cut, _ = cut_text(text.replace("--model.beta", "--model.nll_loss_coef 0.2 --model.beta"))
    assert cut.objective.preference == Preference("ipo_of_sums", 0.1, chosen_weight=0.2, averages_chosen=True)


@pytest.mark.parametrize("is_own_script", [True, False])
def test_a_script_of_grpo_keeps_its_rewards(is_own_script: bool) -> None:
    """Its own trainer may read them, as a list of numbers."""
    names = ("reward_funcs", "reward_weights", "use_vllm")
    settings = tuple(Setting(name, "x", SourceLocation(), NOWHERE) for name in names)
    materials: Any = SimpleNamespace(batch=2, processes=1, accumulation=1)
    sets = cut_policy(Job("trl", "0.15.2", "grpo", settings=settings), materials, is_own_script)
    assert [name for name in names if sets.get(name) == DROP] == [*([] if is_own_script else names[:2]), "use_vllm"]


def test_llamafactory_dpo_reads_a_ranking() -> None:
    """A ranking of texts; SimPO and ORPO have no reference, and BCO's weight is not known."""
    cut, launch = cut_text(f"{LLAMAFACTORY_DPO}ref_model: own/reference\n", "yaml")
    information = json.loads(cut.files["dataset_info.json"])["rehearsal"]
    assert information["ranking"] and cut.form == "preference_text" and "ref_model" not in read_file(launch)
    plain = Preference("sigmoid", 0.1, averages_chosen=True)
    assert cut.objective.preference == plain and "own/reference" in cut.remarks[-1]
    for loss, settings, expected in (
        ("simpo", "", Preference("simpo", 0.1, has_reference=False, gamma=0.5, averages_chosen=True)),
        ("orpo", "", Preference("orpo", 0.1, has_reference=False, chosen_weight=1.0, averages_chosen=True)),
        ("sigmoid", "pref_ftx: 0.1\n", replace(plain, chosen_weight=0.1)),
    ):
        text = LLAMAFACTORY_DPO.replace("pref_loss: sigmoid\n", f"pref_loss: {loss}\n") + settings
        assert cut_text(text, "yaml")[0].objective.preference == expected
    cut = cut_text(f"{LLAMAFACTORY_DPO}pref_bco_weight: 0.1\n", "yaml")[0]
    assert not cut.objective.is_documented and cut.form == "preference_text"
    assert any("the loss is not known here: " in remark for remark in cut.remarks)


@pytest.mark.parametrize(
    ("settings", "preference"),
    [
        ("rl: dpo\nrl_beta: 0.2\n", Preference("sigmoid", 0.2)),
        ("rl: ipo\n", Preference("ipo", 0.1)),
        ("rl: simpo\ncpo_alpha: 0.5\n", Preference("simpo", 0.1, 0.0, False, 0.5, 0.5)),
        ("rl: kto\n", Preference("kto", 0.1)),
        ("rl: orpo\norpo_alpha: 0.1\n", None),
        ("rl: dpo\ndpo_use_weighting: true\n", None),
    ],
)
def test_axolotl_trains_on_pairs_as_trl_does(settings: str, preference: Preference | None) -> None:
    """Its rows are prompts and answers; its loss is that of TRL's trainer, which trains on the prompt in ORPO."""
    cut, launch = cut_text(AXOLOTL + settings, "yaml")
    keys = read_file(launch)
    assert cut.form == "preference_text" and cut.objective.preference == preference
    assert '"type"' not in keys["datasets"] and any("prompt strategy" in remark for remark in cut.remarks)
    assert ("skip_prepare_dataset" in keys) == ("kto" in settings)
    cut, launch = cut_text((AXOLOTL + settings).replace("type: alpaca", "type: chat_template.default"), "yaml")
    assert cut.form == ("preference_text" if settings.startswith(("rl: kto", "rl: orpo")) else "preference")


def test_openrlhf_multiturn_takes_messages() -> None:
    """With data.multiturn a row is a list of messages, and has no output_key."""
    text = OPENRLHF.replace("--data.output_key response", "--data.multiturn --data.apply_chat_template")
    cut, launch = cut_text(text)
    assert cut.form == "messages" and "--data.input_key messages" in launch.command


def test_verl_reads_parquet_on_a_cpu_of_its_own() -> None:
    """Its data are Parquet; FSDP 2 represents FSDP 1; a row is over as many ranks as there are processes."""
    cut, launch = cut_text(VERL)
    assert "--nnodes=1 --node_rank=0 --nproc_per_node=2" in launch.command
    assert f"model.path={STAGE}/model" in launch.command
    assert f"data.train_files={STAGE}/data/train.parquet" in launch.command
    assert "engine.strategy=fsdp2" in launch.command and "ulysses_sequence_parallel_size=2" in launch.command
    assert "trainer.device=cpu" in launch.command and "wandb" not in launch.command
    assert cut.environ["VERL_PLATFORM"] == "cpu" and len(cut.remarks) == 2 and cut.emulates_flash_attn
    assert cut.ring_size == 2 and "data.train_batch_size=3 " in launch.command  # both ranks have the same rows


def test_verls_first_trainer_is_cut_in_its_own_keys() -> None:
    """Its batch is that of all ranks, its rows are prompts and responses; 0.4.1 has no trainer.device."""
    cut, launch = cut_text(OLD_VERL, verl="0.4.1")
    assert f"model.partial_pretrain={STAGE}/model" in launch.command and cut.form == "instruction"
    assert "data.prompt_key=instruction data.response_key=output data.train_batch_size=2 " in launch.command
    assert "use_liger=False" in launch.command and "model.strategy=fsdp2" in launch.command
    assert "trainer.device" not in launch.command and "wandb" not in launch.command
    assert cut.ring_size == 2 and cut.environ["ATTNCHECK_VERL_DEVICE"] == "cpu" and len(cut.remarks) == 2
    _, launch = cut_text(OLD_VERL.replace("train_batch_size=8", "train_batch_size=64"), verl="0.6.0")
    assert "data.train_batch_size=4 " in launch.command and "trainer.device=cpu" in launch.command
    cut, launch = cut_text(OLD_VERL.replace("use_rem", "data.multiturn.enable=true use_rem"), verl="0.4.1")
    assert cut.form == "messages" and "data.prompt_key=question" in launch.command
    with pytest.raises(cutting.NothingToRehearse, match=r"verl 0.3.0 is rehearsed only if its source can be"):
        cut_text(OLD_VERL, verl="0.3.0")


ACCELERATE = "accelerate launch {options} --module trl.scripts.sft --model_name_or_path a/b --dataset_name own/data\n"


@pytest.mark.parametrize(
    ("options", "processes", "expected"),
    [
        ("--multi_gpu --num_processes 8", 2, "accelerate launch --multi_gpu --num_processes 2 --module trl"),
        ("--num_processes=8", 2, "accelerate launch --multi_gpu --num_processes=2 --module trl"),
        ("--num_processes 8", 1, "accelerate launch --num_processes 1 --module trl"),
        ("--num_processes=8 --multi_gpu", 1, "accelerate launch --num_processes=1 --module trl"),
        ("--multi_gpu", 2, "accelerate launch --multi_gpu --module --num_processes=2 trl"),
        ("--multi_gpu", 1, "accelerate launch --module trl"),
        ("--config_file a.yaml", 2, "accelerate launch --config_file a.yaml --module --num_processes=2 trl"),
        ("--config_file a.yaml --num_processes 2", 2, "accelerate launch --config_file a.yaml --num_processes 2 --mod"),
        ("--config_file a.yaml", 8, "accelerate launch --config_file a.yaml --module trl"),
    ],
)
def test_accelerate_starts_no_more_processes_than_there_is_room_for(
    options: str, processes: int, expected: str
) -> None:
    """accelerate 1.15.0 commands/launch.py:1208: --multi_gpu refuses one process; options win over its file."""
    text = ACCELERATE.format(options=options)
    file = "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nnum_machines: 1\nnum_processes: 8\n"
    _, launch = cut_text(text, processes=processes, files={"a.yaml": file})
    assert launch.command.startswith(expected)


def test_rows_over_more_ranks_than_there_are_processes_are_over_fewer() -> None:
    """The ring is as large as the machine's processes allow, and what was made of it is said."""
    cut, launch = cut_text(f"{OPENRLHF.rstrip()} --ds.ring_attn_size 8 --ds.packing_samples\n")
    assert "--ds.ring_attn_size 2" in launch.command and cut.ring_size == 2
    assert "rows are not split across 8 ranks: 2 processes start here, so a row spans 2" in cut.remarks
    assert "--train.batch_size 4 " in launch.command  # of 2 rows each, 2 batches, on ranks that share them


@pytest.mark.parametrize(("batch", "micro"), [(1, 1), (2, 2), (3, 3), (4, 6), (8, 6)])
def test_verls_micro_batches_divide_a_ranks_rows(batch: int, micro: int) -> None:
    """verl refuses others; four are those of a twin with one micro-batch in place of two."""
    materials: Any = SimpleNamespace(batch=batch, processes=2, model="m", output="o")
    sizes = _cut_sizes(Job("verl", "0.9.1", "grpo", world_size=Known(2)), materials)
    assert sizes["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"] == str(micro)


def test_verls_actor_alone_is_updated() -> None:
    """The launch's own command composes the configuration; a driver takes it over, and what is left out is said."""
    cut, launch = cut_text(VERL_GRPO)
    assert launch.command.startswith("python3 -m verl.trainer.main_ppo ") and launch.command.endswith(" $@")
    for text in (
        f"actor_rollout_ref.model.path={STAGE}/model",
        "actor.ppo_mini_batch_size=6 ",  # of prompts: 6 responses of each of 2 ranks
        "rollout.n=2 ",
        "trainer.n_gpus_per_node=2 trainer.nnodes=1 ",
        "use_kl_loss=False",
        "param_offload=False",
        f" hydra.run.dir={STAGE}/job/output/hydra",
        "use_remove_padding=True",
    ):
        assert text in launch.command, text
    assert cut.driver == "verl" and cut.environ["ATTNCHECK_DRIVER"] == "verl" and cut.emulates_flash_attn
    assert cut.environ["ATTNCHECK_DOCUMENTS"] == f"{STAGE}/documents.json"
    assert "reward or Ray" in cut.remarks[0] and "KL term" in cut.remarks[1] and len(cut.remarks) == 5


@pytest.mark.parametrize(
    ("settings", "normalisation", "policy"),
    [
        ("", "step_tokens", PolicyGradient()),
        ("actor_rollout_ref.actor.loss_agg_mode=token-sum", "step_tokens", PolicyGradient(is_sum=True)),
        (
            "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm "
            "actor_rollout_ref.actor.loss_scale_factor=1024",
            "document_sums",
            PolicyGradient(divisor=1024.0),
        ),
        (
            "actor_rollout_ref.actor.policy_loss.loss_mode=gpg actor_rollout_ref.rollout.temperature=0.7 "
            "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean",
            "document_tokens",
            PolicyGradient(of_ratio=False, temperature=0.7),
        ),
    ],
)
def test_verls_loss_is_the_launchs_own(settings: str, normalisation: str, policy: PolicyGradient) -> None:
    """The aggregation, the kind of loss and the temperature are read from the launch."""
    cut, _ = cut_text(VERL_GRPO.replace("$@", settings))
    assert cut.objective.normalisations == (normalisation,) and cut.objective.policy == policy


@pytest.mark.parametrize(
    "settings",
    [
        "actor_rollout_ref.actor.strategy=megatron",
        "model_engine=veomni",
        "actor_rollout_ref.actor.policy_loss.loss_mode=clip_cov",
        "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm",
        "algorithm.rollout_correction.bypass_mode=True",
        "actor_rollout_ref.rollout.temperature=$(choose)",
    ],
)
def test_what_verls_actor_may_do_otherwise_is_refused(settings: str) -> None:
    """A loss or an engine that nobody has read is no rehearsal."""
    with pytest.raises(cutting.NothingToRehearse, match="rehearsed"):
        cut_text(VERL_GRPO.replace("$@", settings))


SLIME = """ray job submit --runtime-env-json='{"env_vars": {"PYTHONPATH": "/root/Megatron-LM/"}}' -- python3 train.py \\
    --actor-num-nodes 2 --actor-num-gpus-per-node 8 --hf-checkpoint /root/Qwen3-4B --prompt-data /root/math.jsonl \\
    --num-rollout 9 --rollout-batch-size 32 --global-batch-size 256 --weight-decay 0.1 --use-dynamic-batch-size \\
    --max-tokens-per-gpu 9216 --advantage-estimator gspo --rollout-temperature 0.8 """


def lay_slime(folder: Path) -> None:
    """Write the files of slime's tree that a cut reads."""
    for name in ("train.py", "slime/backends/megatron_utils/loss.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


@pytest.mark.parametrize(
    ("options", "normalisation", "policy"),
    [
        ("", "document_tokens", PolicyGradient(temperature=0.8)),
        ("--calculate-per-token-loss", "step_tokens", PolicyGradient(temperature=0.8)),
        ("--advantage-estimator cispo", "document_tokens", PolicyGradient(of_ratio=False, temperature=0.8)),
        ("--loss-type sft_loss", "document_tokens", None),
    ],
)
def test_slimes_loss_alone_is_computed(
    options: str,
    normalisation: Normalisation,
    policy: PolicyGradient | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its own tree stays importable although the launch sets another PYTHONPATH; its options stay as written."""
    monkeypatch.chdir(tmp_path)
    lay_slime(tmp_path)
    cut, launch = cut_text(SLIME + options)
    assert launch.command.startswith(
        "python3 -m attncheck_drivers.slime --actor-num-nodes 1 --actor-num-gpus-per-node 2"
    )
    for words in (
        "--hf-checkpoint /stage/model",
        "--global-batch-size 12",
        "--micro-batch-size 2",
        "--weight-decay 0.1",
    ):
        assert words in launch.command
    assert launch.cut.environ["PYTHONPATH"].split(":")[0] == str(tmp_path)
    assert (cut.objective.normalisations, cut.objective.policy) == ((normalisation,), policy)


@pytest.mark.parametrize(
    ("options", "has_tree"),
    [
        ("", False),
        ("--train-backend fsdp", True),
        ("--custom-loss-function-path own.loss", True),
        ("--rollout-temperature $T", True),
    ],
)
def test_what_decides_slimes_loss_elsewhere_is_refused(
    options: str, has_tree: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if has_tree:
        lay_slime(tmp_path)
    with pytest.raises(cutting.NothingToRehearse, match="attncheck lint"):
        cut_text(SLIME + options)


def test_openrlhfs_actor_runs_without_ray() -> None:
    """`ray job submit` is left out; what the actor does not need is off, and the KL term, which is said."""
    cut, launch = cut_text(OPENRLHF_PPO)
    assert launch.command.startswith("python3 -m openrlhf.cli.train_ppo_ray --actor.num_nodes 1 ")
    assert "--train.batch_size 12 --rollout.micro_batch_size 2 --rollout.batch_size 6 " in launch.command
    assert "use_loss" not in launch.command and "enable_sleep" not in launch.command
    assert "--ds.packing_samples" in launch.command and f"--actor.model_name_or_path {STAGE}/model" in launch.command
    assert launch.cut.environ["A"] == "1"  # of Ray's runtime environment
    assert cut.driver == "openrlhf" and cut.objective.policy == PolicyGradient() and "KL term" in cut.remarks[-1]
    assert not cut.corrections and cut_text(f"{OPENRLHF_PPO[:-1]} --train.dynamic_batch_enable")[0].corrections
    cut, _ = cut_text(f"{OPENRLHF_PPO[:-1]} --actor.policy_loss_type gspo --rollout.temperature 0.6")
    assert cut.objective.normalisations == ("document_tokens",)
    assert cut.objective.policy == PolicyGradient(temperature=0.6)
    with pytest.raises(cutting.NothingToRehearse, match="loss_agg_mode seq-mean is not one of OpenRLHF's: token-mean"):
        cut_text(f"{OPENRLHF_PPO[:-1]} --actor.loss_agg_mode seq-mean")


@pytest.mark.parametrize(
    ("version", "settings", "mean", "temperature"),
    [
        ("0.10.1", "", "batch_tokens", 0.6),
        ("0.8.9", "--policy_loss_type gspo", "document_tokens", 0.6),
        ("0.9.3", "--use_dynamic_batch", "batch_rows", 0.6),
        ("0.8.9", "", "batch_tokens", 0.6),
        ("0.6.4", "", "batch_tokens", 1.0),
    ],
)
def test_the_actors_of_older_openrlhfs_have_their_own_means(
    version: str, settings: str, mean: Normalisation, temperature: float
) -> None:
    """The actor's ranks are a multiple of the critic's and of the engines, which 0.6.4 requires."""
    cut, launch = cut_text(f"{OLD_OPENRLHF_PPO[:-1]} {settings}\n", openrlhf=version)
    assert cut.driver == "openrlhf" and cut.objective.normalisations == (mean,)
    assert cut.objective.policy == PolicyGradient(temperature=temperature)
    assert f"--pretrain {STAGE}/model" in launch.command and "--vllm_num_engines 2 " in launch.command
    assert "--train_batch_size 12 " in launch.command and "--critic_num_gpus_per_node 1" in launch.command
    assert not {"wandb", "use_kl_loss", "prompt_data"} & set(re.findall(r"--(\w+)", launch.command))
    assert any("its KL term" in remark for remark in cut.remarks)


def test_older_openrlhfs_without_packing_average_responses() -> None:
    text = OLD_OPENRLHF_PPO.replace("--packing_samples ", "")
    assert cut_text(text, openrlhf="0.6.4")[0].objective.normalisations == ("document_tokens",)
    assert cut_text(text, openrlhf="0.7.5")[0].objective.normalisations == ("batch_tokens",)
    own = text.replace("train_ppo_ray", "train_ppo_ray_mine")
    assert cut_text(own, openrlhf="0.6.4")[1].command.startswith("python3 -m openrlhf.cli.train_ppo_ray_mine ")


@pytest.mark.parametrize("text", [OPENRLHF, OPENRLHF_PPO])
def test_a_batch_of_all_ranks_has_no_name(text: str) -> None:
    """openrlhf 0.10.3 models/loss.py:10; 0.10.4 averages over the step, in its SFT too."""
    assert cut_text(text, openrlhf="0.10.4")[0].objective.normalisations == ("step_tokens",)
    with pytest.raises(cutting.NothingToRehearse, match=r"openrlhf 0\.10\.3 averages a batch over the tokens of all"):
        cut_text(text, openrlhf="0.10.3")


def test_options_of_older_openrlhfs_decide_the_form_of_their_data() -> None:
    text = OPENRLHF_DPO.replace("--data.", "--").replace("--ds.", "--").replace("--model.", "--")
    cut, launch = cut_text(text.replace("--model_name_or_path", "--pretrain"), openrlhf="0.5.1")
    assert cut.form == "preference" and "--apply_chat_template" in launch.command


@pytest.mark.parametrize(
    ("text", "kind", "kept"),
    [
        (TRL, "shell", "--learning_rate 2e-5 "),
        (LLAMAFACTORY, "yaml", "learning_rate: 1.0e-5"),
        (AXOLOTL, "yaml", "learning_rate: 0.0002"),
        (OPENRLHF, "shell", ""),
        (VERL, "shell", "optim.lr=1e-5"),
    ],
)
def test_a_whole_model_is_trained_at_the_launchs_own_rate(text: str, kind: Kind, kept: str) -> None:
    """What is trained already would be lost at the rate that a small model of random weights learns at."""
    _, launch = cut_text(text, kind, full_model=True)
    written = "\n".join((launch.command, *launch.files.values()))
    assert kept in written and "0.005" not in written and f"{STAGE}/model" in written


def test_a_whole_models_own_tokenizer_keeps_what_is_said_of_it() -> None:
    """A chat template, an eos_token and the checkpoint's dtype are left as they are written."""
    text = TRL.replace("--output_dir", "--eos_token '<|im_end|>' --chat_template_path own.jinja --output_dir")
    for option in ("--eos_token", "--chat_template_path own.jinja"):
        assert option in cut_text(text, full_model=True)[1].command and option not in cut_text(text)[1].command
    chat = AXOLOTL.replace("type: alpaca", "type: chat_template\nchat_template: gemma")
    assert read_file(cut_text(chat, "yaml", full_model=True)[1])["chat_template"] == "gemma"
    assert "--torch_dtype" not in cut_text(MS_SWIFT.replace("--torch_dtype bfloat16 ", ""), full_model=True)[1].command


@pytest.mark.parametrize(
    ("named", "laid"),
    [("own/data", f"{STAGE}/data"), ("data/own.jsonl", f"{STAGE}/data/own.jsonl"), ("/srv/sets", f"{STAGE}/data")],
)
def test_real_data_are_read_as_the_launch_reads_them(named: str, laid: str) -> None:
    """A file keeps its name, a folder's files are laid in ours; configuration and split stay as they are written."""
    text = TRL.replace("own/data", f"{named} --dataset_config small --dataset_train_split first")
    cut, launch = cut_text(text, real_data=True)
    assert cut.data == named and f"--dataset_name {laid} " in launch.command and "--max_length 512" in launch.command
    assert "--dataset_config small" in launch.command and "--dataset_train_split first" in launch.command
    assert cut.objective.targets == "labelled"
    script = (
        f"python train.py --model_name_or_path x --train_file={named} --per_device_train_batch_size 8 --output_dir x"
    )
    cut, launch = cut_text(script, real_data=True)
    assert cut.data == named and f"--train_file={laid} " in launch.command


OWN_AXOLOTL = AXOLOTL.replace("teknium/GPT4-LLM-Cleaned", "data/own.jsonl")
OWN_OLD_VERL = OLD_VERL.replace("ulysses_sequence_parallel_size=2 ", "").replace(
    "response_key=answer", "response_key=b"
)


@pytest.mark.parametrize(
    ("text", "kind", "data", "roles", "written"),
    [
        (MS_SWIFT.replace("AI-ModelScope/alpaca-gpt4-data-zh", "data/own.jsonl"), "shell", "data/own.jsonl", {}, ""),
        (OWN_AXOLOTL, "yaml", "data/own.jsonl", {}, '"type": "alpaca"'),
        (
            OWN_AXOLOTL.replace("type: alpaca", "type: {field_instruction: a, field_output: b}"),
            "yaml",
            "data/own.jsonl",
            {"a": "user", "b": "assistant"},
            "field_instruction",
        ),
        (
            OPENRLHF.replace("Open-Orca/OpenOrca", "data/own.jsonl"),
            "shell",
            "data/own.jsonl",
            {"question": "user", "response": "assistant"},
            "--data.input_key question --data.output_key response",
        ),
        (
            VERL.replace("parallel_size=2", "parallel_size=1"),
            "shell",
            "$HOME/data/train.parquet",
            {"messages": "user"},
            "data.messages_key=messages",
        ),
        (
            f"{OWN_OLD_VERL.rstrip()} +data.prompt_dict_keys=['c']",
            "shell",
            "$HOME/data/gsm8k/train.parquet",
            {"question.c": "user", "b": "assistant"},
            "data.prompt_key=question data.response_key=b",
        ),
    ],
)
def test_a_frameworks_own_rows_keep_their_form(
    text: str, kind: Kind, data: str, roles: dict[str, str], written: str
) -> None:
    """The file keeps its name, and what the launch says of its columns stays as written."""
    cut, launch = cut_text(text, kind, real_data=True, verl="0.4.1" if "fsdp_sft" in text else "0.9.1")
    shown = launch.command + "".join(launch.files.values())
    assert (cut.data, cut.roles) == (data, roles) and written in shown
    assert f"{STAGE}/data/{data.rpartition('/')[2]}" in shown and cut.objective.targets == "labelled"


def test_verls_rows_keep_the_parts_that_a_launch_reads_of_a_column() -> None:
    """Older releases read nothing else; without parts the columns are read."""
    parts = "+data.prompt_dict_keys=['question'] +data.response_dict_keys=['answer']"
    cut, launch = cut_text(f"{OLD_VERL.rstrip()} {parts}", verl="0.4.1")
    assert cut.form == "nested_instruction" and "data.prompt_key=row data.response_key=row" in launch.command
    assert "data.prompt_dict_keys=[instruction]" in launch.command
    cut, launch = cut_text(OLD_VERL, verl="0.4.1")
    assert cut.form == "instruction" and "data.prompt_key=instruction" in launch.command


def test_llamafactorys_own_rows_keep_their_description(tmp_path: Path) -> None:
    """Its columns have roles; a data set of pairs, of another trainer, is not used."""
    entry = {"file_name": "sets/own.json", "columns": {"prompt": "q", "query": "", "response": "a"}}
    described = {"mine": entry, "pairs": {**entry, "ranking": True}}
    (tmp_path / "dataset_info.json").write_text(json.dumps(described))
    text = LLAMAFACTORY.replace("identity,alpaca_en_demo", f"mine,identity\ndataset_dir: {tmp_path}")
    cut, launch = cut_text(text, "yaml", real_data=True)
    assert cut.data == f"{tmp_path}/sets/own.json" and cut.roles == {"q": "user", "a": "assistant"}
    assert json.loads(cut.files["dataset_info.json"]) == {"mine": {**entry, "file_name": "own.json"}}
    assert read_file(launch)["dataset"] == "mine"
    with pytest.raises(cutting.NothingToRehearse):
        cut_text(text.replace("mine,", "pairs,"), "yaml", real_data=True)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        *((TRL_DPO, "shell"), (LLAMAFACTORY, "yaml"), (MS_SWIFT, "shell"), (AXOLOTL, "yaml"), (OPENRLHF, "shell")),
        (OWN_AXOLOTL.replace("type: alpaca", "type: chat_template\n    data_files: [a.json]"), "yaml"),
        (MS_SWIFT.replace("'AI-ModelScope/alpaca-gpt4-data-zh#500'", "own.jsonl --columns '{}'"), "shell"),
    ],
)
def test_other_launches_are_not_rehearsed_on_their_data(text: str, kind: Kind) -> None:
    """If the data are not a file, or the launch chooses what is learned in an unknown way, the message names it."""
    with pytest.raises(cutting.NothingToRehearse, match=r"\w+'s \w+ is rehearsed only with synthetic documents"):
        cut_text(text, kind, real_data=True)


@pytest.mark.parametrize(
    ("keys", "targets", "kept"),
    [
        ({"roles_to_train": ["assistant"], "train_on_eos": "turn", "message_field_content": "value"}, "assistant", {}),
        (
            {"roles_to_train": ["user", "assistant"], "roles": {"user": ["human"]}},
            "chosen",
            {"roles_to_train": ["user", "assistant"], "roles": {"user": ["human"]}},
        ),
        ({"train_on_eos": "last"}, "chosen", {"train_on_eos": "last"}),
        ({"roles_to_train": [], "message_field_training": "train"}, "chosen", {}),
    ],
)
def test_axolotls_data_set_chooses_what_is_learned(
    keys: dict[str, object], targets: str, kept: dict[str, object]
) -> None:
    """Synthetic rows are learned as the data set says; if its messages choose, their absence is reported."""
    entry = f"type: {json.dumps('chat_template')}" + "".join(f"\n    {key}: {json.dumps(keys[key])}" for key in keys)
    text = OWN_AXOLOTL.replace("type: alpaca", entry)
    cut, _ = cut_text(text, "yaml")
    assert cut.objective.targets == targets
    assert {"type": "chat_template", "field_messages": "messages", **kept}.items() == {
        name: value for name, value in json.loads(cut.sets["datasets"])[0].items() if name not in ("path", "ds_type")
    }.items()
    assert len([remark for remark in cut.remarks if "'train'" in remark]) == ("message_field_training" in keys)
    own, _ = cut_text(text, "yaml", real_data=True)
    assert own.data == "data/own.jsonl" and json.loads(own.sets["datasets"])[0].items() >= keys.items()


@pytest.mark.parametrize("text", [VERL_GRPO, OPENRLHF_PPO])
def test_an_actor_is_not_rehearsed_whole(text: str) -> None:
    """Rollouts are made of the small model's words."""
    with pytest.raises(cutting.NothingToRehearse, match="only with a small model: remove --full-model"):
        cut_text(text, full_model=True)


@pytest.mark.parametrize("text", ["engine=megatron", "engine=veomni"])
def test_other_engines_of_verl_are_refused(text: str) -> None:
    """An engine that nobody has watched is no rehearsal."""
    with pytest.raises(cutting.NothingToRehearse, match="is not rehearsed"):
        cut_text(VERL.replace("engine=fsdp ", f"{text} ").replace("engine.strategy=fsdp ", ""))


@pytest.mark.parametrize("text", [MS_SWIFT, OPENRLHF])
def test_a_gpu_keeps_what_needs_one(text: str) -> None:
    """Where a GPU is, liger and flash-attn are the launch's own, and nothing is emulated."""
    cut, launch = cut_text(text, uses_gpu=True)
    assert "liger" in launch.command and not cut.emulates_flash_attn and not cut.remarks


def test_the_emulated_flash_attn_is_laid_as_a_package(tmp_path: Path) -> None:
    """Its files are where an installed flash-attn's do, its distribution next to it."""
    from attncheck.rehearsal import execution

    execution.lay_flash_attn(tmp_path)
    for name in (
        "__init__",
        "flash_attn_interface",
        "bert_padding",
        "utils/distributed",
        "layers/rotary",
        "emulation/block",
    ):
        assert (tmp_path / "flash_attn" / f"{name}.py").is_file(), name
    assert "Version: 2.8.3" in (tmp_path / "flash_attn-2.8.3.dist-info" / "METADATA").read_text()
    assert len(list(tmp_path.glob("*.dist-info"))) == 1


@pytest.mark.parametrize("name", ["flash_attention_3", "flash_attention_4"])
def test_the_emulated_flash_attn_keeps_the_launchs_name(name: str) -> None:
    text = f"trl sft --model_name_or_path a/b --dataset_name c/d --output_dir o --packing --attn_implementation {name}"
    cut, launch = cut_text(text)
    assert cut.environ["ATTNCHECK_EMULATED"] == name and f"--attn_implementation {name}" in launch.command


@pytest.mark.parametrize(
    ("before", "left"),
    [
        ("srun -N4 --ntasks-per-node=1", ""),
        ("srun -N 4 --export=ALL,HF_HOME=/x,A=1", ""),
        ("ray job submit --address http://head:8265 --", ""),
        ("mpirun -np 2 -H a:4,b:4", "mpirun -np 2 "),
        ("mpirun -np 2 --hostfile hosts", "mpirun -np 2 "),
        ("env A=1 srun", "env A=1 "),
    ],
)
def test_processes_start_here_and_no_service_starts_them(before: str, left: str) -> None:
    """slurmctld and Ray's head would start them outside the sandbox."""
    command = cut_text(f"{before} {TRL_DPO.strip()}\n")[1].command
    assert command.startswith(f"{left}trl dpo "), command


@pytest.mark.parametrize("before", ["docker run --gpus all image", "podman exec box", "apptainer exec image.sif"])
def test_a_container_is_not_started(before: str) -> None:
    with pytest.raises(Unanswered, match="starts a container"):
        cut_text(f"{before} {TRL_DPO.strip()}\n")


@pytest.mark.parametrize("before", ["tmux new-session -d -s a", "ssh host"])
def test_a_command_that_another_shell_gets_is_started_here(before: str) -> None:
    cut_launch = cut_text(f"{before} '{TRL_DPO.strip()}'\n")[1]
    assert cut_launch.command.startswith("trl dpo "), cut_launch.command
    assert any(text.startswith("started here") for text in cut_launch.cut.remarks)


@pytest.mark.parametrize(
    "before",
    [
        "env ATTNCHECK_REMOTE_CODE=1 HF_HUB_OFFLINE=0",
        "ATTNCHECK_REMOTE_CODE=1 HF_HUB_OFFLINE=0",
        "srun --export=ALL,ATTNCHECK_REMOTE_CODE=1,HF_HUB_OFFLINE=0",
        'ray job submit --runtime-env-json=\'{"env_vars": {"ATTNCHECK_REMOTE_CODE": "1", "HF_HUB_OFFLINE": "0"}}\' --',
    ],
)
def test_no_launcher_sets_what_guards_a_launch(before: str) -> None:
    cut = cut_text(f"{before} {TRL_DPO.strip()}\n")[1].cut
    assert not {"ATTNCHECK_REMOTE_CODE", "HF_HUB_OFFLINE"} & cut.environ.keys()


AXOLOTL_PICTURES = """base_model: Qwen/Qwen2-VL-7B-Instruct
processor_type: AutoProcessor
skip_prepare_dataset: true
remove_unused_columns: false
sample_packing: false
chat_template: qwen2_vl
datasets:
  - path: HuggingFaceH4/llava-instruct-mix-vsft
    type: chat_template
    split: train[:1%]
output_dir: ./outputs/out
sequence_len: 2048
micro_batch_size: 2
gradient_accumulation_steps: 1
num_epochs: 1
optimizer: adamw_torch
learning_rate: 0.0002
bf16: false
"""
# A launch, its format, the form of its rows' images, and replacements of its text with which rows have none.
PICTURES: Mapping[str, tuple[str, Kind, str, tuple[tuple[str, str], ...]]] = {
    "ms_swift": (
        MS_SWIFT.replace("--packing true --attn_impl flash_attn", ""),
        "shell",
        "tagged",
        (("max_length 2048", "max_length 128"), ("swift sft", "swift pt")),
    ),
    "llamafactory": (
        LLAMAFACTORY,
        "yaml",
        "tagged",
        (("cutoff_len: 2048", "cutoff_len: 128"), ("stage: sft", "stage: dpo")),
    ),
    "axolotl": (
        AXOLOTL_PICTURES,
        "yaml",
        "parts",
        (
            ("sequence_len: 2048", "sequence_len: 128"),
            ("skip_prepare_dataset: true", ""),
            ("processor_type: AutoProcessor", ""),
            ("type: chat_template", "type: alpaca"),
        ),
    ),
}


@pytest.mark.parametrize("framework", PICTURES)
def test_rows_have_images_if_the_model_and_the_launch_take_them(framework: str) -> None:
    text, kind, form, refused = PICTURES[framework]
    assert cut_text(text, kind, has_tower=True)[0].pictures == form
    changed = [text.replace(former, change) for former, change in refused]
    assert text not in changed
    cuts = [cut_text(text, kind)[0], *(cut_text(own, kind, has_tower=True)[0] for own in changed)]
    assert [cut.pictures for cut in cuts] == [""] * len(cuts)


@pytest.mark.parametrize(
    ("template", "targets"), [("qwen2_vl", "assistant"), ("llava", "all"), ("tokenizer_default", "all")]
)
def test_axolotl_masks_rows_with_images_by_the_turns_that_it_knows(template: str, targets: str) -> None:
    text = AXOLOTL_PICTURES.replace("chat_template: qwen2_vl", f"chat_template: {template}")
    assert cut_text(text, "yaml", has_tower=True)[0].objective.targets == targets


@pytest.mark.parametrize("has_tower", [True, False])
def test_llamafactory_describes_the_column_of_images(has_tower: bool) -> None:
    cut, _ = cut_text(LLAMAFACTORY, "yaml", has_tower=has_tower)
    assert ("images" in json.loads(cut.files["dataset_info.json"])["rehearsal"]["columns"]) == has_tower
    # train/sft/trainer.py: each batch's own mean if there is a processor
    assert (cut.objective.normalisations[0] == "batch_tokens") == has_tower


@pytest.mark.parametrize(
    ("options", "version", "expected"),
    [
        ("", "1.16.0", True),
        ("--packing", "1.16.0", False),
        ("--assistant_only_loss", "1.16.0", False),
        ("--max_length 128", "1.16.0", False),
        ("", "0.21.0", False),
    ],
)
def test_trl_takes_pictures_if_it_collates_them(options: str, version: str, expected: bool) -> None:
    launch = f"trl sft --model_name_or_path a/b --dataset_name own/data --output_dir out {options}\n"
    assert cut_text(launch, trl=version)[0].pictures == ("column" if expected else "")
