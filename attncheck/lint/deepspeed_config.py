"""Reads the DeepSpeed configuration that a launch names, and its effect on the job.

Its sources are `--deepspeed ds.json` and `deepspeed: ds.json` of transformers' TrainingArguments, which TRL,
LLaMA-Factory, axolotl and ms-swift pass on (ms-swift's `zero3` and the like are its own files, all "auto"), and else
accelerate's `deepspeed_config_file`. Nothing is concluded from a file that was not read.

A contradiction to the launch is refused. transformers 5.23.0 integrations/deepspeed.py:131, 144-184 collect every value
that is neither "auto" nor equal to TrainingArguments' own, and :258-263 raise (as in 4.36.2, 4.46.3, 4.57.6 and 5.0.0).
deepspeed 0.19.8 runtime/config.py:511 asserts that bf16 and fp16 are not both on (0.14.5 :831, 0.18.0 :783). accelerate
1.15.0 utils/dataclasses.py:1507-1532 refuses a file together with the same settings in its own configuration (0.27.2
:844-870). Under DeepSpeed the weights themselves have the 16-bit type (deepspeed 0.18.0 runtime/engine.py:1309-1313).
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import NamedTuple

from attncheck.core.facts import Fact, Known, Unreadable
from attncheck.core.io.errors import BadUsage
from attncheck.core.job import Job, SettingProblem
from attncheck.core.launch import Launch, Setting, Source
from attncheck.core.plan import Precision
from attncheck.core.records import replace
from attncheck.doctor.knowledge.frameworks import TRAINER_FRAMEWORKS
from attncheck.lint.arguments import iter_option_values
from attncheck.lint.fields.written import FALSE_WORDS, TRUE_WORDS
from attncheck.lint.files import configuration
from attncheck.lint.programs.places import find_working_folder

MATCHED_FIELDS: tuple[tuple[str, str], ...] = (  # DeepSpeed's key, and the TrainingArguments field that must be equal
    ("train_micro_batch_size_per_gpu", "per_device_train_batch_size"),
    ("gradient_accumulation_steps", "gradient_accumulation_steps"),
    ("gradient_clipping", "max_grad_norm"),
    ("optimizer.params.lr", "learning_rate"),
    ("optimizer.params.eps", "adam_epsilon"),
    ("optimizer.params.weight_decay", "weight_decay"),
    ("scheduler.params.warmup_max_lr", "learning_rate"),
)
OTHER_NAMES: Mapping[str, str] = {"micro_batch_size": "per_device_train_batch_size"}  # axolotl's name
# Settings of accelerate's `deepspeed_config` that it refuses next to a file (utils/dataclasses.py:1508-1521 of 1.15.0).
REFUSED_BESIDE_FILE = frozenset(
    {
        *("gradient_accumulation_steps", "gradient_clipping", "zero_stage", "zero3_save_16bit_model"),
        *("offload_optimizer_device", "offload_param_device", "offload_param_nvme_path", "offload_optimizer_nvme_path"),
    }
)
OTHER_ENGINES = frozenset({"--multi_gpu", "--cpu", "--use_fsdp", "--use_megatron_lm", "--tpu"})
MISMATCH = "transformers 5.23.0 integrations/deepspeed.py:131, 258-263: Please correct the following DeepSpeed config"
BOTH = "deepspeed 0.19.8 runtime/config.py:511: bfloat16 and fp16 modes cannot be simultaneously enabled"
IGNORED_WITH_FILE = (
    "accelerate 1.15.0 utils/dataclasses.py:1525: the following accelerate config variables will be ignored"
)

UNKNOWN_KEYS = "accelerate 1.15.0 commands/config/config_args.py:134, from_json_file: The config file had unknown keys"
UNUSED_FILE = (
    "accelerate 1.15.0 commands/launch.py:1393: DeepSpeed runs if args.use_deepspeed, or accelerate's file says so"
)


def attach_config(launch: Launch, read_file: Callable[[str], Source | None]) -> Launch:
    """Return the launch with the DeepSpeed configuration that it names, unless the file cannot be read."""
    nested = [entry for entry in launch.entries if entry.name.startswith("deepspeed.")]
    if nested:  # the configuration itself is inside the launch's own file
        settings = tuple(replace(entry, name=entry.name.removeprefix("deepspeed.")) for entry in nested)
        return replace(launch, deepspeed=settings)
    path = _find_path(launch)
    names = dict.fromkeys((str(PurePosixPath(find_working_folder(launch)) / path), path)) if path else ()
    for name in names:
        source = read_file(name)
        if source is None or source.kind != "json":
            continue
        try:
            return replace(launch, deepspeed=configuration.parse_entries(source))
        except BadUsage:
            return launch
    return launch


def _find_path(launch: Launch) -> str:
    """Return the path of the file that the program names, otherwise that accelerate names; "" for none."""
    candidates = [
        *_iter_option_values(launch, "deepspeed", "deepspeed_config"),
        *(entry for entry in launch.entries if entry.name == "deepspeed"),
        *_iter_option_values(launch, "deepspeed_config_file"),
        *(entry for entry in launch.launcher_entries if entry.name == "deepspeed_config.deepspeed_config_file"),
    ]
    values = [setting.value for setting in candidates if setting.known]
    return next((value for value in values if value.endswith(".json")), "")


def _iter_option_values(launch: Launch, *names: str) -> Iterator[Setting]:
    for option, word in iter_option_values(launch.whole or launch.words):
        if option.startswith("--") and option[2:].replace("-", "_") in names:
            yield Setting(option, word.text, word.location, word.span, known=word.known)


class _Contents(NamedTuple):
    """The keys of one DeepSpeed configuration, without "auto" and values known only at run time."""

    settings: Mapping[str, Setting]

    def get_text(self, name: str) -> str:
        setting = self.settings.get(name)
        return setting.value if setting is not None and setting.known and setting.value != "auto" else ""

    def get_number(self, name: str) -> float | None:
        return _parse_number(self.get_text(name))

    def get_switch(self, name: str) -> bool | None:
        text = self.get_text(name).lower()
        return True if text == "true" else False if text == "false" else None

    @property
    def file(self) -> str:
        return next(iter(self.settings.values())).location.source.rsplit("/", 1)[-1]


def settle_deepspeed(job: Job, launch: Launch, starts_own_program: bool) -> Job:
    """Return the job with the effects of its DeepSpeed configuration, if that was read.

    `starts_own_program` means that the framework's own command runs, which uses transformers' trainer.
    """
    if job.framework not in TRAINER_FRAMEWORKS:
        return job
    is_proven = is_trainers_setting(launch, starts_own_program)
    problems = list(_check_accelerate(launch))
    if launch.deepspeed:
        contents = _Contents({setting.name: setting for setting in launch.deepspeed})
        written = _collect_written(job, launch)
        problems += [*_check_both_types(contents), *_check_mismatches(launch, contents, written)]
        job = replace(job, plan=replace(job.plan, precision=_resolve_precision(job, contents)))
        job = replace(job, remarks=(*job.remarks, *_format_remarks(job, contents)))
    job = replace(job, deepspeed=uses_deepspeed(job, launch))
    problems = [replace(problem, mild=not (is_proven or problem.universal)) for problem in problems]
    return replace(job, problems=(*job.problems, *problems))


def uses_deepspeed(job: Job, launch: Launch) -> Fact[bool]:
    """Return whether the Trainer runs on DeepSpeed, by its own setting or by accelerate's options, variable or file.

    accelerate 1.12.0 utils/launch.py:520 exports ACCELERATE_USE_DEEPSPEED, and commands/launch.py:1098 reads
    `distributed_type` from its file; trl 1.0.0 accelerate_configs/ has zero1 to zero3.
    """
    written = _collect_written(job, launch)
    own = written.get("deepspeed")
    if launch.deepspeed or (own is not None and own.value.lower() not in ("", "none", "null", *FALSE_WORDS)):
        return Known(True)
    options = set(_list_launcher_options(launch))
    entries = {entry.name: entry.value.upper() for entry in launch.launcher_entries}
    if "--use_deepspeed" in options or launch.environ.get("ACCELERATE_USE_DEEPSPEED", "").lower() in TRUE_WORDS:
        return Known(True)
    if options & OTHER_ENGINES:
        return Known(False)
    if entries:
        return Known(entries.get("distributed_type") == "DEEPSPEED")
    file = next((setting.value for setting in _iter_option_values(launch, "config_file", "accelerate_config")), "")
    file = file or (written["accelerate_config"].value if "accelerate_config" in written else "")
    if "zero" in file:
        return Known(True)
    return Unreadable(f"{file} was not read") if file.endswith((".yaml", ".yml", ".json")) else Known(False)


def read_zero_stage(launch: Launch) -> int | None:
    """Return the ZeRO stage of the launch's DeepSpeed configuration; None if it was not read."""
    if not launch.deepspeed:
        return None
    stage = _Contents({setting.name: setting for setting in launch.deepspeed}).get_number("zero_optimization.stage")
    return int(stage) if stage is not None else None


