"""Problems with settings that TRL cannot honour; each function checks one behaviour, read in its wheels.

`constraints` says which releases have it and where it was read.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from attncheck.doctor.knowledge.padding import PACKED_WITHOUT_FLASH
from attncheck.lint.fields import (
    Absent,
    Constraint,
    Known,
    Launch,
    ParsedSettings,
    SettingProblem,
    Snapshot,
    SourceLocation,
    is_at_least,
    value_or,
)
from attncheck.lint.fields import hugging_face as shared
from attncheck.lint.fields.reading import VersionedReading
from attncheck.lint.frameworks.trl import constraints, tables
from attncheck.lint.programs.paths import may_contain
from attncheck.lint.programs.places import find_tree
from attncheck.lint.programs.trainers import OWN_ROWS

PACKING_STRATEGY_SINCE = "0.19"  # before, packing cut the joined text at any token (0.18.2 data_utils.py:475)
BFD_DEFAULT_SINCE = "0.20"
POSITIONS_ALWAYS_SINCE = "0.23.1"  # before, only with these implementations (0.23.0 sft_trainer.py:789)
DPO_PADS_SINCE = "0.29"  # DPO's padding_free is switched off (0.29.1 dpo_trainer.py:576)
# Release -> its trainer's names for flash attention: 0.20.0 sft_trainer.py:486, 0.21.0:440, 0.22.0:703.
FLASH_NAMES = {
    "0.22": ("flash_attention_2", "flash_attention_3", "kernels-community/vllm-flash-attn3"),
    "0.21": ("flash_attention_2", "kernels-community/vllm-flash-attn3"),
    "0": ("flash_attention_2",),
}
# Model type -> the inputs that its class requires in training, by release of transformers; read in 4.56.2 to 5.24.0.
TOKEN_TYPES_REQUIRED = {
    "gemma3": (
        "token_type_ids",
        Constraint("transformers 5.5.0 models/gemma3/modeling_gemma3.py:754", "5.0", "5.6",
                   "`token_type_ids` is required as a model input when training"),
    ),
    "gemma4": (
        "mm_token_type_ids",
        Constraint("transformers 5.5.0 models/gemma4/modeling_gemma4.py:2005", "5.5", "5.6",
                   "`mm_token_type_ids` is required as a model input when training"),
    ),
}  # fmt: skip
ONLINE_TRAINERS = ("grpo", "rloo", "distillation")


@dataclass(frozen=True)
class LaunchReading(VersionedReading):
    """One launch as one release reads it, before it becomes a job."""

    launch: Launch
    snapshot: Snapshot
    trainer: str
    version: str
    transformers: str
    settings: ParsedSettings
    parallelism: shared.Parallelism
    world_size: int | None

    def find_location(self, *names: str) -> SourceLocation:
        """Return the location of the first of the settings that the launch sets."""
        return self.settings.find_location(*names)

    @property
    def packed(self) -> bool:
        """Whether documents are packed into one row: only in SFT, and only if TRL prepares the rows.

        A configuration file without a command does not state its program, which may be a script of its tree.
        """
        if self.trainer != "sft" or not self.settings.is_on("packing"):
            return False
        return OWN_ROWS not in (self.launch.trainers or ()) and not (
            not self.launch.words
            and self.launch.source.kind != "python"
            and may_contain(find_tree(self.launch), "skip_prepare_dataset")
        )

    @property
    def packing_strategy(self) -> str:
        """The `packing_strategy`: "wrapped" cuts documents anywhere."""
        if not self.is_at_least(PACKING_STRATEGY_SINCE):
            return "wrapped"
        return self.settings.get_text("packing_strategy") or "bfd"

    @property
    def flattened(self) -> bool:
        """Whether a batch is flattened into one row without padding, with positions that restart in each document."""
        strategies = ("bfd", "bfd_split") if self.is_at_least("1.0") else ("bfd",)
        strategies = strategies if self.is_at_least(BFD_DEFAULT_SINCE) else ("ffd",)
        if self.trainer == "dpo":
            return self.settings.is_on("padding_free") and not self.is_at_least(DPO_PADS_SINCE)
        keeps_documents_whole = self.packed and self.packing_strategy in strategies
        return self.trainer == "sft" and (
            self.settings.is_on("padding_free") or (keeps_documents_whole and self.is_at_least(PACKING_STRATEGY_SINCE))
        )

    @property
    def implementation(self) -> str:
        """The implementation in the settings; "" for the model's default."""
        return self.settings.get_text("attn_implementation")

    @property
    def isolates_documents(self) -> bool:
        """Whether positions separate the documents of a row."""
        names = next(names for since, names in FLASH_NAMES.items() if self.is_at_least(since))
        has_positions = self.is_at_least(POSITIONS_ALWAYS_SINCE) or self.implementation in names
        return self.flattened and has_positions and not (self.packed and self.packing_strategy == "wrapped")


