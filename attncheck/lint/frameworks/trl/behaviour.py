"""What TRL does with settings that it cannot serve: each function is one behaviour, read in its wheels.

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
from attncheck.lint.fields.releases import reaches
from attncheck.lint.fields.values import Settings

STRATEGIES = "0.19"  # `packing_strategy`; before, packing cut the joined text anywhere (0.18.2 data_utils.py:475)
DEFAULT_BFD = "0.20"
POSITIONS_ALWAYS = "0.23"  # before, only under flash attention (0.22.2 sft_trainer.py:756, `return_position_ids`)
EDGES = "1.16"  # the collator gives cu_seq_lens_q/k and seq_idx too (sft_trainer.py:212-222)
CONTEXT_REFUSED = "1.11"  # packing with context parallelism (1.11.0 sft_trainer.py)
LENGTH_REFUSED = "1.0"  # padding_free without packing, with a max_length (1.0.0 sft_trainer.py:924)
VISION_MODELS = ("0.22", "1.10")  # packing refused for vision models; from the second on for datasets with images
ROWS_REFUSED = "1.4"  # GRPO and RLOO under context or sequence parallelism (1.4.0 trainer/grpo_config.py)
DPO_PADS = "0.29"  # padding_free of DPO is switched off (0.29.1 dpo_trainer.py:576)
NO_DATA_PARALLEL = "1.15"  # nn.DataParallel is refused (1.15.0 sft_trainer.py)
FLASH_AT_FIRST = ("flash_attention_2",)  # 0.19, 0.20: 0.20.0 sft_trainer.py:486; from 0.21 on 3 too
ONLINE = ("grpo", "rloo", "distillation")


@dataclass(frozen=True)
class Reading:
    """One launch as one release reads it, before it is a job."""

    launch: Launch
    snapshot: Snapshot
    trainer: str
    version: str
    transformers: str
    settings: Settings
    parallel: shared.Parallel
    world: int | None

    def since(self, boundary: str) -> bool:
        """Say whether the release is `boundary` or newer."""
        return reaches(self.version, boundary)

    @property
    def packed(self) -> bool:
        """Whether documents are laid into one row: only SFT packs."""
        return self.trainer == "sft" and self.settings.on("packing")

    @property
    def strategy(self) -> str:
        """How they are laid: "wrapped" cuts anywhere."""
        return self.settings.text("packing_strategy") or "bfd" if self.since(STRATEGIES) else "wrapped"

    @property
    def flattened(self) -> bool:
        """Whether a batch is one row without padding, whose positions begin anew."""
        whole = ("ffd",) if not self.since(DEFAULT_BFD) else ("bfd", "bfd_split") if self.since("1.0") else ("bfd",)
        if self.trainer == "dpo":
            return self.settings.on("padding_free") and not self.since(DPO_PADS)
        return self.trainer == "sft" and (
            self.settings.on("padding_free") or (self.packed and self.strategy in whole and self.since(STRATEGIES))
        )

    @property
    def implementation(self) -> str:
        """The implementation asked for, "" where the model's own is taken."""
        return self.settings.text("attn_implementation") or ""

    @property
    def isolated(self) -> bool:
        """Whether documents of a row are told apart by positions."""
        flash = FLASH_AT_FIRST if not self.since("0.21") else (*FLASH_AT_FIRST, "flash_attention_3")
        positions = self.since(POSITIONS_ALWAYS) or self.implementation.startswith((*flash, "kernels-community"))
        return self.flattened and positions and not (self.packed and self.strategy == "wrapped")

    def place(self, *names: str) -> SourceLocation:
        """Return where the first of the settings that is written stands."""
        return self.settings.place(*names)


def objections(reading: Reading) -> tuple[SettingProblem, ...]:
    """Return what the release does with the settings."""
    return tuple(each for behaviour in BEHAVIOURS for each in behaviour(reading))


def cut_anywhere(r: Reading) -> Iterator[SettingProblem]:
    """Packing that joins documents and cuts the row where it is full: no borders at all."""
    if not r.packed or r.strategy != "wrapped":
        return
    if r.since(STRATEGIES):
        better = "bfd" if r.since(DEFAULT_BFD) else "ffd"
        yield SettingProblem(
            "wrong",
            "packing_strategy wrapped joins documents into rows without borders: they attend to each other",
            ("trl 1.16.0 data_utils.py:820, _pack_wrapped; sft_trainer.py:916, no padding_free",),
            r.place("packing_strategy", "packing"),
            {"packing_strategy": better},
            f"pack whole documents: {better}",
        )
    else:
        yield SettingProblem(
            "wrong",
            f"packing of trl {r.version} joins documents into rows without borders: they attend to each other",
            ("trl 0.18.2 data_utils.py:475, pack_dataset; trl 0.19.1 brings packing_strategy",),
            r.place("packing"),
            {"packing": "off"},
            "do not pack, or take trl 0.20 or newer, which packs whole documents",
        )


