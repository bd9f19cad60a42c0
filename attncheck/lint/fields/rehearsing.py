"""Shared by scaled-down launches: looks up settings by name, and scales transformers' TrainingArguments down."""

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from attncheck.core.job import DROP, Job
from attncheck.core.launch import Edit, Launch, Setting, Word
from attncheck.core.rehearsal import DATA_ENDINGS, Materials, Normalisation
from attncheck.lint.files.entry import Entry

# The divisor in transformers' Trainer: `num_items_in_batch`. Up to 5.3.0 it counted every label (trainer.py
# `_get_num_items_in_batch`), in 5.17.0 only predicted ones.
TRAINER_NORMALISATIONS: tuple[Normalisation, ...] = ("step_tokens", "step_labels")
# transformers 4.46.0 training_args.py; on by default in 5.17.0. Without it, each rank divides by its own labels.
TRAINER_RANK_CORRECTIONS: tuple[Mapping[str, str], ...] = ({"average_tokens_across_devices": "true"},)
# With this rate a small model with random weights learns in tens of steps. PyYAML reads 5e-3, without a point, as text.
LEARNING_RATE = "0.005"
EMULATED_IMPLEMENTATION = "flash_attention_2"
# Implementations that keep their name, with the module that transformers imports for them.
EMULATED = (EMULATED_IMPLEMENTATION, "flash_attention_3", "flash_attention_4")
# A flash-attn on the Hub, by the name of its repository: vllm-flash-attn3, with a revision and a function.
HUB_KERNEL = re.compile(r"[^/:@|]+/[\w.-]*flash-attn-?([234]?)(?:@[^/:]+)?(?::[^/:]+)?")
FLASH_WORDS = ("flash", "fa2", "fa3", "kernels-community")
# Makes the watcher ignore calls of torch.cuda that only choose a device, and DeepSpeed use its code for CPUs.
WITHOUT_CUDA = {"ATTNCHECK_WITHOUT_CUDA": "1", "DS_ACCELERATOR": "cpu"}
MAX_JOINED_ROWS = 3  # of a batch
PICTURE_LENGTH = 256  # tokens that hold a document with its image
# accelerate's context parallelism (torch's own, over SDPA) and sequence parallelism (DeepSpeed's ALST).
WHOLE_ROWS = "rows that accelerate splits across ranks are not compared with the reference yet"
# Settings of transformers' Trainer, and of frameworks on it, that do not work on a CPU.
GPU_SETTINGS = (
    *("deepspeed", "fsdp", "fsdp_config", "torch_compile", "use_liger_kernel", "use_liger", "enable_liger_kernel"),
    *("quantization_bit", "quantization_method", "quant_bits", "quant_method", "load_in_4bit", "load_in_8bit"),
)
GPU_OPTIMIZERS = ("8bit", "4bit", "paged", "bnb", "fused", "adamw_hf")  # transformers 5 removed the last one
OPTION = re.compile(r"--?[A-Za-z]")
VARIABLE = re.compile(r"\$\{?(\w+)\}?")
NAME = re.compile(r"[^\s,\[\]\"']+")  # in a list of JSON or Hydra, or of words
OWN_OPTION = re.compile(r"\w+\.(\w+)")
COMPOSED = ("hydra", "omegaconf")
OFF_VALUES = ("false", "0", "no", "off", "none", "null", "", "[]")
ON_VALUES = ("true", "1", "yes", "on", "")


def get_setting(job: Job, *names: str) -> str | None:
    """Return the value of a job's setting that has one of these names; None if none is written.

    A value from a shell variable is taken from this shell; if the variable is not set, the setting counts as not
    written.
    """
    for setting in reversed(job.settings):
        if setting.name.lstrip("-").replace("-", "_") in names:
            variable = None if setting.known else VARIABLE.fullmatch(setting.value)
            return os.environ.get(variable[1]) if variable else setting.value
    return None


def find_data_file(text: str) -> str:
    """Return the first data set that a setting names, "" if it is not a file: "a.jsonl" of "a.jsonl#500 b.jsonl"."""
    names = NAME.findall(text)
    name: str = names[0].partition("#")[0] if names else ""
    return name if name.endswith(DATA_ENDINGS) else ""


def is_on(job: Job, name: str) -> bool:
    """Return whether a setting is written and on."""
    value = get_setting(job, name)
    return value is not None and value.lower() in ON_VALUES


