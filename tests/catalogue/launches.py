"""What breaks by the way a job is launched: rings, frameworks, sequence parallelism."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from attncheck.core.launch import Kind, Source
from attncheck.core.report import Report
from attncheck.core.results.error_growth import describe_growth, error_growths
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.engine import run_rules
from attncheck.doctor.needs import Need
from attncheck.lint import run
from attncheck.lint.context import Request
from attncheck.ring.parity import make_growth_finding
from tests import snapshots as s
from tests.catalogue.mode import Missed, Mode
from tests.lint.launches import read_no_file, without_imports
from tests.lint.programs.test_ring_calls import RING, ULYSSES, USP, lint
from tests.lint.programs.trees import write_tree
from tests.ring.test_suites import make_run

Present = Callable[[Path], Report]
HOPPER = (9, 0)
RING_NEEDS: frozenset[Need] = frozenset({"flash", "ring"})
WINDOWED = {"model_type": "mistral", "layer_types": ("sliding_attention",) * 32, "sliding_window": s.Known(4096)}
OPENRLHF = (
    "deepspeed --module openrlhf.cli.train_sft --model.model_name_or_path x --data.dataset y --ds.param_dtype bf16 "
    "--ds.attn_implementation flash_attention_2 --ds.packing_samples"
)
OPENRLHF_RING = f"{OPENRLHF} --ds.ring_attn_size 2"
VERL = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=64 "
    "data.max_prompt_length=512 data.max_response_length=512 actor_rollout_ref.model.path=x "
    "actor_rollout_ref.model.use_remove_padding=True actor_rollout_ref.actor.ppo_mini_batch_size=32 "
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.name=vllm "
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4 critic.ppo_micro_batch_size_per_gpu=4 "
    "trainer.n_gpus_per_node=8 trainer.nnodes=1 data.train_files=x data.val_files=y"
)
ULYSSES_SIZE = "actor_rollout_ref.actor.ulysses_sequence_parallel_size"
VERL_SFT = (
    "torchrun --nproc_per_node 8 -m verl.trainer.fsdp_sft_trainer model.partial_pretrain=x "
    "ulysses_sequence_parallel_size=4 use_remove_padding=True data.train_files=x "
    "data.val_files=y"
)
AXOLOTL = """base_model: x
datasets: [{path: a, type: alpaca}]
sequence_len: 4096
micro_batch_size: 2
sample_packing: true
bf16: true
output_dir: o
attn_implementation: sdpa
"""
LLAMA_FACTORY = """model_name_or_path: x
stage: sft
do_train: true
finetuning_type: lora
dataset: d
template: qwen
output_dir: o
bf16: true
flash_attn: fa2
"""


def launch(
    text: str,
    version: str,
    model: Mapping[str, Any] | None = None,
    kind: Kind = "command",
    without: tuple[str, ...] = (),
    **packages: str,
) -> Present:
    """Return a launch, linted for eight Hopper GPUs with these packages."""

    def present(folder: Path) -> Report:
        snapshot = s.with_package(s.with_gpus(s.h200(), *[HOPPER] * 8), "transformers", "5.15.0")
        for name, release in packages.items():
            snapshot = s.with_package(snapshot, name, release)
        snapshot = without_imports(s.without_packages(snapshot, *without))
        fact = s.with_model(snapshot, **(model or {})).model
        request = Request((Source("launch", text, kind),), version=version)
        return run.run(snapshot, request, lambda name: fact, read_no_file)

    return present


def recording(snapshot: Snapshot, *needs: Need) -> Present:
    """Return a recorded environment with these patches, judged by the rules."""
    return lambda folder: run_rules(snapshot, RING_NEEDS | frozenset(needs))


def program(text: str, word: str, replacement: str) -> Present:
    """Return the user's own program with a word of it replaced."""
    files = {"train.py": text.replace(word, replacement), "data.py": "def collate(): return pad_rows()\n"}
    return lambda folder: lint(write_tree(folder, files))


def growing_error(folder: Path) -> Report:
    """Return the report on a ring whose measured error grows with the number of ranks."""
    runs = [make_run(1, out=1.0, dk=1.0), make_run(2, out=1.2, dk=1.2), make_run(4, out=1.2, dk=1.7)]
    findings = [make_growth_finding(growth.backend, describe_growth(growth)) for growth in error_growths(runs)]
    return replace(run_rules(s.h200(), RING_NEEDS), findings=tuple(findings))


RULES_AGAIN = "the rules run on the recording with that transformers: silent (test_the_pins_of_the_ring_are_silent)"
CORRECTED = "the corrected launch is linted again and is without the finding (tests/lint/test_corrected_launches.py)"