def is_trainers_setting(launch: Launch, starts_own_program: bool) -> bool:
    """Return whether `deepspeed` is certainly the field of transformers' TrainingArguments."""
    program = launch.program
    option = program.options.get("deepspeed") if program is not None and program.style == "dataclasses" else None
    return starts_own_program or (option is not None and "transformers" in option.place)


def _collect_written(job: Job, launch: Launch) -> dict[str, Setting]:
    """Return field -> the effective setting, for settings that the launch writes."""
    written = {}
    for setting in (*launch.entries, *job.settings):
        name = setting.name.lstrip("-").replace("-", "_")
        written[OTHER_NAMES.get(name, name) if job.framework == "axolotl" else name] = setting
    return written


def _check_both_types(contents: _Contents) -> Iterator[SettingProblem]:
    bf16 = contents.get_switch("bf16.enabled") or contents.get_switch("bfloat16.enabled")
    if bf16 and contents.get_switch("fp16.enabled"):
        text = f"{contents.file} enables bf16 and fp16: AssertionError"
        location = contents.settings["fp16.enabled"].location
        yield SettingProblem("refuses", text, (BOTH,), location, advice='"auto" for both, and --bf16 or --fp16')


def _check_mismatches(launch: Launch, contents: _Contents, written: Mapping[str, Setting]) -> Iterator[SettingProblem]:
    mismatches = [*_iter_number_mismatches(contents, written), *_iter_switch_mismatches(contents, written)]
    mismatches += _iter_global_mismatches(launch, contents, written)
    if mismatches:
        text = "; ".join(f"{key} is {ours} but {name} is {theirs}" for key, ours, name, theirs, _ in mismatches)
        location = mismatches[0][4].location
        advice = f'"auto" in {contents.file} for {", ".join(dict.fromkeys(row[0] for row in mismatches))}'
        message = f"{contents.file} contradicts the launch: {text}: ValueError"
        yield SettingProblem("refuses", message, (MISMATCH,), location, advice=advice)


