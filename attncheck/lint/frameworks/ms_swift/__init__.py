"""ms-swift: `swift sft`, `swift pt`, `swift rlhf`, `python -m swift.cli.sft`, and their YAML.

Names as in the wheels 3.8.0 to 4.6.0. `swift` starts torchrun by itself where NPROC_PER_NODE or NNODES is set
(cli/main.py:28). The weights have `torch_dtype`, else the checkpoint's; of a float32 model ms-swift trains in mixed
float16 (arguments/base_args/model_args.py:128). Sequence parallelism is Ulysses over gcd(key/value heads, size) ranks
and a zigzag ring over the rest, in flash_attention_2 and sdpa alone (sequence_parallel/sequence_parallel.py:272-276,
649). `megatron sft` and its kin are recognised and not judged: Megatron has its own attention.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from attncheck.core.facts import Absent, Fact, Known, Unreadable, value_or
from attncheck.core.job import Job, Key, UnknownSetting
from attncheck.core.launch import Edit, Launch, SourceLocation
from attncheck.core.plan import Plan, Precision
from attncheck.core.snapshot import Snapshot
from attncheck.lint.fields.releases import changed, near, reaches, requires
from attncheck.lint.frameworks import Framework
from attncheck.lint.frameworks.ms_swift import tables as ms_swift
from attncheck.lint.frameworks.ms_swift.behaviour import objections
from attncheck.lint.frameworks.ms_swift.changes import changes
from attncheck.lint.frameworks.ms_swift.plan import plan_settings
from attncheck.lint.frameworks.ms_swift.values import Values, field_name, values

PROGRAMS = ("swift", "megatron")
OWN_KEYS = frozenset(  # a file with `model` and one of these is ms-swift's
    {
        *("tuner_type", "train_type", "attn_impl", "rlhf_type"),
        *("packing_length", "padding_free", "sequence_parallel_size"),
    }
)
MEGATRON = "megatron"
MEGATRON_KEYS = frozenset(
    {"micro_batch_size", "tensor_model_parallel_size", "train_iters", "attention_backend", "train"}
)
DTYPES: Mapping[str, Precision] = {
    **dict.fromkeys(("bfloat16", "torch.bfloat16", "bf16"), "bf16"),
    **dict.fromkeys(("float16", "torch.float16", "fp16"), "fp16"),
    **dict.fromkeys(("float32", "torch.float32", "fp32"), "fp32"),
}
COUNTED: Mapping[Key, tuple[str, ...]] = {
    "attn_implementation": ("attn_impl",),
    "packing": ("packing", "padding_free"),
    "precision": ("torch_dtype", "bf16", "fp16"),
    "ring_size": ("sequence_parallel_size",),
    "tensor_parallel": ("deepspeed_autotp_size",),
    "deterministic": ("full_determinism",),
    "liger": ("use_liger_kernel",),
    "gradient_checkpointing": ("gradient_checkpointing",),
    "max_length": ("packing_length", "max_length"),
    "batch": ("per_device_train_batch_size",),
    "global_batch": ("gradient_accumulation_steps",),
    "padding_side": ("padding_side",),
}


def kind(launch: Launch) -> str:
    """Return the verb of a launch ("sft", "pt", "rlhf", "megatron"), "" where it is not ms-swift's."""
    words = [word.text.rsplit("/", 1)[-1] if at == 0 else word.text for at, word in enumerate(launch.words[:2])]
    if words and words[0] in PROGRAMS:
        verb = words[1] if len(words) > 1 else ""
        return (MEGATRON if words[0] == MEGATRON else verb) if verb in ms_swift.TRAINERS else ""
    if words:
        first = launch.words[0].text.removesuffix(".py").replace("/", ".")
        found = next((verb for verb in ms_swift.TRAINERS if first.endswith(f"swift.cli.{verb}")), "")
        return found or (MEGATRON if "swift.cli._megatron." in first else "")
    return _kind_of_file(launch)


