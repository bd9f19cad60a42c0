"""liger-kernel on against off, and which of its patches take effect on this model.

Jobs apply it in two ways: to a model that exists (`_apply_liger_kernel_to_instance`: transformers' Trainer in
`integrations/liger.py`, verl) or to transformers' classes before the model is built (`apply_liger_kernel_to_llama()`
and `AutoLigerKernelForCausalLM`: OpenRLHF, LLaMA-Factory). The first is what a plan's `liger` means; a patch that does
nothing in the second alone warns.

With labels, in training, liger makes no logits, and computes the gradients of its fused cross-entropy on the way
forward, to be multiplied by what comes back (liger_kernel 0.8.5, `transformers/model/llama.py`,
`ops/fused_linear_cross_entropy.py`). So loss and gradients are taken with labels, the loss scaled as by gradient
accumulation, and logits without.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import nn

from attncheck.attention.device import message
from attncheck.core.plan import Plan
from attncheck.core.results.smoke import CheckResult, Measure
from attncheck.smoke.worker import liger_patches
from attncheck.smoke.worker import testbed as beds
from attncheck.smoke.worker.checks import agreement
from attncheck.smoke.worker.liger_model import loss, unshifted
from attncheck.smoke.worker.testbed import Bed, Result

QUESTION = "liger"
FUSED = "fused_linear_cross_entropy"
WAYS = {"model": "", "classes": ", applied before the model is built"}
IEEE = {"TRITON_F32_DEFAULT": "ieee"}  # else triton multiplies float32 in TF32 (triton/language/core.py, `dot`)
SCALE = 0.25  # what the loss is multiplied by on its way back; exact in every dtype


def prove(bed: Bed) -> CheckResult:
    """Return the proof. Where liger's kernels cannot run, what does nothing is still found."""
    model: Any = bed.model(bed.plan.bare())
    try:
        asked = liger_patches.asked(model)
    except ImportError as error:
        return CheckResult(QUESTION, "refused", f"liger-kernel cannot be imported: {message(error)}")
    if asked is None:
        kind = model.config.model_type
        return CheckResult(QUESTION, violations=(f"liger-kernel has no patches for {kind}: it does nothing",))
    notes = [*agreement.left_out(bed)]
    wrong, weak = (tuple(idle(bed, way, asked, notes)) for way in WAYS)
    measures: list[Measure] = []
    try:
        measures += agreement.compared(bed, {words: partial(patched, bed, way) for way, words in WAYS.items()})
        wrong += tuple(unfused(bed, asked))
    except Exception as error:
        lost = agreement.failed(QUESTION, error)
        if needs_gpu(error, bed):
            lost = replace(lost, outcome="refused", reason=f"liger's triton kernels need a GPU: {lost.reason}")
        if not wrong or lost.outcome == "raised":
            return replace(lost, violations=wrong, reservations=weak, notes=tuple(notes))
        notes.append(f"not compared with the model without liger: {lost.reason}")
    return CheckResult(QUESTION, "ok", "", tuple(measures), wrong, weak, tuple(notes))


def idle(bed: Bed, way: str, asked: tuple[str, ...], notes: list[str]) -> Iterator[str]:
    """Yield which patches do nothing when applied in this way; add to `notes` what the others replace."""
    plan = agreement.plans(bed)[0]
    batch = bed.batch(bed.rows(), plan)

    def run(model: nn.Module) -> None:
        with torch.no_grad():
            model(**batch.inputs, labels=unshifted(batch))

    for name in asked:
        try:
            entered = liger_patches.reached(way, partial(bed.model, plan), run, name)
        except Exception as error:
            yield f"liger's patch {name} raises{WAYS[way]}: {message(error)}"
            continue
        if entered:
            what = ", ".join(f"{count} × {thing}" for thing, count in sorted(entered.items()))
            notes.append(f"{name}{WAYS[way]}: {what}")
        else:
            yield f"liger's patch {name} does nothing{WAYS[way]}: what it replaces is not run by this model"


def patched(bed: Bed, way: str, plan: Plan) -> Result:
    """Return what the plan's model makes of the proofs' rows under liger; everything is put back afterwards.

    A job in float32 is measured with the products that it will have; else float32 is there to see errors in.
    """
    weights = bed.model(plan).state_dict()
    batch = bed.batch(bed.rows(), plan)
    sharper = IEEE if plan.precision == "fp32" != bed.plan.precision else {}
    with mock.patch.dict(os.environ, sharper), liger_patches.undone():
        model = liger_patches.apply(way, partial(bed.model, plan))
        model.load_state_dict(weights)  # liger's classes may begin with others
        logits = bed.run(model, batch, plan, backward=False).logits
        with bed.arithmetic(plan):
            total = loss(model, batch) / batch.tokens
        (total * SCALE).backward()
        gradients = {name: gradient / SCALE for name, gradient in beds.taken(model).items()}
    return Result(logits, float(total.detach()), gradients)


def unfused(bed: Bed, asked: tuple[str, ...]) -> Iterator[str]:
    """Yield where the fused cross-entropy is asked for and logits are made all the same."""
    plan = agreement.plans(bed)[-1]
    batch = bed.batch(bed.rows(), plan)
    with liger_patches.undone(), bed.arithmetic(plan), torch.no_grad():
        model = liger_patches.apply("model", partial(bed.model, plan))
        if FUSED in asked and model(**batch.inputs, labels=unshifted(batch)).logits is not None:
            yield f"liger's patch {FUSED} does nothing: logits are made in training, with labels"


def needs_gpu(error: BaseException, bed: Bed) -> bool:
    """Say whether it was triton that could not run on a CPU: its launcher raises where it finds no GPU's driver."""
    frames = traceback.walk_tb(error.__traceback__)
    names = {str(frame.f_globals.get("__name__", "")).partition(".")[0] for frame, _ in frames}
    return bed.device.type == "cpu" and "triton" in names