MODES = [
    Mode(
        "ring-signature-count",
        recording(without_imports(s.with_package(s.h200(), "transformers", "5.20.2"))),
        ("ATN140", "ATN141"),
        "transformers==5.1.0",
        RULES_AGAIN,
    ),
    Mode("ring-import-symbol", recording(s.h200()), ("ATN140",), "transformers==5.1.0", RULES_AGAIN),
    Mode(
        "sequence-parallel-silently-off",
        launch(OPENRLHF_RING.replace("flash_attention_2", "flash_attention_3"), "0.11.2"),
        ("ATN570",),
        "--ds.attn_implementation flash_attention_2",
        CORRECTED,
    ),
    Mode(
        "cp-drops-mask-pattern",
        launch(
            "accelerate launch --use_fsdp --num_processes 8 --parallelism_config_cp_size 4 sft.py "
            "--model_name_or_path x --dataset_name d --output_dir o --per_device_train_batch_size 1",
            "",
            WINDOWED,
            accelerate="1.12.0",
            trl="0.24.0",
            transformers="4.57.6",
        ),
        ("ATN510",),
        "--parallelism_config_cp_size 1",
        "the launch with that option linted again: ATN510 is silent",
    ),
    Mode(
        "ring-head-stride",
        launch(f"{OPENRLHF_RING} --ds.ring_attn_head_stride 3", "0.11.2"),
        ("ATN572",),
        "--ds.ring_attn_head_stride 2",
        CORRECTED,
    ),
    Mode("ring-window-ignored", launch(OPENRLHF_RING, "0.11.2", WINDOWED), ("ATN501",), "ring_attn_size 1", CORRECTED),
    Mode(
        "ring-softcap-alibi-dropout-assert",
        launch(OPENRLHF_RING, "0.11.2", {"model_type": "gemma2", "softcap": s.Known(50.0)}),
        ("ATN503",),
        "ring_attn_size 1",
        CORRECTED,
    ),
    Mode(
        "ring-length-not-divisible",
        program(RING, "from data import collate", "collate = list"),
        ("ATN576",),
        "F.pad",
        "tests/lint/programs/test_ring_calls.py::test_the_code_that_pads_pads runs the code",
    ),
    Mode(
        "ring-numerics-grow",
        growing_error,
        ("ATN605",),
        "llama3_flash_attn_varlen_func",
        "tests/ring measures it: of ring-flash-attn's schemes the one that gathers merges no partial results",
    ),
    Mode(
        "ring-dataparams-keyerror-stale",
        program(RING, 'update_ring_flash_attn_params(batch["cu_seqlens"], group)', "pass"),
        ("ATN576",),
        "update_ring_flash_attn_params(cu_seqlens, group)",
        "the program that calls it is silent (tests/lint/programs/test_ring_calls.py); the fix says it was not run",
    ),
    Mode(
        "openrlhf-shim-540-hole",
        recording(s.with_package(s.with_package(s.h200(), "transformers", "5.4.0"), "openrlhf", "0.11.2")),
        ("ATN145",),
        "transformers>=5.5,<5.19",
        RULES_AGAIN,
    ),
    Mode(
        "ring-sinks-dropped",
        launch(OPENRLHF_RING, "0.11.2", {"model_type": "gpt_oss", "sinks": True}),
        ("ATN502",),
        "ring_attn_size 1",
        CORRECTED,
    ),
    Mode(
        "ring-bf16-hardcoded",
        recording(s.with_model(s.h200(), dtype=s.Known("float16"))),
        ("ATN513",),
        "torch.bfloat16",
        "tests/doctor/rules/context_parallel/ring_dtypes.py: bfloat16 is silent",
    ),
    Mode(
        "openrlhf-needs-flash-attn",
        recording(s.with_package(s.without_packages(s.h200(), "flash-attn"), "openrlhf", "0.11.2")),
        ("ATN146",),
        "flash-attn",
        "tests/doctor/rules/flash_attn/openrlhf_needs_flash_attn.py: silent with flash-attn",
    ),
    Mode(
        "verl-flash-hardcoded",
        launch(
            VERL.replace("=grpo", "=gae") + " +actor_rollout_ref.model.override_config.attn_implementation=sdpa",
            "0.9.1",
        ),
        ("ATN442",),
        "algorithm.adv_estimator=grpo",
        "tests/lint/frameworks/test_verl.py::test_the_critic_is_flash_attention_2: grpo has no critic, and is silent",
    ),
    Mode(
        "llamafactory-fa2-silent-sdpa",
        launch(LLAMA_FACTORY, "0.9.5", kind="yaml", without=("flash-attn", "ring-flash-attn"), llamafactory="0.9.5"),
        ("ATN442", "ATN163"),
        "flash_attn: sdpa",
        "tests/lint/frameworks/test_llamafactory.py: flash_attn: sdpa is silent",
    ),
    Mode(
        "openrlhf-packing-forces-fa2",
        launch(OPENRLHF.replace("flash_attention_2", "sdpa"), "0.11.2"),
        ("ATN442",),
        "--ds.attn_implementation flash_attention_2",
        CORRECTED,
    ),
    Mode(
        "transformers-453-vlm-bug",
        recording(
            s.with_model(
                s.with_package(
                    s.with_package(s.without_packages(s.h200(), "liger-kernel"), "transformers", "4.53.2"),
                    "verl",
                    "0.5.0",
                ),
                model_type="qwen2_5_vl",
                mrope=True,
            ),
            "ulysses",
        ),
        ("ATN160", "ATN408"),
        "transformers>=4.54",
        "tests/doctor/rules/packing/mrope_positions_crash.py: 4.54.0 is silent",
    ),
    Mode(
        "axolotl-cp-flash-only",
        launch(f"{AXOLOTL}context_parallel_size: 4\n", "0.19.0", kind="yaml"),
        ("ATN441",),
        "attn_implementation: flash_attention_2",
        CORRECTED,
    ),
    Mode(
        "trl-packing-false-warning",
        launch(
            "trl sft --model_name_or_path x --dataset_name d --output_dir o --packing "
            "--attn_implementation kernels-community/flash-attn2@v2",
            "1.5.0",
            trl="1.5.0",
        ),
        ("ATN456",),
        "trl>=1.13",
        "the wheels 1.12.0 and 1.13.0: the second looks the name up without its revision",
    ),
    Mode(
        "openrlhf-ring-needs-packing",
        launch(OPENRLHF_RING.replace(" --ds.packing_samples", ""), "0.11.2"),
        ("ATN441",),
        "--ds.packing_samples",
        CORRECTED,
    ),
    Mode(
        "verl-sp-needs-remove-padding",
        launch(VERL.replace("padding=True", "padding=False") + f" {ULYSSES_SIZE}=2", "0.9.1"),
        ("ATN441",),
        "use_remove_padding=True",
        CORRECTED,
    ),
    Mode(
        "ms-swift-packing-requires-flash",
        launch("swift sft --model x --dataset d --packing true --attn_impl sdpa", "4.6.0"),
        ("ATN441",),
        "--attn_impl flash_attention_2",
        CORRECTED,
    ),
    Mode(
        "reward-model-ring-score",
        launch(
            "deepspeed --module openrlhf.cli.train_rm --pretrain x --dataset y --packing_samples --ring_attn_size 2 "
            "--attn_implementation flash_attention_2",
            "0.9.0",
        ),
        ("ATN441",),
        "openrlhf>=0.9.2,<0.10",
        "the wheels 0.9.0 and 0.9.2: the second hands ring_attn_group to the model; the launch at 0.9.2 is silent",
    ),
    Mode(
        "axolotl-rl-packing",
        launch(f"{AXOLOTL}rl: dpo\n", "0.19.0", kind="yaml"),
        ("ATN441",),
        "sample_packing: false",
        CORRECTED,
    ),
    Mode(
        "ulysses-head-divisibility",
        launch(f"{VERL} {ULYSSES_SIZE}=8", "0.9.1"),
        ("ATN572",),
        f"{ULYSSES_SIZE}=4",
        CORRECTED,
    ),
    Mode(
        "sp-loss-scaling",
        launch(VERL_SFT, "0.5.0", transformers="4.53.3"),
        ("ATN444",),
        "use one micro-batch per rank and step",
        "tests/rehearsal/test_known_bugs.py rehearses verl 0.4.1: the sum over two micro-batches; right with one",
    ),
    Mode(
        "ulysses-position-ids-required",
        program(ULYSSES, "position_ids=positions", ""),
        ("ATN576",),
        'batch["position_ids"]',
        "tests/lint/programs/test_ring_calls.py::test_the_code_that_pads_pads runs the code",
    ),
    Mode(
        "usp-no-flash-attn-import",
        program(USP, "AttnType.FA", "AttnType.TORCH_MATH"),
        ("ATN576",),
        "AttnType.FA",
        "yunchang 0.6.4 on two gloo ranks without flash-attn: TORCH_MATH ends in that error, FA asks for flash-attn",
    ),
    Mode(
        "usp-process-group",
        program(USP, "set_seq_parallel_pg(2, 2, rank, 4)", "pass"),
        ("ATN576",),
        "set_seq_parallel_pg(",
        "yunchang 0.6.4 on two gloo ranks: the layer is built and runs after that call",
    ),
]
MISSED = [
    Missed("dtensor-sp-packing-shape", "launches of NeMo-RL and Automodel are not read: no framework module for them"),
]
