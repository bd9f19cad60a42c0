"""Compares gradient checkpointing on and off: the same loss and gradients, and a second run of each layer in backward.

It is turned on as by transformers' Trainer and TRL: `gradient_checkpointing_enable` with `use_reentrant=False` (the
default in transformers 5.17). `GradientCheckpointingLayer.__call__` then passes `Module.__call__`, including hooks, to
`torch.utils.checkpoint`: a hook is called once in a layer's forward and once when backward runs it again. It draws
random numbers each time; the two draws are equal exactly if a dropout would drop the same elements.

The same kernels on the same inputs give the same bits, unless a kernel adds atomically. On a CPU on and off are bitwise
identical, which a note reports. The limits are those of `agreement`, so that atomics raise no alarm.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from attncheck.core.plan import Plan
from attncheck.core.results.smoke import CheckResult, Measure
from attncheck.smoke.worker.checks import agreement
from attncheck.smoke.worker.testbed import ModelRun, Testbed
from attncheck.smoke.worker.trainer import enable_checkpointing

CHECK_NAME = "gradient_checkpointing"


class LayerPasses:
    """Records each entry into each decoder layer, in forward and in backward, and random numbers drawn there."""

    def __init__(self, model: nn.Module) -> None:
        self.layers = find_decoder_layers(model)
        self.forward_draws: dict[str, list[Tensor]] = {name: [] for name in self.layers}
        self.backward_draws: dict[str, list[Tensor]] = {name: [] for name in self.layers}
        self.in_backward = False

    @contextmanager
    def recording(self, model: nn.Module) -> Iterator[None]:
        """Record while the context is open; entries after the end of the model's forward belong to the backward."""
        handles = [layer.register_forward_pre_hook(self._entry_hook(name)) for name, layer in self.layers.items()]
        handles.append(model.register_forward_hook(self._begin_backward))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _entry_hook(self, name: str) -> Callable[[nn.Module, object], None]:
        def hook(layer: nn.Module, arguments: object) -> None:
            device = next(layer.parameters()).device
            (self.backward_draws if self.in_backward else self.forward_draws)[name].append(torch.rand(4, device=device))

        return hook

    def _begin_backward(self, model: nn.Module, arguments: object, output: object) -> None:
        self.in_backward = True

    def find_violations(self) -> Iterator[str]:
        """Yield the layers that were not run again in backward, and those with different random numbers."""
        if not self.layers:
            yield "no decoder layer was found that checkpointing could recompute"
        idle = [name for name in self.layers if not self.backward_draws[name]]
        if idle:
            layers = _name_layers(idle, self.layers)
            yield f"checkpointing is on, but {layers} not run again in the backward pass: no memory is saved"
        differing = [
            name
            for name, draws in self.backward_draws.items()
            if draws and not torch.equal(self.forward_draws[name][0], draws[0])
        ]
        if differing:
            layers = _name_layers(differing, self.layers)
            yield f"random numbers differ when {layers} run again: dropout would drop different elements"


def find_decoder_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the layers that checkpointing applies to: children of a list named `layers`, `h` or `blocks`."""
    layers: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and name.rpartition(".")[2] in ("layers", "h", "blocks"):
            layers |= {f"{name}.{index}": layer for index, layer in module.named_children()}
    return layers


def run(testbed: Testbed) -> CheckResult:
    """Compare the plan's model with checkpointing with the same model without."""
    if testbed.random_in_training:  # on and off draw different numbers, and evaluation mode is not what is trained
        return CheckResult(CHECK_NAME, "skipped", testbed.random_in_training)
    violations: list[str] = []
    try:
        measures = tuple(
            agreement.measure_switches(testbed, {"": lambda plan: run_checkpointed(testbed, plan, violations)})
        )
    except Exception as error:
        return agreement.failed_result(CHECK_NAME, error)
    notes = (describe_equality(measures), *agreement.omission_notes(testbed))
    return CheckResult(CHECK_NAME, measures=measures, violations=tuple(dict.fromkeys(violations)), notes=notes)


def run_checkpointed(testbed: Testbed, plan: Plan, violations: list[str]) -> ModelRun:
    """Run the plan's model with checkpointing on the checks' rows; add its faults to `violations`."""
    model = testbed.build_model(plan)
    enable_checkpointing(model)
    passes = LayerPasses(model)
    with passes.recording(model):
        result = testbed.run_batch(model, testbed.make_batch(testbed.make_rows(), plan), plan)
    violations += passes.find_violations()
    return result


def describe_equality(measures: tuple[Measure, ...]) -> str:
    """Return a note on whether on and off were bitwise identical."""
    equal = all(measure.value == 0 for measure in measures)
    return "on and off are bitwise identical" if equal else "on and off are not bitwise identical"


def _name_layers(names: list[str], layers: dict[str, nn.Module]) -> str:
    if len(names) == len(layers):
        return f"all {len(names)} layers are"
    return f"{', '.join(names)} of {len(layers)} layers are"