def _kind_of_file(launch: Launch) -> str:
    names = {entry.name.split(".")[0] for entry in launch.entries}
    if "model" not in names or not names & OWN_KEYS:
        return ""
    if names & MEGATRON_KEYS:
        return MEGATRON
    return "rlhf" if "rlhf_type" in names else "sft"


def trainer(launch: Launch) -> str:
    """Return what a launch trains ("sft", "pt", "dpo", "grpo"), "" where it is not ms-swift's."""
    found = kind(launch)
    return values(launch, found, FRAMEWORK.newest).trainer if found else ""


def model(launch: Launch) -> str:
    """Return the model as written, "" where none is."""
    found = values(launch, kind(launch), FRAMEWORK.newest).get("model")
    return found if isinstance(found, str) else ""


def read(launch: Launch, version: str, snapshot: Snapshot) -> Job:
    """Return the job as `version` reads it."""
    verb = kind(launch)
    place = launch.words[0].location if launch.words else SourceLocation(launch.source.name)
    if verb == MEGATRON:
        unread = "megatron's arguments and attention are not read: nothing is judged but what stands around them"
        return Job("ms-swift", version, MEGATRON, model=model(launch), location=place, remarks=(unread,))
    found = values(launch, verb, version, snapshot)
    world = _world(found)
    return Job(
        framework="ms-swift",
        version=version,
        trainer=found.trainer,
        plan=_plan(found, world),
        model=model(launch),
        location=place,
        settings=tuple(found.given.values()),
        unknown_settings=_unknown(found),
        problems=objections(found),
        world_size=world,
        gpus=world,
        nodes=launch.nodes.value if isinstance(launch.nodes, Known) else _count(found, "NNODES"),
        tensor_parallel=found.number("deepspeed_autotp_size"),
        scheme=_scheme(found),
        hooked=_hooked(found),
        packs_with=tuple(name for name in ms_swift.packs_with(version) if name != "flash_attn"),
        requires=requires("ms_swift", version),
        reinforcement=found.trainer in ("grpo", "gkd", "ppo") and found.on("use_vllm"),
        locations={
            key: found.place(*names) for key, names in COUNTED.items() if any(name in found.given for name in names)
        },
        remarks=_remarks(found),
    )


def _world(found: Values) -> Fact[int]:
    """Return how many processes train: those of a launcher, or of the torchrun that `swift` starts."""
    launch = found.launch
    if isinstance(launch.nodes, Known) and isinstance(launch.processes, Known):
        return Known(launch.nodes.value * launch.processes.value)
    asked = [found.environ.get(name) for name in ("NPROC_PER_NODE", "NNODES")]
    if any(text is not None and not text.isdigit() for text in asked):
        return Unreadable("NPROC_PER_NODE and NNODES are told by running alone")
    if launch.words and launch.words[0].text.rsplit("/", 1)[-1] in PROGRAMS:
        return Known(_count(found, "NPROC_PER_NODE") * _count(found, "NNODES"))
    if any(asked):
        return Known(_count(found, "NPROC_PER_NODE") * _count(found, "NNODES"))
    return Absent("nothing says how many processes train") if not launch.launchers else launch.processes


def _count(found: Values, name: str) -> int:
    text = found.environ.get(name, "")
    return max(int(text[:6]), 1) if text.isdigit() else 1


def _plan(found: Values, world: Fact[int]) -> Plan:
    rows, tokens = found.number("per_device_train_batch_size"), _length(found)
    if found.packed:  # the rows of a batch are joined into one (template/base.py:2074)
        rows, tokens = 1, rows * tokens
    return Plan(
        attn_implementation=found.asked,
        packing="position_ids" if found.packed else "padding",
        padding_side="left" if found.get("padding_side") == "left" or found.trainer in ms_swift.LEFT else "right",
        precision=_precision(found),
        batch=rows,
        accumulation=_accumulation(found, world),
        max_length=tokens,
        gradient_checkpointing=found.on("gradient_checkpointing"),
        liger=found.on("use_liger_kernel"),
        deterministic=found.on("full_determinism"),
        compile=found.on("torch_compile"),
        ring_size=found.size,
        scheme="ulysses" if _scheme(found) != "llama3" else "llama3",
        heads_k_stride=2 if _scheme(found) == "llama3" else 1,
        environ=tuple(sorted(found.environ.items())),
    )


