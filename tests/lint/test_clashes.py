"""Settings that fail together: each row on a launch that has them, silent on the same launch in the fixed release."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from packaging.version import Version

from attncheck.core.experiments import AccumulationMeasurement, Experiments
from attncheck.core.facts import Absent, Known
from attncheck.core.findings import Finding
from attncheck.core.launch import Kind, Source
from attncheck.core.report import Report
from attncheck.doctor.knowledge import clashes
from attncheck.lint import frameworks, run
from attncheck.lint.context import Request
from attncheck.lint.sources import read_source
from attncheck.report.sections.lint import launch_rows
from tests import snapshots as s
from tests.lint import launches

ZERO3 = "accelerate launch --num_processes 8 --use_deepspeed --zero_stage 3 "
FSDP2 = "accelerate launch --num_processes 8 --use_fsdp --fsdp_version 2 --mixed_precision bf16 "
ZERO2 = ZERO3.replace("stage 3", "stage 2")
OFFLOADED = ZERO2.replace("--zero", "--offload_optimizer_device cpu --zero")
TRL = "-m trl.scripts.{} --model_name_or_path m --dataset_name d "
GRPO = TRL.format("grpo")
VERL = (
    "python3 -m verl.trainer.main_ppo trainer.n_gpus_per_node=8 trainer.nnodes=1 actor_rollout_ref.model.path=m "
    "actor_rollout_ref.model.use_remove_padding=True "
)
FUSED = "actor_rollout_ref.model.use_fused_kernels=True "
SWIFT = "NPROC_PER_NODE=8 swift {} --model Qwen/Qwen2.5-7B-Instruct --dataset d "
AXOLOTL = "base_model: m\ndatasets:\n  - path: d\n    type: alpaca\nsequence_len: 2048\n"


@dataclass(frozen=True)
class Case:
    """A launch that meets the row whose source names `thread`, and one change that no longer does."""

    thread: str
    text: str
    cured: tuple[str, str]  # a part of the text, and what makes it harmless
    versions: dict[str, str] = field(default_factory=dict)
    kind: Kind = "shell"


CASES = [
    Case("PR #5891", ZERO3 + GRPO + "--use_liger_loss true", ("--zero_stage 3", "--zero_stage 2")),
    Case("PR #45994", "accelerate launch --num_processes 8 --parallelism_config_tp_size 4 " + TRL.format("sft"),
         ("tp_size 4", "tp_size 1"), {"trl": "1.5.0"}),
    Case("issue #7110", VERL + "algorithm.adv_estimator=gae", ("=gae", "=grpo")),
    Case("PR #6372", ZERO3 + TRL.format("dpo") + "--use_liger_loss true", ("--zero_stage 3", "--zero_stage 2")),
    Case("PR #5873", ZERO3 + TRL.format("sft") + "--loss_type chunked_nll", ("chunked_nll", "nll")),
    Case("PR #6065", FSDP2 + TRL.format("sft") + "--loss_type chunked_nll --use_peft", (" --use_peft", "")),
    Case("PR #6403", ZERO3 + TRL.format("dpo") + "--precompute_ref_log_probs true", ("probs true", "probs false")),
    Case("PR #6330", ZERO3 + GRPO + "--cast_lm_head_to_fp32 true", ("--zero_stage 3", "--zero_stage 2")),
    Case("PR #6330", FSDP2 + GRPO + "--cast_lm_head_to_fp32 true", ("--fsdp_version 2", "--fsdp_version 1")),
    Case("issue #4159", "python " + GRPO + "--use_vllm --vllm_mode colocate --temperature 0.6",
         ("0.6", "1.0")),
    Case("issue #4159, server", "python " + GRPO + "--use_vllm --temperature 0.6", ("0.6", "1.0")),
    Case("PR #5731", "python " + TRL.format("gkd") + "--use_liger_kernel true", ("kernel true", "kernel false")),
    Case("PR #6006", "python " + TRL.format("gkd") + "--gradient_accumulation_steps 4", ("_steps 4", "_steps 1"),
         {"transformers": "5.5.4"}),
    Case("PR #5934", "torchrun --nproc_per_node 8 " + TRL.format("gkd") + "--use_liger_kernel true",
         ("--nproc_per_node 8", "--nproc_per_node 1")),
    Case("PR #6439", "torchrun --nproc_per_node 8 " + GRPO + "--mask_truncated_completions true",
         ("completions true", "completions true --loss_type dr_grpo")),
    Case("PR #3964", "torchrun --nproc_per_node 8 " + GRPO + "--top_entropy_quantile 0.2",
         ("--nproc_per_node 8", "--nproc_per_node 1")),
    Case("PR #4838", FSDP2 + TRL.format("dpo"), ("--fsdp_version 2", "--fsdp_version 1")),
    Case("issue #5932", VERL + "trainer.use_legacy_worker_impl=disable "
         "+actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=fp16",
         ("param_dtype=fp16", "param_dtype=bf16")),
    Case("issue #7718", ZERO2 + TRL.format("sft") + "--gradient_accumulation_steps 8", ("_steps 8", "_steps 1")),
    Case("PR #7967", OFFLOADED + TRL.format("sft") + "--gradient_accumulation_steps 8",
         ("--offload_optimizer_device cpu", "--offload_optimizer_device none")),
    Case("PR #6091", ZERO3 + TRL.format("sft") + "--use_peft", (" --use_peft", ""), {"deepspeed": "0.19.2"}),
    Case("issue #3979", FSDP2 + TRL.format("sft") + "--dtype bfloat16", ("--fsdp_version 2", "--fsdp_version 1"),
         {"trl": "1.0.0"}),
    Case("issues #3512", VERL + FUSED + "actor_rollout_ref.actor.ulysses_sequence_parallel_size=2",
         ("parallel_size=2", "parallel_size=1")),
    Case("PR #6913", VERL + FUSED + "actor_rollout_ref.model.use_liger=True", ("use_liger=True", "use_liger=False")),
    Case("issue #6782", VERL + "actor_rollout_ref.model.lora_rank=32 actor_rollout_ref.model.lora.merge=True",
         ("merge=True", "merge=False")),
    Case("issue #6609", VERL + "actor_rollout_ref.actor.megatron.context_parallel_size=2 "
         "+actor_rollout_ref.actor.megatron.override_transformer_config.moe_aux_loss_coeff=0.001",
         ("context_parallel_size=2", "context_parallel_size=1")),
    Case("issue #7200", VERL + "distillation.enabled=True", ("enabled=True", "enabled=False")),
    Case("PR #6548", SWIFT.format("rlhf") + "--rlhf_type grpo --importance_sampling_level sequence --padding_free true",
         ("--importance_sampling_level sequence", "")),
    Case("PR #9925", SWIFT.format("rlhf") + "--rlhf_type dpo --loss_type ipo --padding_free true",
         ("--loss_type ipo", "--loss_type sigmoid")),
    Case("PR #10142", SWIFT.format("sft") + "--freeze_parameters model.visual.blocks.0 model.visual.patch_embed "
         "--vit_gradient_checkpointing true --gradient_checkpointing_kwargs '{\"use_reentrant\": true}'",
         ("reentrant\": true", "reentrant\": false")),
    Case("PR #6275", SWIFT.format("rlhf") + "--rlhf_type grpo --padding_free true", ("free true", "free false")),
    Case("PR #7005", SWIFT.format("sft") + "--padding_free true --use_liger_kernel true",
         ("kernel true", "kernel false"),
         {"liger-kernel": "0.6.4"}),
    Case("PR #9771", SWIFT.format("pt") + "--packing true --streaming true --max_steps 9 --truncation_strategy split",
         ("--streaming true", "")),
    Case("PR #5823", SWIFT.format("sft") + "--router_aux_loss_coef 1e-3 --gradient_accumulation_steps 8",
         ("_steps 8", "_steps 1")),
    Case("PR #3498", AXOLOTL + "context_parallel_size: 2\n", ("size: 2", "size: 1"), kind="yaml"),
    Case("PR #3444", AXOLOTL + "context_parallel_size: 2\n", ("size: 2", "size: 1"), kind="yaml"),
    Case("PR #3660", AXOLOTL + "kd_trainer: true\nliger_fused_linear_cross_entropy: true\n",
         ("kd_trainer: true", "kd_trainer: false"), kind="yaml"),
    Case("PR #9541", FSDP2 + "src/train.py --stage sft --do_train --finetuning_type lora --dataset d "
         "--template qwen --model_name_or_path m", ("--fsdp_version 2", "--fsdp_version 1")),
    Case("issue #3781", "python " + TRL.format("sft") + "--assistant_only_loss true --use_liger_kernel true",
         ("kernel true", "kernel false")),
    Case("issue #3728", "python " + TRL.format("sft") + "--assistant_only_loss true --packing true",
         ("packing true", "packing false")),
    Case("PR #3996", "python " + TRL.format("sft") + "--padding_free true --pad_to_multiple_of 64",
         ("padding_free true", "padding_free false")),
    Case("issue #5312", "python " + GRPO + "--use_vllm true --vllm_mode colocate --vllm_enable_sleep_mode true",
         ("mode colocate", "mode server")),
    Case("PR #5031", "python " + GRPO + "--use_vllm true --use_liger_kernel true --use_liger_loss true",
         ("--use_vllm true", "--use_vllm true --vllm_importance_sampling_correction false")),
    Case("issue #7837", ZERO3.replace("stage 3", "stage 0") + "--mixed_precision bf16 " + TRL.format("sft"),
         ("--zero_stage 0", "--zero_stage 1")),
    Case("issue #46731", "llamafactory-cli train --stage sft --do_train --model_name_or_path m --dataset d "
         "--template qwen --output_dir o --label_smoothing_factor 0.1 --gradient_accumulation_steps 4",
         ("steps 4", "steps 1"), {"transformers": "5.14.1"}),
    Case("transformers issue #46731", SWIFT.format("sft") + "--label_smoothing_factor 0.1 "
         "--gradient_accumulation_steps 4", ("factor 0.1", "factor 0")),
    Case("PR #6024", "python " + GRPO + "--steps_per_generation 4 --gradient_accumulation_steps 2",
         ("generation 4", "generation 2")),
    Case("PR #5331", "accelerate launch --num_processes 8 --parallelism_config_tp_size 2 " + TRL.format("sft"),
         ("tp_size 2", "tp_size 1")),
    Case("issue #7493, pytorch", VERL + "actor_rollout_ref.actor.fsdp_config.fsdp_size=1",
         ("fsdp_size=1", "fsdp_size=1 actor_rollout_ref.actor.strategy=fsdp2")),
    Case("issue #7493, before", VERL + "actor_rollout_ref.actor.fsdp_config.fsdp_size=1",
         ("fsdp_size=1", "fsdp_size=1 actor_rollout_ref.actor.fsdp_config.strategy=fsdp2")),
    Case("issue #9973", SWIFT.format("sft") + "--enable_channel_loss true --sequence_parallel_size 2",
         ("loss true", "loss false")),
]  # fmt: skip


def find_row(case: Case) -> clashes.Clash:
    rows = [row for row in clashes.load_clashes() if row.source.split("; ")[1].startswith(case.thread)]
    return next(row for row in rows if case.thread != "PR #6330" or ("fsdp" in row.when) == (FSDP2 in case.text))


def lint(case: Case, text: str, version: str, experiments: Experiments | None = None) -> list[Finding]:
    """Lint a launch where the row's package is of `version`; return what is said by the row."""
    row = find_row(case)
    report = make_report(case, text, version, experiments=experiments)
    return [finding for finding in report.findings if any(row.source in line for line in finding.evidence)]


