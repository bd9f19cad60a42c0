"""Problems with settings that LLaMA-Factory cannot honour; each function checks one behaviour, read in its wheels.

`constraints` says which releases have it and where it was read.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from attncheck.doctor.knowledge.padding import (
    MASKS_ARE_BOOL,
    NEAT_PACKING_BY_POSITIONS,
    NEAT_PACKING_REFUSED_MODELS,
)
from attncheck.lint.deepspeed_config import read_zero_stage
from attncheck.lint.fields import (
    Absent,
    Consequence,
    Known,
    Launch,
    ParsedSettings,
    SettingProblem,
    Snapshot,
    SourceLocation,
    is_at_least,
)
from attncheck.lint.fields import hugging_face as shared
from attncheck.lint.fields.reading import VersionedReading
from attncheck.lint.frameworks.llamafactory import constraints, tables

GPT_OSS_KERNEL_SINCE = "0.9.4"  # since this release gpt_oss gets a Hub kernel (0.9.4 model/model_utils/attention.py)
REGISTER_KERNEL_RANGE = ("4.56", "5.0")  # transformers with integrations.hub_kernels.load_and_register_kernel
POSITIONS_SINCE = "0.9.3"  # data/processor/supervised.py: each document's position_ids alongside the mask of ones
PATCHED_MODEL_TYPES = ("qwen3_5", "qwen3_5_moe")  # model/patcher.py:424, only with fa2


@dataclass(frozen=True)
class LaunchReading(VersionedReading):
    """One launch as one release reads it, before it becomes a job."""

    launch: Launch
    snapshot: Snapshot
    version: str
    transformers: str
    settings: ParsedSettings

    def find_location(self, *names: str) -> SourceLocation:
        """Return the location of the first of the settings that the launch sets."""
        return self.settings.find_location(*names)

    @property
    def stage(self) -> str:
        """The stage of training, "sft" by default (hparams/finetuning_args.py)."""
        return self.settings.get_text("stage") or "sft"

    @property
    def model_type(self) -> str:
        """The model's type; "" if it is not known."""
        return self.snapshot.model.value.model_type if isinstance(self.snapshot.model, Known) else ""

    @property
    def flash_attn(self) -> str:
        """The value of `flash_attn`, "auto" by default."""
        return (self.settings.get_text("flash_attn") or "auto").lower()

    @property
    def lacks_flash_attn(self) -> bool:
        """Whether flash-attn is known to be missing; if this is not known, it counts as installed."""
        return isinstance(self.snapshot.package("flash-attn"), Absent)

    @property
    def implementation(self) -> str:
        """The implementation that will be used; "" for the model's default (attention.py:31-86)."""
        if self.model_type == "gpt_oss" and self.is_at_least(GPT_OSS_KERNEL_SINCE):
            return "kernels-community/vllm-flash-attn3"
        if self.model_type == "gemma2" and self.flash_attn in ("auto", "fa2"):
            return "eager" if self.lacks_flash_attn else "flash_attention_2"
        if self.flash_attn == "fa2" and self.lacks_flash_attn:
            return ""
        return tables.IMPLEMENTATIONS.get(self.flash_attn, "")

    @property
    def neat_packing(self) -> bool:
        """Whether neat packing separates the documents of a row."""
        return self.stage == "sft" and self.settings.is_on("neat_packing")

    @property
    def packed(self) -> bool:
        """Whether documents are packed into a row; the default in stage pt (hparams/parser.py:520)."""
        packing = self.settings.get_text("packing")
        if self.stage not in ("sft", "pt"):
            return False
        return self.neat_packing or (self.settings.is_on("packing") if packing else self.stage == "pt")

    @property
    def batch(self) -> int:
        """The rows of a batch on one device."""
        return max(self.settings.get_int("per_device_train_batch_size", 8), 1)

    @property
    def mixes_documents(self) -> bool:
        """Whether a row's documents attend to each other; flash attention separates those of a single row."""
        has_positions = self.is_one_flash_row and self.is_at_least(POSITIONS_SINCE)
        return self.packed and not self.neat_packing and not has_positions

    @property
    def is_one_flash_row(self) -> bool:
        """Whether flash attention computes a single row of sft; it reads positions if the release gives them."""
        return self.stage == "sft" and self.implementation == "flash_attention_2" and self.batch == 1


