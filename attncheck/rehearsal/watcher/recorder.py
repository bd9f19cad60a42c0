"""Records the first steps of one rank of a trainer, and its losses after that.

It writes for each rank: `rank-R.pt` for the first step and `later-N-R.pt` for the next ones, with the calls of the
model (inputs and last hidden states), the differentiated losses, the weights, the gradients and the optimiser; and
`steps-R.json`, after each step, with the losses and the trainer's logs. If labels are read, there is no `rank-R.pt`:
`calls-R.json` has the rows of the first step's calls, with the tokens that gradients show to be learned.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import json
import os
import re
import sys
from collections.abc import Callable
from typing import Any

from .absent import is_script, note
from .attention import AttentionWatch
from .batches import list_rows, mark_hidden
from .describe import describe_adapters, describe_model, describe_process
from .fsdp import is_flat
from .hastening import hasten
from .losses import LossWatch
from .modules import ModuleWatch, list_gradient_hooks, list_patches
from .optimizer import count_planned, describe_optimizer, list_stateful, read_held
from .parameters import find_prefix, list_sizes, list_tied, read_frequencies, read_gradients, read_weights
from .randomness import Randomness, make_listener
from .relations import report
from .script_code import CODE, find_script_frame, name_line, note_loss, note_patterns

RECORDED_STEPS = 3
PLAIN_TYPES = (bool, int, float, str)
PLACEHOLDER = re.compile(r"^(image|video|audio)_token_(id|index)$")  # in a configuration
IGNORED = -100  # the label of a token that is not learned
UNCLEAR = -101  # of a token whose prediction has a gradient that is not that of a cross entropy
OFFSETS = (1, 0, 2)  # of a target from its prediction: the next token, or one to which labels may be shifted by mistake
MIN_SHARE = 0.5  # of a logit's gradient in the negative part of all logits'
MIN_SIZE = 1e-5  # of the largest gradient of a call: smaller ones may be rounding, whose pattern is random
MIN_COSINE = 0.7  # between the gradient of a hidden state and the weight of its target
MAX_CALLERS = 2  # of `eval`: the script, or a wrapper's method
MAX_CALLS = 256  # kept until a step, which may never come
MAX_TENSOR_BYTES = 64 << 20  # for one recorded tensor
MAX_WEIGHTS = int(os.environ.get("ATTNCHECK_MAX_WEIGHTS", 0))  # recorded numbers of all parameters; 0: no limit


def _guarded(method: Any) -> Any:
    """Return the recorder's method, which records its exceptions instead of raising them."""

    @functools.wraps(method)
    def call(self: Recorder, *arguments: Any) -> None:
        if self.is_paused:
            return
        try:
            method(self, *arguments)
        except Exception as error:
            self.faults.append(f"{method.__name__}: {type(error).__name__}: {error}")

    return call


