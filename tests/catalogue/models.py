"""Models, packing, padding, precision, memory and rollouts: what users report of them, presented and judged."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from attncheck.core.facts import Known
from attncheck.core.launch import NOWHERE, Setting, Source, SourceLocation
from attncheck.core.plan import Plan
from attncheck.core.report import Report
from attncheck.core.results.smoke import CheckResult, PlanRun
from attncheck.core.snapshot import Snapshot
from attncheck.core.verdicts import BackendState, MeasuredOn
from attncheck.doctor.engine import run_rules
from attncheck.doctor.probes.model import read_model
from attncheck.doctor.profile import needs_of_job, needs_of_profile
from attncheck.lint import run as lint_run
from attncheck.lint.context import Request
from attncheck.measure import determinism
from attncheck.smoke import checks
from attncheck.smoke import run as smoke_run
from attncheck.smoke.fix_search import AcceptedChange, SearchResult
from tests import snapshots as s
from tests.catalogue.mode import Missed, Mode
from tests.doctor.answers import answers_refusing
from tests.lint import launches
from tests.measure.test_determinism import PLAIN, VARYING

Present = Callable[[Path], Report]
TRL_SFT = "accelerate launch --num_processes 8 -m trl.scripts.sft --model_name_or_path m --dataset_name d"
TRL_GRPO = TRL_SFT.replace("scripts.sft", "scripts.grpo") + " --use_vllm true"
VERL = "python3 -m verl.trainer.main_ppo trainer.n_gpus_per_node=8 actor_rollout_ref.rollout.name=vllm"
LLAMAFACTORY = """
stage: sft
do_train: true
model_name_or_path: m
dataset: d
output_dir: o
bf16: true
finetuning_type: full
cutoff_len: 4096
neat_packing: true
packing: true
"""
RTX_4090 = s.with_gpus(s.h200(), (8, 9), name="NVIDIA GeForce RTX 4090")


def judge(snapshot: Snapshot) -> Present:
    """Return what judges a recording, as doctor does, or lint where it holds a launch."""
    job = snapshot.job.value if isinstance(snapshot.job, Known) else None
    needs = needs_of_job(job) if job is not None else needs_of_profile("all", snapshot)
    return lambda folder: run_rules(snapshot, needs)


def lint(text: str, snapshot: Snapshot | None = None, kind: Any = "shell", **packages: str) -> Present:
    """Return what lints a launch alongside these packages."""
    for name, version in packages.items():
        snapshot = s.with_package(snapshot or s.h200(), name.replace("_", "-"), version)
    source = Source("launch.yaml" if kind == "yaml" else "run.sh", text, kind)
    request = Request((source,))
    target = snapshot or s.h200()
    return lambda folder: lint_run.run(target, request, launches.read_model, launches.read_no_file)


def lay_model(config: dict[str, Any], snapshot: Snapshot | None = None, **files: Any) -> Present:
    """Return what writes a model's files, reads them with the real probe, and judges the recording with that model."""

    def present(folder: Path) -> Report:
        for name, content in {"config": config, **files}.items():
            path, text = (name, content) if name.endswith(".py") else (f"{name}.json", json.dumps(content))
            (folder / path).write_text(text, encoding="utf-8")
        target = replace(snapshot or s.h200(), model=read_model(str(folder)))
        return run_rules(target, needs_of_profile("all", target))

    return present


def smoke(check: str, reason: str, plan: Plan) -> Present:
    """Return what makes smoke's report of a check that failed for `reason`, and passes under its first change.

    One that would blame a kernel by fixing the check is passed over: it is for that kernel's faults.
    """

    def present(folder: Path) -> Report:
        failed = PlanRun("llama", plan, (CheckResult(check, violations=(reason,)),))
        changes = checks.load()[0][check].changes(plan, failed.results[0])
        change = next(change for change in changes if not change.culprit)
        final = PlanRun("llama", change.plan, (CheckResult(check),), change.title)
        search = SearchResult((AcceptedChange(check, change),), (), final)
        return smoke_run.make_report(s.laptop(), [failed], [search], MeasuredOn("cpu"))

    return present


