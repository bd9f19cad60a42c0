"""LLaMA-Factory 0.9.0 to 0.9.5: `llamafactory-cli train x.yaml key=value`, `train.py --…`, the YAML or JSON by itself.

Words of the form key=value go over the file's keys (0.9.5 hparams/parser.py:82-93, OmegaConf); what no dataclass knows
is refused unless ALLOW_EXTRA_ARGS is set. Trainable weights are float32 unless pure_bf16 is set (model/adapter.py:325),
the frozen ones of LoRA are in the precision of training; checkpointing is on unless switched off (checkpointing.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from attncheck.core.facts import Absent, Fact, Known
from attncheck.core.job import Job, Key
from attncheck.core.launch import Edit, Launch, SourceLocation
from attncheck.core.plan import Packing, Plan, Precision
from attncheck.core.snapshot import Snapshot
from attncheck.lint.fields import hugging_face as shared
from attncheck.lint.fields.changes import edits
from attncheck.lint.fields.releases import requires, versions
from attncheck.lint.fields.values import Settings, refused, settings, unknown
from attncheck.lint.frameworks import Framework
from attncheck.lint.frameworks.llamafactory import tables as known
from attncheck.lint.frameworks.llamafactory.behaviour import Reading, objections
from attncheck.lint.frameworks.llamafactory.plan import plan_settings

PARSER = "llamafactory 0.9.5 hparams/parser.py, HfArgumentParser"
YES = ("1", "true", "y")
KEYS: Mapping[Key, tuple[str, ...]] = {
    "attn_implementation": ("flash_attn",),
    "packing": ("neat_packing", "packing"),
    "precision": ("pure_bf16", "bf16", "fp16"),
    "deterministic": ("full_determinism",),
    "liger": ("enable_liger_kernel",),
    "gradient_checkpointing": ("disable_gradient_checkpointing",),
    "max_length": ("cutoff_len",),
    "batch": ("per_device_train_batch_size",),
    "global_batch": ("gradient_accumulation_steps",),
}


def trainer(launch: Launch) -> str:
    """Return the stage that a launch trains ("sft", "dpo", "pt"), "" where it is not LLaMA-Factory's."""
    if not known.ours(launch):
        return ""
    return _settings(launch, FRAMEWORK.newest, versions("transformers")[-1]).text("stage") or "sft"


def model(launch: Launch) -> str:
    """Return the model as written, "" where none is."""
    return _settings(launch, FRAMEWORK.newest, versions("transformers")[-1]).text("model_name_or_path") or ""


def _settings(launch: Launch, version: str, transformers: str) -> Settings:
    return settings(launch, known.parser(version, transformers), known.RENAMED, 2 if known.command(launch) else 1)


def _reading(launch: Launch, version: str, snapshot: Snapshot) -> Reading:
    transformers = shared.versions(snapshot, "llamafactory", version, known.CONTEMPORARY)["transformers"]
    return Reading(launch, snapshot, version, transformers, _settings(launch, version, transformers))


def read(launch: Launch, version: str, snapshot: Snapshot) -> Job:
    """Return the job as `version` reads it; a setting that it does not know counts under its new name."""
    r = _reading(launch, version, snapshot)
    found = r.settings
    nodes, world = _world(r)
    at_hand = {"llamafactory": version, "transformers": r.transformers}
    extra = (launch.environ.get("ALLOW_EXTRA_ARGS") or "").lower() in YES
    return Job(
        framework="llamafactory",
        version=version,
        trainer=r.stage,
        plan=_plan(r),
        model=found.text("model_name_or_path") or "",
        location=launch.words[0].location if launch.words else SourceLocation(launch.source.name),
        settings=tuple(one.setting for one in found.every),
        unknown_settings=tuple(unknown(found, at_hand, strict=not extra)),
        problems=(*refused(found, PARSER), *objections(r)),
        world_size=world,
        gpus=world,
        nodes=nodes,
        requires=requires("llamafactory", version),
        locations={str(key): r.place(*names) for key, names in KEYS.items() if found.written(*names)},
        remarks=_remarks(r),
    )