def is_number(text: str) -> bool:
    """Return whether a setting's text is a number, rather than a shell variable."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def resolve_options(launch: Launch, job: Job) -> Job:
    """Return a job in which settings that a script takes from an option (`args.beta`) have that option's value."""
    defaults = launch.program.options if launch.program is not None else {}

    def resolve(setting: Setting) -> Setting:
        match = None if setting.known else OWN_OPTION.fullmatch(setting.value)
        if match is None:
            return setting
        option = defaults.get(match[1]) or defaults.get(match[1].replace("_", "-"))
        value = get_option(launch, match[1]) or str(option.default if option and option.default is not None else "")
        return replace(setting, value=value, known=True) if value else setting

    return replace(job, settings=tuple(map(resolve, job.settings)))


def find_options(launch: Launch, names: Sequence[str]) -> list[str]:
    """Return those of `names` that a launch's command gives as options, in the order of `names`."""
    options = [word.text.partition("=")[0] for word in launch.words if word.text.startswith("-")]
    written = {option.lstrip("-").replace("-", "_") for option in options}
    return [name for name in names if name in written]


def get_option(launch: Launch, name: str) -> str:
    """Return the value that a launch's command gives to an option; "" if it gives none."""
    for word, following in zip(launch.words, (*launch.words[1:], None)):
        option, equals, value = word.text.partition("=")
        if option.startswith("-") and option.lstrip("-").replace("-", "_") == name:
            is_bare = following is None or OPTION.match(following.text)
            return value if equals or is_bare or following is None else following.text
    return ""


def get_first_option(launch: Launch, names: Sequence[str]) -> str:
    """Return the value of the first of these options that a launch's command gives; "" if it gives none."""
    return next((get_option(launch, name) for name in find_options(launch, names)), "")


def edit_options(launch: Launch, values: Mapping[str, str]) -> Iterator[Edit]:
    """Yield the edits that give these values to the matching options of a launch's command, and keys of its file.

    Raises `ValueError` for a word that is assembled from several places.
    """
    for entry in launch.entries if launch.words and not launch.starts_written_script else ():
        value = values.get(entry.name.rpartition(".")[2].replace("-", "_"))
        if value is not None and isinstance(entry, Entry):
            yield entry.replace_value(value)
    for index, word in enumerate(launch.words):
        name, equals, _ = word.text.partition("=")
        value = values.get(name.lstrip("-").replace("-", "_")) if name.startswith("-") else None
        if value is None:
            continue
        following = launch.words[index + 1 : index + 2]
        if equals:
            yield edit_word(launch, word, f"{name}={shlex.quote(value)}")
        elif following and not OPTION.match(following[0].text):
            yield edit_word(launch, following[0], shlex.quote(value))
        else:  # its value is a variable that is empty
            place = edit_word(launch, word, f" {shlex.quote(value)}")
            yield replace(place, span=(place.span[1], place.span[1]))


def edit_word(launch: Launch, word: Word, text: str) -> Edit:
    """Return the edit that replaces a word of a launch's command. Raises `ValueError` if its place is unknown."""
    if word.span[0] < 0:
        raise ValueError(f"{word.text} is assembled from several places")
    return Edit(word.location.source or launch.source.name, word.span, text)


def misses_program(launch: Launch) -> bool:
    """Return whether a launch starts a file that was not found, for example one of a framework's checkout."""
    program = launch.words[0].text if launch.words else ""
    places = (launch.folder, os.path.dirname(launch.source.name), "")
    return program.endswith(".py") and not any(os.path.isfile(os.path.join(place, program)) for place in places)


