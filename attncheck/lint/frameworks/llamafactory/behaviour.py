"""What LLaMA-Factory does with settings that it cannot serve: each function is one behaviour, read in its wheels.

Lines are those of 0.9.5 unless another release is named; a boundary is the first release with the change.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from attncheck.core.facts import Known
from attncheck.core.job import Consequence, SettingProblem
from attncheck.core.launch import Launch, SourceLocation
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.knowledge.padding import (
    MASKS_ARE_BOOL,
    NEAT_PACKING_BY_POSITIONS,
    NEAT_PACKING_REFUSED_MODELS,
    NEAT_PACKING_REFUSES,
)
from attncheck.lint.fields import hugging_face as shared
from attncheck.lint.fields.releases import reaches
from attncheck.lint.fields.values import Settings
from attncheck.lint.frameworks.llamafactory import tables as known

ATTENTION = "llamafactory 0.9.5 model/model_utils/attention.py"
COLLATOR = "llamafactory 0.9.5 data/collator.py"
SINKS_KERNEL = "0.9.4"  # gpt_oss is given a hub kernel from here on (0.9.4 model/model_utils/attention.py)
REGISTERED_BY = ("4.56", "5.0")  # transformers with integrations.hub_kernels.load_and_register_kernel
PATCHED = ("qwen3_5", "qwen3_5_moe")  # model/patcher.py:424, under fa2 alone


@dataclass(frozen=True)
class Reading:
    """One launch as one release reads it, before it is a job."""

    launch: Launch
    snapshot: Snapshot
    version: str
    transformers: str
    settings: Settings

    def since(self, boundary: str) -> bool:
        """Say whether the release is `boundary` or newer."""
        return reaches(self.version, boundary)

    def place(self, *names: str) -> SourceLocation:
        """Return where the first of the settings that is written stands."""
        return self.settings.place(*names)

    @property
    def stage(self) -> str:
        """The stage of training, "sft" by default (hparams/finetuning_args.py)."""
        return self.settings.text("stage") or "sft"

    @property
    def type(self) -> str:
        """The model's type, "" where it is not known."""
        return self.snapshot.model.value.model_type if isinstance(self.snapshot.model, Known) else ""

    @property
    def asked(self) -> str:
        """What `flash_attn` says."""
        return (self.settings.text("flash_attn") or "auto").lower()

    @property
    def flash(self) -> bool:
        """Whether flash-attn is there to be used."""
        return self.snapshot.has("flash-attn")

    @property
    def implementation(self) -> str:
        """The implementation that will run, "" where it is the model's default (attention.py:31-86)."""
        if self.type == "gpt_oss" and self.since(SINKS_KERNEL):
            return "kernels-community/vllm-flash-attn3"
        if self.type == "gemma2" and self.asked in ("auto", "fa2"):
            return "flash_attention_2" if self.flash else "eager"
        if self.asked == "fa2" and not self.flash:
            return ""
        return known.IMPLEMENTATIONS.get(self.asked, "")

    @property
    def neat(self) -> bool:
        """Whether documents of a row are kept apart."""
        return self.stage == "sft" and self.settings.on("neat_packing")

    @property
    def packed(self) -> bool:
        """Whether documents are laid into one row: in stage pt unless told otherwise (hparams/parser.py:520)."""
        said = self.settings.text("packing")
        if self.stage not in ("sft", "pt"):
            return False
        return self.neat or (self.settings.on("packing") if said is not None else self.stage == "pt")

    @property
    def rows(self) -> int:
        """Rows on a device."""
        return max(self.settings.number("per_device_train_batch_size", 8), 1)

    @property
    def mixed(self) -> bool:
        """Whether documents of a row attend to each other: flash attention tells them apart by positions in one row."""
        return self.packed and not self.neat and not (
            self.stage == "sft" and self.implementation == "flash_attention_2" and self.rows == 1
        )  # fmt: skip