Mismatch = tuple[str, str, str, str, Setting]  # DeepSpeed's key and value, the launch's name and value, its setting


def _iter_number_mismatches(contents: _Contents, written: Mapping[str, Setting]) -> Iterator[Mismatch]:
    for key, name in MATCHED_FIELDS:
        if name == "per_device_train_batch_size" and "auto_find_batch_size" in written:
            continue
        ours, setting = contents.get_number(key), written.get(name)
        theirs = _parse_number(setting.value) if setting is not None and setting.known else None
        if ours is not None and setting is not None and theirs is not None and ours != theirs:
            yield key, contents.get_text(key), setting.name, setting.value, setting


def _iter_switch_mismatches(contents: _Contents, written: Mapping[str, Setting]) -> Iterator[Mismatch]:
    """Yield mismatches of bf16 and fp16: if one is on, the other must be off, because transformers refuses both."""
    switches = {name: _parse_switch(written.get(name)) for name in ("bf16", "fp16")}
    for name, other in (("bf16", "fp16"), ("fp16", "bf16")):
        if f"{name}_full_eval" in written:
            continue
        value = switches[name]
        setting = written.get(name)
        if setting is None and switches[other]:
            value, setting = False, written[other]
        ours = contents.get_switch(f"{name}.enabled")
        if ours is not None and value is not None and setting is not None and ours != value:
            yield f"{name}.enabled", str(ours).lower(), name, str(value).lower(), setting


def _iter_global_mismatches(launch: Launch, contents: _Contents, written: Mapping[str, Setting]) -> Iterator[Mismatch]:
    """Yield a mismatch of train_batch_size, if the launch sets both of its factors and the number of ranks."""
    ours, nodes, processes = contents.get_number("train_batch_size"), launch.nodes, launch.processes
    rows, steps = written.get("per_device_train_batch_size"), written.get("gradient_accumulation_steps")
    if ours is None or rows is None or steps is None:
        return
    if not isinstance(nodes, Known) or not isinstance(processes, Known):
        return
    row_count, step_count = (_parse_number(setting.value) if setting.known else None for setting in (rows, steps))
    if row_count is None or step_count is None or "auto_find_batch_size" in written:
        return
    ranks = nodes.value * processes.value
    if ours != row_count * step_count * ranks:
        product = f"{row_count * step_count * ranks:g}"
        names = f"{rows.value} rows × {steps.value} step{'s' * (step_count != 1)} × {ranks} ranks"
        yield "train_batch_size", contents.get_text("train_batch_size"), names, product, rows