def _length(found: Values) -> int:
    longest = value_or(found.model.max_position_embeddings, 512) if found.model is not None else 512
    whole = found.number("max_length", longest)
    return found.number("packing_length", whole) if found.on("packing") else whole


def _precision(found: Values) -> Precision:
    """Return the precision of the weights, "autocast" where bfloat16 computes over float32 weights."""
    written = str(found.get("torch_dtype") or "")
    stored = value_or(found.model.dtype, "bfloat16") if found.model is not None else "bfloat16"
    weights = DTYPES.get(written or stored, "bf16")
    if weights != "fp32":
        return weights
    if found.on("bf16"):
        return "autocast"
    return "fp32" if found.get("fp16") is False else "fp16"


def _accumulation(found: Values, world: Fact[int]) -> int:
    """Return gradient_accumulation_steps; not written, it makes 16 rows to a step (trainers/arguments.py:285)."""
    rows = found.number("per_device_train_batch_size")
    ranks = world.value if isinstance(world, Known) else 1
    return found.number("gradient_accumulation_steps", max(1, math.ceil(16 / rows / ranks)))


def _scheme(found: Values) -> str:
    if found.size < 2:
        return ""
    if not found.reaches(ms_swift.DERIVED_RING):
        return "llama3" if found.environ.get("SEQUENCE_PARALLEL_IMPL") == "ring_attention" else "ulysses"
    return "ring" if found.ring > 1 else "ulysses"


def _hooked(found: Values) -> tuple[str, ...]:
    if found.size < 2:
        return ()
    return ("flash_attention_2",) if _scheme(found) != "ulysses" else ("flash_attention_2", "sdpa")


def _unknown(found: Values) -> tuple[UnknownSetting, ...]:
    """Return what the release does not know: argparse leaves it over, and ms-swift raises (pipelines/base.py:43)."""
    here = ms_swift.names(found.version, found.kind == "rlhf")
    if "output_dir" not in here:  # without transformers' names nothing can be said
        return ()
    unknown = []
    for setting in found.strange:
        name = field_name(setting.name, here).split(".")[0]
        if setting.name == "--config" or (not setting.known and setting.name.startswith("$")):
            continue
        option = setting.name.startswith("-")
        renamed = ms_swift.RENAMED.get(name, "")
        now = (f"--{renamed}" if option else renamed,) if renamed in here else ()
        since = max((changed("ms_swift", part, name, found.version) for part in ("names", "rlhf")), key=len)
        guess = "" if now or since else near(name, here)
        unknown.append(
            UnknownSetting(setting.name, setting.location, now, since, f"--{guess}" if guess and option else guess)
        )
    return tuple(unknown)


def _remarks(found: Values) -> tuple[str, ...]:
    hidden = [each for each in found.given.values() if not each.known]
    told = [f"{each.name} {each.value}".strip() + ": only running can tell its value" for each in hidden]
    if found.size > 1 and found.model is None and reaches(found.version, ms_swift.DERIVED_RING):
        told.append(f"sequence_parallel_size {found.size} is taken as Ulysses alone: the model's heads are not known")
    return tuple(told)


def write(launch: Launch, job: Job, sets: Mapping[str, str]) -> tuple[Edit, ...]:
    """Return the edits that rename what is in `job.unknown` and set `sets`, in the names of `job.version`."""
    return changes(launch, kind(launch), job, sets)


FRAMEWORK = Framework("ms-swift", "ms-swift", "4.6.0", trainer, model, read, write, plan_settings)
