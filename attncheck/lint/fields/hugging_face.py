"""Shared by frameworks on transformers' Trainer: ranks, accelerate's parallelism, precision, recurrent layers.

accelerate 1.15.0 commands/launch.py (`--parallelism_config_*`), utils/launch.py:410-430 (sets the variables for the
ranks), parallelism_config.py:277-289 (reads them); transformers 4.56.2 to 5.23.0 trainer.py.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from attncheck.core.job import DROP, KEYS, SettingProblem
from attncheck.core.launch import NOWHERE, Edit, Launch, SourceLocation
from attncheck.core.model import Model
from attncheck.core.plan import Precision
from attncheck.core.snapshot import Absent, Fact, Known, Snapshot, value_or
from attncheck.doctor.knowledge.models import GATED_DELTA_RULE, RECURRENT_LAYERS, RECURRENT_VARLEN
from attncheck.lint.fields.constraints import Constraint, find_constraint
from attncheck.lint.fields.releases import is_at_least, list_allowed, list_releases
from attncheck.lint.files import editing, python

RECURRENT_KERNELS = ("flash-linear-attention", "causal-conv1d")
FLASH_IMPLEMENTATION = re.compile(r"flash_attention_[234]\b|kernels-community/.*flash", re.ASCII)
DATA_PARALLEL_LOSS = (  # read in 4.45.2, 4.46.3, 4.56.2, 4.57.1, 4.57.6, 5.0.0, 5.5.0 and 5.17.0
    Constraint("transformers 4.56.2 trainer.py:4039, 4132", "4.46", "4.57",
               "each replica divides by num_items_in_batch of all replicas, and loss.mean() divides again by their "
               "number"),
)  # fmt: skip
# The mean is right if the model's forward takes no **kwargs, and so no num_items_in_batch: GPT-2's of 4.48.1, but in
# 4.51.3 only those of decoders of Bart and its like among the …ForCausalLM.
TAKES_COUNT_SINCE = "4.51"
ONE_GPU_EACH = "start it with accelerate launch or torchrun, or with CUDA_VISIBLE_DEVICES=0"
LEAKS_RAISE_SINCE = "5.20.0"  # integrations/hub_kernels.py: since this release, cu_seqlens without causal-conv1d raise
PROCESS_LAUNCHERS = frozenset(
    {"torchrun", "accelerate", "deepspeed", "srun", "ray", "mpirun"}
)  # these start several processes
SHARING_LAUNCHERS = frozenset({"torchrun", "accelerate", "deepspeed"})  # each process sees the GPUs of its node
DTYPE_AUTO_SINCE = "5.0.0"  # since this release from_pretrained loads in the checkpoint's dtype; before, in float32


class Parallelism(NamedTuple):
    """How accelerate divides a row of tokens, and a layer, across ranks."""

    cp_size: int = 1  # torch's context parallelism
    sp_size: int = 1  # DeepSpeed's Ulysses
    tp_size: int = 1
    location: SourceLocation = SourceLocation()

    @property
    def ring_size(self) -> int:
        """Return the number of ranks across which one row is divided, by either scheme."""
        return max(self.cp_size, self.sp_size)

    @property
    def scheme(self) -> str:
        """Return the scheme's name; "" if rows are not divided."""
        return "torch" if self.cp_size > 1 else "ulysses" if self.sp_size > 1 else ""

    @property
    def hooked_implementations(self) -> tuple[str, ...]:
        """Return the attention implementations that the scheme hooks into."""
        return {"torch": ("sdpa",), "ulysses": ("flash_attention_2", "flash_attention_3", "sdpa")}.get(self.scheme, ())


def read_parallelism(launch: Launch) -> Parallelism:
    """Return accelerate's parallelism: from its command line, a file's keys, or else the environment variables."""
    sizes_by_kind: dict[str, tuple[int, SourceLocation]] = {}
    for kind in ("cp", "sp", "tp"):
        text = launch.environ.get(f"PARALLELISM_CONFIG_{kind.upper()}_SIZE", "")
        if _is_count(text):
            sizes_by_kind[kind] = (int(text), SourceLocation())
    for entry in launch.entries:
        match = re.fullmatch(r"parallelism_config(?:_|\.parallelism_config_)(cp|sp|tp)_size", entry.name)
        if match and _is_count(entry.value):
            sizes_by_kind[match[1]] = (int(entry.value), entry.location)
    for index, word in enumerate(launch.whole or launch.words):
        name, equals, value = word.text.partition("=")
        match = re.fullmatch(r"--parallelism[-_]config[-_](cp|sp|tp)[-_]size", name)
        following = (launch.whole or launch.words)[index + 1 : index + 2]
        text = value if equals else following[0].text if following else ""
        if match and _is_count(text):
            sizes_by_kind[match[1]] = (int(text), word.location)
    sizes = {kind: size for kind, (size, _) in sizes_by_kind.items()}
    location = next((location for size, location in sizes_by_kind.values() if size > 1), SourceLocation())
    return Parallelism(sizes.get("cp", 1), sizes.get("sp", 1), sizes.get("tp", 1), location)