def missing_command(reading: LaunchReading) -> Iterator[SettingProblem]:
    """Check for a `trl NAME` that the release does not have: argparse refuses it."""
    if tables.is_trl_command(reading.launch) and len(reading.launch.words) > 1:
        word = reading.launch.words[1]
        if word.known and not tables.has_command(word.text, reading.version):
            yield SettingProblem(
                "refuses",
                f"trl {reading.version} has no command {word.text}",
                ("trl 1.16.0 cli/commands/__init__.py, get_commands; 0.24.0 cli.py:86-134; 0.12.2 commands/cli.py:31",),
                word.location,
                advice=f"start TRL's example script for {reading.trainer}, or a release that has the command",
            )


def wrapped_packing(reading: LaunchReading) -> Iterator[SettingProblem]:
    """Check for packing that joins documents and cuts full rows: nothing separates the documents."""
    if not reading.packed or reading.packing_strategy != "wrapped":
        return
    chosen, joined = (
        reading.find_constraint(ranges) for ranges in (constraints.WRAPPED_STRATEGY, constraints.JOINED_DOCUMENTS)
    )
    if chosen is not None:
        strategy = "bfd" if reading.is_at_least(BFD_DEFAULT_SINCE) else "ffd"
        yield SettingProblem(
            "wrong",
            "packing_strategy wrapped joins documents without boundaries, so they attend to each other",
            (chosen.evidence,),
            reading.find_location("packing_strategy", "packing"),
            {"packing_strategy": strategy},
            f"pack whole documents: {strategy}",
        )
    elif joined is not None:
        yield SettingProblem(
            "wrong",
            f"packing of trl {reading.version} joins documents without boundaries, so they attend to each other",
            (joined.evidence,),
            reading.find_location("packing"),
            {"packing": "off"},
            "do not pack, or use trl 0.20 or newer, which packs whole documents",
        )


def requeued_packing(reading: LaunchReading) -> Iterator[SettingProblem]:
    """Check for `bfd-requeue` in 0.29: rows are packed, but the collator does not know that."""
    if reading.packed and reading.packing_strategy == "bfd-requeue":
        yield from reading.setting_problem(
            "wrong",
            "packing_strategy bfd-requeue uses a mask of ones and no positions, so documents attend to each other",
            constraints.REQUEUED_PACKING,
            "packing_strategy",
            sets={"packing_strategy": "bfd"},
            advice="use bfd",
        )


def missing_positions(reading: LaunchReading) -> Iterator[SettingProblem]:
    """Check for packing without flash attention: up to 0.22, the collator passes positions only with it."""
    constraint = reading.find_constraint(constraints.MISSING_POSITIONS)
    if constraint is None and not is_at_least(reading.transformers, PACKED_WITHOUT_FLASH):
        constraint = reading.find_constraint(constraints.UNREAD_POSITIONS)
    is_wrapped = reading.packed and reading.packing_strategy == "wrapped"
    is_mixed = reading.trainer == "sft" and reading.flattened and not reading.isolates_documents and not is_wrapped
    if constraint and is_mixed:
        implementation = reading.implementation or "the model's default implementation"
        is_missing = isinstance(reading.snapshot.package("flash-attn"), Absent)
        yield SettingProblem(
            "wrong",
            f"trl {reading.version} packs without positions under {implementation}, so documents attend to each other",
            (constraint.evidence,),
            reading.find_location("packing", "padding_free"),
            {} if is_missing else {"attn_implementation": "flash_attention_2"},
            "" if is_missing else "use flash_attention_2",
            installs=(f"trl>={POSITIONS_ALWAYS_SINCE},<1",) if is_missing else (),
        )