def requeued(r: Reading) -> Iterator[SettingProblem]:
    """`bfd-requeue` of 0.29 packs, and the collator does not know it for packing."""
    if r.packed and r.strategy == "bfd-requeue" and not r.since("1.0"):
        yield SettingProblem(
            "wrong",
            "packing_strategy bfd-requeue gives a mask of ones and no positions: documents attend to each other",
            ("trl 0.29.1 sft_trainer.py:798: padding_free only for bfd",),
            r.place("packing_strategy"),
            {"packing_strategy": "bfd"},
            "use bfd",
        )


def no_positions(r: Reading) -> Iterator[SettingProblem]:
    """Up to 0.22 the collator gives positions under flash attention alone."""
    early = r.trainer == "sft" and not r.since(POSITIONS_ALWAYS)
    if early and r.flattened and not r.isolated and r.strategy != "wrapped":
        impl = r.implementation or "the model's default implementation"
        yield SettingProblem(
            "wrong",
            f"trl {r.version} packs without positions under {impl}: documents attend to each other",
            ("trl 0.22.2 sft_trainer.py:756, return_position_ids=use_flash_attention",),
            r.place("packing", "padding_free"),
            {"attn_implementation": "flash_attention_2"},
            "use flash_attention_2",
        )


def dense_mask(r: Reading) -> Iterator[SettingProblem]:
    """Beside flash attention a row of packed documents has a mask of length × length, and 1.16 says no more."""
    supported = reaches(r.transformers, PACKED_WITHOUT_FLASH)
    if not (r.isolated and supported) or shared.flash(r.implementation):
        return
    if r.parallel.scheme == "torch":
        return
    rows = max(r.settings.number("per_device_train_batch_size", 8), 1)
    length = r.settings.number("max_length", 1024) * rows
    said = "trl 1.16 no longer warns of it" if r.since("1.16") else "trl warns of it"
    yield SettingProblem(
        "replaces",
        f"packed without flash attention: each row gets a dense mask of {length} × {length} ({said})",
        ("transformers masking_utils.py, find_packed_sequence_indices", "trl 1.15.0 sft_trainer.py:86-99, 981-989"),
        r.place("packing", "padding_free"),
        {"attn_implementation": "flash_attention_2"} if r.snapshot.has("flash-attn") else {},
        "use flash_attention_2, whose memory grows with the length alone",
        mild=True,
    )


def length_not_kept(r: Reading) -> Iterator[SettingProblem]:
    """padding_free without packing does not cut to max_length, and 1.0 and newer refuse to pretend."""
    cut = r.settings.text("max_length")
    if r.trainer == "sft" and r.since(LENGTH_REFUSED) and r.settings.on("padding_free") and not r.packed and cut:
        yield SettingProblem(
            "refuses",
            f"padding_free without packing takes no max_length, which is {cut}: ValueError",
            ("trl 1.16.0 sft_trainer.py:999-1004",),
            r.place("padding_free"),
            {"padding_free": "false"},
            "pad the batch; or pack (packing: true); or give truncated inputs with max_length: null",
        )


def endless_rows(r: Reading) -> Iterator[SettingProblem]:
    """Packing needs to know how long a row is."""
    if r.packed and r.since("0.16") and r.settings.written("max_length") and r.settings.text("max_length") is None:
        text = 'packing with max_length none: "When packing is enabled, `max_length` can\'t be `None`."'
        place = r.place("max_length")
        yield SettingProblem(
            "refuses", text, ("trl 1.16.0 sft_trainer.py:1468",), place, {"max_length": "1024"}, "give a length"
        )


def pictures(r: Reading) -> Iterator[SettingProblem]:
    """Vision models, from 1.10 on datasets with images, are not packed."""
    name = next((name for name in ("packing", "padding_free") if r.settings.on(name)), "")
    if r.trainer != "sft" or not name or not r.since(VISION_MODELS[0]):
        return
    script = r.launch.words[0].text if r.launch.words else ""
    by_model = not r.since(VISION_MODELS[1]) and shared.vision(r.snapshot)
    if by_model or (r.since(VISION_MODELS[1]) and "vlm" in script.rsplit("/", 1)[-1]):
        what = "vision-language models" if by_model else "vision datasets"
        yield SettingProblem(
            "refuses",
            f"{name} is not supported for {what}: ValueError",
            ("trl 1.16.0 sft_trainer.py:779-787; trl 1.9.2 sft_trainer.py:1016",),
            r.place(name),
            {name: "false"},
            "pad the batch",
        )


def divided_rows(r: Reading) -> Iterator[SettingProblem]:
    """Context parallelism drops the mask that packed documents need."""
    if not r.packed or r.parallel.scheme != "torch":
        return
    refuses = r.since(CONTEXT_REFUSED)
    text = f"packing with context parallelism over {r.parallel.size} ranks: "
    text += "ValueError" if refuses else "the mask is dropped and documents attend to each other"
    yield SettingProblem(
        "refuses" if refuses else "wrong",
        text,
        ("trl 1.16.0 sft_trainer.py:1155-1161" if refuses else "trl 1.11.0 sft_trainer.py, which refuses it since",),
        r.place("packing"),
        {"packing": "off"},
        "do not pack",
    )