def resize_parallelism(launch: Launch, ring_size: str) -> Iterator[Edit]:
    """Yield the edits that change the size of accelerate's context and sequence parallelism, if one is set."""
    for entry in launch.entries:
        if re.fullmatch(r"parallelism_config(?:_|\.parallelism_config_)(cp|sp)_size", entry.name):
            yield editing.replace_value(entry, ring_size)
    words = launch.whole or launch.words
    for index, word in enumerate(words):
        name, equals, _ = word.text.partition("=")
        if not re.fullmatch(r"--parallelism[-_]config[-_](cp|sp)[-_]size", name):
            continue
        target = word if equals else words[index + 1] if index + 1 < len(words) else None
        if target is not None and NOWHERE not in (word.span, target.span):
            yield Edit(
                launch.source.name,
                (word.span[0], target.span[1]),
                f"{name}={ring_size}" if equals else f"{name} {ring_size}",
            )


def translate_keys(
    sets: Mapping[str, str], field_names: Mapping[str, str], is_written: Callable[..., bool]
) -> dict[str, str]:
    """Return the settings `sets`, most of them named by a `Key`, as fields of the Trainer.

    `field_names` maps each `Key`, the weights' "dtype", and "bf16" (if it is on by default) to fields. fp16 is autocast
    over float32 weights, because a gradient scaler refuses float16 weights.
    """
    new_values: dict[str, str] = {}
    for key, value in sets.items():
        text = {"on": "true", "off": "false"}.get(value, value)
        if key == "precision":
            new_values |= _translate_precision(value, field_names, is_written)
        elif key in field_names:
            new_values[field_names[key]] = text
        elif key not in KEYS:
            new_values[key.removeprefix("--")] = text
    return {name: value for name, value in new_values.items() if name}


def _translate_precision(value: str, field_names: Mapping[str, str], is_written: Callable[..., bool]) -> dict[str, str]:
    dtype = field_names.get("dtype", "")
    if value == "bf16":
        return {"bf16": "true", **({"fp16": DROP} if is_written("fp16") else {})}
    fp16 = {"fp16": "true"} if value == "fp16" else {"fp16": DROP} if is_written("fp16") else {}
    weights = {dtype: "float32"} if dtype and is_written(dtype) else {}
    bf16 = {"bf16": "false"} if "bf16" in field_names or is_written("bf16") else {}
    return {**bf16, **fp16, **weights}


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdecimal() and 0 < len(text) < 7 and int(text) > 0


def read_world_size(launch: Launch) -> Fact[int]:
    """Return how many ranks train; a script started only by Python has one."""
    if isinstance(launch.processes, Known):
        return Known(launch.processes.value * value_or(launch.nodes, 1))
    is_single_process = "python" in launch.launchers and not set(launch.launchers) & PROCESS_LAUNCHERS
    return Known(1) if is_single_process else launch.processes


def resolve_versions(snapshot: Snapshot, package: str, version: str, contemporary: Mapping[str, str]) -> dict[str, str]:
    """Return package -> version: the installed transformers, or else the newest from the framework's time.

    If a range of transformers is stated, the nearest release in it is used.
    """
    installed = snapshot.version("transformers")
    if isinstance(installed, Known):
        return {package: version, "transformers": str(installed.value)}
    candidates = [transformers for first, transformers in contemporary.items() if is_at_least(version, first)]
    chosen = candidates[-1] if candidates else "4.40.2"
    stated = snapshot.package("transformers")
    text = stated.value.allowed if isinstance(stated, Known) else ""
    allowed = list_allowed(text, (*list_releases("transformers"), chosen)) or (chosen,)
    return {package: version, "transformers": allowed[0] if is_at_least(allowed[0], chosen) else allowed[-1]}


