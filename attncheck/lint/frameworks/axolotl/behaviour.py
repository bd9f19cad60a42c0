"""What axolotl does with settings that it cannot serve: each function is one behaviour, read in its wheels.

Lines are those of 0.19.0 for releases from 0.17 on, and of 0.16.1 for older ones. What can be told without knowing the
framework (a ring against the world, head counts, GPUs, missing packages) is judged by rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from attncheck.core.job import DROP, SettingProblem
from attncheck.doctor.knowledge.models import RECURRENT_LAYERS
from attncheck.lint.fields.written import inside, truth
from attncheck.lint.frameworks.axolotl import naming
from attncheck.lint.frameworks.axolotl import tables as axolotl
from attncheck.lint.frameworks.axolotl.naming import SCHEMAS, says
from attncheck.lint.frameworks.axolotl.values import Values

EIGHT_BIT = ("paged_adamw_8bit", "adamw_8bit", "adamw_bnb_8bit")
PATCHED = {"qwen3_next": "0.13.1", "qwen3_5": "0.15.0", "qwen3_5_moe": "0.15.0"}  # loaders/patch_manager.py:574-600


def objections(values: Values) -> tuple[SettingProblem, ...]:
    """Return what the release does with the settings."""
    return tuple(each for behaviour in BEHAVIOURS for each in behaviour(values))


def packing_leaks(v: Values) -> Iterator[SettingProblem]:
    """Where the mask of a packed row is kept, transformers looks for no borders and documents see each other."""
    if not v.packed or v.separated or v.on("rl"):
        return
    asked = v.asked or "no implementation"
    named = inside(v.parsed, "attn_implementation") and not v.reaches(axolotl.NAMED)
    why = ": before 0.17 axolotl packs by its booleans, and none is on" if named else ""
    fitting = v.asked if named and v.asked in axolotl.separating(v.version) else "flash_attention_2"
    new = f"{SCHEMAS}/validation.py:188: does not handle cross-sample decontamination; core/builders/causal.py:275"
    old = "core/builders/causal.py:261: sample_packing_drop_attention_mask for flash, xformers and flex alone"
    message = f"sample_packing with {asked} keeps the attention mask: the documents of a row attend to each other{why}"
    at = ("attn_implementation", *v.switches, "sample_packing")
    yield from says(v, "wrong", message, new, old, *at, sets={"attn_implementation": fitting})


def packing_refused(v: Values) -> Iterator[SettingProblem]:
    """Sample packing with reinforcement or preference learning; batch flattening with packing or without varlen."""
    rl = v.get("rl")
    if v.packed and rl:
        new, old = (f"{SCHEMAS}/validation.py:{line}: does not work with RLHF training" for line in (708, 710))
        message = f"sample_packing with rl: {rl}"
        yield from says(v, "refuses", message, new, old, "sample_packing", sets={"packing": "off"})
    flat = inside(v.parsed, "batch_flattening")
    if flat is True and v.packed:
        new, old = f"{SCHEMAS}/validation.py:1089", f"{SCHEMAS}/validation.py:836"
        message = "batch_flattening with sample_packing"
        yield from says(v, "refuses", message, new, old, "batch_flattening", sets={"batch_flattening": DROP})
    elif flat is True and not _varlen(v):
        new, old = f"{SCHEMAS}/validation.py:1084", f"{SCHEMAS}/validation.py:834"
        message = f"batch_flattening with {v.asked or 'no implementation'}: it needs one that takes cu_seqlens"
        sets = {"attn_implementation": "flash_attention_2"}
        yield from says(v, "refuses", message, new, old, "batch_flattening", sets=sets)


def _varlen(v: Values) -> bool:
    if not v.reaches(axolotl.NAMED):
        return "flash_attention" in v.switches
    return v.asked.split(":")[0].split("@")[0].strip() in axolotl.SEPARATES


def context_parallel(v: Values) -> Iterator[SettingProblem]:
    """The ring asks for flash_attention_2, and for one row where rows are packed."""
    if v.ring < 2 or v.on("use_glm_dsa_kernels"):
        return
    name = "context_parallel_size" if v.reaches(axolotl.CONTEXT_PARALLEL) else "sequence_parallel_degree"
    at = ("context_parallel_size", "sequence_parallel_degree")
    flash = v.asked == "flash_attention_2" if v.reaches(axolotl.NAMED) else "flash_attention" in v.switches
    if not flash:
        asked = v.asked or "no implementation"
        message = f"{name} {v.ring} with {asked}: the ring is in flash_attention_2 alone"
        if v.asked == "flash_attention_2":
            message = f"{name} {v.ring} asks for flash_attention: true; attn_implementation is not looked at"
        new = f"{SCHEMAS}/validation.py:1804: requires attn_implementation: flash_attention_2"
        old = f"{SCHEMAS}/validation.py:1419: flash_attention: true must be set"
        sets = {"attn_implementation": "flash_attention_2"}
        yield from says(v, "refuses", message, new, old, "attn_implementation", *v.switches, *at, sets=sets)
    rows = v.number("micro_batch_size")
    if rows > 1 and (v.packed or not v.reaches(axolotl.RING_FUNCTIONS)):
        message = f"{name} {v.ring} with micro_batch_size {rows}: the llama3 ring takes one packed row"
        new, old = (f"{SCHEMAS}/validation.py:{line}: micro_batch_size must be set to 1" for line in (1811, 1424))
        yield from says(v, "refuses", message, new, old, "micro_batch_size", *at, sets={"batch": "1"})
    yield from _ring_function(v)


def _ring_function(v: Values) -> Iterator[SettingProblem]:
    if v.ring_function not in ("varlen_llama3", "batch_ring"):
        message = f"ring_attn_func {v.ring_function!r} is none of varlen_llama3, batch_ring"
        where = f"{SCHEMAS}/enums.py:195"
        yield from says(v, "refuses", message, where, "", "ring_attn_func", sets={"ring_attn_func": DROP})
    elif v.packed and v.ring_function == "batch_ring":
        message = "ring_attn_func batch_ring with sample_packing: it knows no borders, documents attend to each other"
        where = "monkeypatch/ring_attn/adapters/batch.py:90: position_ids and cu_seq_lens are not used"
        sets = {"ring_attn_func": "varlen_llama3"}
        yield from says(v, "wrong", message, where, "", "ring_attn_func", sets=sets)


def liger(v: Values) -> Iterator[SettingProblem]:
    """Liger's fields without its plugin do nothing; with sequence or tensor parallelism some are refused."""
    written = [name for name in v.parsed if name.startswith("liger_") and truth(v.parsed[name])]
    if v.on("trl.use_liger_loss") and v.get("rl") == "grpo" and v.ring > 1 and v.reaches("0.9.0"):
        new, old = (f"{SCHEMAS}/validation.py:{line}: GRPO + SP + Liger not currently supported" for line in (731, 733))
        yield from says(
            v, "refuses", "GRPO with Liger's loss over a ring", new, old, "trl.use_liger_loss", sets={"ring_size": "1"}
        )
    tensor = v.number("tensor_parallel_size")
    if tensor > 1 and v.plugin("liger"):
        for name in ("liger_rms_norm", "liger_fused_linear_cross_entropy"):
            if name in written and v.reaches("0.12.0"):
                new, old = (
                    f"integrations/liger/args.py:{118 if 'norm' in name else 139}",
                    "integrations/liger/args.py:91",
                )
                message = f"{name} with tensor_parallel_size {tensor}"
                yield from says(v, "refuses", message, new, old, name, sets={name: "false"})


