"""What frameworks on transformers' Trainer share: ranks, accelerate's parallelism, precision, recurrent layers.

accelerate 1.15.0 commands/launch.py (`--parallelism_config_*`), utils/launch.py:410-430 (the variables that it sets
for the ranks), parallelism_config.py:277-289 (that read them); transformers 4.56.2 to 5.23.0 trainer.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from attncheck.core.facts import Absent, Fact, Known, value_or
from attncheck.core.job import DROP, KEYS, SettingProblem
from attncheck.core.launch import NOWHERE, Edit, Launch, SourceLocation
from attncheck.core.model import Model
from attncheck.core.plan import Precision
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.knowledge.models import GATED_DELTA_RULE, RECURRENT_LAYERS, RECURRENT_VARLEN
from attncheck.lint.fields.releases import reaches
from attncheck.lint.files import editing

KERNELS = ("flash-linear-attention", "causal-conv1d")
FLASH = re.compile(r"flash_attention_[234]\b|kernels-community/.*flash", re.ASCII)
REFUSES_LEAKS = "5.20.0"  # integrations/hub_kernels.py: cu_seqlens without causal-conv1d raise from here on
STARTERS = frozenset({"torchrun", "accelerate", "deepspeed", "srun", "ray", "mpirun"})  # of several processes
DTYPE_AUTO = "5.0.0"  # from_pretrained takes the checkpoint's dtype from here on, float32 before


@dataclass(frozen=True)
class Parallel:
    """How accelerate divides a row of tokens, and a layer, over ranks."""

    context: int = 1  # `cp_size`: torch's context parallelism
    sequence: int = 1  # `sp_size`: DeepSpeed's Ulysses
    tensor: int = 1
    place: SourceLocation = SourceLocation()

    @property
    def size(self) -> int:
        """Return over how many ranks one row is divided."""
        return max(self.context, self.sequence)

    @property
    def scheme(self) -> str:
        """Return the scheme's name, "" where rows stay whole."""
        return "torch" if self.context > 1 else "ulysses" if self.sequence > 1 else ""

    @property
    def hooked(self) -> tuple[str, ...]:
        """Return the implementations that the scheme takes place in."""
        return {"torch": ("sdpa",), "ulysses": ("flash_attention_2", "flash_attention_3", "sdpa")}.get(self.scheme, ())


def parallel(launch: Launch) -> Parallel:
    """Return accelerate's parallelism: of its command line, of a file's keys that go there, else of the environment."""
    found: dict[str, tuple[int, SourceLocation]] = {}
    for kind in ("cp", "sp", "tp"):
        text = launch.environ.get(f"PARALLELISM_CONFIG_{kind.upper()}_SIZE", "")
        if _count(text):
            found[kind] = (int(text), SourceLocation())
    for entry in launch.entries:
        match = re.fullmatch(r"parallelism_config(?:_|\.parallelism_config_)(cp|sp|tp)_size", entry.name)
        if match and _count(entry.value):
            found[match[1]] = (int(entry.value), entry.location)
    for at, word in enumerate(launch.whole or launch.words):
        name, equals, value = word.text.partition("=")
        match = re.fullmatch(r"--parallelism[-_]config[-_](cp|sp|tp)[-_]size", name)
        following = (launch.whole or launch.words)[at + 1 : at + 2]
        text = value if equals else following[0].text if following else ""
        if match and _count(text):
            found[match[1]] = (int(text), word.location)
    sizes = {kind: size for kind, (size, _) in found.items()}
    place = next((place for size, place in found.values() if size > 1), SourceLocation())
    return Parallel(sizes.get("cp", 1), sizes.get("sp", 1), sizes.get("tp", 1), place)


def resized(launch: Launch, size: str) -> Iterator[Edit]:
    """Yield the edits that give accelerate's context and sequence parallelism another size, where they are written."""
    for entry in launch.entries:
        if re.fullmatch(r"parallelism_config(?:_|\.parallelism_config_)(cp|sp)_size", entry.name):
            yield editing.replaced(entry, size)
    words = launch.whole or launch.words
    for at, word in enumerate(words):
        name, equals, _ = word.text.partition("=")
        if not re.fullmatch(r"--parallelism[-_]config[-_](cp|sp)[-_]size", name):
            continue
        target = word if equals else words[at + 1] if at + 1 < len(words) else None
        if target is not None and target.span != NOWHERE:
            yield Edit(launch.source.name, target.span, f"{name}={size}" if equals else size)