def divided_generations(r: Reading) -> Iterator[SettingProblem]:
    """GRPO and its kin make their inputs inside the trainer, where no row can be divided."""
    if r.trainer in ONLINE and r.parallel.size > 1:
        name = "cp_size" if r.parallel.context > 1 else "sp_size"
        since = "trl 1.16.0 grpo_config.py:1068-1076: refused where the configuration says it"
        where = "transformers 5.23.0 trainer.py:2393-2440: a generation's batch is a list, not input_ids"
        yield SettingProblem(
            "refuses",
            f"{r.trainer} cannot divide rows over ranks: {name} is {r.parallel.size}",
            (since if r.since(ROWS_REFUSED) else where, where),
            r.parallel.place,
            {"ring_size": "1"},
            f"{name} 1",
        )


def dpo_pads(r: Reading) -> Iterator[SettingProblem]:
    """DPO's padding_free is "temporarily unavailable" since 0.29."""
    if r.trainer == "dpo" and r.since(DPO_PADS) and r.settings.on("padding_free"):
        yield SettingProblem(
            "ignores",
            "padding_free does nothing in DPO: it falls back to padding with a warning",
            ("trl 1.16.0 dpo_trainer.py:732-739",),
            r.place("padding_free"),
            {"padding_free": "false"},
            "leave it out",
            mild=True,
        )


def many_gpus_one_process(r: Reading) -> Iterator[SettingProblem]:
    """Several GPUs for one process make transformers' Trainer wrap the model in DataParallel, refused since 1.15."""
    seen = len(r.snapshot.visible_devices())
    command = bool(r.launch.words) and r.launch.words[0].text.rsplit("/", 1)[-1] == "trl"
    alone = not set(r.launch.launchers) & shared.STARTERS
    pinned = "," not in r.launch.environ.get("CUDA_VISIBLE_DEVICES", ",")
    if r.since(NO_DATA_PARALLEL) and r.launch.words and not command and alone and seen > 1 and not pinned:
        yield SettingProblem(
            "refuses",
            f"one process with {seen} GPUs would use nn.DataParallel, which {r.trainer} refuses: ValueError",
            ("trl 1.16.0 sft_trainer.py:1118",),
            r.launch.words[0].location,
            advice="start it with accelerate launch or torchrun, or with CUDA_VISIBLE_DEVICES=0",
        )


def groups(r: Reading) -> Iterator[SettingProblem]:
    """A generation batch holds whole groups of answers to one prompt."""
    if r.trainer not in ("grpo", "rloo"):
        return
    size = r.settings.number("num_generations", 8 if r.trainer == "grpo" else 2)
    if size < 2 and r.since("0.15"):
        text = f"num_generations is {size}: at least 2 are needed to compare answers"
        place = r.place("num_generations")
        yield SettingProblem("refuses", text, ("trl 1.16.0 grpo_config.py:1137-1140",), place, {"num_generations": "2"})
    elif r.world and r.since("0.18") and not r.settings.written("generation_batch_size", "steps_per_generation"):
        rows = r.settings.number("per_device_train_batch_size", 8)
        steps = r.settings.number("gradient_accumulation_steps", 1)
        whole = rows * r.world * steps
        if whole % size:
            text = f"generation batch of {rows} × {r.world} ranks × {steps} steps = {whole}"
            text += f" is no multiple of num_generations {size}: ValueError"
            source = ("trl 1.16.0 grpo_config.py:1097-1134",)
            yield SettingProblem(
                "refuses", text, source, r.place("num_generations"), advice=f"make it a multiple of {size}"
            )


def states_leak(r: Reading) -> Iterator[SettingProblem]:
    """Layers with a recurrent state see a packed row as one document unless they are told its borders."""
    model = shared.recurrent(r.snapshot)
    if model is not None and r.isolated:
        gives = r.since(EDGES)
        source = "trl 1.16.0 sft_trainer.py:212-222" if gives else "trl 1.15.0 sft_trainer.py: position_ids alone"
        found = shared.leak(r.snapshot, r.transformers, model, gives, source)
        if found is not None:
            yield found


def liger_half(r: Reading) -> Iterator[SettingProblem]:
    """From 1.15 on liger's fused cross-entropy is left out, and the setting is on its way out."""
    if r.settings.on("use_liger_kernel") and r.since("1.15") and r.trainer in ("sft", "dpo", "kto", "grpo", "rloo"):
        yield SettingProblem(
            "replaces",
            "use_liger_kernel patches layers only: TRL's own chunked loss stays, and the setting goes in 2.0",
            ("trl 1.16.0 sft_trainer.py:1127-1140",),
            r.place("use_liger_kernel"),
            advice='model_init_kwargs={"use_kernels": True}',
            mild=True,
        )


BEHAVIOURS: tuple[Callable[[Reading], Iterator[SettingProblem]], ...] = (
    cut_anywhere, requeued, no_positions, dense_mask, length_not_kept, endless_rows, pictures, divided_rows,
    divided_generations, dpo_pads, many_gpus_one_process, groups, states_leak, liger_half,
)  # fmt: skip
