"""A launch of verl as a job: what will train, on what, with which attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from attncheck.core.facts import Absent, Fact, Known
from attncheck.core.job import KEYS, Job, UnknownSetting
from attncheck.core.launch import COMMAND, Launch, SourceLocation
from attncheck.core.plan import Plan, Precision
from attncheck.core.snapshot import Snapshot
from attncheck.lint.frameworks.verl import tables as verl
from attncheck.lint.frameworks.verl.given import OVERRIDE, Given, Override, resolved, taken, trainer
from attncheck.lint.frameworks.verl.objections import objections
from attncheck.lint.frameworks.verl.roles import ACTOR, FLASH, Roles
from attncheck.lint.frameworks.verl.unknown import unknown
from attncheck.lint.frameworks.verl.values import Unknowable, setting, values

DTYPES: Mapping[str, Precision] = {
    **dict.fromkeys(("bf16", "bfloat16"), "bf16"),
    **dict.fromkeys(("fp16", "float16", "half"), "fp16"),
    **dict.fromkeys(("fp32", "float32", "float"), "fp32"),
}
NO_FLASH_CROSS_ENTROPY = "VERL_DISABLE_FLASH_ATTN_CE"  # utils/torch_functional.py 0.9.1:95, since 0.9.0
PLACEMENTS = (  # GPUs beside those of the trainer: (switch, nodes, GPUs of a node)
    ("reward_model.enable_resource_pool", "reward_model.nnodes", "reward_model.n_gpus_per_node"),
    ("reward.reward_model.enable_resource_pool", "reward.reward_model.nnodes", "reward.reward_model.n_gpus_per_node"),
)
APART = ("one_step_off_ppo", "fully_async_ppo")  # configurations whose rollout has GPUs of its own


def read(launch: Launch, version: str, snapshot: Snapshot) -> Job:
    """Return the launch as one version of verl reads it."""
    names = verl.of(version)
    given = resolved(taken(launch), names)
    strange = tuple(unknown(given, names))
    meant = resolved(as_meant(given, strange), names)
    roles = Roles(names, meant, values(meant, names))
    world = _world(roles, launch)
    job = Job(
        framework="verl",
        version=version,
        trainer=trainer(launch) or ("ppo" if roles.reinforcement else "sft"),
        plan=_plan(roles, launch, snapshot),
        model=model(launch),
        location=_place(launch),
        settings=(*given.entries, *(setting(override) for override in given.overrides)),
        unknown_settings=strange,
        world_size=world,
        gpus=_gpus(roles, world),
        nodes=_nodes(roles, launch),
        tensor_parallel=max(roles.values.number(*roles.keys("tensor_parallel"), default=1), 1),
        scheme=_scheme(roles),
        hooked=_hooked(roles),
        reinforcement=roles.reinforcement,
        requires=names.requires(roles.values.text("actor_rollout_ref.rollout.name")),
        imports=_imports(roles),
        locations=_places(roles),
        remarks=(*_remarks(roles), *_columns(strange)),
    )
    return replace(job, problems=tuple(objections(roles, job, snapshot)))


def model(launch: Launch) -> str:
    """Return the model as it is written, "" where none is."""
    given = taken(launch)
    pairs = [(entry.name, entry.value) for entry in given.entries]
    pairs += [(override.key, override.value) for override in given.overrides]
    keys = ("actor_rollout_ref.model.path", "model.path", "model.partial_pretrain")
    found = [value.strip().strip("\"'") for key, value in pairs if key in keys]
    return found[-1] if found else ""


def as_meant(given: Given, strange: tuple[UnknownSetting, ...]) -> Given:
    """Return a launch with what has another name in this release under that name."""
    now = {(each.location, each.name): each.now[0] for each in strange if each.now}
    overrides = tuple(_renamed(override, now) for override in given.overrides)
    entries = tuple(replace(entry, name=now.get((entry.location, entry.name), entry.name)) for entry in given.entries)
    config = next((text.partition("=")[2] for text in now.values() if text.startswith("--config-name=")), given.config)
    return replace(given, overrides=overrides, entries=entries, config=config)


def _renamed(override: Override, now: Mapping[tuple[SourceLocation, str], str]) -> Override:
    found = OVERRIDE.fullmatch(now.get((override.word.location, override.prefix + override.key), ""))
    return override if found is None else replace(override, prefix=found["prefix"] or "", key=found["key"])


def _plan(roles: Roles, launch: Launch, snapshot: Snapshot) -> Plan:
    held = roles.values
    packed = _packed(roles)
    size = roles.size()
    micro = max(held.number(*roles.batches(), default=1), 1)
    return Plan(
        attn_implementation=_implementation(roles),
        packing="position_ids" if packed else "padding",
        precision=_precision(roles),
        batch=micro,
        accumulation=_accumulation(roles, micro, size),
        max_length=max(_length(roles), 1),
        gradient_checkpointing=held.on(*roles.keys("gradient_checkpointing")),
        liger=held.on(*roles.keys("liger")) and roles.fsdp,
        cross_entropy="flash_attn" if _triton_cross_entropy(roles, launch, snapshot) else "torch",
        deterministic=held.on(f"{roles.engine}.full_determinism"),
        ring_size=size,
        scheme="ulysses" if _scheme(roles) == "ulysses" else "llama3",
        environ=tuple(sorted(launch.environ.items())),
    )


def _implementation(roles: Roles) -> str:
    """Return the implementation that trains the policy: flash_attention_2 unless told otherwise, and heard."""
    asked = roles.values.text(roles.implementation) if roles.implementation else ""
    if roles.strategy == "megatron":
        return "flash_attention_2" if (asked or "flash") == "flash" else "transformer_engine"
    if roles.strategy == "torchtitan":
        return "flex_attention" if asked.startswith("flex") else "sdpa"
    return asked or "flash_attention_2"


def _packed(roles: Roles) -> bool:
    """Say whether rows are packed; `fsdp_sft_trainer` does so under Ulysses alone (0.4.1:299, `use_sp`)."""
    keys = roles.keys("packing")
    on = roles.values.on(*keys) or not keys
    return on and (not roles.old_sft or roles.size() > 1)


def _precision(roles: Roles) -> Precision:
    if not roles.fsdp:
        return "bf16"
    weights = DTYPES.get(roles.values.text(f"{roles.engine}.model_dtype"), "fp32")
    computed = DTYPES.get(roles.values.text(*roles.precisions()), "bf16") if not roles.old_sft else "bf16"
    if computed == "bf16" and weights == "fp32":
        return "autocast"
    return weights if computed == "bf16" else computed


def _length(roles: Roles) -> int:
    if not roles.reinforcement:
        return roles.values.number("data.max_length", default=1024)
    return roles.values.number("data.max_prompt_length") + roles.values.number("data.max_response_length")


def _accumulation(roles: Roles, micro: int, size: int) -> int:
    """Return how many batches make an optimiser's step: 1 where dynamic batches or unknown numbers decide it."""
    world = roles.values.number("trainer.n_gpus_per_node") * roles.values.number("trainer.nnodes", default=1)
    if not roles.reinforcement or roles.values.on(f"{ACTOR}.use_dynamic_bsz") or not world or size > world:
        return 1
    rows = roles.values.number(f"{ACTOR}.ppo_mini_batch_size") * roles.values.number("actor_rollout_ref.rollout.n")
    return max(rows // (world // size * micro), 1)


def _triton_cross_entropy(roles: Roles, launch: Launch, snapshot: Snapshot) -> bool:
    """Say whether log-probabilities go through flash-attn's Triton kernel (utils/torch_functional.py 0.9.1:90-107)."""
    if not (roles.reinforcement and roles.fsdp and snapshot.has("flash-attn")):
        return False
    off = launch.environ.get(NO_FLASH_CROSS_ENTROPY) == "1" or roles.values.on(f"{roles.engine}.full_determinism")
    return not (off and roles.since("0.9.0"))


def _world(roles: Roles, launch: Launch) -> Fact[int]:
    own = (roles.values.known("trainer.nnodes"), roles.values.known("trainer.n_gpus_per_node"))
    if roles.reinforcement or roles.given.module.endswith("_ray"):
        if own[0] is None or own[1] is None:
            return Absent("trainer.nnodes or trainer.n_gpus_per_node is not known before the launch runs")
        return Known(own[0] * own[1])
    if isinstance(launch.nodes, Known) and isinstance(launch.processes, Known):
        return Known(launch.nodes.value * launch.processes.value)
    return launch.processes if isinstance(launch.nodes, Known) else launch.nodes


def _gpus(roles: Roles, world: Fact[int]) -> Fact[int]:
    if not isinstance(world, Known):
        return world
    held = roles.values
    total = world.value
    for switch, nodes, each in PLACEMENTS:
        if held.on(switch):
            total += held.number(nodes) * held.number(each)
    if roles.given.config.startswith(APART):
        total += held.number("rollout.nnodes", default=1) * held.number("rollout.n_gpus_per_node")
    return Known(total)


def _nodes(roles: Roles, launch: Launch) -> int:
    if roles.reinforcement:
        return max(roles.values.number("trainer.nnodes", default=1), 1)
    return launch.nodes.value if isinstance(launch.nodes, Known) else 1


def _scheme(roles: Roles) -> str:
    if roles.size() < 2:
        return ""
    if roles.strategy == "megatron":
        return "megatron"
    return "ulysses" if roles.fsdp or roles.strategy == "veomni" else "torch"


def _hooked(roles: Roles) -> tuple[str, ...]:
    """Return the implementations that go through `_flash_attention_forward`, which Ulysses replaces.

    models/transformers/monkey_patch.py 0.9.1:544-552; kernels of the Hub go the same way, by whatever name.
    """
    if _scheme(roles) != "ulysses":
        return ()
    asked = _implementation(roles)
    return (*FLASH, asked) if "/" in asked else FLASH


def _imports(roles: Roles) -> tuple[str, ...]:
    """Return what is imported whatever the implementation.

    workers/actor/dp_actor.py imports flash_attn at its top up to 0.5.0 (0.3.0.post1:34; where CUDA is there: 0.5.0:40),
    utils/attention_utils.py with the first packed row up to 0.9.0 (0.9.0:30); 0.9.1 has its own (0.9.1:70-78).
    """
    if not roles.fsdp or roles.since("0.9.1"):
        return ()
    return ("flash_attn",) if not roles.since("0.6.0") or _packed(roles) else ()


def _places(roles: Roles) -> dict[str, SourceLocation]:
    found: dict[str, SourceLocation] = {}
    found |= {key: roles.values.place(*roles.keys(key)) for key in KEYS if roles.values.written(*roles.keys(key))}
    for own in ("data.max_prompt_length", "data.max_response_length"):
        if roles.values.written(own):
            found.setdefault("max_length", roles.values.place(own))
    return found


def _place(launch: Launch) -> SourceLocation:
    if launch.words:
        return launch.words[0].location
    return launch.entries[0].location if launch.entries else SourceLocation(launch.source.name or COMMAND)


def _columns(strange: tuple[UnknownSetting, ...]) -> tuple[str, ...]:
    """Return what is to be said where a launch names columns of its data that the newer trainer does not read.

    trainer/sft_trainer.py 0.9.1:478 takes MultiTurnSFTDataset unless data.custom_cls names another.
    """
    gone = [each.name for each in strange if each.name in ("data.prompt_key", "data.response_key") and not each.now]
    if not gone:
        return ()
    return (f"{', '.join(gone)}: verl.trainer.sft_trainer reads conversations (data.messages_key); convert the data",)


def _remarks(roles: Roles) -> tuple[str, ...]:
    given, held = roles.given, roles.values
    found = [f"{word.text}: not known before the launch runs" for word in given.opaque]
    named = [
        name for name, writer in held.writers.items() if not writer.known or isinstance(held.held.get(name), Unknowable)
    ]
    deciding = {own for key in KEYS for own in roles.keys(key)} | {"trainer.nnodes", "trainer.n_gpus_per_node"}
    found += [f"{name}: its value is not known before the launch runs" for name in named if name in deciding]
    if given.foreign and given.module:
        found.append(
            f"{given.config or given.module} is none of verl's own configurations: only verl's keys are judged"
        )
    return tuple(found)
