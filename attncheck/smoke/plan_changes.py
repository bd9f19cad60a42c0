"""Changes of a plan that several checks propose, in the form that users write."""

import math
from collections.abc import Iterator
from dataclasses import replace

from attncheck.core.plan import NO_CUDNN_SDPA, Change, Plan
from attncheck.core.results.smoke import CheckResult
from attncheck.core.verdicts import HUGE


def propose_implementation(plan: Plan) -> Change:
    """Return the change to the attention implementation that `plan` names."""
    name = plan.attn_implementation
    return Change(f"attention by {name}", "setting", f'attn_implementation="{name}"', plan)


def propose_implementations(
    plan: Plan, names: tuple[str, ...] = ("flash_attention_2", "sdpa", "eager")
) -> Iterator[Change]:
    """Yield the plan under each other attention implementation of `names`."""
    for name in names:
        if name != plan.attn_implementation:
            yield propose_implementation(replace(plan, attn_implementation=name))


def propose_without_cudnn(plan: Plan, result: CheckResult) -> Iterator[Change]:
    """Yield SDPA without cuDNN's kernels if there was NaN or infinity: a run without them then proves the cause.

    With a bool mask that has rows without keys, cuDNN 9.19 computes NaN for dq below 128 tokens, in bfloat16.
    """
    if plan.attn_implementation in ("", "sdpa") and NO_CUDNN_SDPA not in plan.shims and _shows_nonfinite(result):
        text = "torch.backends.cuda.enable_cudnn_sdp(False)"
        without = replace(plan, shims=(*plan.shims, NO_CUDNN_SDPA))
        yield Change("SDPA without cuDNN", "edit", text, without, "cuDNN's SDPA kernel")


def _shows_nonfinite(result: CheckResult) -> bool:
    """Return whether a check found NaN or infinity: in a measure, in a step, or in its text."""
    values = [measure.value for measure in result.measures]
    values += [value for step in result.steps for value in (step.loss, step.grad_norm)]
    if any(not math.isfinite(value) or value >= HUGE for value in values):
        return True
    return any(word in line for line in result.violations for word in ("NaN", "infinite", "not finite"))


def propose_collator_changes(plan: Plan) -> Iterator[Change]:
    """Yield changes of the tensors that a collator passes to the model, one by one and then together."""
    changes = []
    if plan.use_cache:
        text = "model.config.use_cache = False"
        changes.append(Change("train without the cache", "setting", text, replace(plan, use_cache=False)))
    if plan.positions == "running":
        text = "position_ids = torch.cat([torch.arange(len(document)) for document in row])"
        changes.append(
            Change("positions that restart in each document", "edit", text, replace(plan, positions="reset"))
        )
    if plan.packing == "mask_2d":
        text = 'batch.pop("attention_mask")  # position_ids that restart separate the documents'
        changes.append(Change("no 2-D mask of ones", "edit", text, replace(plan, packing="position_ids")))
    yield from changes
    if len(changes) > 1:
        clean = replace(plan, use_cache=False, positions="reset")
        clean = replace(clean, packing="position_ids") if plan.packing == "mask_2d" else clean
        title = ", ".join(change.title for change in changes)
        yield Change(title, "edit", "\n".join(change.text for change in changes), clean)


def propose_multimodal_positions(plan: Plan) -> Change:
    """Return the change to the position_ids of transformers' multimodal models: (4, batch, seqlen)."""
    text = (
        "position_ids = torch.stack([plain, *time_height_width])  # (4, batch, seqlen), each "
        "restarting in every document"
    )
    return Change("positions of shape (4, batch, seqlen)", "edit", text, replace(plan, positions="reset_4d"))


def propose_packing(plan: Plan) -> Change:
    """Return the change to the packing that `plan` names."""
    if plan.packing == "cu_seqlens":
        text = "DataCollatorWithFlattening(return_flash_attn_kwargs=True)  # cu_seq_lens_q, cu_seq_lens_k, max_length_*"
        return Change("pass document boundaries as cu_seqlens", "setting", text, plan)
    text = "attention_mask = block_diagonal_causal(document_lengths)  # (batch, 1, seqlen, seqlen), 0 or dtype's lowest"
    return Change("a block-diagonal 4-D mask", "edit", text, plan)


def propose_no_packing(plan: Plan) -> Change:
    """Return the change to no packing."""
    text = "packing = False  # one document per row, padded, with its mask"
    return Change("no packing", "setting", text, replace(plan, packing="padding", positions="reset", use_cache=False))