def dense_mask(reading: LaunchReading) -> Iterator[SettingProblem]:
    """Check for packing without flash attention: the mask is length × length, about which 1.16 no longer warns."""
    is_supported = is_at_least(reading.transformers, PACKED_WITHOUT_FLASH)
    if not (reading.isolates_documents and is_supported) or shared.is_flash(reading.implementation):
        return
    if reading.parallelism.scheme == "torch":
        return
    rows = max(reading.settings.get_int("per_device_train_batch_size", 8), 1)
    is_unlimited = reading.settings.has_any("max_length") and not reading.settings.get_text("max_length")
    length = reading.settings.get_int("max_length", 1024) * rows
    size = f"all {rows} documents of a batch, squared" if is_unlimited else f"{length} × {length}"
    silent, warned = (
        reading.find_constraint(ranges) for ranges in (constraints.DENSE_MASK, constraints.DENSE_MASK_WITH_WARNING)
    )
    constraint = silent or warned
    if constraint is None:
        return
    warning = "trl 1.16 no longer warns of it" if silent else "trl warns of it"
    yield SettingProblem(
        "replaces",
        f"packed without flash attention: each row gets a dense mask of {size} ({warning})",
        ("transformers masking_utils.py, find_packed_sequence_indices", constraint.evidence),
        reading.find_location("packing", "padding_free"),
        {"attn_implementation": "flash_attention_2"} if reading.snapshot.lists("flash-attn") else {},
        "use flash_attention_2, whose memory grows with the length alone",
        mild=True,
    )


def padding_free_max_length(reading: LaunchReading) -> Iterator[SettingProblem]:
    """Check for padding_free without packing: rows are not truncated to max_length, and since 1.0 both are refused."""
    max_length = reading.settings.get_text("max_length")
    if reading.trainer == "sft" and reading.settings.is_on("padding_free") and not reading.packed and max_length:
        yield from reading.setting_problem(
            "refuses",
            f"padding_free without packing does not allow max_length, which is {max_length}: ValueError",
            constraints.PADDING_FREE_MAX_LENGTH,
            "padding_free",
            sets={"padding_free": "false"},
            advice="pad the batch, or pack (packing: true), or truncate the inputs and set max_length: null",
        )


def packing_without_max_length(reading: LaunchReading) -> Iterator[SettingProblem]:
    """Check for packing without max_length, the length of its rows."""
    if reading.packed and reading.settings.has_any("max_length") and not reading.settings.get_text("max_length"):
        yield from reading.setting_problem(
            "refuses",
            'packing with max_length none: "When packing is enabled, `max_length` can\'t be `None`."',
            constraints.PACKING_WITHOUT_MAX_LENGTH,
            "max_length",
            sets={"max_length": "1024"},
            advice="give a length",
        )


def packed_images(reading: LaunchReading) -> Iterator[SettingProblem]:
    """Check for packing of vision models or, since 1.10, of datasets with images."""
    name = next((name for name in ("packing", "padding_free") if reading.settings.is_on(name)), "")
    of_model, of_dataset = (
        reading.find_constraint(ranges)
        for ranges in (constraints.PACKED_VISION_MODEL, constraints.PACKED_VISION_DATASET)
    )
    if reading.trainer != "sft" or not name:
        return
    script = reading.launch.words[0].text if reading.launch.words else ""
    by_model = of_model if shared.is_multimodal(reading.snapshot) else None
    constraint = by_model or (of_dataset if "vlm" in script.rsplit("/", 1)[-1] else None)
    if constraint is not None:
        subject = "vision-language models" if by_model else "vision datasets"
        yield SettingProblem(
            "refuses",
            f"{name} is not supported for {subject}: ValueError",
            (constraint.evidence,),
            reading.find_location(name),
            {name: "false"},
            "pad the batch",
        )