def vary_with_batch(folder: Path) -> Report:
    """Return the report on a backend whose bits depend on what shares its batch."""
    states = (BackendState("sdpa_flash", "", "torch"),)
    return determinism.make_report(s.laptop(), states, (replace(PLAIN, batch=VARYING),), MeasuredOn("cuda"))


def with_tokenizer(**fields: Any) -> Present:
    """Return what lays a llama whose tokenizer_config.json holds these fields."""
    return lay_model({"model_type": "llama", "vocab_size": 32000}, tokenizer_config={"eos_token": "</s>", **fields})


def rolling_out(snapshot: Snapshot, vllm: str) -> Snapshot:
    """Return a verl launch next to this vllm."""
    setting = Setting("actor_rollout_ref.rollout.n", "8", SourceLocation("run.sh", 4), NOWHERE)
    job: dict[str, Any] = {
        "framework": "verl",
        "version": "0.9.1",
        "trainer": "ppo",
        "reinforcement": True,
        "settings": (setting,),
    }
    return s.with_job(s.with_package(snapshot, "vllm", vllm), **job)


GEMMA2 = s.with_model(s.laptop(), model_type="gemma2", softcap=Known(50.0))
MLA = {"head_dim": Known(192), "v_head_dim": Known(128), "head_dims": (192,), "model_type": "deepseek_v3"}
SINKS = {"model_type": "gpt_oss", "sinks": True, "accepts": answers_refusing("sdpa")}
TOWER = {"vision_config": {"num_heads": 16, "hidden_size": 1280}}
LINTED = "the corrected launch is linted again without it: tests/lint/test_corrected_launches.py"
IMPLEMENTATIONS = (
    "each implementation by name on the CPU: tests/smoke/test_checks.py::test_what_is_right_raises_no_alarm"
)
REFUSALS = "the class builds with it: tests/doctor/test_model_accepts.py::test_classes_are_told_from_packages"
FLASH_IMPORT: dict[str, Any] = {"modeling_own.py": "from flash_attn import flash_attn_func\n"}
ROUNDED: dict[str, Any] = {"modeling_own.py": "t = torch.arange(n, device=device, dtype=self.inv_freq.dtype)"}

