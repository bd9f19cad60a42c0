"""Problems with settings that OpenRLHF cannot honour; each function checks one behaviour, read in its wheels.

`constraints` says which releases have it and where it was read. Checks that need no knowledge of the framework (ring
size against world size, head counts, GPUs) are rules.
"""

import math
from collections.abc import Callable, Iterator

from attncheck.core.arithmetic import largest_divisor
from attncheck.core.job import SettingProblem
from attncheck.doctor.knowledge.models import RECURRENT_LAYERS
from attncheck.lint.fields.values import NO_VALUE
from attncheck.lint.frameworks.openrlhf import constraints, names
from attncheck.lint.frameworks.openrlhf.ppo import REINFORCEMENT_CHECKS, drop_dynamic_batches
from attncheck.lint.frameworks.openrlhf.values import LLAMA3_HOOK, Values, is_known_at_least

IGNORES_DETERMINISTIC_G = "4.54.0"  # the first transformers without it (wheels 4.53.3, 4.54.0)


def find_setting_problems(values: Values) -> tuple[SettingProblem, ...]:
    """Return the problems that the release has with the settings."""
    problems: list[SettingProblem] = []
    for check in SUPERVISED_CHECKS if values.trainer != "ppo" else (*SUPERVISED_CHECKS, *REINFORCEMENT_CHECKS):
        problems += check(values)
    return tuple(problems)


def refused_value(values: Values) -> Iterator[SettingProblem]:
    """Check for values that argparse refuses: not a choice, not a number, too few, or a value for a switch."""
    specs = names.parser_options(values.trainer, values.version)
    for option in values.parsed_options:
        if option.known and option.setting.known:
            reason = _explain_refusal(f"--{option.name}", specs[option.name], option.values)
            if reason:
                evidence = (f"argparse, openrlhf {values.version}",)
                choices = specs[option.name].choices
                refused = next((value for value in option.values if choices and value not in choices), "")
                yield SettingProblem("refuses", reason, evidence, option.setting.location, refused_value=refused)


def _explain_refusal(name: str, spec: names.OptionSpec, values: tuple[str, ...]) -> str:
    """Return why argparse refuses the values of an option; "" if it accepts them."""
    for value in values:
        if spec.nargs == 0:
            return f"{name} takes no value, not {value!r}"
        if (spec.choices and value not in spec.choices) or not _has_type(spec.type, value):
            expected = " or ".join(spec.choices) or {"int": "a whole number"}.get(spec.type, "a number")
            return f"{name} takes {expected}, not {value!r}"
    minimum = spec.nargs if isinstance(spec.nargs, int) else int(spec.nargs == "+")
    if len(values) < minimum:
        too_few = f"takes {minimum} value{'s' * (minimum > 1)}, but has {len(values)}"
        return f"{name} {too_few if values else f'{NO_VALUE}: it needs a value'}"
    return ""


def _has_type(type_name: str, value: str) -> bool:
    try:
        {"int": int, "float": float}.get(type_name, str)(value)
    except ValueError:
        return False
    return True


def missing_trainer(values: Values) -> Iterator[SettingProblem]:
    """Check for a trainer that this release does not have."""
    if names.has_trainer(values.trainer, values.version):
        return
    first, last = names.trainer_lifetime(values.trainer)
    is_removed = values.is_at_least(last)
    file = names.TRAINER_FILES.get(values.trainer, values.trainer)
    message = f"openrlhf {values.version} has no cli/train_{file}.py: "
    message += f"{last} is the last release with it" if is_removed else f"{first} is the first release with it"
    yield SettingProblem(
        "refuses",
        message,
        (f"wheels of openrlhf {first} to {last}",),
        values.command_location,
        advice=f'pip install "openrlhf=={last if is_removed else first}"',
    )


def size_below_one(values: Values) -> Iterator[SettingProblem]:
    """Check for a size below 1 that is used as a divisor."""
    ppo_names = ("rollout.micro_batch_size", "rollout.batch_size", "rollout.n_samples_per_prompt")
    common_names = ("ds.ring_attn_size", "ds.tensor_parallel_size", "train.micro_batch_size", "train.batch_size")
    for name in (*common_names, *(ppo_names if values.trainer == "ppo" else ())):
        size = values.find_int(name) if values.has_any(name) else None
        if size is not None and size < 1:
            yield from values.setting_problem(
                "refuses",
                f"{values.option(name)} {size}",
                constraints.SAMPLES_BELOW_ONE if name in ppo_names else constraints.SIZE_BELOW_ONE,
                name,
                advice="at least 1",
            )


