"""What OpenRLHF does with settings that it cannot serve: each function is one behaviour, read in its wheels.

Lines are those of the newest release that was read, 0.11.2; where an older one differs, its release is named. What
can be told without knowing the framework (a ring against the world, head counts, GPUs) is judged by rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from attncheck.core.arithmetic import largest_divisor
from attncheck.core.job import SettingProblem
from attncheck.doctor.knowledge.models import RECURRENT_LAYERS
from attncheck.lint.frameworks.openrlhf import names
from attncheck.lint.frameworks.openrlhf.ppo import REINFORCEMENT, without_dynamic
from attncheck.lint.frameworks.openrlhf.values import LLAMA3_HOOK, PPO_TURNS_PACKING_ON, Values, at_least

LINES = {"sft": (321, 324), "rm": (333, 336), "dpo": (356, 359)}  # of the ring's assertion, of the replacement
GROUPED = ("rloo", "reinforce_baseline", "group_norm", "dr_grpo")
READS_DETERMINISTIC_G = "4.54.0"  # first transformers that does not (wheels 4.53.3, 4.54.0)


def objections(values: Values) -> tuple[SettingProblem, ...]:
    """Return what the release does with the settings."""
    found: list[SettingProblem] = []
    for behaviour in SUPERVISED if values.trainer != "ppo" else (*SUPERVISED, *REINFORCEMENT):
        found += behaviour(values)
    return tuple(found)


def refused_value(v: Values) -> Iterator[SettingProblem]:
    """argparse: a value that is none of an option's choices, or no number; too few values, or one for a switch."""
    here = names.options(v.trainer, v.version)
    for each in v.written:
        if each.known and each.setting.known:
            said = _refused(f"--{each.name}", here[each.name], each.values)
            if said:
                yield SettingProblem("refuses", said, (f"argparse, openrlhf {v.version}",), each.setting.location)


def _refused(name: str, option: names.Option, values: tuple[str, ...]) -> str:
    for value in values:
        if option.takes == 0:
            return f"{name} takes no value, not {value!r}"
        if (option.choices and value not in option.choices) or not _fits(option.type, value):
            wanted = " or ".join(option.choices) or {"int": "a whole number"}.get(option.type, "a number")
            return f"{name} takes {wanted}, not {value!r}"
    least = option.takes if isinstance(option.takes, int) else int(option.takes == "+")
    if len(values) < least:
        return f"{name} takes {least} value{'s' * (least > 1)}, and has {len(values)}"
    return ""


def _fits(kind: str, value: str) -> bool:
    try:
        {"int": int, "float": float}.get(kind, str)(value)
    except ValueError:
        return False
    return True


def gone(v: Values) -> Iterator[SettingProblem]:
    """A trainer that this release does not have."""
    if names.offers(v.trainer, v.version):
        return
    first, last = names.lifetime(v.trainer)
    late = v.reaches(last)
    message = f"openrlhf {v.version} has no cli/train_{names.FILES.get(v.trainer, v.trainer)}.py: "
    message += f"{last} is the last release with it" if late else f"{first} is the first release with it"
    advice = f'pip install "openrlhf=={last if late else first}"'
    yield SettingProblem("refuses", message, (f"wheels of openrlhf {first} to {last}",), v.start, advice=advice)


def no_size(v: Values) -> Iterator[SettingProblem]:
    """What others are divided by."""
    of_ppo = ("rollout.micro_batch_size", "rollout.batch_size", "rollout.n_samples_per_prompt")
    common = ("ds.ring_attn_size", "ds.tensor_parallel_size", "train.micro_batch_size", "train.batch_size")
    for name in (*common, *(of_ppo if v.trainer == "ppo" else ())):
        size = v.number(name) if v.wrote(name) else None
        if size is not None and size < 1:
            divides = v.trainer == "ppo" and not name.startswith("train.") and v.reaches("0.7.2")
            where = "cli/train_ppo_ray.py:757" if divides else "utils/deepspeed/deepspeed.py:102-116"
            yield from v.says("refuses", f"{v.local(name)} {size}", where, name, advice="at least 1")


def ring_without_packing(v: Values) -> Iterator[SettingProblem]:
    """SFT, RM and DPO assert packing under a ring; PPO turns it on since 0.8.4, and had neither before."""
    if v.ring <= 1 or v.on("ds.packing_samples"):
        return
    size, packing = f"{v.local('ds.ring_attn_size')} {v.ring}", v.local("ds.packing_samples")
    sets = {"packing": "on"}
    if v.trainer != "ppo":
        line = LINES.get(v.trainer, LINES["sft"])[0]
        where = f"cli/train_{v.trainer}.py:{line}: packing_samples must be enabled when using ring attention"
        yield from v.says("refuses", f"{size} without {packing}", where, "ds.ring_attn_size", sets=sets)
    elif v.reaches(PPO_TURNS_PACKING_ON):
        where = "cli/train_ppo_ray.py:686: --ring_attn_size > 1 requires --packing_samples"
        message = f"{size} turns {packing} on"
        yield from v.says("replaces", message, where, "ds.ring_attn_size", sets=sets, mild=True)
    else:
        message = f"{size} without {packing}: nothing tells the ring where the rows begin"
        where = "models/actor.py:236 calls the ring's update_ring_flash_attn_params under packing alone, which "
        where += f"cli/train_ppo_ray.py turns on since {PPO_TURNS_PACKING_ON}"
        yield from v.says("refuses", message, where, "ds.ring_attn_size", sets=sets)