MODES = [
    Mode(
        "packing-without-varlen",
        lint(f"{TRL_SFT} --packing true --attn_implementation sdpa", trl="0.19.1", transformers="4.52.4"),
        ("ATN444", "ATN450"),
        "--attn_implementation flash_attention_2",
        LINTED,
    ),
    Mode(
        "train-rollout-logprob-mismatch",
        lint(VERL, verl="0.9.1"),
        ("ATN425",),
        "algorithm.rollout_correction.rollout_is=token",
        "the release takes the settings: tests/lint/test_rollouts.py; their effect needs GPUs",
    ),
    Mode(
        "fa-dtype-fp32",
        lint(f"{TRL_SFT} --dtype float32 --bf16 false --attn_implementation flash_attention_2", trl="1.16.0"),
        ("ATN441",),
        "--bf16 true",
        "tests/lint/test_attention_settings.py::test_flash_attention_refuses_float32",
    ),
    Mode(
        "oom-eager-quadratic",
        lint(f"{TRL_SFT} --attn_implementation eager --max_length 65536", s.with_model(s.h200()), trl="1.16.0"),
        ("ATN441",),
        "--attn_implementation sdpa",
        "tests/lint/test_attention_settings.py::test_eager_gives_way_to_what_computes_the_same",
    ),
    Mode(
        "packed-detect-disabled-by-2d-mask",
        smoke("isolation", "documents see each other", Plan("sdpa", packing="mask_2d")),
        ("ATN420",),
        "mask",
        "tests/smoke/test_smoke.py::test_a_leak_is_found_fixed_and_proven",
    ),
    Mode(
        "padding-side-right-valueerror",
        lay_model(
            {"model_type": "qwen2"},
            s.with_package(s.h200(), "transformers", "4.49.0"),
            tokenizer_config={"padding_side": "right"},
        ),
        ("ATN404",),
        "use_cache = False",
        "transformers 4.49.0 modeling_qwen2.py raises inside `past_key_values is not None` only; smoke's padding check",
    ),
    Mode(
        "sdpa-fully-masked-nan",
        smoke("padding", "a row of padding only is NaN", Plan("sdpa", packing="padding", padding_side="left")),
        ("ATN421",),
        'padding_side = "right"',
        "tests/smoke/test_checks.py::test_a_planted_fault_is_named (nan_in_masked_rows), and right padding is finite",
    ),
    Mode(
        "sdpa-model-rejects",
        judge(s.with_model(s.h200(), model_type="gptj", accepts=answers_refusing("sdpa"))),
        ("ATN307",),
        "flash_attention_2",
        "the class flags of transformers 5.23.0 were read; the kernel needs a GPU",
    ),
    Mode(
        "gemma2-softcap",
        judge(s.with_package(GEMMA2, "transformers", "5.20.2")),
        ("ATN310",),
        "flex_attention",
        "run on a CPU, float32, transformers 5.17.0: flex_attention is within 2e-6 of eager, sdpa is off by 0.03",
    ),
    Mode(
        "mla-head-dims",
        judge(s.with_model(s.h200(), **MLA)),
        ("ATN507",),
        "substitute_hf_flash_attn",
        "read: transformers 5.17.0 pads V in the function that ring attention replaces; without the ring it does",
    ),
    Mode(
        "mrope-3d-position-ids-crash",
        judge(s.with_model(s.with_package(s.h200(), "transformers", "4.53.3"), model_type="qwen2_5_vl", mrope=True)),
        ("ATN408",),
        'attn_implementation="sdpa"',
        "reproduced with a stub kernel on the CPU; sdpa takes the same positions: smoke with positions of three rows",
    ),
    Mode(
        "cudnn-sdpa-nan-grad",
        judge(s.with_job(s.h200(), {"attn_implementation": "sdpa"})),
        ("ATN221",),
        "enable_cudnn_sdp(False)",
        "sdpa_kernel without cuDNN ran forward and backward on an H200, torch 2.11.0+cu130",
    ),
    Mode(
        "pad-token-eos",
        with_tokenizer(pad_token="</s>"),
        ("ATN406",),
        "labels[attention_mask == 0] = -100",
        "plain arithmetic: labels masked by the mask keep the end token",
    ),
    Mode(
        "gpt-oss-sinks",
        judge(s.with_model(s.with_package(s.h200(), "transformers", "4.57.3"), **SINKS)),
        ("ATN312",),
        "flex_attention",
        "tests/doctor/test_model_accepts.py builds gpt_oss with flex_attention and eager",
    ),
    Mode(
        "head-dim-over-256",
        judge(s.with_model(s.h200(), model_type="gemma4", head_dims=(256, 512))),
        ("ATN314",),
        "sdpa",
        "SDPA's memory-efficient backend ran head size 512 forward and backward on an H200, torch 2.11.0+cu130",
    ),
    Mode(
        "left-pad-training-mismatch",
        lay_model(
            {"model_type": "mistral"},
            s.without_packages(s.h200(), "openrlhf", "verl"),
            tokenizer_config={"padding_side": "left"},
        ),
        ("ATN407",),
        'padding_side = "right"',
        "tests/smoke/test_checks.py: right padding equals the rows alone",
    ),
    Mode(
        "vllm-sleep-expandable-segments",
        lint(
            "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n"
            "python3 -m openrlhf.cli.train_ppo_ray --vllm.num_engines 4 --vllm.enable_sleep --train.colocate_all",
            openrlhf="0.11.2",
            vllm="0.10.0",
        ),
        ("ATN556",),
        "without PYTORCH_CUDA_ALLOC_CONF",
        LINTED,
    ),
    Mode(
        "neat-packing-broken",
        lint(f"{LLAMAFACTORY}flash_attn: fa2\n", kind="yaml", llamafactory="0.9.3", transformers="4.55.0"),
        ("ATN444",),
        "neat_packing: false",
        LINTED,
    ),
    Mode(
        "attn-mask-none-custom-backend",
        judge(
            s.with_interfaces(
                s.h200(), attention_functions=Known(("sdpa", "own")), mask_functions=Known(("eager", "sdpa"))
            )
        ),
        ("ATN350",),
        'ALL_MASK_ATTENTION_FUNCTIONS.register("own"',
        "tests/doctor/test_registered_attention.py::test_padding_is_seen_without_a_mask_function_and_no_longer_with_it",
    ),
    Mode(
        "flex-unsupported-or-smem",
        judge(s.with_job(s.with_model(RTX_4090, head_dims=(256,)), {"attn_implementation": "flex_attention"})),
        ("ATN356",),
        "use flash_attention_2",
        IMPLEMENTATIONS,
    ),
    Mode(
        "linear-attention-packing-leak",
        judge(
            s.with_model(s.h200(), model_type="qwen3_next", layer_types=("linear_attention",) * 3 + ("full_attention",))
        ),
        ("ATN409",),
        "packing: false",
        "a row of one document has no neighbour: what smoke compares packed rows with",
    ),
    Mode(
        "sdpa-math-fallback-oom",
        judge(
            s.with_job(
                s.with_model(
                    s.with_package(s.h200(), "transformers", "5.10.1"), model_type="gemma4", head_dims=(256, 512)
                ),
                {"attn_implementation": "sdpa"},
            )
        ),
        ("ATN351",),
        "transformers>=5.14.1",
        "each SDPA backend alone on an H200: enable_gqa at 512 is refused by all, repeated heads are taken",
    ),
    Mode(
        "gradient-checkpoint-metadata",
        smoke("checkpointing", "CheckpointError: different metadata", Plan("sdpa", gradient_checkpointing=True)),
        ("ATN343",),
        "gradient_checkpointing=False",
        "tests/smoke/test_accelerated.py: planted faults of checkpointing, and the plan without it",
    ),
    Mode(
        "torch-compile-flash-graphbreak",
        lint(f"{TRL_SFT} --packing true --attn_implementation flash_attention_2 --torch_compile true", trl="1.16.0"),
        ("ATN428",),
        "export TORCHDYNAMO_CAPTURE_SCALAR_OUTPUTS=1",
        "tests/doctor/test_compiled_scalars.py",
    ),
    Mode(
        "head-dim-bwd-consumer",
        judge(s.with_package(s.with_model(RTX_4090, head_dims=(256,)), "flash-attn", "2.5.0")),
        ("ATN315",),
        "flash-attn>=2.5.5",
        "flash-attn 2.8.3 README, 2.5.5 on; sdpa, the other fix, ran head size 256 on an H200",
    ),
    Mode(
        "cascade-attention-mismatch",
        judge(rolling_out(s.with_gpus(s.h200(), *[(8, 0)] * 8), "0.11.0")),
        ("ATN426",),
        "disable_cascade_attn=True",
        "not run: the text says so; verl's documentation gives this line for vllm-project/vllm#22103",
    ),
    Mode(
        "batch-invariance",
        vary_with_batch,
        ("ATN713",),
        "VLLM_BATCH_INVARIANT=1",
        "not run: the text says so; verl 0.9.1 forwards the variable to its workers",
    ),
    Mode(
        "remote-code-flash-import",
        lay_model(
            {"model_type": "own", "auto_map": {"AutoModelForCausalLM": "modeling_own.Own"}},
            s.without_packages(s.h200(), "flash-attn"),
            **FLASH_IMPORT,
        ),
        ("ATN304",),
        "flash-attn",
        "the wheel of the finding is one of the release's own: tests/doctor/test_knowledge_wheels.py",
    ),
    Mode(
        "gemma3-fp16-zero-loss",
        judge(s.with_job(s.with_model(s.h200(), model_type="gemma3"), {"precision": "fp16"})),
        ("ATN319",),
        "train in bfloat16",
        "tests/doctor/test_implementation_rules.py::test_gemma_in_a_launch_is_judged_by_its_precision",
    ),
    Mode(
        "topk-topp-logprob-bias",
        lint(f"{TRL_GRPO} --top_p 0.9", trl="1.16.0"),
        ("ATN424",),
        "--top_p 1.0",
        "tests/lint/test_rollouts.py::test_truncated_rollouts_are_named_and_the_correction_holds",
    ),
    Mode(
        "use-cache-training",
        judge(
            s.with_model(
                s.without_packages(s.h200(), "flash-attn", "openrlhf", "trl", "accelerate", "llamafactory", "verl")
            )
        ),
        ("ATN403",),
        "use_cache = False",
        "tests/smoke/test_smoke.py::test_one_change_fixes_and_the_whole_plan_is_run_again",
    ),
    Mode(
        "llama4-chunked-flash",
        judge(
            s.with_model(
                s.h200(),
                model_type="llama4_text",
                attention_chunk_size=Known(8192),
                layer_types=("chunked_attention", "full_attention"),
            )
        ),
        ("ATN316",),
        'attn_implementation="sdpa"',
        REFUSALS,
    ),
    Mode(
        "output-attentions-flash",
        judge(s.with_model(s.h200(), output_attentions=True)),
        ("ATN321",),
        "output_attentions = False",
        "transformers 5.23.0 integrations/sdpa_attention.py warns on it alone",
    ),
    Mode(
        "lora-quant-target-dtype",
        lay_model({"model_type": "llama", "quantization_config": {"load_in_4bit": True}}),
        ("ATN355",),
        "bnb_4bit_compute_dtype=torch.bfloat16",
        "tests/doctor/test_quantised.py::test_the_fix_computes_in_bfloat16_where_the_default_is_float32",
    ),
    Mode(
        "grad-accum-packed-loss",
        lint(
            f"{TRL_SFT} --gradient_accumulation_steps 8",
            s.without_packages(s.h200(), "liger-kernel"),
            trl="0.11.4",
            transformers="4.45.2",
        ),
        ("ATN429",),
        "transformers",
        "tests/smoke/test_checks.py::test_a_planted_fault_is_named (mean_of_means); 4.46.3 read",
    ),
    Mode(
        "rope-bf16-long-context",
        lay_model(
            {"model_type": "own", "auto_map": {"AutoModelForCausalLM": "modeling_own.Own"}},
            **ROUNDED,
        ),
        ("ATN354",),
        "dtype=torch.float32",
        "tests/doctor/test_remote_positions.py::test_bfloat16_rounds_positions_and_float32_does_not",
    ),
    Mode(
        "memory-flash-unpad-padding",
        lint(
            f"{TRL_SFT} --packing false --attn_implementation flash_attention_2 --per_device_train_batch_size 8",
            trl="1.16.0",
        ),
        ("ATN820",),
        "--packing true",
        LINTED,
    ),
    Mode(
        "bidirectional-vision-tower",
        lay_model({"model_type": "qwen2_5_vl", **TOWER}),
        ("ATN506",),
        '"vision_config": "sdpa"',
        "tests/doctor/test_model_accepts.py::test_each_part_of_a_model_takes_its_own_implementation",
    ),
    Mode(
        "neat-packing-fa3-mask",
        lint(f"{LLAMAFACTORY}flash_attn: fa3\n", kind="yaml", llamafactory="0.9.5"),
        ("ATN441", "ATN444"),
        "flash_attn: fa2",
        LINTED,
    ),
    Mode(
        "openrlhf-4bit-bf16",
        lint("python3 -m openrlhf.cli.train_sft --ds.load_in_4bit --ds.param_dtype fp16", openrlhf="0.11.2"),
        ("ATN441",),
        "--ds.param_dtype bf16",
        LINTED,
    ),
    Mode(
        "zero-dim-query-tp",
        judge(s.with_job(s.with_model(s.h200()), tensor_parallel=8)),
        ("ATN427",),
        "use a size that divides them",
        "the size named divides both counts of heads: tests/doctor/rules/launch/tensor_parallel_heads.py",
    ),
]
MISSED: list[Missed] = []