def reward_model_without_ring(values: Values) -> Iterator[SettingProblem]:
    """Check for a reward model with a ring: its trainer replaces its attention, but does not pass it the ring."""
    if values.trainer == "rm" and values.ring_size > 1:
        yield from values.setting_problem(
            "refuses",
            f"{values.option('ds.ring_attn_size')} {values.ring_size} does not reach the reward model, whose first "
            "step ends in KeyError: 'cu_seqlens_q'",
            constraints.REWARD_MODEL_WITHOUT_RING,
            "ds.ring_attn_size",
            installs=("openrlhf>=0.9.2,<0.10",),
            advice="or train the reward model without the ring",
        )


def ring_without_packing(values: Values) -> Iterator[SettingProblem]:
    """Check for a ring without packing: SFT, RM and DPO assert it, and PPO turns it on since 0.8.4."""
    if values.ring_size <= 1 or values.is_on("ds.packing_samples"):
        return
    ring = f"{values.option('ds.ring_attn_size')} {values.ring_size}"
    packing = values.option("ds.packing_samples")
    sets = {"packing": "on"}
    if values.trainer != "ppo":
        yield from values.setting_problem(
            "refuses",
            f"{ring} without {packing}",
            constraints.RING_WITHOUT_PACKING.get(values.trainer, ()),
            "ds.ring_attn_size",
            sets=sets,
        )
        return
    yield from values.setting_problem(
        "replaces",
        f"{ring} turns {packing} on",
        constraints.RING_TURNS_PACKING_ON,
        "ds.ring_attn_size",
        sets=sets,
        mild=True,
    )
    yield from values.setting_problem(
        "refuses",
        f"{ring} without {packing}: the ring does not know where rows begin",
        constraints.PPO_RING_WITHOUT_PACKING,
        "ds.ring_attn_size",
        sets=sets,
    )


def implementation_replaced_by_packing(values: Values) -> Iterator[SettingProblem]:
    """Check for packing with other implementations: flash_attention_2 replaces names without "flash_attention".

    A default that is replaced is no problem, because the launch does not request it.
    """
    implementation = values.find_text("ds.attn_implementation")
    is_explicit = values.has_any("ds.attn_implementation")
    if not values.packed or not is_explicit or not implementation or "flash_attention" in implementation:
        return
    ranges = constraints.IMPLEMENTATION_REPLACED.get(values.trainer, ())
    message = f"packing replaces attn_implementation {implementation} by {LLAMA3_HOOK}"
    yield from values.setting_problem(
        "replaces",
        message,
        ranges,
        "ds.attn_implementation",
        "ds.packing_samples",
        sets={"attn_implementation": LLAMA3_HOOK},
    )


def packing_of_recurrent_layers(values: Values) -> Iterator[SettingProblem]:
    """Check for packing with recurrent layers: they get only positions, which do not separate documents."""
    recurrent = set(values.model.layer_types) & RECURRENT_LAYERS if values.model is not None else set()
    if values.packed and recurrent and values.model is not None:
        layers = " and ".join(sorted(recurrent))
        message = f"packing {values.model.model_type}: its {layers} layers carry state from one sample into the next, "
        message += "because OpenRLHF passes only position_ids to them"
        sets = {"packing": "off", **({"ring_size": "1"} if values.ring_size > 1 else {})}
        sets |= drop_dynamic_batches(values)
        yield from values.setting_problem(
            "wrong",
            message,
            constraints.RECURRENT_PACKING,
            "ds.packing_samples",
            "ds.ring_attn_size",
            "train.dynamic_batch_enable",
            sets=sets,
        )