def make_report(
    case: Case,
    text: str,
    version: str,
    read_file: Callable[[str], Source | None] = launches.read_no_file,
    experiments: Experiments | None = None,
) -> Report:
    row = find_row(case)
    framework = next(f for f in frameworks.load() if f.name == row.framework.split("|")[0])
    snapshot = launches.without_imports(s.with_gpus(s.h200(), *[launches.H200] * 8, name="NVIDIA H200"))
    for name, number in {**case.versions, row.package or framework.distribution: version}.items():
        snapshot = s.with_package(snapshot, name, number)
    snapshot = replace(snapshot, imports=Absent("not asked"))
    snapshot = replace(snapshot, experiments=Known(experiments) if experiments else Absent("not asked"))
    name = "run.sh" if case.kind == "shell" else "run.yaml"
    request = Request((Source(name, text, case.kind),), framework=framework.name)
    return run.run(snapshot, request, launches.read_model, read_file)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.thread} {find_row(case).framework}")
def test_a_row_speaks_of_its_releases_and_settings_alone(case: Case) -> None:
    row = find_row(case)
    [finding] = lint(case, case.text, row.since)
    assert finding.code in ("ATN441", "ATN442", "ATN443", "ATN444", "ATN446"), finding
    assert finding.severity in (("warning",) if row.mild else ("error", "warning"))
    assert finding.fixes, "there is always a release to go to, or a setting"
    assert not row.until or not lint(case, case.text, row.until)
    assert case.cured[0] in case.text
    assert not lint(case, case.text.replace(*case.cured), row.since)


