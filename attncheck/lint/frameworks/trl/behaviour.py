"""Problems of settings that TRL cannot serve: each function is one behaviour, read in its wheels.

Lines are those of 1.16.0 trainer/ unless another release is named; a boundary is the first release that was read with
the change (0.19.1, 0.20.0, 0.21.0 … one of each minor).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from attncheck.core.job import SettingProblem
from attncheck.core.launch import Launch, SourceLocation
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.knowledge.padding import PACKED_WITHOUT_FLASH
from attncheck.lint.fields import hugging_face as shared
from attncheck.lint.fields.releases import is_at_least
from attncheck.lint.fields.values import ParsedSettings
from attncheck.lint.frameworks.trl import tables

PACKING_STRATEGY_SINCE = "0.19"  # before, packing cut the joined text anywhere (0.18.2 data_utils.py:475)
BFD_DEFAULT_SINCE = "0.20"
POSITIONS_ALWAYS_SINCE = "0.23"  # before, only under flash attention (0.22.2 sft_trainer.py:756, `return_position_ids`)
CU_SEQLENS_SINCE = "1.16"  # the collator gives cu_seq_lens_q/k and seq_idx too (sft_trainer.py:212-222)
PACKED_CP_REFUSED_SINCE = "1.11"  # packing with context parallelism (1.11.0 sft_trainer.py)
MAX_LENGTH_REFUSED_SINCE = "1.0"  # padding_free without packing, with a max_length (1.0.0 sft_trainer.py:924)
VISION_REFUSED_SINCE = ("0.22", "1.10")  # packing of vision models; from the second on of datasets with images
# GRPO and RLOO under context or sequence parallelism (1.4.0 trainer/grpo_config.py).
ONLINE_PARALLELISM_REFUSED_SINCE = "1.4"
DPO_PADS_SINCE = "0.29"  # padding_free of DPO is switched off (0.29.1 dpo_trainer.py:576)
DATA_PARALLEL_REFUSED_SINCE = "1.15"  # nn.DataParallel is refused (1.15.0 sft_trainer.py)
FLASH_BEFORE_0_21 = ("flash_attention_2",)  # 0.19, 0.20: 0.20.0 sft_trainer.py:486; from 0.21 on 3 too
ONLINE_TRAINERS = ("grpo", "rloo", "distillation")


@dataclass(frozen=True)
class LaunchReading:
    """One launch as one release reads it, before it is a job."""

    launch: Launch
    snapshot: Snapshot
    trainer: str
    version: str
    transformers: str
    settings: ParsedSettings
    parallelism: shared.Parallelism
    world_size: int | None

    def is_at_least(self, boundary: str) -> bool:
        """Say whether the release is `boundary` or newer."""
        return is_at_least(self.version, boundary)

    @property
    def packed(self) -> bool:
        """Whether documents are packed into one row: only SFT packs."""
        return self.trainer == "sft" and self.settings.is_on("packing")

    @property
    def packing_strategy(self) -> str:
        """The `packing_strategy`: "wrapped" cuts documents anywhere."""
        if not self.is_at_least(PACKING_STRATEGY_SINCE):
            return "wrapped"
        return self.settings.get_text("packing_strategy") or "bfd"

    @property
    def flattened(self) -> bool:
        """Whether a batch is flattened into one row without padding, whose positions begin anew with each document."""
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
        """The implementation that the settings name, "" where the model's own is taken."""
        return self.settings.get_text("attn_implementation") or ""

    @property
    def isolates_documents(self) -> bool:
        """Whether documents of a row are separated by positions."""
        flash = FLASH_BEFORE_0_21 if not self.is_at_least("0.21") else (*FLASH_BEFORE_0_21, "flash_attention_3")
        is_flash = self.implementation.startswith((*flash, "kernels-community"))
        has_positions = self.is_at_least(POSITIONS_ALWAYS_SINCE) or is_flash
        return self.flattened and has_positions and not (self.packed and self.packing_strategy == "wrapped")

    def find_location(self, *names: str) -> SourceLocation:
        """Return the location of the first of the settings that the launch sets."""
        return self.settings.find_location(*names)


def find_problems(reading: LaunchReading) -> tuple[SettingProblem, ...]:
    """Return the problems that the release has with the settings."""
    return tuple(problem for behaviour in BEHAVIOURS for problem in behaviour(reading))