def _world(r: Reading) -> tuple[int, Fact[int]]:
    """Return nodes and ranks: of the launcher, or of the torchrun that `llamafactory-cli` starts (launcher.py)."""
    launch = r.launch
    if launch.words and not known.command(launch):
        return (launch.nodes.value if isinstance(launch.nodes, Known) else 1), shared.world(launch)
    environ = launch.environ
    if (environ.get("USE_RAY") or "").lower() in YES:
        return 1, Known(max(r.settings.number("ray_num_workers", 1), 1))
    nodes = _number(environ.get("NNODES", "")) or 1
    visible = environ.get("CUDA_VISIBLE_DEVICES", "")
    here = visible.count(",") + 1 if visible else len(r.snapshot.visible_devices())
    each = _number(environ.get("NPROC_PER_NODE", "")) or here
    if not each:
        return nodes, Absent("llamafactory-cli starts one process for each GPU that it finds")
    return nodes, Known(nodes * each)


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else 0


def _plan(r: Reading) -> Plan:
    found = r.settings
    return Plan(
        attn_implementation=r.implementation,
        packing=_packing(r),
        positions="running" if r.packed and r.stage == "pt" else "reset",
        padding_side="left" if r.stage == "ppo" else "right",
        precision=_precision(r),
        batch=r.rows,
        accumulation=max(found.number("gradient_accumulation_steps", 1), 1),
        max_length=found.number("cutoff_len", 2048),
        gradient_checkpointing=not found.on("disable_gradient_checkpointing"),
        liger=found.on("enable_liger_kernel"),
        deterministic=found.on("full_determinism"),
        compile=found.on("torch_compile"),
        environ=tuple(sorted(r.launch.environ.items())),
    )


def _packing(r: Reading) -> Packing:
    """Return how documents of a row are told apart: "mask_2d" where nothing does, which an objection says."""
    if not r.packed:
        return "padding"
    if r.neat and r.implementation != "flash_attention_2":
        return "mask_4d"  # data/collator.py:524
    return "mask_2d" if r.mixed else "position_ids"


def _precision(r: Reading) -> Precision:
    found = r.settings
    if found.on("pure_bf16"):
        return "bf16"
    if found.on("fp16"):
        return "fp16"
    if found.on("bf16"):
        frozen = (found.text("finetuning_type") or "lora") in ("lora", "oft")
        return "bf16" if frozen else "autocast"
    return "fp32"


def _remarks(r: Reading) -> tuple[str, ...]:
    if r.launch.words and r.launch.file is None and not r.settings.every:
        return ("the configuration file was not read: what it sets is taken as LLaMA-Factory's defaults",)
    return r.settings.remarks()


def write(launch: Launch, job: Job, sets: Mapping[str, str]) -> tuple[Edit, ...]:
    """Return the edits that rename what is in `job.unknown` and set `sets`, in the names of `job.version`."""
    found = _settings(launch, job.version, versions("transformers")[-1])
    fields = {"max_length": "cutoff_len", "batch": "per_device_train_batch_size", "liger": "enable_liger_kernel"}
    fields["deterministic"] = "full_determinism"
    plain = {key: value for key, value in sets.items() if key not in _TRANSLATED}
    wanted = shared.asked(plain, fields, found.written)
    for key, value in sets.items():
        if key in _TRANSLATED:
            wanted |= _translated(key, value, found)
    here = {name: value for name, value in wanted.items() if name in found.names.here}
    options = any(one.option for one in found.every) or not launch.words
    return edits(launch, found, job.unknown_settings, here, "--" if options else "=")


_TRANSLATED = ("attn_implementation", "packing", "gradient_checkpointing", "precision")


def _translated(key: str, value: str, found: Settings) -> dict[str, str]:
    """Return a setting whose value LLaMA-Factory writes in its own way; {} where it has no word for it."""
    if key == "attn_implementation":
        return {"flash_attn": known.WORDS[value]} if value in known.WORDS else {}
    if key == "gradient_checkpointing":
        return {"disable_gradient_checkpointing": "false" if value == "on" else "true"}
    if key == "packing":
        on = "true" if value == "on" else "false"
        neat = {"neat_packing": on} if value == "on" or found.written("neat_packing") else {}
        return {"packing": on, **neat}
    pure = {"pure_bf16": "false"} if found.on("pure_bf16") else {}
    if value == "bf16":
        return {} if pure else {"bf16": "true", **({"fp16": "false"} if found.on("fp16") else {})}
    half = {"fp16": "true"} if value == "fp16" else {"fp16": "false"} if found.on("fp16") else {}
    return {**pure, **half, **({"bf16": "false"} if found.on("bf16") else {})}


FRAMEWORK = Framework("llamafactory", "llamafactory", "0.9.5", trainer, model, read, write, plan_settings)