def test_what_was_measured_beats_the_table() -> None:
    """`doctor --deep` runs the installed DeepSpeed; lint reads what it kept."""
    case = next(case for case in CASES if case.thread == "issue #7718")
    right = Experiments(accumulations=(AccumulationMeasurement(2, "", (1, 1, 1, 1)),))
    lossy = Experiments(accumulations=(AccumulationMeasurement(2, "", (0, 0, 0, 1)),))
    offloaded = Experiments(accumulations=(AccumulationMeasurement(2, "cpu", (1, 1, 1, 1)),))
    assert not lint(case, case.text, "0.18.2", right)
    [finding] = lint(case, case.text, "0.19.9", lossy)
    assert any("0, 0, 0, 1" in line for line in finding.evidence)
    assert lint(case, case.text, "0.18.2", offloaded), "another setting was measured"


def test_every_row_has_a_case_and_a_sound_range() -> None:
    assert {id(find_row(case)) for case in CASES} == {id(row) for row in clashes.load_clashes()}
    for row in clashes.load_clashes():
        assert not row.until or Version(row.since) < Version(row.until), row
        assert not row.message.endswith(".") and bool(row.package) >= bool(row.alone), row


@pytest.mark.parametrize(("stage", "mark"), [(0, "warning"), (1, "open")])
def test_a_launch_is_not_ok_because_its_problem_is_in_another_file(stage: int, mark: str) -> None:
    case = next(case for case in CASES if case.thread == "issue #7837")
    text = f"distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: {stage}\nmixed_precision: bf16\n"
    command = "accelerate launch --num_processes 8 --config_file zero.yaml " + TRL.format("sft")
    report = make_report(case, command, "0.18.5", {"zero.yaml": Source("zero.yaml", text, "yaml")}.get)
    report = replace(report, findings=tuple(f for f in report.findings if f.locations))  # the environment's apart
    [(shown, place, _)] = launch_rows(report, report.sections["lint"])  # type: ignore[arg-type]
    assert (shown, place.split(":")[0]) == (mark, "run.sh")