def replaced_by_packing(v: Values) -> Iterator[SettingProblem]:
    """Packing puts flash_attention_2 in the place of every name without "flash_attention" in it."""
    asked = v.text("ds.attn_implementation")
    if not v.packed or not asked or "flash_attention" in asked:
        return
    line = LINES.get(v.trainer, (0, 699))[1]
    where = f"cli/train_{names.FILES.get(v.trainer, v.trainer)}.py:{line}: Please use --attn_implementation with "
    where += "flash_attention to accelerate when --packing_samples is enabled"
    message = f"packing replaces attn_implementation {asked} by {LLAMA3_HOOK}"
    written = v.wrote("ds.attn_implementation")
    sets = {"attn_implementation": LLAMA3_HOOK}
    at = ("ds.attn_implementation", "ds.packing_samples")
    yield from v.says("replaces", message, where, *at, sets=sets, mild=not written)


def packs_one(v: Values) -> Iterator[SettingProblem]:
    """A micro batch of one row: packing has nothing to lay together."""
    size = "train.micro_batch_size"
    if v.trainer in ("sft", "ppo") and v.packed and not v.dynamic and v.ring == 1 and v.number(size) == 1:
        message = f"packing with {v.local(size)} 1 lays nothing together: each row is one sample without padding"
        where = "models/ring_attn_utils.py:103-148, unpad_and_slice_tensor packs the rows of one micro batch"
        yield from v.says("ignores", message, where, "ds.packing_samples", size, mild=True)


def linear_layers(v: Values) -> Iterator[SettingProblem]:
    """Recurrent layers are given positions alone, which do not part documents for them."""
    layers = set(v.model.layer_types) & RECURRENT_LAYERS if v.model is not None else set()
    if v.packed and layers and v.model is not None:
        message = f"packing {v.model.model_type}: its {' and '.join(sorted(layers))} layers carry state from one "
        message += "sample into the next, for OpenRLHF gives them position_ids alone"
        sets = {"packing": "off", **({"ring_size": "1"} if v.ring > 1 else {})}
        sets |= without_dynamic(v)
        at = ("ds.packing_samples", "ds.ring_attn_size", "train.dynamic_batch_enable")
        yield from v.says("wrong", message, "models/actor.py:236-265", *at, sets=sets)


def liger_on_vision(v: Values) -> Iterator[SettingProblem]:
    """Liger and a model with a vision_config, since 0.10.0."""
    vision = v.model is not None and any(tower.name == "vision_config" for tower in v.model.towers)
    if vision and v.on("ds.use_liger_kernel") and v.reaches("0.10.0"):
        message = f"{v.local('ds.use_liger_kernel')} on a model with a vision_config, text data or not"
        where = "models/actor.py:130: use_liger_kernel is not compatible with VLM models"
        yield from v.says("refuses", message, where, "ds.use_liger_kernel", sets={"liger": "off"})


def four_bits(v: Values) -> Iterator[SettingProblem]:
    """4-bit weights compute in bf16 alone."""
    asked = v.text("ds.param_dtype")
    if v.on("ds.load_in_4bit") and asked is not None and asked != "bf16":
        message = f"{v.local('ds.load_in_4bit')} without bf16"
        where = "models/actor.py:116: we only support bnb_4bit_compute_dtype = bf16"
        yield from v.says("refuses", message, where, "ds.load_in_4bit", sets={"precision": "bf16"})


def tensor_parallel(v: Values) -> Iterator[SettingProblem]:
    """Tensor parallelism wants bf16 and a DeepSpeed whose version, as text, is not before "0.16.4"."""
    if v.tensor_parallel <= 1:
        return
    size, asked = f"{v.local('ds.tensor_parallel_size')} {v.tensor_parallel}", v.text("ds.param_dtype")
    if asked is not None and asked != "bf16":
        where = "utils/deepspeed/deepspeed.py:78: BF16 is required for tensor parallel training"
        sets = {"precision": "bf16"}
        yield from v.says("refuses", f"{size} without bf16", where, "ds.tensor_parallel_size", sets=sets)
    here = v.installed("deepspeed")
    if here and here < "0.16.4":
        where = "utils/deepspeed/deepspeed.py:77: DeepSpeed version must be >= 0.16.4 for tensor parallel training"
        advice = 'pip install "deepspeed>=0.16.4"'
        message = f"{size} with deepspeed {here}"
        yield from v.says("refuses", message, where, "ds.tensor_parallel_size", advice=advice)