def _parse_number(text: str) -> float | None:
    if not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", text[:64].strip()):
        return None
    value = float(text)
    return value if math.isfinite(value) else None


def _parse_switch(setting: Setting | None) -> bool | None:
    """Return a setting as a bool, True for an option without a value; None for "auto" and unknown values."""
    if setting is None or not setting.known:
        return None
    text = setting.value.lower()
    if not text:
        return True if setting.name.startswith("-") else None
    return True if text in TRUE_WORDS else False if text in FALSE_WORDS else None


def _check_accelerate(launch: Launch) -> Iterator[SettingProblem]:
    """Yield the problems of a DeepSpeed file in accelerate's place, unused, or next to settings that accelerate has."""
    entries = {entry.name: entry for entry in launch.launcher_entries if entry.known}
    before = set(_list_launcher_options(launch))
    swapped = next((entry for name, entry in entries.items() if name.startswith("zero_optimization.")), None)
    if swapped is not None:
        text = f"--config_file {swapped.location.source} is a DeepSpeed file, not one of accelerate: ValueError"
        advice = "--use_deepspeed --deepspeed_config_file, and --config_file for accelerate's own"
        yield SettingProblem("refuses", text, (UNKNOWN_KEYS,), swapped.location, advice=advice, universal=True)
    named = [word for word in launch.launcher_words if word.text.partition("=")[0] == "--deepspeed_config_file"]
    is_whole = all(word.known or word.text[:1] != "$" for word in launch.launcher_words)
    if named and is_whole and not before & {"--use_deepspeed", "--config_file"}:
        text, advice = "--deepspeed_config_file without --use_deepspeed: accelerate ignores it", "add --use_deepspeed"
        yield SettingProblem("ignores", text, (UNUSED_FILE,), named[0].location, advice=advice, universal=True)
    is_deepspeed = "distributed_type" in entries and entries["distributed_type"].value.upper() == "DEEPSPEED"
    if not is_deepspeed or before & OTHER_ENGINES or not (launch.deepspeed or _find_path(launch)):
        return
    names = [name for name in entries if name.removeprefix("deepspeed_config.") in REFUSED_BESIDE_FILE and "." in name]
    precision = entries.get("mixed_precision")
    if precision is not None and precision.value and "--mixed_precision" not in before:
        names.append("mixed_precision")
    if names:
        file = entries[names[0]].location.source.rsplit("/", 1)[-1]
        own = ", ".join(name.rpartition(".")[2] for name in names)
        text = f"{file} sets {own} alongside a DeepSpeed file: ValueError"
        advice = f"set them in the DeepSpeed file only, not in {file}"
        yield SettingProblem("refuses", text, (IGNORED_WITH_FILE,), entries[names[0]].location, advice=advice)


def _list_launcher_options(launch: Launch) -> list[str]:
    """Return the options before the program, such as "--use_fsdp"."""
    names = (word.text.split("=")[0] for word in launch.launcher_words if word.text.startswith("--"))
    return ["--" + name[2:].replace("-", "_") for name in names]


def _resolve_precision(job: Job, contents: _Contents) -> Precision:
    """Return the precision of weights and arithmetic under DeepSpeed: its own, or the launch's for "auto"."""
    if contents.get_switch("bf16.enabled") or contents.get_switch("bfloat16.enabled"):
        return "bf16"
    if contents.get_switch("fp16.enabled"):
        return "fp16"
    setting = contents.settings.get("bf16.enabled")
    follows_launch = setting is not None and setting.value == "auto"
    return "bf16" if follows_launch and job.plan.precision == "autocast" else job.plan.precision


def _format_remarks(job: Job, contents: _Contents) -> Iterator[str]:
    size = contents.get_number("sequence_parallel_size")
    if size is not None and size > 1 and job.plan.ring_size == 1:
        yield (
            f"sequence_parallel_size {size:g} in {contents.file}: whether it divides rows depends on the program's code"
        )