def read_dtype(launch: Launch, option: str | None) -> str | None:
    """Return the dtype in which a launch loads its weights; None for transformers' default.

    `option` is the value in the settings. A script that loads the model itself, or gives `model_init_kwargs`, overrides
    it.
    """
    names = (python.DTYPE, "model_init_kwargs.dtype", "model_init_kwargs.torch_dtype")
    written = [entry.value for entry in launch.entries if entry.name in names]
    return next((None if value == "null" else value for value in written), option)


def resolve_precision(snapshot: Snapshot, transformers: str, dtype: str | None, bf16: bool, fp16: bool) -> Precision:
    """Return the precision of weights and arithmetic; `dtype` is the weights' dtype in the settings."""
    weights = (dtype or ("auto" if is_at_least(transformers, DTYPE_AUTO_SINCE) else "float32")).removeprefix("torch.")
    if weights == "auto":
        checkpoint_dtype = snapshot.model.value.dtype if isinstance(snapshot.model, Known) else Absent()
        weights = value_or(checkpoint_dtype, "float32")
    if fp16 or weights in ("float16", "fp16", "half"):
        return "fp16"
    if weights in ("bfloat16", "bf16"):
        return "bf16"
    return "autocast" if bf16 else "fp32"


def find_recurrent_model(snapshot: Snapshot) -> Model | None:
    """Return the model if it is known to have layers that carry state along the row."""
    if not isinstance(snapshot.model, Known):
        return None
    model = snapshot.model.value
    return model if any(kind in RECURRENT_LAYERS for kind in model.layer_types) else None


def check_recurrent_packing(
    snapshot: Snapshot, transformers: str, model: Model, passes_cu_seqlens: bool, evidence: str
) -> SettingProblem | None:
    """Return the problem of packing for a model with recurrent layers, if the collator does not pass cu_seqlens."""
    sets = {"packing": "off"}
    family = model.model_type.replace("_text", "")
    if not passes_cu_seqlens:
        text = f"packs {model.model_type} by position_ids only: its recurrent layers carry state between documents"
        return SettingProblem("wrong", text, (evidence,), sets=sets, advice="do not pack this model")
    varlen_since = RECURRENT_VARLEN.get(family, "")
    if not varlen_since or not is_at_least(transformers, varlen_since):
        text = (
            f"packs {model.model_type}, but its recurrent layers do not get cu_seqlens from transformers {transformers}"
        )
        return SettingProblem("wrong", text, (evidence,), sets=sets, advice="do not pack this model")
    missing = [
        name for name in RECURRENT_KERNELS if family in GATED_DELTA_RULE and isinstance(snapshot.package(name), Absent)
    ]
    if not missing:
        return None
    raises = is_at_least(transformers, LEAKS_RAISE_SINCE)
    text = f"packs {model.model_type} without {' and '.join(missing)}: "
    text += "transformers raises at the first batch" if raises else "the torch fallback ignores cu_seqlens"
    source = f"transformers {transformers} integrations/hub_kernels.py, causal_conv1d_fn" if raises else evidence
    return SettingProblem(
        "refuses" if raises else "wrong",
        text,
        (source,),
        sets=sets,
        advice=f"install {' and '.join(missing)}, or do not pack this model",
    )


DEPENDS = "it depends on "  # begins the note on a command that runs only in some branches
SCHEDULED_GPUS = re.compile(r"(?:--gres[= ]gpu|--gpus(?:-per-node|-per-task)?)(?:[:= ][a-zA-Z]\w*)?[:= ](\d{1,4})\b")


def count_data_parallel_gpus(launch: Launch, snapshot: Snapshot) -> int:
    """Return the number of GPUs that nn.DataParallel would use without a launcher; 0 if it is not used."""
    is_unlaunched = bool(launch.words) and not set(launch.launchers) & PROCESS_LAUNCHERS
    is_pinned = "," not in launch.environ.get("CUDA_VISIBLE_DEVICES", ",")
    places_itself = launch.places_itself or (
        launch.source.kind == "python" and python.names_devices(launch.source.text)
    )
    is_settled = not places_itself and not any(DEPENDS in note for note in launch.notes)
    scheduled = SCHEDULED_GPUS.search(f"{launch.source.text} {' '.join(word.text for word in launch.launcher_words)}")
    gpus = len(snapshot.visible_devices()) if scheduled is None else int(scheduled[1])
    return gpus if is_unlaunched and is_settled and not is_pinned and gpus > 1 else 0