def batches(v: Values) -> Iterator[SettingProblem]:
    """DeepSpeed: global batch × ring × tensor parallel = micro batch × steps × processes, of every model's engine.

    Under dynamic batches the trained models are let off, the reference and the reward model are not.
    """
    whole, micro = v.number("train.batch_size"), v.number("train.micro_batch_size")
    roles = v.roles() if v.trainer == "ppo" else ["actor"]
    told: set[int] = set()
    for role in roles:
        world = v.processes(role) if v.trainer == "ppo" else v.world
        spared = v.dynamic and role in ("actor", "critic")
        if world and micro and whole and not spared and world not in told:
            told.add(world)
            yield from _batch(v, role, whole, micro, world)


def _batch(v: Values, role: str, whole: int, micro: int, world: int) -> Iterator[SettingProblem]:
    shares = v.ring * v.tensor_parallel
    rows = whole * shares
    steps = rows // micro // world
    if steps > 0 and rows == micro * steps * world:
        return
    sharing = f" × {shares} ranks that share a row" if shares > 1 else ""
    who = f" of the {role}" if v.trainer == "ppo" else ""
    message = f"{v.local('train.batch_size')} {whole}{sharing} is no multiple of {v.local('train.micro_batch_size')} "
    message += f"{micro} × {world} processes{who}"
    says = f"{rows} != {micro} * {steps} * {world}" if steps else "Gradient accumulation steps: 0 has to be greater"
    where = f"utils/deepspeed/deepspeed.py:456 and :499; deepspeed 0.19.6 runtime/config.py:935-938: {says}"
    yield from v.says(
        "refuses", message, where, "train.batch_size", "train.micro_batch_size", sets=_fitting(v, rows, micro, world)
    )


def _fitting(v: Values, rows: int, micro: int, world: int) -> dict[str, str]:
    """Return the smallest change that divides: a smaller micro batch, else the next larger global batch."""
    if rows % world == 0 and rows >= world:
        share = rows // world
        return {"batch": str(largest_divisor(share, micro))}
    unit, shares = micro * world, v.ring * v.tensor_parallel
    step = shares // math.gcd(unit, shares)
    wanted = (
        -(-max(1, -(-rows // unit)) // step) * step * unit
    )  # the next multiple of a whole micro batch and of shares
    return {"global_batch": str(wanted // shares)}


def too_few_samples(v: Values) -> Iterator[SettingProblem]:
    """SFT with fewer samples than one step takes: refused since 0.11.2, before that no step was taken."""
    most, whole, epochs = (v.number(n) for n in ("data.max_samples", "train.batch_size", "train.max_epochs"))
    if v.trainer != "sft" or most is None or whole is None or epochs is None or most * epochs >= whole:
        return
    message = f"{v.local('data.max_samples')} {most} × {epochs} epochs is less than one step of "
    message += f"{v.local('train.batch_size')} {whole}"
    refused = v.reaches("0.11.2")
    where = "trainer/sft_trainer.py:109: Training must contain at least one complete gradient-accumulation window"
    yield from v.says("refuses" if refused else "no_step", message, where, "data.max_samples", "train.batch_size")


def determinism(v: Values) -> Iterator[SettingProblem]:
    """Half of the switch sets a global that transformers reads in 4.47.0 to 4.53.3 only."""
    here = v.installed("transformers")
    if v.on("train.full_determinism_enable") and at_least(here, READS_DETERMINISTIC_G):
        message = (
            f"{v.local('train.full_determinism_enable')} sets deterministic_g, which transformers {here} does not "
        )
        message += "read; FLASH_ATTENTION_DETERMINISTIC, set beside it, works"
        where = "utils/deepspeed/deepspeed.py:87; the Triton cross-entropy (models/utils.py:180) has no switch at all"
        yield from v.says("ignores", message, where, "train.full_determinism_enable", mild=True)


def muon(v: Values) -> Iterator[SettingProblem]:
    """The Muon optimiser wants deepspeed 0.18.9."""
    here = v.installed("deepspeed")
    for name in ("optim", "actor.optim", "critic.optim"):
        if v.wrote(name) and v.text(name) == "muon" and here and not at_least(here, "0.18.9"):
            where = "utils/deepspeed/deepspeed.py:154: Muon optimizer requires deepspeed >= 0.18.9"
            advice = 'pip install "deepspeed>=0.18.9"'
            yield from v.says("refuses", f"{v.local(name)} muon with deepspeed {here}", where, name, advice=advice)
            return


def turns(v: Values) -> Iterator[SettingProblem]:
    """SFT on conversations asserts the chat template."""
    if v.trainer == "sft" and v.on("data.multiturn") and not v.on("data.apply_chat_template"):
        where = "cli/train_sft.py:308: apply_chat_template must be enabled when using multiturn format"
        message = f"{v.local('data.multiturn')} without {v.local('data.apply_chat_template')}"
        sets = {v.local("data.apply_chat_template"): "on"}
        yield from v.says("refuses", message, where, "data.multiturn", sets=sets)


SUPERVISED: tuple[Callable[[Values], Iterator[SettingProblem]], ...] = (
    *(
        gone,
        refused_value,
        no_size,
        ring_without_packing,
        replaced_by_packing,
        packs_one,
        linear_layers,
        liger_on_vision,
    ),
    *(four_bits, tensor_parallel, batches, too_few_samples, determinism, muon, turns),
)