def objections(reading: Reading) -> tuple[SettingProblem, ...]:
    """Return what the release does with the settings."""
    return tuple(each for behaviour in BEHAVIOURS for each in behaviour(reading))


def flash_3(r: Reading) -> Iterator[SettingProblem]:
    """`fa3` is a choice since 0.9.4, and nothing serves it."""
    if r.asked == "fa3" and r.since(SINKS_KERNEL) and r.type != "gpt_oss":
        text = "flash_attn: fa3 raises NotImplementedError: Unknown attention type"
        sets = {"attn_implementation": "flash_attention_2"}
        yield SettingProblem("refuses", text, (f"{ATTENTION}:85-86",), r.place("flash_attn"), sets, "use fa2")


def flash_missing(r: Reading) -> Iterator[SettingProblem]:
    """`fa2` without the package is a line in the log."""
    if r.asked == "fa2" and not r.flash and r.type != "gpt_oss":
        instead = "eager" if r.type == "gemma2" else "the model's default implementation"
        yield SettingProblem(
            "replaces",
            f"flash_attn: fa2 without flash-attn: {instead} runs, after a line in the log",
            (f'{ATTENTION}:80-82, "FlashAttention-2 is not installed."',),
            r.place("flash_attn"),
            advice="install flash-attn, or write flash_attn: sdpa",
        )


def sinks(r: Reading) -> Iterator[SettingProblem]:
    """gpt_oss is loaded through a function that only transformers 4.56 and 4.57 have."""
    first, last = REGISTERED_BY
    if r.type != "gpt_oss" or not r.since(SINKS_KERNEL):
        return
    if not reaches(r.transformers, first) or reaches(r.transformers, last):
        yield SettingProblem(
            "refuses",
            f"gpt_oss imports load_and_register_kernel, which transformers {r.transformers} does not have: ImportError",
            (f"{ATTENTION}:34-35; transformers 4.55.4, 4.56.2, 4.57.6 and 5.0.0 integrations/hub_kernels.py",),
            r.place("model_name_or_path"),
            advice="pip install 'transformers>=4.56,!=4.57.0,<5'",
        )


def borders_missing(r: Reading) -> Iterator[SettingProblem]:
    """`packing` alone gives a mask of ones; only flash attention over a single row minds the positions beside it."""
    if not r.mixed:
        return
    if r.stage == "pt":
        yield SettingProblem(
            "wrong",
            "stage pt joins texts into rows without borders: they attend to each other",
            ("llamafactory 0.9.5 data/processor/pretrain.py:27-50; hparams/parser.py:520",),
            r.place("packing", "stage"),
            advice="packing: false, where texts must not see each other",
            mild=True,
        )
        return
    broken = not r.since(NEAT_PACKING_BY_POSITIONS) and reaches(r.transformers, MASKS_ARE_BOOL)
    yield SettingProblem(
        "wrong",
        "packing without neat_packing gives a mask of ones: documents of a row attend to each other",
        ("llamafactory 0.9.5 data/processor/supervised.py:213-216; hparams/data_args.py:112",),
        r.place("packing"),
        {"packing": "off"} if broken else {"neat_packing": "true"},
        "do not pack" if broken else "neat_packing: true",
    )


def neat_elsewhere(r: Reading) -> Iterator[SettingProblem]:
    """Neat packing is for stage sft."""
    if r.settings.on("neat_packing") and r.stage != "sft":
        text = f"neat_packing in stage {r.stage}: ValueError: `neat_packing` cannot be set as True except SFT."
        source = ("llamafactory 0.9.5 hparams/parser.py:320-321",)
        yield SettingProblem(
            "refuses", text, source, r.place("neat_packing"), {"neat_packing": "false"}, "leave it out"
        )