def unserved_flash_3(reading: LaunchReading) -> Iterator[SettingProblem]:
    """Check for `fa3`, a valid choice since 0.9.4 for which there is no implementation."""
    if reading.flash_attn == "fa3" and reading.model_type != "gpt_oss":
        yield from reading.setting_problem(
            "refuses",
            "flash_attn: fa3 raises NotImplementedError: Unknown attention type",
            constraints.FLASH_3,
            "flash_attn",
            sets={"attn_implementation": "flash_attention_2"},
            advice="use fa2",
        )


def missing_flash_attn(reading: LaunchReading) -> Iterator[SettingProblem]:
    """Check for `fa2` without the package: another implementation is used, and only a line in the log says so."""
    if reading.flash_attn == "fa2" and reading.lacks_flash_attn and reading.model_type != "gpt_oss":
        instead = "eager" if reading.model_type == "gemma2" else "the model's default implementation"
        yield from reading.setting_problem(
            "replaces",
            f"flash_attn: fa2 without flash-attn: {instead} runs instead, and only the log says so",
            constraints.MISSING_FLASH_ATTN,
            "flash_attn",
            advice="install flash-attn, or write flash_attn: sdpa",
        )


def missing_gpt_oss_loader(reading: LaunchReading) -> Iterator[SettingProblem]:
    """Check gpt_oss: it is loaded through a function that only transformers 4.56 and 4.57 have."""
    first, last = REGISTER_KERNEL_RANGE
    constraint = reading.find_constraint(constraints.GPT_OSS_LOADER)
    if constraint is None or reading.model_type != "gpt_oss":
        return
    if not is_at_least(reading.transformers, first) or is_at_least(reading.transformers, last):
        transformers = reading.transformers
        yield SettingProblem(
            "refuses",
            f"gpt_oss imports load_and_register_kernel, which transformers {transformers} does not have: ImportError",
            (constraint.evidence,),
            reading.find_location("model_name_or_path"),
            advice="pip install 'transformers>=4.56,!=4.57.0,<5'",
        )


def missing_borders(reading: LaunchReading) -> Iterator[SettingProblem]:
    """Check for `packing` alone: its mask is all ones, and only flash attention over one row uses the positions."""
    constraint = reading.find_constraint(constraints.MASK_OF_ONES)
    if constraint is None or not reading.mixes_documents or reading.stage == "pt":  # pt trains on joined rows
        return
    is_neat_broken = not reading.is_at_least(NEAT_PACKING_BY_POSITIONS) and is_at_least(
        reading.transformers, MASKS_ARE_BOOL
    )
    yield SettingProblem(
        "wrong",
        "packing without neat_packing uses a mask of ones: packed documents attend to each other",
        (constraint.evidence,),
        reading.find_location("packing"),
        {"packing": "off"} if is_neat_broken else {"neat_packing": "true"},
        "do not pack" if is_neat_broken else "neat_packing: true",
        mild=reading.is_one_flash_row,  # a later release separates these, and the recipe may rely on it: a warning
    )


def neat_packing_outside_sft(reading: LaunchReading) -> Iterator[SettingProblem]:
    """Check for neat packing in a stage other than sft."""
    if reading.settings.is_on("neat_packing") and reading.stage != "sft":
        yield from reading.setting_problem(
            "refuses",
            f"neat_packing in stage {reading.stage}: ValueError: `neat_packing` cannot be set as True except SFT.",
            constraints.NEAT_PACKING_OUTSIDE_SFT,
            "neat_packing",
            sets={"neat_packing": "false"},
            advice="leave it out",
        )


def neat_packing_of_many_rows(reading: LaunchReading) -> Iterator[SettingProblem]:
    """Check neat packing with several rows: with fa2 the collator of 0.9.5 asserts one; the rest are accumulated."""
    if reading.neat_packing and reading.implementation == "flash_attention_2" and reading.batch > 1:
        steps, rows = max(reading.settings.get_int("gradient_accumulation_steps", 1), 1), reading.batch
        yield from reading.setting_problem(
            "refuses",
            f"neat_packing under fa2 with {rows} rows per device: AssertionError: bsz should be 1 for neat packing",
            constraints.NEAT_PACKING_OF_MANY_ROWS,
            "per_device_train_batch_size",
            "neat_packing",
            sets={"per_device_train_batch_size": "1", "gradient_accumulation_steps": str(steps * rows)},
            advice="use one row, and more accumulation steps instead",
        )


def neat_packing_refused_models(reading: LaunchReading) -> Iterator[SettingProblem]:
    """Check for two models that refuse neat packing with flash attention."""
    is_refused = reading.model_type in NEAT_PACKING_REFUSED_MODELS and reading.implementation == "flash_attention_2"
    if reading.neat_packing and is_refused:
        yield from reading.setting_problem(
            "refuses",
            f"neat_packing under fa2 is refused for {reading.model_type}: ValueError",
            constraints.NEAT_PACKING_REFUSED,
            "neat_packing",
            sets={"neat_packing": "false", "packing": "false"},
            advice="do not pack",
        )


