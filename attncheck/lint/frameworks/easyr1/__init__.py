"""EasyR1 (hiyouga/EasyR1) and its forks: `python3 -m verl.trainer.main config=x.yaml worker.actor.…=…`.

EasyR1 is a fork of verl in a package that is also called `verl`. Its configuration is different: OmegaConf over
dataclasses, without Hydra and its groups. It exists only as a source tree, which most users have changed. Therefore
known names come only from the program next to the launch; without it, no name is judged. The effects of settings were
read in the tags v0.3.0 to v0.3.2 and at b44b311 (0.3.3.dev0); each claim says where.

flash_attention_2 is fixed in the code (verl/workers/fsdp_workers.py:201 of v0.3.0, 215 of b44b311); no setting changes
it.
"""

from collections.abc import Mapping

from attncheck.lint.fields import (
    COMMAND,
    Absent,
    Edit,
    Fact,
    Job,
    Key,
    Known,
    Launch,
    Plan,
    Precision,
    Snapshot,
    SourceLocation,
    switch_to_bool,
)
from attncheck.lint.frameworks import Framework, defer
from attncheck.lint.frameworks.easyr1.problems import find_problems
from attncheck.lint.frameworks.easyr1.settings import (
    ACTOR,
    MODEL_PATH,
    EasyR1Reading,
    find_ulysses_key,
    is_own_launch,
    make_edits,
    parse_launch_settings,
)

DTYPES: Mapping[str, Precision] = {  # verl/utils/torch_dtypes.py:18-20
    **dict.fromkeys(("bf16", "bfloat16"), "bf16"),
    **dict.fromkeys(("fp16", "float16"), "fp16"),
    **dict.fromkeys(("fp32", "float32"), "fp32"),
}
KEY_NAMES: Mapping[Key, tuple[str, ...]] = {
    "packing": (f"{ACTOR}.padding_free",),
    "precision": (f"{ACTOR}.fsdp.torch_dtype", f"{ACTOR}.fsdp.mp_param_dtype"),
    "ring_size": (f"{ACTOR}.ulysses_size", f"{ACTOR}.ulysses_sequence_parallel_size"),
    "gradient_checkpointing": (f"{ACTOR}.model.enable_gradient_checkpointing",),
    "max_length": ("data.max_response_length", "data.max_prompt_length"),
    "batch": (f"{ACTOR}.micro_batch_size_per_device_for_update",),
    "global_batch": (f"{ACTOR}.global_batch_size",),
}


def detect_trainer(launch: Launch) -> str:
    """Return the advantage estimator of a launch ("grpo"); "" if it does not use EasyR1."""
    if not is_own_launch(launch):
        return ""
    estimator = parse_launch_settings(launch).get_text("algorithm.adv_estimator") or "grpo"
    return estimator if estimator.isidentifier() and estimator != "gae" else "ppo"


def read_model_name(launch: Launch) -> str:
    """Return the model that the launch names; "" if it names none."""
    return parse_launch_settings(launch).get_text(MODEL_PATH)


def read(launch: Launch, version: str, snapshot: Snapshot) -> Job:
    """Return the job of a launch."""
    settings = parse_launch_settings(launch)
    world_size = _count_processes(settings)
    return Job(
        framework="easyr1",
        version=version,
        trainer=detect_trainer(launch),
        plan=_build_plan(settings, world_size),
        model=read_model_name(launch),
        location=launch.words[0].location if launch.words else SourceLocation(launch.source.name or COMMAND),
        settings=settings.all_settings,
        problems=tuple(find_problems(settings, world_size)),
        world_size=world_size,
        gpus=world_size,
        nodes=settings.get_int("trainer.nnodes", 1),
        scheme="ulysses" if settings.ulysses_size > 1 else "",
        hooked=("flash_attention_2",) if settings.ulysses_size > 1 else (),  # models/monkey_patch.py:45
        packs_with=("flash_attention_2",),
        reinforcement=True,
        locations={key: settings.find_location(*names) for key, names in KEY_NAMES.items() if settings.has_any(*names)},
        remarks=_format_remarks(settings),
    )


