"""Reads from a launch how its rollout engine generates and how its trainer scores.

Sources: trl 1.16.0 trainer/grpo_config.py and generation/vllm_generation.py (`logprobs_mode="processed_logprobs"`, no
dtype: the model's own), which divides by the temperature since 0.16; openrlhf 0.11.2 cli/train_ppo_ray.py and
trainer/ray/vllm_engine.py (`"dtype": "bfloat16"`); verl 0.9.1 trainer/config/rollout/rollout.yaml, actor/actor.yaml,
model/hf_model.yaml and workers/engine/fsdp/transformer_impl.py.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from attncheck.core.agreement import Layout, Overrides, Rollout, Scoring
from attncheck.core.io.errors import Unanswered
from attncheck.core.job import DROP, Job
from attncheck.core.plan import Precision
from attncheck.lint.fields.rehearsing import get_setting, is_on
from attncheck.lint.fields.releases import is_at_least

VERL = "actor_rollout_ref"
DTYPES: Mapping[str, Precision] = {
    "bfloat16": "bf16",
    "bf16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "fp16": "fp16",
    "float32": "fp32",
    "fp32": "fp32",
    "float": "fp32",
}
PROCESSED = "processed_logprobs"
VLLM_OPTIONS = ("kv_cache_dtype", "quantization", "enable_prefix_caching", "attention_backend")
FP8_CACHES = tuple(f"fp8-cache:{name}{end}" for name in ("e4m3", "e5m2") for end in ("", "-cut"))
MAX_BATCH = 8  # rows of the trainer's batch, out of ten
TRAINERS = ("grpo", "ppo", "rloo", "reinforce")
# settings of the launch that are not a model's configuration
OWN_KEYS = ("attn_implementation", "_attn_implementation", "torch_dtype", "dtype", "use_cache")


@dataclass(frozen=True)
class ReadJob:
    """Both sides of a launch, the named engine ("vllm", "sglang", "transformers"), and remarks."""

    rollout: Rollout
    scoring: Scoring
    engine: str
    remedies: Mapping[str, Mapping[str, str]]  # the settings of the launch that remove each cause
    remarks: tuple[str, ...] = ()


def read_job(job: Job) -> ReadJob:
    """Return both sides of a launch. Raises `Unanswered` if its framework or trainer is not supported."""
    reader = READERS.get(job.framework)
    if reader is None:
        names = ", ".join(READERS)
        raise Unanswered(
            f"{job.location}: rollouts of {job.framework} are not supported yet; supported are those of {names}"
        )
    is_policy = job.reinforcement or any(name in job.trainer for name in TRAINERS)
    if not is_policy:
        raise Unanswered(f"{job.location}: {job.framework} {job.trainer} trains without rollouts: nothing to compare")
    return reader(job)


def read_trl(job: Job) -> ReadJob:
    """Return both sides of a TRL launch with GRPO or RLOO."""
    default = 1.0 if is_at_least(job.version, "0.17") else 0.9
    temperature = _number(job, default, "temperature")
    is_vllm = is_on(job, "use_vllm")
    continuous = is_on(job, "use_transformers_continuous_batching") or is_on(job, "use_transformers_paged")
    rollout = Rollout(
        precision="bf16" if is_vllm else job.plan.precision,
        attn_implementation=job.plan.attn_implementation,  # it generates with the model that it trains
        temperature=temperature,
        top_p=_number(job, 1.0, "top_p"),
        top_k=_top_k(job, "top_k"),
        min_p=_number(job, 0.0, "min_p"),
        continuous_batching=continuous and not is_vllm,
        max_model_len=int(_number(job, 0, "vllm_max_model_length")),
    )
    low = _number(job, 0.2, "epsilon")
    scoring = replace(
        _read_scoring(job),
        layout="left",
        passes_positions=False,
        temperature=temperature if is_at_least(job.version, "0.16") else 1.0,
        clip=(low, _number(job, low, "epsilon_high")),
        dropout="functional" if is_on(job, "disable_dropout") else "on",
    )
    remedies = {
        "truncated-distribution": _undo(job, top_p="1.0", top_k="0", min_p="0.0"),
        "temperature-not-applied": {"temperature": "1.0"},
        "dropout": {"disable_dropout": "true"},
    }
    return ReadJob(rollout, scoring, "vllm" if is_vllm else "transformers", remedies)


def read_openrlhf(job: Job) -> ReadJob:
    """Return both sides of an OpenRLHF launch with PPO or a similar algorithm; its engine is vLLM, in bfloat16."""
    temperature = _number(job, 1.0, "rollout.temperature", "temperature")
    rollout = Rollout(
        precision="bf16",
        temperature=temperature,
        top_p=_number(job, 1.0, "rollout.top_p", "top_p"),
        max_model_len=int(_number(job, 0, "data.max_len", "max_len")),
    )
    clip = (
        (get_setting(job, "actor.eps_clip_low_high", "eps_clip_low_high") or "").strip("[]").replace(",", " ").split()
    )
    both = _number(job, 0.2, "actor.eps_clip", "eps_clip")
    is_packed = job.plan.packing != "padding"
    scoring = replace(
        _read_scoring(job),
        layout="packed" if is_packed else "left",
        temperature=temperature,
        clip=(float(clip[0]), float(clip[1])) if len(clip) == 2 else (both, both),
        batch=_batch(job, job.plan.batch, "rollout.micro_batch_size", "micro_rollout_batch_size"),
    )
    remedies = {
        "truncated-distribution": _undo(job, **{"rollout.top_p": "1.0", "top_p": "1.0"}),
        "packed-documents-leak": {"attn_implementation": "flash_attention_2"},
    }
    return ReadJob(rollout, scoring, "vllm", remedies)


def read_verl(job: Job) -> ReadJob:
    """Return both sides of a launch of verl's `main_ppo`."""
    own, actor = f"{VERL}.rollout", f"{VERL}.actor"
    temperature = _number(job, 1.0, f"{own}.temperature")
    engine = _text(job, "vllm", f"{own}.name")
    mode = _text(job, PROCESSED, f"{own}.logprobs_mode", f"{own}.engine_kwargs.vllm.logprobs_mode")
    dtype = _text(job, "bfloat16", f"{own}.dtype")
    rollout = Rollout(
        precision=DTYPES.get(dtype, "bf16"),
        attn_implementation=job.plan.attn_implementation if engine == "hf" else "",
        temperature=temperature,
        top_p=_number(job, 1.0, f"{own}.top_p"),
        top_k=_top_k(job, f"{own}.top_k"),
        log_probabilities="raw" if mode.startswith("raw") else "processed",
        max_model_len=int(_number(job, 0, f"{own}.max_model_len")),
        overrides=_overrides(job, f"{own}.engine_kwargs.vllm.hf_overrides."),
        options=tuple(pair for pair in _overrides(job, f"{own}.engine_kwargs.vllm.") if pair[0] in VLLM_OPTIONS),
    )
    both = _number(job, 0.2, f"{actor}.clip_ratio")
    is_packed = job.plan.packing != "padding"
    padded: Layout = "right" if is_at_least(job.version, "0.8") else "left"
    batch = f"{own}.log_prob_micro_batch_size_per_gpu"
    scoring = replace(
        _read_scoring(job),
        layout="packed" if is_packed else padded,
        temperature=temperature,
        divides_float32=False,
        clip=(_number(job, both, f"{actor}.clip_ratio_low"), _number(job, both, f"{actor}.clip_ratio_high")),
        batch=_batch(job, job.plan.batch, batch, f"{actor}.ppo_micro_batch_size_per_gpu"),
        overrides=_overrides(job, f"{VERL}.model.override_config."),
    )
    remedies = {
        "raw-log-probabilities": _undo(
            job, **dict.fromkeys((f"{own}.logprobs_mode", f"{own}.engine_kwargs.vllm.logprobs_mode"), PROCESSED)
        ),
        "truncated-distribution": _undo(job, **{f"{own}.top_p": "1.0", f"{own}.top_k": "-1"}),
        **dict.fromkeys(
            FP8_CACHES, dict.fromkeys(_list_written(job, f"{own}.engine_kwargs.vllm.kv_cache_dtype"), DROP)
        ),
        "engine-overrides": dict.fromkeys(_list_written(job, f"{own}.engine_kwargs.vllm.hf_overrides."), DROP),
        "trainer-overrides": dict.fromkeys(_list_written(job, f"{VERL}.model.override_config."), DROP),
        "packed-documents-leak": {"attn_implementation": "flash_attention_2"},
    }
    return ReadJob(rollout, scoring, "transformers" if engine == "hf" else engine, remedies)