def cross_entropies(v: Values) -> Iterator[SettingProblem]:
    """Cut cross-entropy asks for half precision, and for no other chunked loss."""
    if not v.plugin("cut_cross_entropy") or inside(v.parsed, "cut_cross_entropy") is False:
        return
    asked = inside(v.parsed, "cut_cross_entropy")
    if asked and not (v.on("bf16") or v.on("fp16")):
        where = "integrations/cut_cross_entropy/args.py:42: requires fp16/bf16 training for backward pass"
        message = "cut_cross_entropy without bf16 or fp16"
        yield from says(v, "refuses", message, where, "", "cut_cross_entropy", sets={"precision": "bf16"})
    if v.on("chunked_cross_entropy"):
        where = "integrations/cut_cross_entropy/args.py:53"
        message = "chunked_cross_entropy with the cut cross-entropy plugin"
        sets = {"chunked_cross_entropy": DROP}
        yield from says(v, "refuses", message, where, "", "chunked_cross_entropy", sets=sets)


def tensor_parallel(v: Values) -> Iterator[SettingProblem]:
    """Tensor parallelism takes no 8-bit optimiser."""
    optimizer, size = v.get("optimizer"), v.number("tensor_parallel_size")
    if size > 1 and optimizer in EIGHT_BIT and v.reaches("0.13.1"):
        where = f"{SCHEMAS}/validation.py:1930: tensor_parallel_size is not supported with … 8bit optimizers"
        message = f"tensor_parallel_size {size} with {optimizer}"
        yield from says(v, "refuses", message, where, "", "optimizer", sets={"optimizer": "adamw_torch_fused"})


