"""Writes a plan for plain transformers: Python for its Trainer.

Names are those of transformers 5.17.0 (data/data_collator.py, training_args.py, modeling_utils.py). `dtype` was
`torch_dtype` before 4.56.0. The collator has `return_flash_attn_kwargs` since 4.52 (not in 4.51.3). Since 5.0 the
Trainer sets `model.config.use_cache` from `TrainingArguments.use_cache` (wheels 4.51.3, 4.52.4, 4.55.4, 4.56.0, 5.0.0).
The ring is ring-flash-attn 0.1.8's adapters/hf_adapter.py. Ulysses is accelerate 1.15.0's parallelism_config.py and
utils, which the Trainer supports since 5.0 (trainer.py; not in 4.57.6).
"""

from attncheck.lint.fields import (
    NO_CUDNN_SDPA,
    SHIM_SCRIPTS,
    WEIGHT_DTYPES,
    Plan,
    VersionCheck,
    collect_environ,
    list_applying,
    unsupported_remarks,
)

MODEL = "a folder or a name on the Hub"
COLLATORS = {"padding": "DataCollatorForSeq2Seq"}
MASK_2D_COLLATOR = """\
def collate(features):  # alongside a mask transformers does not look for documents in the positions
    batch = flatten(features)
    batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    return batch"""
MASK_4D_COLLATOR = """\
def collate(features):
    batch = flatten(features)
    document = (batch["position_ids"] == 0).cumsum(-1)
    seen = (document[:, :, None] == document[:, None, :]).tril()[:, None]
    hidden = torch.finfo({dtype}).min
    batch["attention_mask"] = torch.zeros(seen.shape, dtype={dtype}).masked_fill(~seen, hidden)
    return batch"""


def format_plan(plan: Plan, is_at_least: VersionCheck) -> list[str]:
    """Return the Python lines of a plan."""
    return [
        *_format_environment(plan),
        *_format_imports(plan, is_at_least),
        "",
        f'MODEL = "{MODEL}"',
        *_format_ring(plan),
        *_format_model(plan, is_at_least),
        *_format_collator(plan, is_at_least),
        *_format_arguments(plan, is_at_least),
        *_format_remarks(plan, is_at_least),
    ]


def _format_environment(plan: Plan) -> list[str]:
    lines = [f'os.environ["{name}"] = {_quote(value)}' for name, value in collect_environ(plan).items()]
    return ["import os", "", *lines, "# above: before torch is imported", ""] if lines else []