def neat_rows(r: Reading) -> Iterator[SettingProblem]:
    """Under fa2 the collator of 0.9.5 asserts one row; more go into accumulation."""
    if r.neat and r.since(NEAT_PACKING_BY_POSITIONS) and r.implementation == "flash_attention_2" and r.rows > 1:
        steps = max(r.settings.number("gradient_accumulation_steps", 1), 1)
        yield SettingProblem(
            "refuses",
            f"neat_packing under fa2 with {r.rows} rows on a device: AssertionError: bsz should be 1 for neat packing",
            (f"{COLLATOR}:528",),
            r.place("per_device_train_batch_size", "neat_packing"),
            {"per_device_train_batch_size": "1", "gradient_accumulation_steps": str(steps * r.rows)},
            "one row, and as many more steps of accumulation",
        )


def neat_models(r: Reading) -> Iterator[SettingProblem]:
    """Two models are not packed under flash attention."""
    refused = r.type in NEAT_PACKING_REFUSED_MODELS and r.implementation == "flash_attention_2"
    if r.neat and refused and r.since(NEAT_PACKING_BY_POSITIONS):
        sets = {"neat_packing": "false", "packing": "false"}
        text = f"neat_packing under fa2 is refused for {r.type}: ValueError"
        yield SettingProblem("refuses", text, (f"{COLLATOR}:491-493",), r.place("neat_packing"), sets, "do not pack")


def numbered_masks(r: Reading) -> Iterator[SettingProblem]:
    """Before 0.9.5 documents were numbered in the mask, which transformers casts to bool since 4.53."""
    if not r.neat or r.since(NEAT_PACKING_BY_POSITIONS) or not reaches(r.transformers, MASKS_ARE_BOOL):
        return
    refuses = r.since(NEAT_PACKING_REFUSES)
    if not refuses and r.implementation != "flash_attention_2":
        return
    does = "raises ValueError" if refuses else "mixes documents up: the mask's numbers become True"
    consequence: Consequence = "refuses" if refuses else "wrong"
    yield SettingProblem(
        consequence,
        f"neat_packing of llamafactory {r.version} with transformers {r.transformers} {does}",
        ("llamafactory 0.9.4 hparams/parser.py:359-360; 0.9.3 model/model_utils/packing.py, configure_packing",),
        r.place("neat_packing"),
        {"neat_packing": "false", "packing": "false"},
        "do not pack, or take llamafactory 0.9.5",
    )


def dense_mask(r: Reading) -> Iterator[SettingProblem]:
    """Beside fa2 neat packing makes a 4-D mask for each batch."""
    if r.neat and not shared.flash(r.implementation):
        length = r.settings.number("cutoff_len", 2048)
        yield SettingProblem(
            "replaces",
            f"neat_packing without fa2: each row gets a dense mask of {length} × {length}",
            (f"{COLLATOR}:524-525, prepare_4d_attention_mask",),
            r.place("neat_packing"),
            {"attn_implementation": "flash_attention_2"} if r.flash and r.rows == 1 else {},
            "use fa2, whose memory grows with the length alone",
            mild=True,
        )


def states_leak(r: Reading) -> Iterator[SettingProblem]:
    """Of models with recurrent layers only qwen3_5 is patched, and only under fa2."""
    model = shared.recurrent(r.snapshot)
    if model is None:
        return
    patched = model.model_type in PATCHED and r.asked == "fa2" and r.since(NEAT_PACKING_BY_POSITIONS)
    if patched and not r.snapshot.has("flash-linear-attention"):
        yield SettingProblem(
            "refuses",
            f"{model.model_type} under fa2 needs flash-linear-attention 0.4.1 or newer: ImportError",
            ("llamafactory 0.9.5 model/patcher.py:63-84, 424-425",),
            r.place("flash_attn"),
            advice="pip install 'flash-linear-attention>=0.4.1'",
        )
    elif r.packed and not patched:
        source = "llamafactory 0.9.5 model/patcher.py:424: only qwen3_5 under fa2 is patched"
        found = shared.leak(r.snapshot, r.transformers, model, False, source)
        if found is not None:
            yield found


