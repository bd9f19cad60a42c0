"""Records what one rank of a trainer does until its first optimiser's step, and its losses after that.

Written for each rank: `rank-R.pt`, once, with the calls of the model (what went in, the last hidden states), the
losses that were differentiated, the weights and the gradients of the first step; `steps-R.json`, after each step, with
the losses.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import sys
from typing import Any

from .attention import AttentionWatch
from .describe import describe_adapters, describe_model, describe_process
from .parameters import list_sizes, read_gradients, read_weights

PLAIN_TYPES = (bool, int, float, str)
MAX_CALLS = 256  # that are kept until a first step, which may never come
MAX_TENSOR_BYTES = 64 << 20  # of one tensor that is kept
MAX_WEIGHTS = int(os.environ.get("ATTNCHECK_MAX_WEIGHTS", 0))  # numbers of all parameters that are kept; 0: no limit


def _guarded(method: Any) -> Any:
    """Return the recorder's method, its exceptions noted instead of raised."""

    @functools.wraps(method)
    def call(self: Recorder, *arguments: Any) -> None:
        try:
            method(self, *arguments)
        except Exception as error:
            self.faults.append(f"{method.__name__}: {type(error).__name__}: {error}")

    return call


class Recorder:
    """What one process trains. Methods never raise: the trainer runs on, and the record says what is missing."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.calls: list[dict[str, Any]] = []  # of the model, in training, until the first step
        self.losses: list[float] = []  # as differentiated, since the last step
        self.models: list[Any] = []
        self.gradients: dict[str, Any] | None = None
        self.weights: dict[str, Any] = {}  # that training starts from
        self.steps: list[dict[str, Any]] = []
        self.rows: list[Any] = []  # of tokens that went in since the last step
        self.faults: list[str] = []
        self.attention: AttentionWatch | None = None
        self.kept: set[str] | None = None  # names of the parameters of which values are kept, None: of all
        self.entered: Any = None  # the model whose call is recorded and open: those of its parts belong to it
        self.adapted: Any = None  # the model that an adapter in front of it calls: that call is recorded already

    @_guarded
    def watch(self, model: Any) -> None:
        """Record the calls of a model that was just made."""
        if any(model is known for known in self.models):
            return
        self.models.append(model)
        model.register_forward_pre_hook(self.enter_model, with_kwargs=True)
        model.register_forward_hook(self.leave_model, with_kwargs=True)
        decoder = getattr(model, "base_model", None)
        if decoder is not None and decoder is not model:
            decoder.register_forward_hook(self._keep_hidden_states)
        head = model.get_output_embeddings()
        if head is not None:  # of a class whose forward calls past its base model: OPT's
            head.register_forward_pre_hook(lambda module, arguments: self._keep_hidden_states(module, (), arguments))

    @_guarded
    def enter_model(self, model: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Record what goes into a model in training."""
        import torch

        if model is self.adapted or not torch.is_grad_enabled() or not model.training:
            return
        if not _has_trained_parameters(model) or (self.entered is not None and self.entered is not model):
            return
        self.entered = model
        inputs = {**_name_arguments(model, arguments), **options}
        if torch.is_tensor(inputs.get("input_ids")):
            self.rows += inputs["input_ids"].tolist()
        if self.steps or self.gradients is not None or len(self.calls) >= MAX_CALLS:
            return
        if self.attention is None:
            self.attention = AttentionWatch(model)
            self.attention.start()
            self.kept = _choose_parameters(model)
            self.weights = {name: self._keep_own(name, value) for name, value in read_weights(model)}
        self.calls.append(
            {
                "model": self.models.index(model),
                "tensors": {name: _keep(value) for name, value in inputs.items() if torch.is_tensor(value)},
                "options": {name: value for name, value in inputs.items() if isinstance(value, PLAIN_TYPES)},
                "after_losses": len(self.losses),
                "autocast": "",  # known once the call is inside what casts it
                **describe_model(model),
            }
        )

    @_guarded
    def leave_model(self, model: Any, arguments: Any, options: Any, output: Any) -> None:
        """Record the loss that the model itself computes."""
        if model is self.adapted or (self.entered is not None and self.entered is not model):
            return
        self.entered = None
        if self.attention is not None:
            self.attention.stop()
        if self.calls and self.gradients is None and not self.steps:
            loss = getattr(output, "loss", None)
            if loss is not None and loss.numel() == 1:
                self.calls[-1]["loss"] = float(loss.detach())

    @_guarded
    def _keep_hidden_states(self, decoder: Any, arguments: Any, output: Any) -> None:
        import torch

        if not self.calls or self.gradients is not None or self.steps or not torch.is_grad_enabled():
            return
        self.calls[-1]["autocast"] = _name_autocast()
        hidden = output[0] if isinstance(output, (tuple, list)) else getattr(output, "last_hidden_state", None)
        if torch.is_tensor(hidden) and "hidden" not in self.calls[-1]:
            self.calls[-1]["hidden"] = _keep(hidden.detach().float())

    @_guarded
    def add_loss(self, loss: Any) -> None:
        """Record a scalar that is differentiated."""
        self.entered = None  # of a call that raised, too
        if loss.numel() == 1 and loss.requires_grad and self.calls:
            self.losses.append(float(loss.detach()))

    @_guarded
    def take_gradients(self) -> None:
        """Record the gradients of the first step, before anything else touches them."""
        if self.gradients is not None or self.steps or not self.losses:
            return
        model = self.models[self.calls[-1]["model"]]
        self.gradients = {}
        trainable = []
        for name, gradient in read_gradients(model):
            if gradient is not None:
                self.gradients[name] = self._keep_own(name, gradient.float())
            trainable.append(name)
        self._write_first_step(trainable)

    def _keep_own(self, name: str, tensor: Any) -> Any:
        """Return a copy of a parameter's weights or gradient, its shape alone where it is none of those kept."""
        return _keep(tensor) if self.kept is None or name in self.kept else {"shape": tuple(tensor.shape)}

    def _write_first_step(self, trainable: list[str]) -> None:
        import torch

        document = {
            "calls": self.calls,
            "losses": list(self.losses),
            "gradients": self.gradients,
            "trainable": trainable,
            "weights": self.weights,
            "layers": self.attention.layers if self.attention is not None else [],
            "faults": self.faults,
            "adapters": describe_adapters(self.models[self.calls[-1]["model"]]),
            **describe_process(),
        }
        path = os.path.join(self.folder, f"rank-{document['rank']}.pt")
        torch.save(document, f"{path}.part")
        os.rename(f"{path}.part", path)

    @_guarded
    def end_step(self) -> None:
        """Record the losses of a step that was taken."""
        if not self.losses:
            return
        self.steps.append({"losses": self.losses, "rows": self.rows})
        self.losses, self.rows = [], []
        self._write_steps()

    @_guarded
    def end_process(self) -> None:
        """Write that losses were differentiated and no step was taken, where it was so and no exception the cause."""
        if not self.losses or self.steps or hasattr(sys, "last_value"):
            return
        if self.gradients is None:
            self.gradients = {}
            self._write_first_step([])
        self._write_steps()

    def _write_steps(self) -> None:
        path = os.path.join(self.folder, f"steps-{describe_process()['rank']}.json")
        with open(f"{path}.part", "w") as stream:
            json.dump({"steps": self.steps, "unstepped": len(self.losses), "faults": self.faults}, stream)
        os.rename(f"{path}.part", path)