class Recorder:
    """The training of one process. Methods never raise: the trainer continues, and the record names what is missing."""

    is_paused = False  # while a copy of the model computes a reference

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.models: list[Any] = []
        self.built: list[Any] = []  # those that a script built from its own configuration
        self.trained: Any = None  # the model that is called in training
        self.losses: list[float] = []  # losses as differentiated, since the last step
        self.rates: list[float] = []  # learning rates of the optimisers that stepped since then
        self.planned = 0  # steps for which a learning-rate scheduler is made
        self.schedules: dict[int, list[str]] = {}  # lines that stepped each learning-rate scheduler since then
        self.rows: list[Any] = []  # input tokens since the last step, each with whether it was in training
        self.passed: list[Any] = []  # their tensors: a batch's second pass has the same one, an equal batch does not
        self.steps: list[dict[str, Any]] = []
        self.logs: list[dict[str, Any]] = []  # the trainer's logs
        self.faults: list[str] = []
        self.attention: AttentionWatch | None = None
        self.modules: ModuleWatch | None = None
        self.losses_given: LossWatch | None = None
        self.trains = False  # whether the last loss was one of training mode
        self.left_by = ""  # the script's line that left it
        self.questions: dict[int, Callable[[], Any]] = {}  # asked after so many steps
        self.randomness = Randomness()
        self.kept: set[str] | None = None  # names of the parameters whose values are kept; None: all
        self.entered: Any = None  # the model whose call is being recorded: calls of its parts belong to it
        self.adapted: Any = None  # the model inside a wrapping adapter, whose call is already recorded
        self.embedded: tuple[Any, Any] | None = None  # tokens that were embedded last, and the result
        self.written: dict[str, Any] = {}  # the record of the last step, until a model is called again
        self.drawn: list[str] | None = None  # operators that drew random numbers in a call in evaluation mode
        self.listener: tuple[Any, Any] | None = None  # listens to that call; with its model
        self._begin_step()

    def _begin_step(self) -> None:
        """Discard the record of a step."""
        self.version: int | None = None  # of the weights at the step's first call
        self.calls: list[dict[str, Any]] = []  # calls of the model
        self.weights: dict[str, Any] = {}  # weights at the start of the step
        self.frequencies: dict[str, Any] = {}  # rotary ones
        self.gradients: dict[str, Any] | None = None
        self.backward: dict[str, Any] = {}  # the gradients after the last loss was differentiated
        self.trainable: list[str] = []
        self.taken = 0  # number of differentiated losses when the gradients were read
        self.leftover: dict[str, float] = {}  # norms of the gradients that exist before the step's first loss
        self.clips: list[dict[str, Any]] = []
        self.updates: list[dict[str, Any]] = []  # one for each optimiser's step
        CODE.pop("others", None)

    @_guarded
    def watch(self, model: Any) -> None:
        """Record the calls of a model that was just created."""
        if any(model is known for known in self.models):
            return
        self.models.append(model)
        model.register_forward_pre_hook(self.enter_model, with_kwargs=True)
        model.register_forward_hook(self.leave_model, with_kwargs=True)
        decoder = getattr(model, "base_model", None)
        if decoder is not None and decoder is not model:
            decoder.register_forward_hook(self._keep_hidden_states)
            decoder.register_forward_pre_hook(functools.partial(self._enter_decoder, model), with_kwargs=True)
        head = model.get_output_embeddings()
        if head is not None:  # of a class whose forward bypasses its base model's: OPT's
            head.register_forward_pre_hook(lambda module, arguments: self._keep_hidden_states(module, (), arguments))
            head.register_forward_hook(lambda module, arguments, output: self._watch_gradient(output, None))
        with contextlib.suppress(NotImplementedError, AttributeError):  # a tower of images
            model.get_input_embeddings().register_forward_hook(self._keep_embedded)

    @property
    def keeps_calls(self) -> bool:
        """Whether this step's calls are recorded."""
        return len(self.steps) < RECORDED_STEPS

    @property
    def is_recording(self) -> bool:
        """Whether this step is recorded, with weights, gradients and modules, which labels do not need."""
        return self.keeps_calls and not os.environ.get("ATTNCHECK_LABELS")

    @_guarded
    def enter_model(self, model: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Record the inputs of a model in training."""
        import torch

        if self.drawn is None and self.trained is not None and not self.keeps_calls and not model.training:
            self.drawn = []
            self.listener = make_listener(self.drawn), model
            self.listener[0].__enter__()
        if self.entered is None and not _has_trained_parameters(model):
            CODE["others"] = [type(model).__name__]
            if model.training and torch.is_grad_enabled() and self.trained is None:
                note(self.folder, "untrained", type(model).__name__)
        if not torch.is_grad_enabled() and model is self.trained and self.is_recording:
            CODE["ungraded"] = [name_line(find_script_frame(sys._getframe(2)) or sys._getframe(2))]
        if model is self.adapted or not torch.is_grad_enabled():
            return
        if not _has_trained_parameters(model) or (self.entered is not None and self.entered is not model):
            return
        self.entered, self.written = model, {}
        version = 0 if is_flat(model) else sum(value._version for value in model.parameters())
        self.version = version if self.version is None else self.version
        inputs = self._find_tokens(model, {**_name_arguments(model, arguments), **options})
        tokens = inputs.get("input_ids")
        marked = mark_hidden(tokens, inputs.get("attention_mask")).tolist() if torch.is_tensor(tokens) else []
        rows = [(model.training, row) for row in marked]
        # A batch's second pass may be at weights that a script moved, also through `data`, without a new version.
        passed: list[Any] = [tokens] if rows else []
        is_passed = any(own.data_ptr() == other.data_ptr() for own in passed for other in self.passed)
        is_second = version != self.version or (is_passed and all(row in self.rows for row in rows))
        self.passed += passed
        self.rows += [] if is_second else rows
        if not self.keeps_calls or len(self.calls) >= MAX_CALLS:
            return
        if self.trained is None and self.is_recording:
            self.attention = AttentionWatch(model)
            self.attention.start()
            self.losses_given = LossWatch()
            self.kept = _choose_parameters(model)
        if not os.environ.get("ATTNCHECK_KEEP_RANDOM"):
            self.randomness.switch_off(model)
        if not self.calls and self.is_recording:
            self.weights = {name: self._keep_own(name, value) for name, value in read_weights(model)}
            self.modules = ModuleWatch(model)
            self.frequencies = read_frequencies(model)
        self.trained = model
        self.calls.append(
            {
                "model": self.models.index(model),
                "tensors": {name: _keep(value) for name, value in inputs.items() if torch.is_tensor(value)},
                "options": {name: value for name, value in inputs.items() if isinstance(value, PLAIN_TYPES)},
                "after_losses": len(self.losses),
                "moved": is_second,
                "cached": _count_cached(inputs.get("past_key_values")),
                "autocast": "",  # known once the call is inside the module that casts it
                "random": self.randomness.rates,  # with those that are found in the call
                **describe_model(model),
            }
        )

    def _enter_decoder(self, model: Any, decoder: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Record a call of a model's decoder outside the model's own: the caller applies the head itself."""
        inputs = {**_name_arguments(decoder, arguments), **options}
        if self.entered is not None:
            if self.calls and not self.calls[-1]["tensors"]:  # TRL's `_forward_redirection` gives the model no tokens
                self.calls[-1]["tensors"] = {n: _keep(value) for n, value in inputs.items() if hasattr(value, "detach")}
            return
        self.enter_model(model, (), inputs)

        def leave(decoder: Any, arguments: Any, output: Any) -> None:
            handle.remove()
            self.leave_model(model, (), {}, output)

        if self.entered is model:
            handle = decoder.register_forward_hook(leave)  # after those of its modules

    @_guarded
    def _keep_embedded(self, embedding: Any, arguments: tuple[Any, ...], output: Any) -> None:
        """Keep the tokens that are embedded outside of a model's call, which a framework may do before it."""
        if self.entered is None and arguments and not arguments[0].is_floating_point():  # no pixels of a tower
            self.embedded = arguments[0], output.detach()

    def _find_tokens(self, model: Any, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return a model's inputs, with the tokens in place of their embeddings if the trainer embedded them.

        ms-swift's templates of images do (4.6.0 template/base.py:1731 `pre_forward_hook`). Only the embeddings of
        placeholders may be others: those of the images.
        """
        given = inputs.get("inputs_embeds")
        if given is None or inputs.get("input_ids") is not None or self.embedded is None:
            return inputs
        tokens, embedded = self.embedded
        if given.shape != embedded.shape:
            return inputs
        placeholders = {value for name, value in vars(model.config).items() if PLACEHOLDER.search(name)}
        if not placeholders.issuperset(tokens[(given != embedded).any(-1)].tolist()):
            return inputs
        return {name: value for name, value in inputs.items() if name != "inputs_embeds"} | {"input_ids": tokens}

    @_guarded
    def leave_model(self, model: Any, arguments: Any, options: Any, output: Any) -> None:
        """Record the loss that the model itself computes."""
        if self.listener is not None and self.listener[1] is model:
            self.listener[0].__exit__(None, None, None)
            self.listener = None
        if model is self.adapted or (self.entered is not None and self.entered is not model):
            return
        if hasattr(output, "last_hidden_state"):  # a model without a head, which the script adds
            self._keep_hidden_states(model, (), output)
        self.entered = None
        for watch in (self.attention, self.modules):
            if watch is not None:
                watch.stop()
        loss = getattr(output, "loss", None)
        if self.calls and loss is not None and loss.numel() == 1:
            self.calls[-1]["loss"] = float(loss.detach())

    @_guarded
    def _keep_hidden_states(self, decoder: Any, arguments: Any, output: Any) -> None:
        import torch

        if not self.calls or self.entered is None or not torch.is_grad_enabled():
            return
        self.calls[-1]["autocast"] = _name_autocast()
        hidden = output[0] if isinstance(output, (tuple, list)) else getattr(output, "last_hidden_state", None)
        if torch.is_tensor(hidden) and "hidden" not in self.calls[-1]:
            self.calls[-1]["hidden"] = _keep(hidden.detach().float())
            self._watch_gradient(hidden, getattr(self.entered.get_output_embeddings(), "weight", None))
            if hidden.requires_grad:
                hidden.register_hook(functools.partial(self._keep_pull, self.calls[-1]))

    @_guarded
    def _keep_pull(self, call: dict[str, Any], gradient: Any) -> None:
        """Keep the gradients of hidden states, which show the predictions that a loss counts."""
        call["pull"] = _keep(gradient.float())

    @_guarded
    def _watch_gradient(self, output: Any, weight: Any) -> None:
        """Keep the learned tokens of a call, which the gradient of its logits or hidden states shows.

        `weight` is that of the head, None for logits. Only labels and the user's own rows need them.
        """
        is_needed = {"ATTNCHECK_LABELS", "ATTNCHECK_MAX_WEIGHTS"} & os.environ.keys()
        if is_needed and self.calls and self.entered is not None and output.requires_grad:
            call = self.calls[-1]
            output.register_hook(lambda gradient: self._keep_learned(call, gradient, weight))

    @_guarded
    def _keep_learned(self, call: dict[str, Any], gradient: Any, weight: Any) -> None:
        """Keep labels: the token near a prediction that its gradient makes more probable, more than all others.

        Cross entropy has such a gradient, also with smoothing or weights. A z-loss, an entropy bonus, or a divergence
        from another model spreads it over the vocabulary, so it is unclear whether the token is learned. The gradient
        of hidden states comes after that of logits.
        """
        import torch

        ids = call["tensors"]["input_ids"]
        if call.get("learned") is not None or gradient.shape[:-1] != ids.shape:
            return
        tokens = torch.stack([ids.roll(-offset, 1) for offset in OFFSETS], -1)
        nearby = tokens.to(gradient.device)
        size = torch.linalg.vector_norm(gradient, 1, -1, dtype=torch.float32)
        if weight is None:
            negative = (size - gradient.sum(-1, dtype=torch.float32)) / 2
            scores, least = -gradient.gather(-1, nearby).float() / negative.clamp_min(1e-30)[..., None], MIN_SHARE
        elif weight.dim() == 2 and weight.shape[-1] == gradient.shape[-1]:
            rows = torch.nn.functional.embedding(nearby, weight.detach()).float()
            scores, least = torch.cosine_similarity(-gradient.float()[..., None, :], rows, -1), MIN_COSINE
        else:  # sharded
            scores, least = torch.zeros(nearby.shape), MIN_COSINE
        best = scores.cpu().max(-1)
        is_target = (best.values > least) & (size > MIN_SIZE * size.max()).cpu()
        targets = torch.where(is_target, tokens.gather(-1, best.indices[..., None])[..., 0], UNCLEAR)
        call["learned"] = torch.full_like(ids, IGNORED)
        call["learned"][:, 1:] = torch.where(size.cpu() > 0, targets, IGNORED)[:, :-1]

    @_guarded
    def add_loss(self, loss: Any) -> None:
        """Record a scalar that is differentiated, and gradients that exist before a step's first loss."""
        self.entered = None  # also after a call that raised
        if loss.numel() != 1 or not loss.requires_grad or self.trained is None:
            return
        if self.is_recording and not self.losses:
            for name, parameter in self.trained.named_parameters():
                if parameter.grad is not None and bool(parameter.grad.any()):
                    self.leftover[name] = float(parameter.grad.norm())
        self.losses.append(float(loss.detach()))
        note_loss(sys._getframe(1))
        self._note_mode()

    def _note_mode(self) -> None:
        """Report the first step that is not taken in training mode, after the recorded ones, as an evaluation ends."""
        is_training = any(module.training for module in self.trained.modules())
        if self.trains and not is_training and not self.keeps_calls:
            text = f"from step {len(self.steps) + 1} onwards the model is trained in evaluation mode"
            place = f" in {self.left_by}" if self.left_by else ""
            reason = f"model.eval() was called{place}, and model.train() was not"
            report(self.folder, "update", violations=[f"{text}: {reason}"])
        self.trains = is_training

    @_guarded
    def note_evaluation(self) -> None:
        """Record the script's line that turns training mode off."""
        frame = find_script_frame(sys._getframe(2), MAX_CALLERS)
        self.left_by = name_line(frame) if frame is not None else self.left_by

    @_guarded
    def keep_backward(self) -> None:
        """Keep the gradients right after a loss, which other code may change; not those in flat parts of parameters."""
        if not self.is_recording or not self.losses or is_flat(self.trained):
            return
        if not any(hasattr(value, "ds_numel") for value in self.trained.parameters()):
            own = read_gradients(self.trained)
            self.backward = {name: self._keep_own(name, value.float()) for name, value in own if value is not None}

    @_guarded
    def note_clipping(self, kind: str, limit: float, parameters: list[Any], norm: float) -> None:
        """Record a clipping of gradients: the parameters, the norm or value, and the number of losses before it."""
        if self.is_recording and self.trained is not None:
            known = self._name_parameters()
            names = [known.get(id(parameter), "") for parameter in parameters]
            self.clips.append({"kind": kind, "limit": limit, "losses": len(self.losses), "names": names, "norm": norm})

    @_guarded
    def take_gradients(self) -> None:
        """Record the gradients of a step after its last loss, before other code changes them."""
        if not self.is_recording or not self.losses or self.taken == len(self.losses):
            return
        self.taken, self.gradients, self.trainable = len(self.losses), {}, []
        for name, gradient in read_gradients(self.trained):
            if gradient is not None:
                self.gradients[name] = self._keep_own(name, gradient.float())
            self.trainable.append(name)
        self._drop_same()

    def _drop_same(self) -> None:
        """Discard the gradients after the last loss if they equal those of the step."""
        import torch

        own: dict[str, Any] = self.gradients or {}
        kept = {name: value for name, value in self.backward.items() if torch.is_tensor(value)}
        if all(torch.is_tensor(own.get(name)) and value.equal(own[name]) for name, value in kept.items()):
            self.backward = {}

    @_guarded
    def enter_optimizer(self, optimizer: Any) -> None:
        """Record an optimiser before its step; optimisers that step one after another belong to the same step."""
        self.rates += [float(group.get("lr") or 0.0) for group in optimizer.param_groups if group["params"]]
        if self.trained is not None and (self.losses or self.written):
            updates = self.updates if self.losses else self.written["updates"]
            if self.losses and not self.is_recording:
                return
            names = self._name_parameters()
            note_patterns(names.values())
            updates.append(describe_optimizer(optimizer, names, self._keep_own))

    @_guarded
    def note_zeroing(self) -> None:
        """Record the script's line that zeroes gradients between the batches of a step."""
        frame = find_script_frame(sys._getframe(2)) if self.losses and self.is_recording else None
        if frame is not None:
            CODE["zeroed"] = [name_line(frame)]

    @_guarded
    def note_schedule(self, scheduler: Any) -> None:
        """Record the script's line that steps a learning-rate scheduler.

        A library may repeat its call, with "" for a line: accelerate 1.15.0 scheduler.py steps once for each process.
        """
        self.planned = count_planned(scheduler) or self.planned  # of one that never steps, too: it begins with a step
        if self.trained is None or not self.is_recording:
            return
        caller: Any = sys._getframe(3)  # of the step, around this method and its guard
        line = name_line(find_script_frame(caller) or caller)
        lines = self.schedules.setdefault(id(scheduler), [])
        lines.append(line if is_script(caller.f_globals) or line not in lines else "")

    @_guarded
    def leave_optimizer(self, optimizer: Any) -> None:
        """Record the weights after an optimiser's step, and the losses of the step."""
        updates = self.updates if self.losses else self.written.get("updates")
        if updates:
            names = self._name_parameters()
            updates[-1]["after"] = read_held(optimizer, names, self._keep_own)
            updates[-1]["stateful"] = list_stateful(optimizer, names)
        if self.written and not self.losses:
            self._save_written()
        self.end_step()

    def _name_parameters(self) -> dict[int, str]:
        if is_flat(self.trained):
            return {}
        return {id(parameter): name for name, parameter in self.trained.named_parameters()}

    def _keep_own(self, name: str, tensor: Any) -> Any:
        """Return a copy of a parameter's weights or gradient, or only its shape if it is not kept."""
        return _keep(tensor) if self.kept is None or name in self.kept else {"shape": tuple(tensor.shape)}

    def _write_step(self) -> None:
        """Write the record of a step; calls in evaluation do not belong to it if others are in training."""
        has_training = any(call["is_training"] for call in self.calls)
        calls = [call for call in self.calls if call["is_training"] or not has_training]
        if os.environ.get("ATTNCHECK_LABELS"):
            rows = [list_rows({**call["tensors"], "learned": call.get("learned")}) for call in calls]
            with open(os.path.join(self.folder, f"calls-{describe_process()['rank']}.json"), "w") as stream:
                json.dump(rows, stream)
            return
        classes = getattr(getattr(self.trained, "config", None), "label2id", None) or {}
        CODE["classes"] = [str(sorted(classes.items(), key=str))]
        document = {
            "calls": calls,
            "losses": list(self.losses),
            "gradients": self.gradients or {},
            "backward": self.backward,
            "trainable": self.trainable,
            "weights": self.weights,
            "layers": self.attention.layers if self.attention is not None else [],
            "modules": self.modules.modules if self.modules is not None else [],
            "patches": list_patches(self.trained),
            "gradient_hooks": list_gradient_hooks(self.trained),
            "faults": self.faults,
            "adapters": describe_adapters(self.trained),
            "frozen": [name for name, value in self.trained.named_parameters() if not value.requires_grad],
            "leftover": self.leftover,
            "clips": self.clips,
            "updates": self.updates,
            "code": CODE,
            "tied": list_tied(self.trained),
            "frequencies": self.frequencies,
            "prefix": find_prefix(self.trained),
            **describe_process(),
        }
        self.written = {**document, "number": len(self.steps) + 1}
        self._save_written()

    def _save_written(self) -> None:
        import torch

        rank, number = self.written["rank"], self.written["number"]
        path = os.path.join(self.folder, f"rank-{rank}.pt" if number == 1 else f"later-{number}-{rank}.pt")
        torch.save(self.written, f"{path}.part")
        os.rename(f"{path}.part", path)

    @_guarded
    def end_step(self) -> None:
        """Record the losses of a completed step."""
        if not self.losses:
            return
        if self.calls and (self.is_recording or not self.steps):
            self._write_step()
        has_training = any(is_training for is_training, _ in self.rows)
        rows = [row for is_training, row in self.rows if is_training or not has_training]
        schedule = max(self.schedules.values(), key=len, default=[])
        step = {"losses": self.losses, "rows": rows, "rates": self.rates, "schedule": schedule}
        self.steps.append({**step, "planned": self.planned})
        self.losses, self.rows, self.passed, self.rates, self.schedules = [], [], [], [], {}
        self._begin_step()
        if not self.keeps_calls:
            self.randomness.restore()
            if self.losses_given is not None:
                self.losses_given.stop()
        self.questions.get(len(self.steps), int)()
        if len(self.steps) == int(os.environ.get("ATTNCHECK_LAST", 0)):
            hasten(self)
        self._write_steps()
        questions = os.environ.get("ATTNCHECK_JUDGING", "")
        if len(self.steps) == RECORDED_STEPS and os.path.exists(questions) and describe_process()["rank"] == 0:
            self._answer_questions(questions)

    @_guarded
    def _answer_questions(self, questions: str) -> None:
        """Let a copy of a model that the judge cannot make compute its reference here.

        Its class is the script's own, or its sizes are.
        """
        is_sharded = any(
            hasattr(value, "full_tensor") or hasattr(value, "ds_numel") for value in self.trained.parameters()
        )
        is_known = type(self.trained).__module__.startswith("transformers.")
        is_known = is_known and not any(self.trained is model for model in self.built)
        if is_sharded or is_flat(self.trained) or is_known:
            return
        self.is_paused = True
        try:
            answering = importlib.import_module("attncheck.rehearsal.worker.answering")
            if answering.answer_questions(questions, self.trained, self):
                note(self.folder, "class", type(self.trained).__name__)
        finally:
            self.is_paused = False

    @_guarded
    def end_process(self) -> None:
        """Record that losses were differentiated but no step was taken, unless an exception was the cause."""
        if self.steps:
            self._write_steps()  # with the logs after the last step
        if not self.losses or self.steps or hasattr(sys, "last_value"):
            return
        self._write_step()
        self._write_steps()

    def _write_steps(self) -> None:
        path = os.path.join(self.folder, f"steps-{describe_process()['rank']}.json")
        document = {"steps": self.steps, "unstepped": len(self.losses), "faults": self.faults, "logs": self.logs}
        document["drawn"] = self.drawn or []
        with open(f"{path}.part", "w") as stream:
            json.dump(document, stream)
        os.rename(f"{path}.part", path)


def _choose_parameters(model: Any) -> set[str] | None:
    """Return the names of the kept parameters: trained ones first, then the smallest, up to the limit."""
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


def _count_cached(cache: Any) -> int:
    """Return the number of tokens that a cache given to a model holds."""
    count = getattr(cache, "get_seq_length", None)
    return int(count()) if callable(count) else 0


def _has_trained_parameters(model: Any) -> bool:
    """Return whether a model is trained; a frozen reference model is not."""
    return any(parameter.requires_grad for parameter in model.parameters())


def _name_autocast() -> str:
    """Return the dtype to which operators are cast on the available device, "" outside autocast."""
    import torch

    kinds = [kind for kind in ("cuda", "cpu") if torch.is_autocast_enabled(kind)]
    return str(torch.get_autocast_dtype(kinds[0])) if kinds else ""


def _keep(tensor: Any) -> Any:
    """Return a copy of a tensor on the CPU, or only the shape of a very large one."""
    if tensor.numel() * tensor.element_size() > MAX_TENSOR_BYTES:
        return {"shape": tuple(tensor.shape)}
    return tensor.detach().to("cpu", copy=True)