READERS: Mapping[str, Callable[[Job], ReadJob]] = {"trl": read_trl, "openrlhf": read_openrlhf, "verl": read_verl}


def _undo(job: Job, **values: str) -> dict[str, str]:
    """Return the values that undo the settings written in the launch."""
    return {name: value for name, value in values.items() if get_setting(job, name, f"+{name}") is not None}


def _list_written(job: Job, prefix: str) -> list[str]:
    """Return the settings of a launch below a prefix."""
    names = (setting.name.lstrip("+") for setting in job.settings)
    return [name for name in names if name.startswith(prefix)]


def _read_scoring(job: Job) -> Scoring:
    """Return the scoring settings that every framework's plan has."""
    plan = job.plan
    return Scoring(plan.precision, plan.attn_implementation, batch=_batch(job, plan.batch))


def _batch(job: Job, default: int, *names: str) -> int:
    return max(1, min(int(_number(job, default, *names)), MAX_BATCH))


def _text(job: Job, default: str, *names: str) -> str:
    value = (get_setting(job, *names, *(f"+{name}" for name in names)) or default).strip().strip("\"'")
    return default if value in ("null", "None") else value


def _number(job: Job, default: float, *names: str) -> float:
    """Return a setting's number. Raises `Unanswered` if it is known only at run time."""
    text = _text(job, str(default), *names)
    try:
        return float(text)
    except ValueError:
        message = f"{job.location}: {names[0]} is {text}, which is not known before the launch runs: set it to a number"
        raise Unanswered(message) from None


def _top_k(job: Job, name: str) -> int:
    return max(0, int(_number(job, 0, name)))


def _overrides(job: Job, prefix: str) -> Overrides:
    """Return the config.json keys that a launch overrides below a prefix, nested keys as one table."""
    table: dict[str, object] = {}
    for setting in job.settings:
        name = setting.name.lstrip("+")
        if not name.startswith(prefix) or not setting.known:
            continue
        *parents, key = name.removeprefix(prefix).split(".")
        if (parents or [key])[0] in OWN_KEYS:
            continue
        place = table
        for parent in parents:
            place = place.setdefault(parent, {})  # type: ignore[assignment]
        place[key] = _parse(setting.value)
    return tuple((key, json.dumps(value)) for key, value in table.items())


def _parse(text: str) -> object:
    try:
        return json.loads({"True": "true", "False": "false", "None": "null"}.get(text, text))
    except ValueError:
        return text.strip("\"'")