def numbered_masks_cast(reading: LaunchReading) -> Iterator[SettingProblem]:
    """Check for masks that number documents (before 0.9.5): since 4.53, transformers casts them to bool."""
    refused = reading.find_constraint(constraints.NUMBERED_MASKS_REFUSED)
    constraint = refused or reading.find_constraint(constraints.NUMBERED_MASKS_CAST)
    if constraint is None or not reading.neat_packing or not is_at_least(reading.transformers, MASKS_ARE_BOOL):
        return
    refuses = refused is not None
    if not refuses and reading.implementation != "flash_attention_2":
        return
    effect = "raises ValueError" if refuses else "lets documents attend to each other: the mask's numbers become True"
    consequence: Consequence = "refuses" if refuses else "wrong"
    yield SettingProblem(
        consequence,
        f"neat_packing of llamafactory {reading.version} with transformers {reading.transformers} {effect}",
        (constraint.evidence,),
        reading.find_location("neat_packing"),
        {"neat_packing": "false", "packing": "false"},
        "do not pack, or use llamafactory 0.9.5",
    )


def dense_mask(reading: LaunchReading) -> Iterator[SettingProblem]:
    """Check for neat packing without fa2: it makes a 4-D mask for each batch."""
    if reading.neat_packing and not shared.is_flash(reading.implementation):
        length = reading.settings.get_int("cutoff_len", 2048)
        yield from reading.setting_problem(
            "replaces",
            f"neat_packing without fa2: each row gets a dense mask of {length} × {length}",
            constraints.DENSE_MASK,
            "neat_packing",
            sets={"attn_implementation": "flash_attention_2"}
            if not reading.lacks_flash_attn and reading.batch == 1
            else {},
            advice="use fa2, whose memory grows linearly with the length",
            mild=True,
        )


def recurrent_layers_leak(reading: LaunchReading) -> Iterator[SettingProblem]:
    """Check models with recurrent layers: only qwen3_5 is patched, and only with fa2."""
    model = shared.find_recurrent_model(reading.snapshot)
    if model is None:
        return
    is_patched = (
        model.model_type in PATCHED_MODEL_TYPES
        and reading.flash_attn == "fa2"
        and reading.is_at_least(NEAT_PACKING_BY_POSITIONS)
    )
    missing = reading.find_constraint(constraints.LINEAR_ATTENTION_MISSING)
    unpatched = reading.find_constraint(constraints.RECURRENT_LAYERS)
    if missing and is_patched and isinstance(reading.snapshot.package("flash-linear-attention"), Absent):
        yield SettingProblem(
            "refuses",
            f"{model.model_type} under fa2 needs flash-linear-attention 0.4.1 or newer: ImportError",
            (missing.evidence,),
            reading.find_location("flash_attn"),
            advice="pip install 'flash-linear-attention>=0.4.1'",
        )
    elif unpatched and reading.packed and not is_patched:
        source, transformers = unpatched.evidence, reading.transformers
        problem = shared.check_recurrent_packing(reading.snapshot, transformers, model, False, source)
        if problem is not None:
            yield problem


def liger_unsupported(reading: LaunchReading) -> Iterator[SettingProblem]:
    """Check for model types without a liger patch, which get a warning."""
    if (
        reading.settings.is_on("enable_liger_kernel")
        and reading.model_type
        and reading.model_type not in tables.LIGER_MODEL_TYPES
    ):
        yield from reading.setting_problem(
            "ignores",
            f"enable_liger_kernel does nothing for {reading.model_type}; only a warning in the log says so",
            constraints.LIGER_UNSUPPORTED,
            "enable_liger_kernel",
            sets={"liger": "off"},
            advice="leave it out",
            mild=True,
        )


def pure_bf16_with_zero_3(reading: LaunchReading) -> Iterator[SettingProblem]:
    """Check for `pure_bf16` with ZeRO-3, according to DeepSpeed's file, or to its name if it could not be read."""
    file = (reading.settings.get_text("deepspeed")).rsplit("/", 1)[-1]
    stage = read_zero_stage(reading.launch)
    is_zero_3 = stage == 3 if stage is not None else re.search(r"z(ero)?[_-]?(stage)?[_-]?3", file) is not None
    if reading.settings.is_on("pure_bf16") and is_zero_3:
        yield from reading.setting_problem(
            "refuses",
            f"pure_bf16 with DeepSpeed ZeRO-3 ({file}): ValueError",
            constraints.PURE_BF16_WITH_ZERO_3,
            "pure_bf16",
            sets={"pure_bf16": "false", "bf16": "true"},
            advice="bf16: true",
        )