def asked(sets: Mapping[str, str], fields: Mapping[str, str], written: Callable[..., bool]) -> dict[str, str]:
    """Return the settings `sets` as fields of the Trainer.

    `fields` are the names of the `Key`s that have one, of the weights' "dtype", and "bf16" where it is on by default;
    fp16 is autocast over float32 weights: a gradient scaler refuses weights in float16.
    """
    found: dict[str, str] = {}
    for key, value in sets.items():
        text = {"on": "true", "off": "false"}.get(value, value)
        if key == "precision":
            found |= _precision_fields(value, fields, written)
        elif key in fields:
            found[fields[key]] = text
        elif key not in KEYS:
            found[key.removeprefix("--")] = text
    return {name: value for name, value in found.items() if name}


def _precision_fields(value: str, fields: Mapping[str, str], written: Callable[..., bool]) -> dict[str, str]:
    dtype = fields.get("dtype", "")
    if value == "bf16":
        return {"bf16": "true", **({"fp16": DROP} if written("fp16") else {})}
    half = {"fp16": "true"} if value == "fp16" else {"fp16": DROP} if written("fp16") else {}
    weights = {dtype: "float32"} if dtype and written(dtype) else {}
    whole = {"bf16": "false"} if "bf16" in fields or written("bf16") else {}
    return {**whole, **half, **weights}


def _count(text: str) -> bool:
    return text.isascii() and text.isdigit() and 0 < len(text) < 7 and int(text) > 0


def world(launch: Launch) -> Fact[int]:
    """Return how many ranks train; a script that only Python starts is one."""
    if isinstance(launch.processes, Known):
        return Known(launch.processes.value * value_or(launch.nodes, 1))
    alone = "python" in launch.launchers and not set(launch.launchers) & STARTERS
    return Known(1) if alone else launch.processes


def versions(snapshot: Snapshot, package: str, version: str, contemporary: Mapping[str, str]) -> dict[str, str]:
    """Return package -> version, transformers' as installed, else of the framework's own days."""
    installed = snapshot.version("transformers")
    if isinstance(installed, Known):
        return {package: version, "transformers": str(installed.value)}
    fitting = [own for first, own in contemporary.items() if reaches(version, first)]
    return {package: version, "transformers": fitting[-1] if fitting else "4.40.2"}


def precision(snapshot: Snapshot, transformers: str, dtype: str | None, bf16: bool, fp16: bool) -> Precision:
    """Return the precision of weights and arithmetic; `dtype` is that of the weights as it was asked for."""
    weights = (dtype or ("auto" if reaches(transformers, DTYPE_AUTO) else "float32")).removeprefix("torch.")
    if weights == "auto":
        own = snapshot.model.value.dtype if isinstance(snapshot.model, Known) else Absent()
        weights = value_or(own, "float32")
    if fp16 or weights in ("float16", "fp16", "half"):
        return "fp16"
    if weights in ("bfloat16", "bf16"):
        return "bf16"
    return "autocast" if bf16 else "fp32"


def recurrent(snapshot: Snapshot) -> Model | None:
    """Return the model where it is known to have layers that carry a state over the row."""
    if not isinstance(snapshot.model, Known):
        return None
    model = snapshot.model.value
    return model if any(kind in RECURRENT_LAYERS for kind in model.layer_types) else None


def leak(
    snapshot: Snapshot, transformers: str, model: Model, gives_edges: bool, evidence: str
) -> SettingProblem | None:
    """Return what packing does to a model with recurrent layers; `gives_edges`: the collator passes cu_seqlens."""
    sets = {"packing": "off"}
    family = model.model_type.replace("_text", "")
    if not gives_edges:
        text = f"packs {model.model_type} by position_ids alone: its recurrent layers carry state between documents"
        return SettingProblem("wrong", text, (evidence,), sets=sets, advice="do not pack this model")
    first = RECURRENT_VARLEN.get(family, "")
    if not first or not reaches(transformers, first):
        text = f"packs {model.model_type}, whose recurrent layers get no cu_seqlens from transformers {transformers}"
        return SettingProblem("wrong", text, (evidence,), sets=sets, advice="do not pack this model")
    missing = [name for name in KERNELS if family in GATED_DELTA_RULE and not snapshot.has(name)]
    if not missing:
        return None
    raises = reaches(transformers, REFUSES_LEAKS)
    text = f"packs {model.model_type} without {' and '.join(missing)}: "
    text += "transformers raises at the first batch" if raises else "the fallback in torch ignores cu_seqlens"
    source = f"transformers {transformers} integrations/hub_kernels.py, causal_conv1d_fn" if raises else evidence
    advice = f"install {' and '.join(missing)}, or do not pack this model"
    return SettingProblem("refuses" if raises else "wrong", text, (source,), sets=sets, advice=advice)


def flash(implementation: str) -> bool:
    """Say whether an implementation is a flash kernel, which takes packed rows without a mask."""
    return FLASH.match(implementation) is not None


def vision(snapshot: Snapshot) -> bool:
    """Say whether the model is known to have a vision or audio tower."""
    return isinstance(snapshot.model, Known) and bool(snapshot.model.value.towers)