def liger_unserved(r: Reading) -> Iterator[SettingProblem]:
    """Types without a liger patch get a warning."""
    if r.settings.on("enable_liger_kernel") and r.type and r.type not in known.LIGER and r.since("0.9.5"):
        yield SettingProblem(
            "ignores",
            f"enable_liger_kernel does nothing for {r.type}: a warning in the log",
            ("llamafactory 0.9.5 model/model_utils/liger_kernel.py:90-92",),
            r.place("enable_liger_kernel"),
            {"liger": "off"},
            "leave it out",
            mild=True,
        )


def pure_bf16_sharded(r: Reading) -> Iterator[SettingProblem]:
    """`pure_bf16` does not go with ZeRO-3, told by the name of DeepSpeed's file."""
    file = (r.settings.text("deepspeed") or "").rsplit("/", 1)[-1]
    if r.settings.on("pure_bf16") and re.search(r"z(ero)?[_-]?(stage)?[_-]?3", file):
        text = f"pure_bf16 with DeepSpeed ZeRO-3 ({file}): ValueError"
        source = ("llamafactory 0.9.5 hparams/parser.py:384-385",)
        yield SettingProblem(
            "refuses", text, source, r.place("pure_bf16"), {"pure_bf16": "false", "bf16": "true"}, "bf16: true"
        )


def not_distributed(r: Reading) -> Iterator[SettingProblem]:
    """DeepSpeed needs torchrun, which `llamafactory-cli` starts by itself only where it sees several GPUs."""
    seen = len(r.snapshot.visible_devices())
    environ = r.launch.environ
    alone = not set(r.launch.launchers) & shared.STARTERS
    forced = (environ.get("FORCE_TORCHRUN") or "").lower() in ("1", "true", "y")
    if not r.launch.words or not alone or not seen or (environ.get("USE_RAY") or "").lower() in ("1", "true", "y"):
        return
    pinned = "," not in environ.get("CUDA_VISIBLE_DEVICES", ",")
    one = seen == 1 or pinned
    if known.command(r.launch):
        if r.settings.text("deepspeed") and one and not forced:
            yield SettingProblem(
                "refuses",
                "deepspeed with one GPU: ValueError: Please use `FORCE_TORCHRUN=1` to launch DeepSpeed training.",
                ("llamafactory 0.9.5 hparams/parser.py:353-354, launcher.py:60-62",),
                r.place("deepspeed"),
                advice="put FORCE_TORCHRUN=1 in front of the command",
            )
    elif not one:
        yield SettingProblem(
            "refuses",
            f"one process with {seen} GPUs: ValueError: Please launch distributed training with `llamafactory-cli`",
            ("llamafactory 0.9.5 hparams/parser.py:350-351",),
            r.launch.words[0].location,
            advice="start it with llamafactory-cli train or torchrun",
        )


def trains_not(r: Reading) -> Iterator[SettingProblem]:
    """Without `do_train` the model is loaded and nothing is trained."""
    other = any(r.settings.on(name) for name in ("do_eval", "do_predict"))
    if not r.settings.on("do_train") and not other and r.settings.written("stage", "dataset"):
        text = "do_train is not set: the model is loaded and nothing is trained"
        source = ("llamafactory 0.9.5 train/sft/workflow.py:120",)
        yield SettingProblem(
            "no_step", text, source, r.place("do_train", "stage"), {"do_train": "true"}, "do_train: true"
        )


BEHAVIOURS: tuple[Callable[[Reading], Iterator[SettingProblem]], ...] = (
    flash_3, flash_missing, sinks, borders_missing, neat_elsewhere, neat_rows, neat_models, numbered_masks, dense_mask,
    states_leak, liger_unserved, pure_bf16_sharded, not_distributed, trains_not,
)  # fmt: skip