def missing_command(reading: LaunchReading) -> Iterator[SettingProblem]:
    """`trl NAME` that is no command of the release: argparse refuses it."""
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
    """Packing that joins documents and cuts the row where it is full: no borders at all."""
    if not reading.packed or reading.packing_strategy != "wrapped":
        return
    if reading.is_at_least(PACKING_STRATEGY_SINCE):
        strategy = "bfd" if reading.is_at_least(BFD_DEFAULT_SINCE) else "ffd"
        yield SettingProblem(
            "wrong",
            "packing_strategy wrapped joins documents into rows without borders: they attend to each other",
            ("trl 1.16.0 data_utils.py:820, _pack_wrapped; sft_trainer.py:916, no padding_free",),
            reading.find_location("packing_strategy", "packing"),
            {"packing_strategy": strategy},
            f"pack whole documents: {strategy}",
        )
    else:
        yield SettingProblem(
            "wrong",
            f"packing of trl {reading.version} joins documents into rows without borders: they attend to each other",
            ("trl 0.18.2 data_utils.py:475, pack_dataset; trl 0.19.1 brings packing_strategy",),
            reading.find_location("packing"),
            {"packing": "off"},
            "do not pack, or take trl 0.20 or newer, which packs whole documents",
        )


def requeued_packing(reading: LaunchReading) -> Iterator[SettingProblem]:
    """`bfd-requeue` of 0.29 packs, but the collator does not take it for packing."""
    if reading.packed and reading.packing_strategy == "bfd-requeue" and not reading.is_at_least("1.0"):
        yield SettingProblem(
            "wrong",
            "packing_strategy bfd-requeue gives a mask of ones and no positions: documents attend to each other",
            ("trl 0.29.1 sft_trainer.py:798: padding_free only for bfd",),
            reading.find_location("packing_strategy"),
            {"packing_strategy": "bfd"},
            "use bfd",
        )


def missing_positions(reading: LaunchReading) -> Iterator[SettingProblem]:
    """Up to 0.22 the collator gives positions under flash attention alone."""
    is_early = reading.trainer == "sft" and not reading.is_at_least(POSITIONS_ALWAYS_SINCE)
    if is_early and reading.flattened and not reading.isolates_documents and reading.packing_strategy != "wrapped":
        implementation = reading.implementation or "the model's default implementation"
        yield SettingProblem(
            "wrong",
            f"trl {reading.version} packs without positions under {implementation}: documents attend to each other",
            ("trl 0.22.2 sft_trainer.py:756, return_position_ids=use_flash_attention",),
            reading.find_location("packing", "padding_free"),
            {"attn_implementation": "flash_attention_2"},
            "use flash_attention_2",
        )


def dense_mask(reading: LaunchReading) -> Iterator[SettingProblem]:
    """Without flash attention a packed row has a mask of length × length, of which 1.16 no longer warns."""
    is_supported = is_at_least(reading.transformers, PACKED_WITHOUT_FLASH)
    if not (reading.isolates_documents and is_supported) or shared.is_flash(reading.implementation):
        return
    if reading.parallelism.scheme == "torch":
        return
    rows = max(reading.settings.get_int("per_device_train_batch_size", 8), 1)
    length = reading.settings.get_int("max_length", 1024) * rows
    warning = "trl 1.16 no longer warns of it" if reading.is_at_least("1.16") else "trl warns of it"
    yield SettingProblem(
        "replaces",
        f"packed without flash attention: each row gets a dense mask of {length} × {length} ({warning})",
        ("transformers masking_utils.py, find_packed_sequence_indices", "trl 1.15.0 sft_trainer.py:86-99, 981-989"),
        reading.find_location("packing", "padding_free"),
        {"attn_implementation": "flash_attention_2"} if reading.snapshot.lists("flash-attn") else {},
        "use flash_attention_2, whose memory grows with the length alone",
        mild=True,
    )


def padding_free_max_length(reading: LaunchReading) -> Iterator[SettingProblem]:
    """padding_free without packing does not cut rows to max_length, and is refused with one since 1.0."""
    max_length = reading.settings.get_text("max_length")
    if (
        reading.trainer == "sft"
        and reading.is_at_least(MAX_LENGTH_REFUSED_SINCE)
        and reading.settings.is_on("padding_free")
        and not reading.packed
        and max_length
    ):
        yield SettingProblem(
            "refuses",
            f"padding_free without packing takes no max_length, which is {max_length}: ValueError",
            ("trl 1.16.0 sft_trainer.py:999-1004",),
            reading.find_location("padding_free"),
            {"padding_free": "false"},
            "pad the batch; or pack (packing: true); or give truncated inputs with max_length: null",
        )


