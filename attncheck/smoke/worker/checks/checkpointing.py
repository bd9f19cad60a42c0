"""Gradient checkpointing on against off: the same loss and gradients, each layer run again on the way back.

Switched on as transformers' Trainer and TRL do: `gradient_checkpointing_enable` with `use_reentrant=False`
(transformers 5.17 takes that by itself). `GradientCheckpointingLayer.__call__` then hands `Module.__call__`, hooks and
all, to `torch.utils.checkpoint`: a hook sees a layer once on the way there and once on the way back. It draws a random
number each time; the two are equal exactly where a dropout would drop the same elements.

The same kernels on the same inputs give the same bits, unless a kernel adds atomically: on a CPU on and off are equal
bit for bit, which a note tells. The limits are those of `agreement`, so that atomics raise no alarm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from attncheck.core.plan import Plan
from attncheck.core.results.smoke import CheckResult, Measure
from attncheck.smoke.worker.checks import agreement
from attncheck.smoke.worker.testbed import Bed, Result
from attncheck.smoke.worker.trainer import enable_checkpointing

QUESTION = "gradient_checkpointing"


class Passes:
    """Counts how often each decoder layer is entered forward and backward, and what is drawn at random in it."""

    def __init__(self, model: nn.Module) -> None:
        self.layers = decoder_layers(model)
        self.there: dict[str, list[Tensor]] = {name: [] for name in self.layers}
        self.back: dict[str, list[Tensor]] = {name: [] for name in self.layers}
        self.backward = False

    @contextmanager
    def counted(self, model: nn.Module) -> Iterator[None]:
        """Count while the context is open; what comes after the model's forward is the way back."""
        handles = [layer.register_forward_pre_hook(self._enter(name)) for name, layer in self.layers.items()]
        handles.append(model.register_forward_hook(self._forward_ends))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, name: str) -> Callable[[nn.Module, object], None]:
        def hook(layer: nn.Module, arguments: object) -> None:
            device = next(layer.parameters()).device
            (self.back if self.backward else self.there)[name].append(torch.rand(4, device=device))

        return hook

    def _forward_ends(self, model: nn.Module, arguments: object, output: object) -> None:
        self.backward = True

    def wrong(self) -> Iterator[str]:
        """Yield which layers were not run again, and in which ones randomness differed."""
        if not self.layers:
            yield "no decoder layer was found that checkpointing could run again"
        idle = [name for name in self.layers if not self.back[name]]
        if idle:
            yield f"checkpointing is on, but {_some(idle, self.layers)} not run again on the way back: nothing is saved"
        other = [n for n in self.layers if self.back[n] and not torch.equal(self.there[n][0], self.back[n][0])]
        if other:
            yield f"random numbers differ when {_some(other, self.layers)} run again: dropout would drop other elements"


def decoder_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the layers that checkpointing is for: children of a list named `layers`, `h` or `blocks`."""
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and name.rpartition(".")[2] in ("layers", "h", "blocks"):
            found |= {f"{name}.{index}": layer for index, layer in module.named_children()}
    return found


def prove(bed: Bed) -> CheckResult:
    """Return the proof."""
    wrong: list[str] = []
    try:
        measures = tuple(agreement.compared(bed, {"": lambda plan: checkpointed(bed, plan, wrong)}))
    except Exception as error:
        return agreement.failed(QUESTION, error)
    notes = (equality(measures), *agreement.left_out(bed))
    return CheckResult(QUESTION, measures=measures, violations=tuple(dict.fromkeys(wrong)), notes=notes)


def checkpointed(bed: Bed, plan: Plan, wrong: list[str]) -> Result:
    """Return what the plan's model makes of the proofs' rows with checkpointing; add to `wrong` what was seen."""
    model = bed.model(plan)
    enable_checkpointing(model)
    passes = Passes(model)
    with passes.counted(model):
        found = bed.run(model, bed.batch(bed.rows(), plan), plan)
    wrong += passes.wrong()
    return found


def equality(measures: tuple[Measure, ...]) -> str:
    """Say whether on and off were equal bit for bit."""
    equal = all(measure.value == 0 for measure in measures)
    return "on and off are equal bit for bit" if equal else "on and off are not equal bit for bit"


def _some(names: list[str], layers: dict[str, nn.Module]) -> str:
    if len(names) == len(layers):
        return f"all {len(names)} layers are"
    return f"{', '.join(names)} of {len(layers)} layers are"