def packing_with_context_parallelism(reading: LaunchReading) -> Iterator[SettingProblem]:
    """Check for packing with context parallelism, which drops the mask that packed documents need."""
    if not reading.packed or reading.parallelism.scheme != "torch":
        return
    refuses = reading.find_constraint(constraints.PACKING_WITH_CP_REFUSED)
    constraint = refuses or reading.find_constraint(constraints.PACKING_WITH_CP_WRONG)
    if constraint is None:
        return
    text = f"packing with context parallelism over {reading.parallelism.ring_size} ranks: "
    text += "ValueError" if refuses else "the mask is dropped and documents attend to each other"
    yield SettingProblem(
        "refuses" if refuses else "wrong",
        text,
        (constraint.evidence,),
        reading.find_location("packing"),
        {"packing": "off"},
        "do not pack",
    )


def online_parallelism_refused(reading: LaunchReading) -> Iterator[SettingProblem]:
    """Check for context or sequence parallelism with GRPO and similar trainers, which assume undivided rows."""
    ranges = (constraints.ONLINE_PARALLELISM_REFUSED, constraints.ONLINE_PARALLELISM)
    applicable = tuple(constraint for constraint in map(reading.find_constraint, ranges) if constraint is not None)
    if applicable and reading.trainer in ONLINE_TRAINERS and reading.parallelism.ring_size > 1:
        name = "cp_size" if reading.parallelism.cp_size > 1 else "sp_size"
        yield SettingProblem(
            "refuses",
            f"{reading.trainer} cannot divide rows across ranks: {name} is {reading.parallelism.ring_size}",
            tuple(constraint.evidence for constraint in applicable),
            reading.parallelism.location,
            {"ring_size": "1"},
            f"{name} 1",
        )


def dpo_padding_free_ignored(reading: LaunchReading) -> Iterator[SettingProblem]:
    """Check for DPO's padding_free, "temporarily unavailable" since 0.29."""
    if reading.trainer == "dpo" and reading.settings.is_on("padding_free"):
        yield from reading.setting_problem(
            "ignores",
            "padding_free has no effect in DPO, which falls back to padding with a warning",
            constraints.DPO_PADS,
            "padding_free",
            sets={"padding_free": "false"},
            advice="leave it out",
            mild=True,
        )


def data_parallel_refused(reading: LaunchReading) -> Iterator[SettingProblem]:
    """Check for several GPUs in one process: the Trainer wraps the model in DataParallel, refused since 1.15."""
    is_early = reading.trainer in constraints.DATA_PARALLEL_TRAINERS
    ranges = constraints.DATA_PARALLEL if is_early else constraints.DATA_PARALLEL_OF_REWARD
    constraint = reading.find_constraint(ranges) if is_early or reading.trainer == "reward" else None
    gpus = shared.count_data_parallel_gpus(reading.launch, reading.snapshot)
    if tables.is_trl_command(reading.launch) or not gpus:
        return
    if constraint is None:
        if reading.trainer in ("sft", "reward"):  # the Trainer divides their loss
            yield from shared.check_data_parallel(reading.launch, reading.snapshot, reading.transformers)
        return
    yield SettingProblem(
        "refuses",
        f"one process with {gpus} GPUs would use nn.DataParallel, which {reading.trainer} refuses: ValueError",
        (constraint.evidence,),
        reading.launch.words[0].location,
        advice=shared.ONE_GPU_EACH,
        mild=reading.launch.trainers is None and not tables.is_own_program(reading.launch),
    )