def _choose_parameters(model: Any) -> set[str] | None:
    """Return the names of the parameters that are kept: what is trained first, then the smallest, to the limit."""
    if not MAX_WEIGHTS:
        return None
    sizes = {name: (not is_trained, numel) for name, is_trained, numel in list_sizes(model)}
    kept, total = set(), 0
    for name in sorted(sizes, key=lambda name: sizes[name]):
        total += sizes[name][1]
        if total > MAX_WEIGHTS:
            break
        kept.add(name)
    return kept


def _name_arguments(model: Any, arguments: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip(inspect.signature(model.forward).parameters, arguments))


def _has_trained_parameters(model: Any) -> bool:
    """Return whether a model is one that is trained: a reference model that is frozen is not."""
    return any(parameter.requires_grad for parameter in model.parameters())


def _name_autocast() -> str:
    """Return the dtype that operators are cast to on the device at hand, "" outside of autocast."""
    import torch

    kinds = [kind for kind in ("cuda", "cpu") if torch.is_autocast_enabled(kind)]
    return str(torch.get_autocast_dtype(kinds[0])) if kinds else ""


def _keep(tensor: Any) -> Any:
    """Return a copy of a tensor on the CPU; of a very large one its shape alone."""
    if tensor.numel() * tensor.element_size() > MAX_TENSOR_BYTES:
        return {"shape": tuple(tensor.shape)}
    return tensor.detach().to("cpu", copy=True)