def _quote(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _format_imports(plan: Plan, is_at_least: VersionCheck) -> list[str]:
    collator = COLLATORS.get(plan.packing, "DataCollatorWithFlattening")
    names = ["AutoModelForCausalLM", "AutoTokenizer", collator, "TrainingArguments"]
    lines = ["import torch"]
    if _uses_ring(plan):
        lines.append("import torch.distributed as dist")
    if _uses_ulysses(plan, is_at_least):
        lines.append("from accelerate.parallelism_config import ParallelismConfig")
        lines.append("from accelerate.utils import DeepSpeedSequenceParallelConfig")
    lines.append(f"from transformers import {', '.join(names)}")
    lines += ["", "torch.backends.cuda.enable_cudnn_sdp(False)"] * (NO_CUDNN_SDPA in plan.shims)
    return lines


def _uses_ring(plan: Plan) -> bool:
    return plan.ring_size > 1 and plan.scheme == "llama3"


def _uses_ulysses(plan: Plan, is_at_least: VersionCheck) -> bool:
    return plan.ring_size > 1 and plan.scheme == "ulysses" and is_at_least("5.0")


def _format_ring(plan: Plan) -> list[str]:
    if not _uses_ring(plan):
        return []
    names = [name for name in plan.shims if name != NO_CUDNN_SDPA]
    shims = [line for name in names for line in SHIM_SCRIPTS.get(name, f"# the repair {name!r}").splitlines()]
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


def _format_model(plan: Plan, is_at_least: VersionCheck) -> list[str]:
    implementation = f'attn_implementation="{plan.attn_implementation}", ' if plan.attn_implementation else ""
    dtype = f"{'dtype' if is_at_least('4.56') else 'torch_dtype'}=torch.{WEIGHT_DTYPES[plan.precision]}"
    lines = {
        "tokenizer = AutoTokenizer.from_pretrained(MODEL)": True,
        f"model = AutoModelForCausalLM.from_pretrained(MODEL, {implementation}{dtype})": True,
        f'tokenizer.padding_side = "{plan.padding_side}"': not plan.packed,
        "torch.use_deterministic_algorithms(True)": plan.deterministic,
        f"model.config.use_cache = {plan.use_cache}": not is_at_least("5.0"),
    }
    return list_applying(lines)


def _format_collator(plan: Plan, is_at_least: VersionCheck) -> list[str]:
    if not plan.packed:
        return ["collate = DataCollatorForSeq2Seq(tokenizer)  # pads labels with -100"]
    arguments = [] if plan.positions == "reset" or plan.packing == "mask_4d" else ["return_position_ids=False"]
    if plan.packing == "cu_seqlens":
        arguments.append("return_flash_attn_kwargs=True")
        if not is_at_least("4.52"):
            remark = "# return_flash_attn_kwargs needs transformers 4.52 or newer"
            return [remark, *_format_flattening(arguments[:-1], "collate")]
    if plan.packing not in ("mask_2d", "mask_4d"):
        return _format_flattening(arguments, "collate")
    dtype = "bfloat16" if plan.precision == "autocast" else WEIGHT_DTYPES[plan.precision]  # of attention's arithmetic
    mask_4d = MASK_4D_COLLATOR.format(dtype=f"torch.{dtype}")
    text = MASK_2D_COLLATOR if plan.packing == "mask_2d" else mask_4d
    lines = [*_format_flattening(arguments, "flatten"), "", "", *text.splitlines(), "", ""]
    if plan.packing == "mask_4d" and plan.positions == "running":
        lines.insert(-3, '    del batch["position_ids"]')
    return lines


def _format_flattening(arguments: list[str], name: str) -> list[str]:
    return [f"{name} = DataCollatorWithFlattening({', '.join(arguments)})"]


def _format_arguments(plan: Plan, is_at_least: VersionCheck) -> list[str]:
    arguments = {"output_dir": '"out"'}
    if not plan.packed:
        arguments["per_device_train_batch_size"] = str(plan.batch)
    arguments["gradient_accumulation_steps"] = str(plan.accumulation * (plan.batch if plan.packed else 1))
    arguments["bf16"] = str(plan.precision == "autocast")  # autocast; the dtype of the weights is separate
    arguments["gradient_checkpointing"] = str(plan.gradient_checkpointing)
    arguments["use_liger_kernel"] = str(plan.liger)
    if is_at_least("5.0"):
        arguments["use_cache"] = str(plan.use_cache)
    if plan.compile:
        arguments["torch_compile"] = "True"
    parallelism = []
    if _uses_ulysses(plan, is_at_least):
        implementation = plan.attn_implementation or "sdpa"
        parallelism = [
            f'handler = DeepSpeedSequenceParallelConfig(sp_attn_implementation="{implementation}")',
            f'parallel = ParallelismConfig(sp_size={plan.ring_size}, sp_backend="deepspeed", sp_handler=handler)',
        ]
        arguments["parallelism_config"] = "parallel"
    return [
        *parallelism,
        "arguments = TrainingArguments(",
        *(f"    {name}={value}," for name, value in arguments.items()),
        ")",
    ]


def _format_remarks(plan: Plan, is_at_least: VersionCheck) -> list[str]:
    uses_ulysses = _uses_ulysses(plan, is_at_least)
    remarks = {
        "# Trainer(model=model, args=arguments, data_collator=collate, processing_class=tokenizer, ...)": True,
        f"# per_device_train_batch_size: how many documents are packed into one row of {plan.max_length} tokens": (
            plan.packed
        ),
        f"# the collator makes one row a device: the plan's {plan.batch} rows are accumulated": (
            plan.packed and plan.batch > 1
        ),
        "# full_determinism=True is this and CUDA_LAUNCH_BLOCKING=1, which makes every kernel wait": (
            plan.deterministic
        ),
        "# DeepSpeed's Ulysses refuses eager: sdpa or flash_attention_2": (
            uses_ulysses and plan.attn_implementation == "eager"
        ),
    }
    supported = ["positions", "use_cache", "compile", "padding_side", "llama3", NO_CUDNN_SDPA]
    supported += ["ulysses"] * uses_ulysses + ["shims"] * _uses_ring(plan)
    return [*list_applying(remarks), *unsupported_remarks(plan, *supported)]
