"""axolotl: `axolotl train cfg.yaml`, `accelerate launch -m axolotl.cli.train cfg.yaml`, and the YAML by itself.

Names as in the releases 0.8.0 to 0.19.0. Options of the command go over the file's keys (cli/config.py:252 of
0.19.0). A packed batch is one row of micro_batch_size × sequence_len tokens where the implementation takes
cu_seqlens, else rows of sequence_len (core/builders/causal.py:278, core/trainers/base.py:156); weights are in the
precision of training (utils/config/__init__.py:136, `resolve_dtype`).
"""

from __future__ import annotations

from collections.abc import Mapping

from attncheck.core.facts import Absent, Fact, Known
from attncheck.core.job import Job, Key, UnknownSetting
from attncheck.core.launch import Edit, Launch, SourceLocation
from attncheck.core.plan import RING_NAMES, CrossEntropy, Packing, Plan, Precision
from attncheck.core.snapshot import Snapshot
from attncheck.lint.fields.releases import changed, fields, near, requires
from attncheck.lint.fields.written import truth
from attncheck.lint.frameworks import Framework
from attncheck.lint.frameworks.axolotl import tables as axolotl
from attncheck.lint.frameworks.axolotl.behaviour import objections, takes_flash_4
from attncheck.lint.frameworks.axolotl.changes import changes
from attncheck.lint.frameworks.axolotl.plan import plan_settings
from attncheck.lint.frameworks.axolotl.values import Values, values

MODULES = ("axolotl.cli.train", "axolotl/cli/train.py")
OWN_KEYS = frozenset(  # a file with `base_model` and one of these is axolotl's
    {
        *("micro_batch_size", "sequence_len", "sample_packing", "attn_implementation", "flash_attention", "adapter"),
        *("sdp_attention", "pretraining_dataset", "rl", "pad_to_sequence_len", "context_parallel_size", "num_epochs"),
    }
)
COUNTED: Mapping[Key, tuple[str, ...]] = {
    "attn_implementation": ("attn_implementation", *axolotl.BOOLEANS),
    "packing": ("sample_packing",),
    "precision": ("bf16", "bfloat16", "fp16", "float16"),
    "ring_size": ("context_parallel_size", "sequence_parallel_degree"),
    "heads_k_stride": ("heads_k_stride",),
    "tensor_parallel": ("tensor_parallel_size",),
    "liger": ("plugins",),
    "gradient_checkpointing": ("gradient_checkpointing",),
    "max_length": ("sequence_len",),
    "batch": ("micro_batch_size",),
    "global_batch": ("batch_size", "gradient_accumulation_steps"),
}


def trainer(launch: Launch) -> str:
    """Return what a launch trains ("sft", "dpo", "pt"), "" where it is not axolotl's."""
    words = [word.text for word in launch.words]
    if words[:2] == ["axolotl", "train"] or (words and words[0].endswith(MODULES)):
        return _kind(launch)
    if words:
        return ""
    names = {entry.name.split(".")[0] for entry in launch.entries}
    return _kind(launch) if "base_model" in names and names & OWN_KEYS else ""


def _kind(launch: Launch) -> str:
    found = values(launch, FRAMEWORK.newest)
    rl = found.get("rl")
    if isinstance(rl, str) and rl:
        return rl
    if found.on("reward_model") or found.on("process_reward_model"):
        return "rm"
    return "pt" if found.get("pretraining_dataset") else "sft"


def model(launch: Launch) -> str:
    """Return the model as written, "" where none is."""
    found = values(launch, FRAMEWORK.newest).get("base_model")
    return found if isinstance(found, str) else ""


def read(launch: Launch, version: str, snapshot: Snapshot) -> Job:
    """Return the job as `version` reads it."""
    found = values(launch, version, snapshot)
    world = _world(launch)
    separating = axolotl.separating(version)
    scheme = {"varlen_llama3": "llama3", "batch_ring": "ring"}.get(found.ring_function, "llama3")
    return Job(
        framework="axolotl",
        version=version,
        trainer=trainer(launch),
        plan=_plan(found, launch),
        model=model(launch),
        location=launch.words[0].location if launch.words else SourceLocation(launch.source.name),
        settings=(*launch.entries, *found.options),
        unknown_settings=_unknown(found),
        problems=objections(found),
        world_size=world,
        gpus=world,
        nodes=launch.nodes.value if isinstance(launch.nodes, Known) else 1,
        tensor_parallel=found.number("tensor_parallel_size"),
        scheme=scheme if found.ring > 1 else "",
        hooked=("flash_attention_2",) if found.ring > 1 else (),
        packs_with=separating,
        requires=requires("axolotl", version),
        imports=("ring_flash_attn",) if found.ring > 1 else (),
        reinforcement=str(found.get("rl")) in ("grpo", "gdpo", "ebft") and found.on("trl.use_vllm"),
        locations={
            key: found.place(*names) for key, names in COUNTED.items() if any(name in found.given for name in names)
        },
        remarks=_remarks(found, launch),
    )