def liger_on_vision_model(values: Values) -> Iterator[SettingProblem]:
    """Check for Liger on a model with a vision_config, refused since 0.10.0."""
    has_vision = values.model is not None and any(tower.name == "vision_config" for tower in values.model.towers)
    if has_vision and values.is_on("ds.use_liger_kernel"):
        yield from values.setting_problem(
            "refuses",
            f"{values.option('ds.use_liger_kernel')} on a model with a vision_config, even with text data",
            constraints.LIGER_ON_VISION,
            "ds.use_liger_kernel",
            sets={"liger": "off"},
        )


def four_bit_weights_without_bf16(values: Values) -> Iterator[SettingProblem]:
    """Check for 4-bit weights with a dtype other than bf16, the only one in which they compute."""
    dtype = values.find_text("ds.param_dtype")
    if values.is_on("ds.load_in_4bit") and dtype is not None and dtype != "bf16":
        yield from values.setting_problem(
            "refuses",
            f"{values.option('ds.load_in_4bit')} without bf16",
            constraints.FOUR_BIT_WITHOUT_BF16,
            "ds.load_in_4bit",
            sets={"precision": "bf16"},
        )


def tensor_parallel_requirements(values: Values) -> Iterator[SettingProblem]:
    """Check for tensor parallelism without bf16, or with a DeepSpeed version that is, as text, below "0.16.4"."""
    if values.tensor_parallel <= 1:
        return
    option = f"{values.option('ds.tensor_parallel_size')} {values.tensor_parallel}"
    dtype = values.find_text("ds.param_dtype")
    if dtype is not None and dtype != "bf16":
        yield from values.setting_problem(
            "refuses",
            f"{option} without bf16",
            constraints.TENSOR_PARALLEL_PRECISION,
            "ds.tensor_parallel_size",
            sets={"precision": "bf16"},
        )
    deepspeed = values.installed_version("deepspeed")
    if deepspeed and deepspeed < "0.16.4":
        yield from values.setting_problem(
            "refuses",
            f"{option} with deepspeed {deepspeed}",
            constraints.TENSOR_PARALLEL_DEEPSPEED,
            "ds.tensor_parallel_size",
            advice='pip install "deepspeed>=0.16.4"',
        )


def indivisible_batches(values: Values) -> Iterator[SettingProblem]:
    """Check batches against DeepSpeed's global batch × ring × tensor parallel = micro batch × steps × processes.

    The equation applies to every model's engine. Dynamic batches exempt the trained models, but not the reference and
    reward models.
    """
    global_batch, micro_batch = values.find_int("train.batch_size"), values.find_int("train.micro_batch_size")
    roles = values.list_roles() if values.trainer == "ppo" else ["actor"]
    checked_sizes: set[int] = set()
    for role in roles:
        world_size = values.count_role_gpus(role) if values.trainer == "ppo" else values.world_size
        is_exempt = values.has_dynamic_batches and role in ("actor", "critic")
        if world_size and micro_batch and global_batch and not is_exempt and world_size not in checked_sizes:
            checked_sizes.add(world_size)
            yield from _check_batch(values, role, global_batch, micro_batch, world_size)


def _check_batch(
    values: Values, role: str, global_batch: int, micro_batch: int, world_size: int
) -> Iterator[SettingProblem]:
    ranks_per_row = values.ring_size * values.tensor_parallel
    rows = global_batch * ranks_per_row
    steps = rows // micro_batch // world_size
    if steps > 0 and rows == micro_batch * steps * world_size:
        return
    sharing = f" × {ranks_per_row} ranks that share a row" if ranks_per_row > 1 else ""
    of_role = f" of the {role}" if values.trainer == "ppo" else ""
    message = f"{values.option('train.batch_size')} {global_batch}{sharing} is not a multiple of "
    message += f"{values.option('train.micro_batch_size')} {micro_batch} × {world_size} processes{of_role}"
    quote = "Gradient accumulation steps: 0 has to be greater"
    if steps:
        quote = f"{rows} != {micro_batch} * {steps} * {world_size}"
    yield from values.setting_problem(
        "refuses",
        message,
        tuple(constraint._replace(quote=quote) for constraint in constraints.INDIVISIBLE_BATCH),
        "train.batch_size",
        "train.micro_batch_size",
        sets=_suggest_batch(values, rows, micro_batch, world_size),
    )


