"""A plan for plain transformers: Python for its Trainer.

Names as in transformers 5.17.0 (data/data_collator.py, training_args.py, modeling_utils.py). `dtype` was `torch_dtype`
before 4.56.0, the collator has `return_flash_attn_kwargs` since 4.52 (not in 4.51.3), and since 5.0 the Trainer sets
`model.config.use_cache` from `TrainingArguments.use_cache` (wheels 4.51.3, 4.52.4, 4.55.4, 4.56.0, 5.0.0). The ring is
ring-flash-attn 0.1.8's adapters/hf_adapter.py, Ulysses accelerate 1.15.0's parallelism_config.py and utils,
which the Trainer knows since 5.0 (trainer.py; not in 4.57.6).
"""

from __future__ import annotations

from attncheck.core.plan import Plan
from attncheck.lint.fields.plan_writing import DTYPES, SHIMS, Since, remarks, variables

MODEL = "a folder or a name on the Hub"
COLLATORS = {"padding": "DataCollatorForSeq2Seq"}
MASK_2D = """\
def collate(features):  # beside a mask transformers does not look for documents in the positions
    batch = flatten(features)
    batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    return batch"""
MASK_4D = """\
def collate(features):
    batch = flatten(features)
    document = (batch["position_ids"] == 0).cumsum(-1)
    seen = (document[:, :, None] == document[:, None, :]).tril()[:, None]
    hidden = torch.finfo({dtype}).min
    batch["attention_mask"] = torch.zeros(seen.shape, dtype={dtype}).masked_fill(~seen, hidden)
    return batch"""


def plan_settings(plan: Plan, since: Since) -> list[str]:
    """Return the Python lines of a plan."""
    return [
        *_environment(plan),
        *_imports(plan, since),
        "",
        f'MODEL = "{MODEL}"',
        *_ring(plan),
        *_model(plan, since),
        *_collator(plan, since),
        *_arguments(plan, since),
        *_remarks(plan, since),
    ]


def _environment(plan: Plan) -> list[str]:
    found = [f'os.environ["{name}"] = {_quoted(value)}' for name, value in variables(plan).items()]
    return ["import os", "", *found, "# above: before torch is imported", ""] if found else []


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _imports(plan: Plan, since: Since) -> list[str]:
    collator = COLLATORS.get(plan.packing, "DataCollatorWithFlattening")
    names = ["AutoModelForCausalLM", "AutoTokenizer", collator, "TrainingArguments"]
    found = ["import torch"]
    if _rings(plan):
        found.append("import torch.distributed as dist")
    if _exchanges(plan, since):
        found.append("from accelerate.parallelism_config import ParallelismConfig")
        found.append("from accelerate.utils import DeepSpeedSequenceParallelConfig")
    found.append(f"from transformers import {', '.join(names)}")
    return found


def _rings(plan: Plan) -> bool:
    return plan.ring_size > 1 and plan.scheme == "llama3"


def _exchanges(plan: Plan, since: Since) -> bool:
    return plan.ring_size > 1 and plan.scheme == "ulysses" and since("5.0")


def _ring(plan: Plan) -> list[str]:
    if not _rings(plan):
        return []
    shims = [line for name in plan.shims for line in SHIMS.get(name, f"# the repair {name!r}").splitlines()]
    return [
        "",
        *shims,
        "from ring_flash_attn import substitute_hf_flash_attn, update_ring_flash_attn_params",
        "",
        "dist.init_process_group()  # under torchrun",
        f"group, _ = dist.new_subgroups(group_size={plan.ring_size})",
        f"substitute_hf_flash_attn(group, heads_k_stride={plan.heads_k_stride})",
        f"# before each forward: cut the row's input_ids, position_ids and labels into {plan.ring_size} equal parts,",
        "# keep this rank's, and call update_ring_flash_attn_params(cu_seqlens, group) with the row's int32 edges on",
        "# the device; sum the loss over the group and divide it by the labels of the whole row",
        "",
    ]