def ulysses_without_positions(reading: LaunchReading) -> Iterator[SettingProblem]:
    """Check for Ulysses without position_ids, which each part of a row needs: until 1.11 if the batch is padded."""
    constraint = reading.find_constraint(constraints.ULYSSES_WITHOUT_POSITIONS)
    if constraint and reading.trainer == "sft" and reading.parallelism.scheme == "ulysses" and not reading.flattened:
        yield SettingProblem(
            "refuses",
            f"Ulysses over {reading.parallelism.ring_size} ranks requires position_ids, which trl {reading.version} "
            "gives to packed rows only: the first batch raises",
            (constraint.evidence,),
            reading.parallelism.location,
            {"packing": "on"},
            "pack, or install trl 1.11 or newer",
        )


def missing_token_types(reading: LaunchReading) -> Iterator[SettingProblem]:
    """Check for a class that requires token types in training: the text collator does not pass them."""
    model = reading.snapshot.model.value if isinstance(reading.snapshot.model, Known) else None
    script = reading.launch.words[0].text.rsplit("/", 1)[-1] if reading.launch.words else ""
    if model is None or reading.trainer != "sft" or "vlm" in script or model.model_type not in TOKEN_TYPES_REQUIRED:
        return
    name, constraint = TOKEN_TYPES_REQUIRED[model.model_type]
    if constraint.holds_in(reading.transformers):
        yield SettingProblem(
            "refuses",
            f"{model.model_type} requires {name} in training, and rows of text have none: the first step raises",
            (constraint.evidence, "trl 0.24.0 to 1.16.0 trainer/sft_trainer.py, DataCollatorForLanguageModeling"),
            reading.find_location("model_name_or_path"),
            installs=(f"transformers>={constraint.until}",),
            mild=not reading.settings.has_any("dataset_name"),
        )


def cut_image_tokens(reading: LaunchReading) -> Iterator[SettingProblem]:
    """Check for rows truncated at max_length, 1024 by default: image tokens after it are lost."""
    constraint = reading.find_constraint(constraints.CUT_IMAGE_TOKENS)
    script = reading.launch.words[0].text.rsplit("/", 1)[-1] if reading.launch.words else ""
    if not constraint or reading.trainer != "sft" or "vlm" not in script or reading.settings.has_any("max_length"):
        return
    limit = 32768
    if isinstance(reading.snapshot.model, Known):
        limit = value_or(reading.snapshot.model.value.max_position_embeddings, limit)
    yield SettingProblem(
        "refuses",
        "max_length is 1024 by default: a row whose images take more tokens is truncated in the middle of an image, "
        "which raises an error",
        (constraint.evidence,),
        reading.launch.words[0].location,
        {"max_length": str(limit)},
        "raise max_length over the longest row; in Python, max_length=None disables truncation",
        mild=True,
    )


def uneven_generation_groups(reading: LaunchReading) -> Iterator[SettingProblem]:
    """Check for a generation batch that does not consist of whole groups of answers to one prompt."""
    if reading.trainer not in ("grpo", "rloo"):
        return
    is_grpo = reading.trainer == "grpo"
    size = reading.settings.get_int("num_generations", 8 if is_grpo else 2)
    generations, batch, one_step = (
        reading.find_constraint(ranges)
        for ranges in (
            constraints.GRPO_GENERATIONS if is_grpo else constraints.RLOO_GENERATIONS,
            constraints.GRPO_BATCH if is_grpo else constraints.RLOO_BATCH,
            constraints.GRPO_BATCH_OF_ONE_STEP if is_grpo else (),
        )
    )
    constraint = batch or one_step
    if size < 2 and generations:
        text = f"num_generations is {size}: at least 2 are needed to compare answers"
        yield SettingProblem(
            "refuses",
            text,
            (generations.evidence,),
            reading.find_location("num_generations"),
            {"num_generations": "2"},
        )
    elif (
        constraint
        and size > 1
        and reading.world_size
        and not reading.settings.has_any("generation_batch_size", "steps_per_generation")
    ):
        rows = reading.settings.get_int("per_device_train_batch_size", 8)
        steps = reading.settings.get_int("gradient_accumulation_steps", 1) if batch else 1
        generation_batch = rows * reading.world_size * steps
        if generation_batch % size:
            text = f"generation batch of {rows} × {reading.world_size} ranks × {steps} steps = {generation_batch}"
            text += f" is not a multiple of num_generations {size}: ValueError"
            yield SettingProblem(
                "refuses",
                text,
                (constraint.evidence,),
                reading.find_location("num_generations"),
                advice=f"make it a multiple of {size}",
            )