def missing_torchrun(reading: LaunchReading) -> Iterator[SettingProblem]:
    """Check for DeepSpeed without torchrun, which `llamafactory-cli` starts only if it sees several GPUs."""
    gpus = len(reading.snapshot.visible_devices())
    environ = reading.launch.environ
    is_unlaunched = not set(reading.launch.launchers) & shared.PROCESS_LAUNCHERS
    # 0.9.4 launcher.py:57 treats USE_MCA as FORCE_TORCHRUN.
    is_forced = any((environ.get(name) or "").lower() in ("1", "true", "y") for name in ("FORCE_TORCHRUN", "USE_MCA"))
    if (
        not reading.launch.words
        or not is_unlaunched
        or not gpus
        or (environ.get("USE_RAY") or "").lower() in ("1", "true", "y")
    ):
        return
    is_pinned = "," not in environ.get("CUDA_VISIBLE_DEVICES", ",")
    has_one_gpu = gpus == 1 or is_pinned
    if tables.is_cli_command(reading.launch):
        constraint = reading.find_constraint(constraints.DEEPSPEED_WITHOUT_TORCHRUN)
        if constraint and reading.settings.get_text("deepspeed") and has_one_gpu and not is_forced:
            yield SettingProblem(
                "refuses",
                "deepspeed with one GPU: ValueError: Please use `FORCE_TORCHRUN=1` to launch DeepSpeed training.",
                (constraint.evidence,),
                reading.find_location("deepspeed"),
                advice="put FORCE_TORCHRUN=1 in front of the command",
            )
        return
    constraint = reading.find_constraint(constraints.SINGLE_PROCESS)
    if constraint and not has_one_gpu and not reading.settings.is_on("use_kt"):
        yield SettingProblem(
            "refuses",
            f"one process with {gpus} GPUs: ValueError: Please launch distributed training with `llamafactory-cli`",
            (constraint.evidence,),
            reading.launch.words[0].location,
            advice="start it with llamafactory-cli train or torchrun",
        )


def reference_without_adapter(reading: LaunchReading) -> Iterator[SettingProblem]:
    """Check for preferences that a trained LoRA goes on from: without `ref_model`, its own model is the reference."""
    settings, adapter = reading.settings, reading.settings.get_text("adapter_name_or_path")
    has_reference = reading.stage == "kto" or (
        reading.stage == "dpo" and settings.get_text("pref_loss") not in ("orpo", "simpo")
    )
    is_other = settings.is_on("create_new_adapter") or settings.has_any("ref_model") or "," in adapter
    if has_reference and adapter and not is_other and settings.get_text("finetuning_type") == "lora":
        yield from reading.setting_problem(
            "replaces",
            f"{reading.stage} of a trained adapter: the reference is the model without it",
            constraints.REFERENCE_WITHOUT_ADAPTER,
            "adapter_name_or_path",
            advice="create_new_adapter: true, which merges the adapter first, or ref_model with ref_model_adapters",
            mild=True,
        )


def missing_do_train(reading: LaunchReading) -> Iterator[SettingProblem]:
    """Check for a missing `do_train`: the model is loaded, but nothing is trained."""
    others = ("do_eval", "do_predict", "predict_with_generate")  # the last by a fork that draws samples
    has_other_task = any(map(reading.settings.is_on, others))
    is_idle = not reading.settings.is_on("do_train") and not has_other_task
    if is_idle and reading.settings.has_any("stage", "dataset"):
        yield from reading.setting_problem(
            "no_step",
            "do_train is not set: the model is loaded, but not trained",
            constraints.NOTHING_TRAINED,
            "do_train",
            "stage",
            sets={"do_train": "true"},
            advice="do_train: true",
        )


BEHAVIOURS: tuple[Callable[[LaunchReading], Iterator[SettingProblem]], ...] = (
    unserved_flash_3, missing_flash_attn, missing_gpt_oss_loader, missing_borders, neat_packing_outside_sft,
    neat_packing_of_many_rows, neat_packing_refused_models, numbered_masks_cast, dense_mask, recurrent_layers_leak,
    liger_unsupported, pure_bf16_with_zero_3, missing_torchrun, reference_without_adapter, missing_do_train,
)  # fmt: skip