def _count_processes(settings: EasyR1Reading) -> Fact[int]:
    """Return the GPUs of the pool that all roles share (trainer/main.py:64-71), if the launch states them."""
    gpus_per_node = settings.get_int("trainer.n_gpus_per_node")
    nodes = settings.get_int("trainer.nnodes") if settings.has_any("trainer.nnodes") else 1
    if not gpus_per_node or not nodes or (settings.is_open and not settings.has_any("trainer.nnodes")):
        return Absent("trainer.nnodes or trainer.n_gpus_per_node is not known before the launch runs")
    return Known(nodes * gpus_per_node)


def _build_plan(settings: EasyR1Reading, world_size: Fact[int]) -> Plan:
    batch = settings.get_int(f"{ACTOR}.micro_batch_size_per_device_for_update", 1)
    lengths = [settings.get_int(f"data.max_{part}_length") for part in ("prompt", "response")]
    rows = settings.rows_per_device(world_size)
    return Plan(
        attn_implementation="flash_attention_2",
        packing="position_ids" if settings.is_packed else "padding",
        padding_side="left",  # prompts are padded on the left, answers on the right: utils/dataset.py:297
        precision=_resolve_precision(settings),
        batch=batch,
        accumulation=max((rows or 0) // batch, 1),
        max_length=sum(lengths) or 1024,  # 512 each: trainer/config.py:45-46
        gradient_checkpointing=settings.is_on(f"{ACTOR}.model.enable_gradient_checkpointing"),
        cross_entropy="flash_attn",  # utils/torch_functional.py:31, if flash-attn's Triton kernel can be imported
        ring_size=settings.ulysses_size,
        scheme="ulysses",
        environ=tuple(sorted(settings.launch.environ.items())),
    )


def _resolve_precision(settings: EasyR1Reading) -> Precision:
    """Return the precision: weights in float32 unless torch_dtype is set (workers/fsdp_workers.py:198)."""
    weights = DTYPES.get(settings.get_text(f"{ACTOR}.fsdp.torch_dtype"), "fp32")
    compute = DTYPES.get(settings.get_text(f"{ACTOR}.fsdp.mp_param_dtype"), "bf16")
    if compute == "bf16":
        return "autocast" if weights == "fp32" else weights
    return compute


def _format_remarks(settings: EasyR1Reading) -> tuple[str, ...]:
    decisive = {name for names in KEY_NAMES.values() for name in names}
    decisive |= {MODEL_PATH, "trainer.nnodes", "trainer.n_gpus_per_node"}
    remarks = [
        f"{name}: its value is known only at run time"
        for name, setting in settings.by_field.items()
        if name in decisive and not setting.known
    ]
    if not settings.has_any(f"{ACTOR}.padding_free"):
        state = "on" if settings.is_packed else "off"
        remarks.append(f"{ACTOR}.padding_free is not set (off in v0.3.0, on since v0.3.1); assumed to be {state}")
    return tuple(remarks)


def write(launch: Launch, job: Job, sets: Mapping[str, str]) -> tuple[Edit, ...]:
    """Return the edits that set `sets`, by EasyR1's own names or a plan's keys.

    None if they include the attention implementation, fixed in the code.
    """
    if "attn_implementation" in sets:  # no setting changes it, and a partial fix does not help
        return ()
    settings = parse_launch_settings(launch)
    names: dict[str, str] = {key: names[0] for key, names in KEY_NAMES.items()}
    names["ring_size"] = find_ulysses_key(settings)
    del names["precision"], names["max_length"]
    values = {names.get(key, key): switch_to_bool(value) for key, value in sets.items() if key in names or "." in key}
    return make_edits(settings, values)


FRAMEWORK = Framework(
    "easyr1",
    "",
    "0.3.3",
    detect_trainer,
    read_model_name,
    read,
    write,
    defer("lint.frameworks.easyr1.plan:format_plan"),
    cut=defer("lint.frameworks.easyr1.rehearsal:cut"),
)