def check_data_parallel(launch: Launch, snapshot: Snapshot, transformers: str) -> Iterator[SettingProblem]:
    """Yield the problem of a Trainer that averages the replicas' losses, each already divided by the batch's tokens."""
    gpus = count_data_parallel_gpus(launch, snapshot)
    constraint = find_constraint(DATA_PARALLEL_LOSS, transformers)
    is_counted = isinstance(snapshot.model, Known) and is_at_least(transformers, TAKES_COUNT_SINCE)
    if gpus and constraint is not None:
        yield SettingProblem(
            "wrong",
            f"one process with {gpus} GPUs uses nn.DataParallel: gradients are about 1/{gpus} of the right ones",
            (constraint.evidence,),
            launch.words[0].location,
            advice=ONE_GPU_EACH,
            mild=launch.trainers is None or not is_counted,  # the program was not read, or the model's forward
        )


PASSES_COUNT = Constraint(
    "transformers 4.46.3 trainer.py:3579, training_step: self.compute_loss(…, num_items_in_batch=…)", "4.46"
)
# trainer.py of 4.49.0:3732, 4.57.6:4060, 5.0.0:3828 and 5.23.0:2107; 4.49 also stops DeepSpeed's own division. Of the
# …ForCausalLM of 4.51.3, those that are decoders of Bart and its like take no **kwargs; since 5.0 all take them. If the
# release is not known, a method that takes num_items_in_batch was written for one that passes it.
# From 5.2 to 5.5.3 accelerate divides as well (ATN457), which is right for such a loss.
ONLY_OTHERS = "a loss is divided by gradient_accumulation_steps only if the model's forward takes no **kwargs"
DIVIDES_ONLY_OTHERS = (
    Constraint(f"transformers 4.49.0 trainer.py:3732, training_step: {ONLY_OTHERS}", "4.49", "5.2"),
    Constraint(f"transformers 5.23.0 trainer.py:2107, training_step: {ONLY_OTHERS}", "5.5.4"),
)
REFUSES_SPREAD = Constraint(
    "accelerate 0.26.1 and 1.15.0 accelerator.py, prepare_model: a model on several devices is refused in any "
    "distributed mode; transformers requires accelerate>=0.26.0",
    "4.46",
)


def check_made_trainer(
    launch: Launch, snapshot: Snapshot, transformers: str, accumulation: int
) -> Iterator[SettingProblem]:
    """Yield the problems of the trainer that a program makes: its `compute_loss`, and its model on several GPUs."""
    made, divides = launch.made, find_constraint(DIVIDES_ONLY_OTHERS, transformers)
    is_known = isinstance(snapshot.version("transformers"), Known)
    if made.loss and not made.takes_count and PASSES_COUNT.holds_in(transformers):
        text = f"{made.loss} takes no num_items_in_batch, which the Trainer passes: TypeError at the first step"
        advice = "add the parameter num_items_in_batch=None"
        evidence = (PASSES_COUNT.evidence,)
        yield SettingProblem("refuses", text, evidence, made.location, advice=advice, universal=is_known)
    elif made.is_mean and accumulation > 1 and (divides or not is_known):
        text = f"{made.loss} returns a mean that is not divided by {accumulation} accumulation steps: gradients are "
        text += f"{accumulation} times too large"
        advice = "set self.model_accepts_loss_kwargs = False in the trainer's __init__, after super().__init__()"
        evidence = ((divides or DIVIDES_ONLY_OTHERS[-1]).evidence,)
        yield SettingProblem("wrong", text, evidence, made.location, advice=advice, mild=True, universal=not is_known)
    is_pinned = "," not in launch.environ.get("CUDA_VISIBLE_DEVICES", ",")
    processes = value_or(launch.processes, 1) if set(launch.launchers) & SHARING_LAUNCHERS else 1
    is_allowed = is_pinned or "ACCELERATE_BYPASS_DEVICE_MAP" in launch.environ
    if made.spread is not None and processes > 1 and not is_allowed:
        text = f"device_map spreads the model over the GPUs, which accelerate refuses with {processes} processes"
        advice = "load the model without device_map, or start one process"
        is_proven = is_known and REFUSES_SPREAD.holds_in(transformers)
        yield SettingProblem(
            "refuses",
            text,
            (REFUSES_SPREAD.evidence,),
            made.spread,
            advice=advice,
            mild=not is_proven,
            universal=True,
        )


def is_flash(implementation: str) -> bool:
    """Return whether an implementation is a flash kernel, which accepts packed rows without a mask."""
    return FLASH_IMPLEMENTATION.match(implementation) is not None


def is_multimodal(snapshot: Snapshot) -> bool:
    """Return whether the model is known to have a vision or audio tower."""
    return isinstance(snapshot.model, Known) and bool(snapshot.model.value.towers)