def packing_without_max_length(reading: LaunchReading) -> Iterator[SettingProblem]:
    """Packing without a max_length: it must know how long a row is."""
    if (
        reading.packed
        and reading.is_at_least("0.16")
        and reading.settings.has_any("max_length")
        and reading.settings.get_text("max_length") is None
    ):
        text = 'packing with max_length none: "When packing is enabled, `max_length` can\'t be `None`."'
        location = reading.find_location("max_length")
        yield SettingProblem(
            "refuses", text, ("trl 1.16.0 sft_trainer.py:1468",), location, {"max_length": "1024"}, "give a length"
        )


def packed_images(reading: LaunchReading) -> Iterator[SettingProblem]:
    """Packing of vision models, from 1.10 on of datasets with images."""
    name = next((name for name in ("packing", "padding_free") if reading.settings.is_on(name)), "")
    if reading.trainer != "sft" or not name or not reading.is_at_least(VISION_REFUSED_SINCE[0]):
        return
    script = reading.launch.words[0].text if reading.launch.words else ""
    by_model = not reading.is_at_least(VISION_REFUSED_SINCE[1]) and shared.is_multimodal(reading.snapshot)
    if by_model or (reading.is_at_least(VISION_REFUSED_SINCE[1]) and "vlm" in script.rsplit("/", 1)[-1]):
        subject = "vision-language models" if by_model else "vision datasets"
        yield SettingProblem(
            "refuses",
            f"{name} is not supported for {subject}: ValueError",
            ("trl 1.16.0 sft_trainer.py:779-787; trl 1.9.2 sft_trainer.py:1016",),
            reading.find_location(name),
            {name: "false"},
            "pad the batch",
        )


def packing_with_context_parallelism(reading: LaunchReading) -> Iterator[SettingProblem]:
    """Context parallelism drops the mask that packed documents need."""
    if not reading.packed or reading.parallelism.scheme != "torch":
        return
    refuses = reading.is_at_least(PACKED_CP_REFUSED_SINCE)
    text = f"packing with context parallelism over {reading.parallelism.ring_size} ranks: "
    text += "ValueError" if refuses else "the mask is dropped and documents attend to each other"
    yield SettingProblem(
        "refuses" if refuses else "wrong",
        text,
        ("trl 1.16.0 sft_trainer.py:1155-1161" if refuses else "trl 1.11.0 sft_trainer.py, which refuses it since",),
        reading.find_location("packing"),
        {"packing": "off"},
        "do not pack",
    )


def online_parallelism_refused(reading: LaunchReading) -> Iterator[SettingProblem]:
    """Context or sequence parallelism with GRPO and its like, whose inputs are made where no row is divided."""
    if reading.trainer in ONLINE_TRAINERS and reading.parallelism.ring_size > 1:
        name = "cp_size" if reading.parallelism.cp_size > 1 else "sp_size"
        config_source = "trl 1.16.0 grpo_config.py:1068-1076: refused where the configuration says it"
        trainer_source = "transformers 5.23.0 trainer.py:2393-2440: a generation's batch is a list, not input_ids"
        yield SettingProblem(
            "refuses",
            f"{reading.trainer} cannot divide rows over ranks: {name} is {reading.parallelism.ring_size}",
            (
                config_source if reading.is_at_least(ONLINE_PARALLELISM_REFUSED_SINCE) else trainer_source,
                trainer_source,
            ),
            reading.parallelism.location,
            {"ring_size": "1"},
            f"{name} 1",
        )


def dpo_padding_free_ignored(reading: LaunchReading) -> Iterator[SettingProblem]:
    """DPO's padding_free is "temporarily unavailable" since 0.29."""
    if reading.trainer == "dpo" and reading.is_at_least(DPO_PADS_SINCE) and reading.settings.is_on("padding_free"):
        yield SettingProblem(
            "ignores",
            "padding_free does nothing in DPO: it falls back to padding with a warning",
            ("trl 1.16.0 dpo_trainer.py:732-739",),
            reading.find_location("padding_free"),
            {"padding_free": "false"},
            "leave it out",
            mild=True,
        )


