"""Compares liger-kernel on and off, and checks which of its patches take effect on this model.

Jobs apply it in two ways: to an existing model (`_apply_liger_kernel_to_instance`: transformers' Trainer in
`integrations/liger.py`, verl) or to transformers' classes before the model is built (`apply_liger_kernel_to_llama()`
and `AutoLigerKernelForCausalLM`: OpenRLHF, LLaMA-Factory). A plan's `liger` means the first. A patch without effect
only in the second is a warning.

With labels, in training, liger returns no logits. It computes the gradients of its fused cross-entropy in forward, and
backward multiplies them by the gradient of the loss (liger_kernel 0.8.5, `transformers/model/llama.py`,
`ops/fused_linear_cross_entropy.py`). Loss and gradients are therefore taken with labels, with the loss scaled as by
gradient accumulation, and logits without labels.
"""

import os
import traceback
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import nn

from attncheck.attention.device import describe_exception
from attncheck.core.plan import Plan
from attncheck.core.results.smoke import CheckResult, Measure
from attncheck.smoke.worker import liger_patches
from attncheck.smoke.worker.checks import agreement
from attncheck.smoke.worker.liger_model import summed_loss, unshifted_labels
from attncheck.smoke.worker.testbed import ModelRun, Testbed, collect_gradients

CHECK_NAME = "liger"
FUSED_LOSS = "fused_linear_cross_entropy"
MODES = {"model": "", "classes": ", applied before the model is built"}
# Without it triton multiplies float32 in TF32 (triton/language/core.py, `dot`).
IEEE_ENVIRONMENT = {"TRITON_F32_DEFAULT": "ieee"}
LOSS_SCALE = 0.25  # multiplies the loss before its backward; exact in every dtype


def run(testbed: Testbed) -> CheckResult:
    """Compare the model with and without liger; find patches without effect, even if liger's kernels cannot run."""
    if testbed.random_in_training:  # on and off draw different numbers, and evaluation mode is not what is trained
        return CheckResult(CHECK_NAME, "skipped", testbed.random_in_training)
    model: Any = testbed.build_model(testbed.plan.without_optimizations())
    try:
        patches = liger_patches.default_patches(model)
    except ImportError as error:
        return CheckResult(CHECK_NAME, "refused", f"liger-kernel cannot be imported: {describe_exception(error)}")
    if patches is None:
        model_type = model.config.model_type
        return CheckResult(
            CHECK_NAME, violations=(f"liger-kernel has no patches for {model_type}, so it has no effect",)
        )
    notes = [*agreement.omission_notes(testbed)]
    violations, warnings = (tuple(find_idle_patches(testbed, mode, patches, notes)) for mode in MODES)
    measures: list[Measure] = []
    try:
        measures += agreement.measure_switches(
            testbed, {label: partial(run_patched, testbed, mode) for mode, label in MODES.items()}
        )
        violations += tuple(find_unfused_loss(testbed, patches))
    except Exception as error:
        failed = agreement.failed_result(CHECK_NAME, error)
        if is_triton_without_gpu(error, testbed):
            failed = replace(failed, outcome="refused", reason=f"liger's triton kernels need a GPU: {failed.reason}")
        if not violations or failed.outcome == "raised":
            return replace(failed, violations=violations, warnings=warnings, notes=tuple(notes))
        notes.append(f"not compared with the model without liger: {failed.reason}")
    return CheckResult(CHECK_NAME, "ok", "", tuple(measures), violations, warnings, tuple(notes))


def find_idle_patches(testbed: Testbed, mode: str, patches: tuple[str, ...], notes: list[str]) -> Iterator[str]:
    """Yield the patches that have no effect in this mode; note in `notes` what the other patches replace."""
    plan = agreement.comparison_plans(testbed)[0]
    batch = testbed.make_batch(testbed.make_rows(), plan)

    def run_forward(model: nn.Module) -> None:
        with torch.no_grad():
            model(**batch.inputs, labels=unshifted_labels(batch))

    for name in patches:
        try:
            calls = liger_patches.count_patched_calls(mode, partial(testbed.build_model, plan), run_forward, name)
        except Exception as error:
            yield f"liger's patch {name} raises{MODES[mode]}: {describe_exception(error)}"
            continue
        if calls:
            counts = ", ".join(f"{count} × {name}" for name, count in sorted(calls.items()))
            notes.append(f"{name}{MODES[mode]}: {counts}")
        else:
            yield f"liger's patch {name} has no effect{MODES[mode]}: this model does not run the code that it replaces"


def run_patched(testbed: Testbed, mode: str, plan: Plan) -> ModelRun:
    """Run the plan's model with liger on the checks' rows; every patch is undone afterwards.

    A float32 plan is measured with its job's products (TF32 by default). The float32 run of any other plan serves to
    detect errors, so its products are exact.
    """
    weights = testbed.build_model(plan).state_dict()
    batch = testbed.make_batch(testbed.make_rows(), plan)
    environment = IEEE_ENVIRONMENT if plan.precision == "fp32" != testbed.plan.precision else {}
    with mock.patch.dict(os.environ, environment), liger_patches.undo_on_exit():
        model = liger_patches.build_patched(mode, partial(testbed.build_model, plan))
        model.load_state_dict(weights)  # liger's classes may have other initial weights
        logits = testbed.run_batch(model, batch, plan, backward=False).logits
        with testbed.autocast_context(plan):
            mean_loss = summed_loss(model, batch) / batch.predicted_tokens
        (mean_loss * LOSS_SCALE).backward()
        gradients = {name: gradient / LOSS_SCALE for name, gradient in collect_gradients(model).items()}
    return ModelRun(logits, float(mean_loss.detach()), gradients)


def find_unfused_loss(testbed: Testbed, patches: tuple[str, ...]) -> Iterator[str]:
    """Yield a line if logits are computed despite the fused cross-entropy, which needs none."""
    plan = agreement.comparison_plans(testbed)[-1]
    batch = testbed.make_batch(testbed.make_rows(), plan)
    with liger_patches.undo_on_exit(), testbed.autocast_context(plan), torch.no_grad():
        model = liger_patches.build_patched("model", partial(testbed.build_model, plan))
        if FUSED_LOSS in patches and model(**batch.inputs, labels=unshifted_labels(batch)).logits is not None:
            yield f"liger's patch {FUSED_LOSS} has no effect: logits are computed in training, with labels"


def is_triton_without_gpu(error: BaseException, testbed: Testbed) -> bool:
    """Return whether triton raised the error on a CPU, where its launcher finds no GPU driver."""
    frames = traceback.walk_tb(error.__traceback__)
    packages = {str(frame.f_globals.get("__name__", "")).partition(".")[0] for frame, _ in frames}
    return testbed.device.type == "cpu" and "triton" in packages
