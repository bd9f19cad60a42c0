"""Checks attention settings that are wrong in every framework, because the kernels are the same.

flash-attn 2.8.3 csrc/flash_attn/flash_api.cpp (`mha_fwd`): "FlashAttention only support fp16 and bf16 data type".
transformers 5.23.0 integrations/flash_attention.py casts float32 queries to autocast's dtype or to the dtype of the
weights, which is again float32 if nothing uses half precision. Eager attention stores the scores of all heads of a
layer (models/llama/modeling_llama.py, `eager_attention_forward`), and also their softmax in float32.
"""

import re
from collections.abc import Iterator

from attncheck.core.facts import Known
from attncheck.core.job import Job, SettingProblem
from attncheck.core.launch import Launch, SourceLocation
from attncheck.core.model import Model
from attncheck.core.records import replace
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.queries.models import unsuitable_implementations
from attncheck.lint.arguments import iter_option_values
from attncheck.lint.fields.hugging_face import is_flash
from attncheck.lint.programs.trainers import OWN_ATTENTION

FLASH_REFUSES = (
    "flash-attn 2.8.3 csrc/flash_attn/flash_api.cpp, mha_fwd: FlashAttention only support fp16 and bf16 data type"
)
EAGER_KEEPS = "transformers 5.23.0 models/llama/modeling_llama.py, eager_attention_forward: scores of all heads at once"
UNFUSED = "torch 2.13.0 backends/cuda/__init__.py, enable_flash_sdp and enable_mem_efficient_sdp"
# Others may still cast: LLaMA-Factory uses the GPU's own 16-bit type; axolotl and OpenRLHF were not read for this.
PROVEN_FRAMEWORKS = frozenset({"verl", "trl", "transformers", "ms-swift"})
HALF = ("bf16", "fp16")
ACCELERATE_CASTS = frozenset({"transformers", "trl", "llamafactory"})  # if their own settings name no precision
QUANTISED = re.compile(r"4bit|8bit|quant|qlora", re.IGNORECASE)
SCORE_BYTES = 2  # per score, in 16 bits
MIN_BYTES = 2 << 30  # smaller scores are not reported


def add_attention_problems(job: Job, launch: Launch, snapshot: Snapshot) -> Job:
    """Return the job with the problems of its attention that do not depend on the framework."""
    half = _find_mixed_precision(launch).lower()
    if job.plan.precision == "fp32" and job.framework in ACCELERATE_CASTS and half in HALF:
        job = replace(job, plan=replace(job.plan, precision="autocast" if half == "bf16" else "fp16"))
    problems = (*_check_float32(job, launch), *_check_unfused(job, launch), *_check_eager_memory(job, snapshot))
    return replace(job, problems=(*job.problems, *problems))


def _check_unfused(job: Job, launch: Launch) -> Iterator[SettingProblem]:
    """Yield the problem of SDPA without its fused kernels, if the program switches them off."""
    replaced = OWN_ATTENTION in (launch.trainers or ())
    if launch.made.unfused is not None and job.plan.attn_implementation in ("", "sdpa") and not replaced:
        yield SettingProblem(
            "replaces",
            "the program switches off SDPA's flash and memory-efficient kernels: the math kernel computes attention "
            "and keeps all scores in memory, unless cuDNN's kernel can run",
            (UNFUSED,),
            launch.made.unfused,
            advice="remove the two calls",
            mild=True,
            universal=True,
        )


def _check_float32(job: Job, launch: Launch) -> Iterator[SettingProblem]:
    """Yield the problem of flash attention in float32, if the launch sets the precision and nothing else casts."""
    location = job.locations.get("precision")
    implementation = job.plan.attn_implementation
    if location is None or job.plan.precision != "fp32" or not is_flash(implementation):
        return
    names = [setting.name for setting in (*job.settings, *launch.entries, *launch.deepspeed)]
    if _find_mixed_precision(launch) or any(QUANTISED.search(name) for name in names):
        return
    yield SettingProblem(
        "refuses",
        f"{implementation} in float32: its kernels support only float16 and bfloat16",
        (FLASH_REFUSES,),
        location,
        {"precision": "bf16"},
        "train in bfloat16",
        mild=job.framework not in PROVEN_FRAMEWORKS or bool(launch.open_ends),
    )


def _find_mixed_precision(launch: Launch) -> str:
    """Return the 16-bit type that accelerate casts to, from its option, its file or its variable; "" for none.

    transformers 5.23.0 training_args.py reads ACCELERATE_MIXED_PRECISION if neither bf16 nor fp16 is on.
    """
    options = iter_option_values(launch.launcher_words)
    candidates = [value.text for name, value in options if name == "--mixed_precision"]
    candidates += [entry.value for entry in launch.launcher_entries if entry.name == "mixed_precision"]
    candidates.append(launch.environ.get("ACCELERATE_MIXED_PRECISION", ""))
    return next((text for text in candidates if text.lower() in HALF or "$" in text), "")


def _check_eager_memory(job: Job, snapshot: Snapshot) -> Iterator[SettingProblem]:
    """Yield the problem of eager attention with scores larger than a GPU's memory, or a large part of any GPU's."""
    location: SourceLocation | None = job.locations.get("max_length")
    model = snapshot.model.value if isinstance(snapshot.model, Known) else None
    if not _runs_eager(job, model) or location is None:
        return
    tokens = job.plan.max_length // max(job.plan.ring_size, 1)
    heads = model.num_heads.value if model is not None and isinstance(model.num_heads, Known) else 0
    rows = max(job.plan.batch, 1)
    size = tokens * tokens * SCORE_BYTES * max(heads, 1) * rows
    if size < MIN_BYTES:
        return
    whose = f"of its {heads} heads" if heads else "of each head"
    over = f"{rows} row{'s' * (rows > 1)} of {tokens} tokens"
    text = f"eager attention over {over}: the scores {whose} take {size / 2**30:.3g} GiB in a layer"
    fused = _choose_fused(model, snapshot)
    advice = f"use {fused}, which never stores the scores"
    yield SettingProblem("refuses", text, (EAGER_KEEPS,), location, {"attn_implementation": fused}, advice, mild=True)


def _runs_eager(job: Job, model: Model | None) -> bool:
    """Return whether the job runs eager attention, because it requests it or because its class has no sdpa."""
    if job.plan.attn_implementation == "":
        return model is not None and model.sinks
    return job.plan.attn_implementation == "eager"


def _choose_fused(model: Model | None, snapshot: Snapshot) -> str:
    """Return an implementation that computes the same without storing scores.

    sdpa has neither softcap nor sinks. flash-attn 2 has a softcap but no sinks. flex_attention has both.
    """
    if model is None or not (model.sinks or isinstance(model.softcap, Known)):
        return "sdpa"
    if (
        not model.sinks
        and snapshot.lists("flash-attn")
        and "flash_attention_2" not in unsuitable_implementations(snapshot, model)
    ):
        return "flash_attention_2"
    return "flex_attention"