def data_parallel_refused(reading: LaunchReading) -> Iterator[SettingProblem]:
    """Several GPUs for one process make transformers' Trainer wrap the model in DataParallel, refused since 1.15."""
    gpus = len(reading.snapshot.visible_devices())
    is_trl_command = bool(reading.launch.words) and reading.launch.words[0].text.rsplit("/", 1)[-1] == "trl"
    is_unlaunched = not set(reading.launch.launchers) & shared.PROCESS_LAUNCHERS
    is_pinned = "," not in reading.launch.environ.get("CUDA_VISIBLE_DEVICES", ",")
    if (
        reading.is_at_least(DATA_PARALLEL_REFUSED_SINCE)
        and reading.launch.words
        and not is_trl_command
        and is_unlaunched
        and gpus > 1
        and not is_pinned
    ):
        yield SettingProblem(
            "refuses",
            f"one process with {gpus} GPUs would use nn.DataParallel, which {reading.trainer} refuses: ValueError",
            ("trl 1.16.0 sft_trainer.py:1118",),
            reading.launch.words[0].location,
            advice="start it with accelerate launch or torchrun, or with CUDA_VISIBLE_DEVICES=0",
        )


def uneven_generation_groups(reading: LaunchReading) -> Iterator[SettingProblem]:
    """A generation batch that does not hold whole groups of answers to one prompt."""
    if reading.trainer not in ("grpo", "rloo"):
        return
    size = reading.settings.get_int("num_generations", 8 if reading.trainer == "grpo" else 2)
    if size < 2 and reading.is_at_least("0.15"):
        text = f"num_generations is {size}: at least 2 are needed to compare answers"
        location = reading.find_location("num_generations")
        yield SettingProblem(
            "refuses", text, ("trl 1.16.0 grpo_config.py:1137-1140",), location, {"num_generations": "2"}
        )
    elif (
        reading.world_size
        and reading.is_at_least("0.18")
        and not reading.settings.has_any("generation_batch_size", "steps_per_generation")
    ):
        rows = reading.settings.get_int("per_device_train_batch_size", 8)
        steps = reading.settings.get_int("gradient_accumulation_steps", 1)
        generation_batch = rows * reading.world_size * steps
        if generation_batch % size:
            text = f"generation batch of {rows} × {reading.world_size} ranks × {steps} steps = {generation_batch}"
            text += f" is no multiple of num_generations {size}: ValueError"
            source = ("trl 1.16.0 grpo_config.py:1097-1134",)
            yield SettingProblem(
                "refuses",
                text,
                source,
                reading.find_location("num_generations"),
                advice=f"make it a multiple of {size}",
            )


def recurrent_layers_leak(reading: LaunchReading) -> Iterator[SettingProblem]:
    """Layers with a recurrent state read a packed row as one document unless cu_seqlens give them its borders."""
    model = shared.find_recurrent_model(reading.snapshot)
    if model is not None and reading.isolates_documents:
        passes_cu_seqlens = reading.is_at_least(CU_SEQLENS_SINCE)
        old, new = "trl 1.15.0 sft_trainer.py: position_ids alone", "trl 1.16.0 sft_trainer.py:212-222"
        snapshot, source = reading.snapshot, new if passes_cu_seqlens else old
        problem = shared.check_recurrent_packing(snapshot, reading.transformers, model, passes_cu_seqlens, source)
        if problem is not None:
            yield problem


def liger_loss_replaced(reading: LaunchReading) -> Iterator[SettingProblem]:
    """From 1.15 on liger's fused cross-entropy is left out, and the setting is to be removed."""
    if (
        reading.settings.is_on("use_liger_kernel")
        and reading.is_at_least("1.15")
        and reading.trainer in ("sft", "dpo", "kto", "grpo", "rloo")
    ):
        yield SettingProblem(
            "replaces",
            "use_liger_kernel patches layers only: TRL's own chunked loss stays, and the setting goes in 2.0",
            ("trl 1.16.0 sft_trainer.py:1127-1140",),
            reading.find_location("use_liger_kernel"),
            advice='model_init_kwargs={"use_kernels": True}',
            mild=True,
        )


BEHAVIOURS: tuple[Callable[[LaunchReading], Iterator[SettingProblem]], ...] = (
    missing_command, wrapped_packing, requeued_packing, missing_positions, dense_mask, padding_free_max_length,
    packing_without_max_length, packed_images, packing_with_context_parallelism, online_parallelism_refused,
    dpo_padding_free_ignored, data_parallel_refused, uneven_generation_groups, recurrent_layers_leak,
    liger_loss_replaced,
)  # fmt: skip