@pytest.mark.parametrize(("version", "count"), [("0.24.0", 0), ("0.25.0", 1)])
def test_use_liger_kernel_is_the_loss_since_a_release(version: str, count: int) -> None:
    assert len(lint(CASES[0], CASES[0].text.replace("liger_loss", "liger_kernel"), version)) == count


@pytest.mark.parametrize(
    ("preset", "precision", "is_faulty"),
    [("zero0", "bfloat16", True), ("zero1", "bfloat16", False), ("zero0", "float32", False)],
)
def test_a_preset_has_the_precision_of_the_job(preset: str, precision: str, is_faulty: bool) -> None:
    """ms-swift's own DeepSpeed files have `auto`, and are not read with the launch (modelscope/ms-swift#6815)."""
    case = next(case for case in CASES if case.thread == "issue #7837")
    text = SWIFT.format("sft") + f"--torch_dtype {precision} --deepspeed {preset}"
    snapshot = s.with_package(s.with_package(s.h200(), "deepspeed", "0.18.3"), "ms-swift", "3.10.2")
    request = Request((Source("run.sh", text, "shell"),), framework="ms-swift")
    report = run.run(snapshot, request, launches.read_model, launches.read_no_file)
    row = find_row(case)
    assert any(row.source in line for finding in report.findings for line in finding.evidence) == is_faulty


@pytest.mark.parametrize(("base", "count"), [("GKDTrainer", 1), ("SFTTrainer", 0)])
def test_a_trainer_with_its_own_loss_lacks_the_faults_of_trls(tmp_path: Path, base: str, count: int) -> None:
    """A script may take GKD's settings for a trainer of its own."""
    own = "class Own(SFTTrainer):\n    def compute_loss(self, model, inputs, num_items_in_batch=None): ...\n"
    text = (
        "from trl import SFTTrainer, TrlParser\nfrom trl.experimental.gkd import GKDConfig, GKDTrainer\n"
        f"{own if base == 'SFTTrainer' else ''}(config,) = TrlParser((GKDConfig,)).parse_args_and_config()\n"
        f"{'Own' if base == 'SFTTrainer' else base}(model='m', args=config).train()\n"
    )
    (tmp_path / "train.py").write_text(text)
    script = tmp_path / "run.sh"
    script.write_text("python train.py --output_dir o --gradient_accumulation_steps 4\n")
    snapshot = s.with_package(s.with_package(s.laptop(), "trl", "1.5.0"), "transformers", "5.5.4")
    report = run.run(snapshot, Request((read_source(str(script)),)), launches.read_model, launches.read_no_file)
    assert sum("PR #6006" in str(finding.evidence) for finding in report.findings) == count