def _world(launch: Launch) -> Fact[int]:
    """Return how many processes train: those of the launcher; `axolotl train` has accelerate's own configuration."""
    if isinstance(launch.nodes, Known) and isinstance(launch.processes, Known):
        return Known(launch.nodes.value * launch.processes.value)
    if not launch.launchers:
        return Absent("accelerate takes the GPUs that it finds, or those of its own configuration")
    return launch.nodes if not isinstance(launch.nodes, Known) else launch.processes


def _plan(found: Values, launch: Launch) -> Plan:
    rows, tokens = found.number("micro_batch_size"), found.number("sequence_len", 512)
    if found.packed and not found.real_batches:
        rows, tokens = 1, rows * tokens
    return Plan(
        attn_implementation="flash_attention_4" if _named_flash_4(found) else found.asked,
        packing=_packing(found),
        padding_side="left" if _pads_left(found) else "right",
        precision=_precision(found),
        batch=rows,
        accumulation=_accumulation(found),
        max_length=tokens,
        gradient_checkpointing=found.on("gradient_checkpointing"),
        liger=found.liger,
        cross_entropy=_cross_entropy(found),
        compile=truth(found.get("torch_compile")),
        ring_size=found.ring,
        heads_k_stride=found.number("heads_k_stride"),
        environ=tuple(sorted(launch.environ.items())),
        # utils/schemas/validation.py:1838 of 0.19.0 puts the name back; 0.16.1 does not, 0.17.0 does
        shims=(RING_NAMES,) if found.ring > 1 and found.reaches("0.17.0") else (),
    )


def _named_flash_4(found: Values) -> bool:
    return takes_flash_4(found) and found.reaches(axolotl.FLASH_4_NAMED)


def _packing(found: Values) -> Packing:
    """Return how documents of a row are told apart; a mask that is kept hides their borders from transformers."""
    if not found.packed:
        return "padding"
    if not found.separated:
        return "mask_2d"
    return "mask_4d" if found.asked == "flex_attention" and not found.reaches(axolotl.DROPS_MASK) else "position_ids"


def _pads_left(found: Values) -> bool:
    """Mistral under flash attention without packing (loaders/tokenizer.py:207)."""
    described = found.snapshot.model if found.snapshot is not None else None
    mistral = "mistral" in str(found.get("base_model")).lower().rsplit("/", 1)[-1]
    if isinstance(described, Known):
        mistral = mistral or described.value.model_type == "mistral"
    return mistral and found.asked == "flash_attention_2" and not found.packed


def _precision(found: Values) -> Precision:
    """Return the precision of the weights; "auto" takes bfloat16 wherever torch has it, by emulation too."""
    if found.get("bf16") == "auto" and not found.on("fp16"):
        return "bf16"
    if (found.on("bf16") and found.get("bf16") != "auto") or found.on("bfloat16"):
        return "bf16"
    return "fp16" if found.on("fp16") or found.on("float16") or found.on("load_in_8bit") else "fp32"


def _accumulation(found: Values) -> int:
    steps = found.number("gradient_accumulation_steps", 0)
    return steps or max(1, found.number("batch_size") // found.number("micro_batch_size"))


def _cross_entropy(found: Values) -> CrossEntropy:
    if found.on("flash_attn_cross_entropy"):
        return "flash_attn"
    return "chunked" if found.on("chunked_cross_entropy") else "torch"


def _unknown(found: Values) -> tuple[UnknownSetting, ...]:
    """Return the names that the release does not know; it drops them without a word."""
    here = fields("axolotl", "names", found.version)
    foreign = any(not plugin.startswith("axolotl.integrations.") for plugin in found.plugins)
    unknown = []
    for name, setting in found.given.items():
        top = name.split(".")[0]
        if top in here or axolotl.plugin_of(found.version, top) or top.startswith(("_", "x-")):
            continue
        since = changed("axolotl", "names", top, found.version)
        now = axolotl.now(found.version, top, setting.value, here)
        if since or now or not foreign:
            unknown.append(
                UnknownSetting(setting.name, setting.location, now, since, "" if since or now else near(top, here))
            )
    return tuple(unknown)


def _remarks(found: Values, launch: Launch) -> tuple[str, ...]:
    hidden = [setting for setting in found.given.values() if not setting.known]
    told = [f"{each.name} {each.value}".strip() + ": only running can tell its value" for each in hidden]
    if launch.words and launch.file is None:
        told.append("the configuration file was not read: what it sets is taken as axolotl's defaults")
    return tuple(told)


def write(launch: Launch, job: Job, sets: Mapping[str, str]) -> tuple[Edit, ...]:
    """Return the edits that rename what is in `job.unknown` and set `sets`, in the names of `job.version`."""
    return changes(launch, job, sets)


FRAMEWORK = Framework("axolotl", "axolotl", "0.19.0", trainer, model, read, write, plan_settings)