def _model(plan: Plan, since: Since) -> list[str]:
    chosen = f'attn_implementation="{plan.attn_implementation}", ' if plan.attn_implementation else ""
    dtype = "dtype" if since("4.56") else "torch_dtype"
    found = [
        "tokenizer = AutoTokenizer.from_pretrained(MODEL)",
        f"model = AutoModelForCausalLM.from_pretrained(MODEL, {chosen}{dtype}=torch.{DTYPES[plan.precision]})",
    ]
    if not plan.packed:
        found.append(f'tokenizer.padding_side = "{plan.padding_side}"')
    if plan.deterministic:
        found.append("torch.use_deterministic_algorithms(True)")
    if not since("5.0"):
        found.append(f"model.config.use_cache = {plan.use_cache}")
    return found


def _collator(plan: Plan, since: Since) -> list[str]:
    if not plan.packed:
        return ["collate = DataCollatorForSeq2Seq(tokenizer)  # pads labels with -100"]
    words = [] if plan.positions == "reset" or plan.packing == "mask_4d" else ["return_position_ids=False"]
    if plan.packing == "cu_seqlens":
        words.append("return_flash_attn_kwargs=True")
        if not since("4.52"):
            return ["# return_flash_attn_kwargs needs transformers 4.52 or newer", *_flatten(words[:-1], "collate")]
    if plan.packing not in ("mask_2d", "mask_4d"):
        return _flatten(words, "collate")
    text = MASK_2D if plan.packing == "mask_2d" else MASK_4D.format(dtype=f"torch.{_computed(plan)}")
    found = [*_flatten(words, "flatten"), "", "", *text.splitlines(), "", ""]
    if plan.packing == "mask_4d" and plan.positions == "running":
        found.insert(-3, '    del batch["position_ids"]')
    return found


def _flatten(words: list[str], name: str) -> list[str]:
    return [f"{name} = DataCollatorWithFlattening({', '.join(words)})"]


def _computed(plan: Plan) -> str:
    """Return the type of number that attention computes in, which an additive mask must have."""
    return "bfloat16" if plan.precision == "autocast" else DTYPES[plan.precision]


def _arguments(plan: Plan, since: Since) -> list[str]:
    words = {"output_dir": '"out"'}
    if not plan.packed:
        words["per_device_train_batch_size"] = str(plan.batch)
    words["gradient_accumulation_steps"] = str(plan.accumulation * (plan.batch if plan.packed else 1))
    words["bf16"] = str(plan.precision == "autocast")  # autocast, not the weights
    words["gradient_checkpointing"] = str(plan.gradient_checkpointing)
    words["use_liger_kernel"] = str(plan.liger)
    if since("5.0"):
        words["use_cache"] = str(plan.use_cache)
    if plan.compile:
        words["torch_compile"] = "True"
    before = []
    if _exchanges(plan, since):
        chosen = plan.attn_implementation or "sdpa"
        before = [
            f'handler = DeepSpeedSequenceParallelConfig(sp_attn_implementation="{chosen}")',
            f'parallel = ParallelismConfig(sp_size={plan.ring_size}, sp_backend="deepspeed", sp_handler=handler)',
        ]
        words["parallelism_config"] = "parallel"
    return [*before, "arguments = TrainingArguments(", *(f"    {name}={value}," for name, value in words.items()), ")"]


def _remarks(plan: Plan, since: Since) -> list[str]:
    found = ["# Trainer(model=model, args=arguments, data_collator=collate, processing_class=tokenizer, ...)"]
    if plan.packed:
        found.append(
            f"# per_device_train_batch_size: how many documents are laid into one row of {plan.max_length} tokens"
        )
    if plan.packed and plan.batch > 1:
        found.append(f"# the collator makes one row a device: the plan's {plan.batch} rows are accumulated")
    if plan.deterministic:
        found.append("# full_determinism=True is this and CUDA_LAUNCH_BLOCKING=1, which makes every kernel wait")
    if _exchanges(plan, since) and plan.attn_implementation == "eager":
        found.append("# DeepSpeed's Ulysses refuses eager: sdpa or flash_attention_2")
    able = ["positions", "use_cache", "compile", "padding_side", "llama3"]
    able += ["ulysses"] * _exchanges(plan, since) + ["shims"] * _rings(plan)
    return [*found, *remarks(plan, *able)]