def _suggest_batch(values: Values, rows: int, micro_batch: int, world_size: int) -> dict[str, str]:
    """Return the smallest change that makes the batch divisible: a smaller micro batch, or a larger global batch."""
    if rows % world_size == 0 and rows >= world_size:
        rows_per_rank = rows // world_size
        return {"batch": str(largest_divisor(rows_per_rank, micro_batch))}
    rows_per_step, ranks_per_row = micro_batch * world_size, values.ring_size * values.tensor_parallel
    step = ranks_per_row // math.gcd(rows_per_step, ranks_per_row)
    # The next multiple of `rows_per_step` and of `ranks_per_row`.
    multiple = -(-max(1, -(-rows // rows_per_step)) // step) * step * rows_per_step
    return {"global_batch": str(multiple // ranks_per_row)}


def too_few_samples(values: Values) -> Iterator[SettingProblem]:
    """Check for SFT with fewer samples than one step takes: refused since 0.11.2; before, no step ran."""
    sizes = (values.find_int(name) for name in ("data.max_samples", "train.batch_size", "train.max_epochs"))
    samples, global_batch, epochs = sizes
    if values.trainer != "sft" or samples is None or global_batch is None or epochs is None:
        return
    if samples * epochs >= global_batch:
        return
    message = f"{values.option('data.max_samples')} {samples} × {epochs} epochs is less than one step of "
    message += f"{values.option('train.batch_size')} {global_batch}"
    located_at = ("data.max_samples", "train.batch_size")
    yield from values.setting_problem("refuses", message, constraints.TOO_FEW_SAMPLES, *located_at)
    yield from values.setting_problem("no_step", message, constraints.NO_STEP_OF_TOO_FEW_SAMPLES, *located_at)


def determinism_without_effect(values: Values) -> Iterator[SettingProblem]:
    """Check for a determinism switch: half of it sets a global that only transformers 4.47.0 to 4.53.3 reads."""
    transformers = values.installed_version("transformers")
    if values.is_on("train.full_determinism_enable") and is_known_at_least(transformers, IGNORES_DETERMINISTIC_G):
        switch = values.option("train.full_determinism_enable")
        message = f"{switch} sets deterministic_g, which transformers {transformers} does not read; "
        message += "FLASH_ATTENTION_DETERMINISTIC, set next to it, works"
        yield from values.setting_problem(
            "ignores", message, constraints.DETERMINISTIC_G, "train.full_determinism_enable", mild=True
        )


def muon_with_old_deepspeed(values: Values) -> Iterator[SettingProblem]:
    """Check for the Muon optimiser with a deepspeed before 0.18.9."""
    deepspeed = values.installed_version("deepspeed")
    is_old = bool(deepspeed) and not is_known_at_least(deepspeed, "0.18.9")
    for name in ("optim", "actor.optim", "critic.optim"):
        if values.has_any(name) and values.find_text(name) == "muon" and is_old:
            yield from values.setting_problem(
                "refuses",
                f"{values.option(name)} muon with deepspeed {deepspeed}",
                constraints.MUON_DEEPSPEED,
                name,
                advice='pip install "deepspeed>=0.18.9"',
            )
            return


def multiturn_without_chat_template(values: Values) -> Iterator[SettingProblem]:
    """Check for SFT on conversations without the required chat template."""
    if values.trainer == "sft" and values.is_on("data.multiturn") and not values.is_on("data.apply_chat_template"):
        yield from values.setting_problem(
            "refuses",
            f"{values.option('data.multiturn')} without {values.option('data.apply_chat_template')}",
            constraints.MULTITURN,
            "data.multiturn",
            sets={values.option("data.apply_chat_template"): "on"},
        )


SUPERVISED_CHECKS: tuple[Callable[[Values], Iterator[SettingProblem]], ...] = (
    missing_trainer,
    refused_value,
    size_below_one,
    ring_without_packing,
    implementation_replaced_by_packing,
    reward_model_without_ring,
    packing_of_recurrent_layers,
    liger_on_vision_model,
    four_bit_weights_without_bf16,
    tensor_parallel_requirements,
    indivisible_batches,
    too_few_samples,
    determinism_without_effect,
    muon_with_old_deepspeed,
    multiturn_without_chat_template,
)