def capabilities(v: Values) -> Iterator[SettingProblem]:
    """fp8 and sage attention ask for GPUs; sdpa with packing in bfloat16 is warned of below Hopper."""
    kinds = v.capabilities
    if not kinds:
        return
    old, text = min(kinds), " ".join("sm_{}{}".format(*kind) for kind in sorted(kinds))
    sets = {"attn_implementation": "flash_attention_2" if old >= (8, 0) else "sdpa"}
    at = ("attn_implementation", *v.switches)
    if v.asked == "fp8" and old < (9, 0):
        where = f"{SCHEMAS}/config.py:1900: requires compute capability sm_90 or higher"
        yield from says(v, "refuses", f"attn_implementation fp8 on {text}", where, "", *at, sets=sets)
    if v.asked == "sage" and not kinds <= set(axolotl.SAGE_RUNS_ON):
        new, before = (
            f"{SCHEMAS}/config.py:{line}: SageAttention supports compute capability" for line in (1886, 1441)
        )
        yield from says(v, "refuses", f"sage attention on {text}", new, before, *at, sets=sets)
    if v.packed and v.asked == "sdpa" and old < (9, 0) and (v.on("bf16") or v.on("bfloat16")):
        new, before = f"{SCHEMAS}/config.py:1866", f"{SCHEMAS}/config.py:1418"
        message = f"sample_packing with sdpa in bfloat16 on {text}: axolotl warns of a loss of 0.0"
        yield from says(v, "wrong", message, new, before, *at, sets=sets, mild=True)


def flash_4(v: Values) -> Iterator[SettingProblem]:
    """flash_attention_2 becomes FlashAttention 4 where that is installed and the GPU has it."""
    if takes_flash_4(v):
        message = f"{v.asked} becomes FlashAttention 4: flash-attn-4 is installed, and the GPU has it"
        new = "loaders/model.py:857: upgraded from flash_attention_2"
        if not v.reaches(axolotl.FLASH_4_NAMED):
            new = "(0.16.0 to 0.18.0) loaders/patch_manager.py: patch_flash_attn_4"
        old = "loaders/patch_manager.py:249"
        at, advice = ("attn_implementation", *v.switches), "pip uninstall flash-attn-4, to keep FlashAttention 2"
        yield from says(v, "replaces", message, new, old, *at, advice=advice, mild=True)


def takes_flash_4(v: Values) -> bool:
    """Say whether FlashAttention 4 takes the place of what was asked for (flash_attn_4.py:120, `fa4_usable`)."""
    if v.asked not in ("flash_attention_2", "flash_attention_3") or not v.reaches(axolotl.FLASH_4):
        return False
    if v.reaches(axolotl.FLASH_4_NAMED) and v.ring > 1:
        return False
    majors = {major for major, _ in v.capabilities}
    return v.installed("flash-attn-4") and bool(majors) and majors <= {9, 10, 11}


def linear_layers(v: Values) -> Iterator[SettingProblem]:
    """Recurrent layers are patched for packed rows in three families; the others mix documents."""
    model = v.model
    if not v.packed or model is None:
        return
    family = model.model_type.removesuffix("_text")
    recurrent = sum(kind in RECURRENT_LAYERS for kind in model.layer_types)
    first = PATCHED.get(family)
    if recurrent and "linear_attention" in model.layer_types and (first is None or not v.reaches(first)):
        message = f"sample_packing lets documents mix in the {recurrent} recurrent layers of {model.model_type}"
        where = "loaders/patch_manager.py:574: qwen3_next, qwen3_5 and qwen3_5_moe are patched"
        yield from says(v, "wrong", message, where, "", "sample_packing", sets={"packing": "off"})


BEHAVIOURS: tuple[Callable[[Values], Iterator[SettingProblem]], ...] = (
    naming.both_names,
    naming.names_of_implementations,
    naming.several_booleans,
    naming.deprecated_names,
    naming.gone_but_known,
    packing_leaks,
    packing_refused,
    context_parallel,
    liger,
    naming.plugins_missing,
    cross_entropies,
    tensor_parallel,
    capabilities,
    flash_4,
    linear_layers,
    naming.command_names,
)