def keep_taken(launch: Launch, sets: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that the user's own script takes: those in the command, and those found in its source.

    A script that composes its settings from files takes all of them, which are changed in its process.
    """
    if launch.program is not None and launch.program.style in COMPOSED:
        return dict(sets)
    written = {entry.name for entry in launch.entries} | set(find_options(launch, tuple(sets)))
    options = launch.program.options if launch.program is not None else {}
    taken = {name.replace("-", "_") for name in options}
    return {name: value for name, value in sets.items() if name in written or name in taken}


def cut_training_arguments(job: Job, materials: Materials) -> dict[str, str]:
    """Return TrainingArguments (transformers training_args.py) for a few steps that leave no files behind.

    Without a GPU, settings that need one are left out, and `list_left_out` reports them.
    """
    without_gpu = {"use_cpu": "true", "tf32": DROP, "ddp_backend": DROP, **dict.fromkeys(_list_gpu_settings(job), DROP)}
    optimizer = get_setting(job, "optim")
    if optimizer is not None and any(word in optimizer.lower() for word in GPU_OPTIMIZERS):
        without_gpu["optim"] = "adamw_torch"
    return {
        "output_dir": materials.output,
        "max_steps": str(materials.steps),
        "num_train_epochs": DROP,
        "per_device_train_batch_size": str(_count_rows(job, materials)),
        "gradient_accumulation_steps": str(materials.accumulation),
        "learning_rate": LEARNING_RATE,
        "lr_scheduler_type": "constant",
        "lr_scheduler_kwargs": DROP,
        "warmup_steps": DROP,
        "warmup_ratio": DROP,
        "report_to": "none",
        "run_name": DROP,
        "logging_steps": "1",
        "save_strategy": "no",
        "save_steps": DROP,
        "save_total_limit": DROP,
        "eval_strategy": DROP,
        "evaluation_strategy": DROP,
        "eval_steps": DROP,
        "eval_on_start": DROP,
        "do_eval": DROP,
        "load_best_model_at_end": DROP,
        "metric_for_best_model": DROP,
        "push_to_hub": DROP,
        "hub_model_id": DROP,
        "resume_from_checkpoint": DROP,
        **({} if materials.uses_gpu else without_gpu),
    }


def _count_rows(job: Job, materials: Materials) -> int:
    """Return the rows of a batch; if padding_free joins them, the plan's batch is one row."""
    rows = get_setting(job, "per_device_train_batch_size") or ""
    is_joined = is_on(job, "padding_free") and not is_on(job, "packing")
    return max(min(int(rows), MAX_JOINED_ROWS) if is_joined and rows.isdecimal() else 0, materials.batch)


def leaves_sharding_out(job: Job) -> bool:
    """Return whether a job without a GPU loses FSDP or DeepSpeed, which hold weights in float32."""
    return not {"deepspeed", "fsdp"}.isdisjoint(_list_gpu_settings(job))


def list_left_out(job: Job, materials: Materials) -> tuple[str, ...]:
    """Return the remarks on settings that are left out because there is no GPU."""
    names = () if materials.uses_gpu else _list_gpu_settings(job)
    return tuple(f"{name} needs a GPU, and this machine has none: left out" for name in names)


def _list_gpu_settings(job: Job) -> list[str]:
    switches = {setting.name.lstrip("-").replace("-", "_") for setting in job.settings if setting.name.startswith("-")}
    values = {name: get_setting(job, name) or ("true" if name in switches else "") for name in GPU_SETTINGS}
    return [name for name, value in values.items() if value.lower() not in OFF_VALUES]


class AttentionCut(NamedTuple):
    """The replacement for a job's attention without a GPU: settings, whether flash-attn is emulated, and the remark."""

    sets: Mapping[str, str]
    emulates_flash_attn: bool = False
    remarks: tuple[str, ...] = ()


def cut_attention(job: Job, materials: Materials, requested: str = "") -> AttentionCut:
    """Return the replacement for flash-attn without a GPU: its emulation in torch, under the same name and conditions.

    `requested` is the launch's own choice, if the framework falls back to something else without flash-attn.
    """
    name = requested or job.plan.attn_implementation
    if materials.uses_gpu or not any(word in name.lower() for word in FLASH_WORDS):
        return AttentionCut({})
    return AttentionCut(
        {} if find_emulated(name) else {"attn_implementation": EMULATED_IMPLEMENTATION},
        True,
        (describe_emulation(name),),
    )


def find_emulated(name: str) -> str:
    """Return the implementation whose emulation serves one of this name, "" if another one must replace it.

    transformers loads a Hub kernel by its own path, from the emulation.
    """
    hub = HUB_KERNEL.fullmatch(name)
    return f"flash_attention_{hub[1] or 2}" if hub else name if name in EMULATED else ""


def describe_emulation(name: str) -> str:
    """Return the remark on flash-attn's emulation, which replaces an implementation."""
    return f"{name} needs a GPU, which this machine lacks: replaced by an emulation of flash-attn 2.8.3 in torch"