def unequal_rewards(reading: LaunchReading) -> Iterator[SettingProblem]:
    """Check for other numbers of reward weights than of functions: a warning, as a program may add functions."""
    written = {item.raw.name.lstrip("-"): item.raw for item in reading.settings.all_settings if item.raw.known}
    lists = [written[name] for name in ("reward_weights", "reward_funcs") if name in written]  # often the script's own
    counts = [len(item.value.replace(",", " ").split()) for item in lists]
    constraint = reading.find_constraint(constraints.REWARD_WEIGHTS) if len({*counts}) == 2 else None
    if constraint is not None and reading.trainer in ("grpo", "rloo"):
        text = "{} reward_weights for {} reward_funcs: ValueError".format(*counts)
        evidence, location = (constraint.evidence,), lists[0].location
        yield SettingProblem(
            "refuses", text, evidence, location, advice="give one weight to each", mild=True, universal=True
        )


def recurrent_layers_leak(reading: LaunchReading) -> Iterator[SettingProblem]:
    """Check for recurrent layers: they read a packed row as one document unless cu_seqlens separates the documents."""
    model = shared.find_recurrent_model(reading.snapshot)
    if model is not None and reading.isolates_documents:
        passing = reading.find_constraint(constraints.RECURRENT_CU_SEQLENS)
        constraint = passing or reading.find_constraint(constraints.RECURRENT_POSITIONS)
        if constraint is None:
            return
        snapshot, source, transformers = reading.snapshot, constraint.evidence, reading.transformers
        problem = shared.check_recurrent_packing(snapshot, transformers, model, passing is not None, source)
        if problem is not None:
            yield problem


def liger_loss_replaced(reading: LaunchReading) -> Iterator[SettingProblem]:
    """Check for liger's fused cross-entropy: since 1.15 it is ignored, so the setting should be removed."""
    if reading.settings.is_on("use_liger_kernel") and reading.trainer in ("sft", "dpo", "kto", "grpo", "rloo"):
        yield from reading.setting_problem(
            "replaces",
            "use_liger_kernel patches only layers: TRL keeps its own chunked loss, and removes the setting in 2.0",
            constraints.LIGER_LOSS,
            "use_liger_kernel",
            advice='model_init_kwargs={"use_kernels": True}',
            mild=True,
        )


def end_not_learned(reading: LaunchReading) -> Iterator[SettingProblem]:
    """Check for a pad_token that is the eos_token: transformers' collator gives it no loss, wherever it stands."""
    place, constraint = reading.launch.made.pads_with_end, reading.find_constraint(constraints.PADDING_HAS_NO_LOSS)
    if place is not None and constraint is not None and reading.trainer == "sft":
        text = "pad_token is eos_token, so that eos_token gets no loss: the model does not learn to predict it"
        advice = "set pad_token to another token, such as unk_token; or TRL 0.16 or newer, which masks by position"
        yield SettingProblem("wrong", text, (constraint.evidence,), place, advice=advice, mild=True)


BEHAVIOURS: tuple[Callable[[LaunchReading], Iterator[SettingProblem]], ...] = (
    missing_command, wrapped_packing, requeued_packing, missing_positions, dense_mask, padding_free_max_length,
    packing_without_max_length, packed_images, packing_with_context_parallelism, online_parallelism_refused,
    dpo_padding_free_ignored, data_parallel_refused,
    ulysses_without_positions, cut_image_tokens, missing_token_types,
    uneven_generation_groups, unequal_rewards, recurrent_layers_leak,
    liger_loss_replaced, end_not_learned,
)  # fmt: skip
