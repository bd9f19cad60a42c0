"""The reference of a step: the same weights in float32 with eager attention, one document at a time.

It does not depend on packing, padding, masks of several documents, a fused kernel or the framework's own loss.
"""

import copy
import inspect
import itertools
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.functional import cross_entropy

from attncheck.core.rehearsal import TokenLoss
from attncheck.smoke.worker.models.shrink import decoder_config

if TYPE_CHECKING:
    from attncheck.rehearsal.worker.multimodal import PictureBook
    from attncheck.rehearsal.worker.records import RankRecord

SOFTCAP = "attn_logit_softcapping"  # gemma2's, vaultgemma's (transformers 5.17.0 models/gemma2/modeling_gemma2.py:245)
PLAIN = TokenLoss()
HALVES = (torch.bfloat16, torch.float16)
SAME_FREQUENCIES = 1e-5  # relative
UNKNOWN_BASE = "compare it with the model's configuration, which is not available here"
UNREAD_CHANGE = (
    "was computed before the model's configuration was changed, and is not what that gives: the change, as of "
    "rope_parameters, has no effect on this training"
)
SAME_WEIGHTS = 0.01  # relative difference of a parameter that a cast to bfloat16 explains


@dataclass(frozen=True)
class DocumentTruth:
    """The model's results for one document in isolation."""

    hidden: Tensor  # (tokens, hidden size)
    log_probabilities: Tensor  # (tokens, vocabulary)
    token_loss: TokenLoss = PLAIN

    def nll(self, labels: Tensor) -> Tensor:
        """Return the loss of a label for each token (tokens,): −log p, unless the launch's options change it."""
        return compute_token_losses(self.log_probabilities, labels, self.token_loss)


def compute_token_losses(logits: Tensor, labels: Tensor, token_loss: TokenLoss) -> Tensor:
    """Return the loss of a label for each token (tokens,), from logits or log p (tokens, vocabulary)."""
    losses = cross_entropy(logits, labels, reduction="none", label_smoothing=token_loss.smoothing)
    return losses * (-losses.detach()).exp() if token_loss.by_probability else losses


class Parameters(torch.nn.Module):
    """The parameters of a model whose class only the job's own process has, and that computes nothing here."""

    def __init__(self, weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
        super().__init__()
        self.config, self.base_model = SimpleNamespace(**config), torch.nn.Module()
        own = {name: torch.nn.Parameter(weight, weight.is_floating_point()) for name, weight in weights.items()}
        self._parameters.update(own)  # with dots in their names

    def forward(self, **inputs: Any) -> None:
        """Raise an error, because the job's process did not answer the question."""
        raise NotImplementedError("only the job's own process has the class of its model")


def _remember(compute: Any) -> Any:
    """Let a model's method answer from its memory, if it has one, and keep its answers there."""

    def answer(self: "TruthModel", *arguments: Any, **options: Any) -> Any:
        if self.memory is None:
            return compute(self, *arguments, **options)
        given = [value.tolist() if isinstance(value, Tensor) else value for value in (*arguments, *options.items())]
        key = f"{compute.__name__} {given}"
        if key not in self.memory:
            self.memory[key] = compute(self, *arguments, **options)
        return self.memory[key]

    return answer


class TruthModel:
    """The model in a rehearsal's folder, in any dtype; `temperature` divides its logits.

    It may be another model, such as a job's own, whose answers are kept in `memory`. `used` is the class that the job
    loads from the folder, "" if unknown.
    """

    def __init__(
        self,
        folder: Path,
        dtype: torch.dtype = torch.float32,
        autocast: bool = False,
        temperature: float = 1.0,
        token_loss: TokenLoss = PLAIN,
        model: Any = None,
        memory: dict[str, Any] | None = None,
        used: str = "",
    ) -> None:
        self.memory = memory
        self.model: Any = model
        if model is None:
            self.model = _find_auto_class(folder, used).from_pretrained(
                folder, attn_implementation="eager", local_files_only=True, **{_dtype_keyword(): dtype}
            )
            self.model.train()
        self._keep_states()
        self.autocast, self.temperature, self.token_loss = autocast, temperature, token_loss
        self.pictures = read_pictures(folder.parent, self.model)
        self._hidden: Tensor | None = None
        self._truths: dict[tuple[int, ...], DocumentTruth] = {}
        self.is_resized = False  # whether a launch has other numbers of rows in embeddings

    def _keep_states(self) -> None:
        """Keep the hidden states of each call."""
        self.model.base_model.register_forward_hook(self._keep_hidden)
        head = getattr(self.model, "get_output_embeddings", lambda: None)()
        # OPTForCausalLM calls its decoder directly, not through its base model (5.17.0 modeling_opt.py)
        if head is not None:
            head.register_forward_pre_hook(self._keep_input)

    def with_temperature(self, temperature: float) -> "TruthModel":
        """Return the same model with another temperature."""
        other = copy.copy(self)
        other.temperature, other._truths = temperature, {}
        other._keep_states()
        return other

    def describe(self, tokens: Sequence[int]) -> DocumentTruth:
        """Return the reference of one piece of a document."""
        key = tuple(tokens)
        if key not in self._truths:
            hidden, logits = self._run(key)
            self._truths[key] = DocumentTruth(hidden, (logits / self.temperature).log_softmax(-1), self.token_loss)
        return self._truths[key]

    @_remember
    def hidden_of_row(
        self,
        row: Sequence[int],
        positions: Sequence[int],
        visible: Tensor,
        scale: float = 1,
        without_softcap: bool = False,
        convolved: Sequence[int] = (),
    ) -> Tensor:
        """Return a row's hidden states (tokens, hidden size) if token i attends to token j where `visible[i, j]`.

        Numbers instead of booleans are added to the scores. `scale` is a factor on the model's own scale of the scores.
        Convolutions restart at the tokens `convolved`.
        """
        self._hidden = None
        changes: dict[str, Callable[[float], float | None]] = {"scaling": lambda own: own * scale}
        if without_softcap:
            changes[SOFTCAP] = lambda cap: None
        with torch.no_grad(), self._context(), self._change_layers(changes), _convolve_apart((*convolved, len(row))):
            self.model(
                input_ids=torch.tensor([list(row)]),
                position_ids=torch.tensor([list(positions)]),
                attention_mask=self._make_masks(visible),
                use_cache=False,
                **self._add_pictures(row),
            )
        return self._take_hidden()

    def _make_masks(self, visible: Tensor) -> Any:
        """Return the mask with which a token attends to `visible` ones; a model with windows in some layers needs two.

        transformers 5.17 models/gpt_oss/modeling_gpt_oss.py (`causal_mask_mapping`): a dictionary is used unchanged.
        """
        config = decoder_config(self.model.config) if hasattr(self.model.config, "vision_config") else self.model.config
        window = getattr(config, "sliding_window", None)
        kinds = set(getattr(config, "layer_types", None) or ())
        full = self._make_mask(visible)
        if not window or "sliding_attention" not in kinds or visible.dtype != torch.bool:
            return full
        inside = torch.ones_like(visible).triu(1 - int(window))
        return {kind: self._make_mask(visible & inside) if kind == "sliding_attention" else full for kind in kinds}

    def _make_mask(self, visible: Tensor) -> Tensor:
        dtype = next(self.model.parameters()).dtype
        if visible.dtype != torch.bool:
            return visible.to(dtype)[None, None]
        return torch.zeros(visible.shape, dtype=dtype).masked_fill(~visible, torch.finfo(dtype).min)[None, None]

    @_remember
    def run_modules(self, tokens: Sequence[int]) -> dict[str, tuple[Tensor | None, list[Tensor]]]:
        """Return, for each module by name, its first input and its outputs, on one piece of a document."""
        seen: dict[str, tuple[Tensor | None, list[Tensor]]] = {}

        def keep(name: str) -> Callable[..., None]:
            def leave(module: Any, arguments: Any, options: Any, output: Any) -> None:
                given = next(_iter_tensors((*arguments, *options.values())), None)
                seen[name] = given, list(_iter_tensors((output,)))

            return leave

        handles = [
            module.register_forward_hook(keep(name), with_kwargs=True)
            for name, module in self.model.named_modules()
            if name
        ]
        try:
            with torch.no_grad(), self._context():
                self._compute_logits(torch.tensor([list(tokens)]))
        finally:
            for handle in handles:
                handle.remove()
        return seen

    @_remember
    def gradients(self, tokens: Sequence[int], labels: Tensor, weights: Tensor) -> dict[str, Tensor]:
        """Return the gradients of Σ weight × −log p(label) over the tokens of a document: labels and weights (tokens,).

        Parameters without influence on the sum are left out.
        """
        return self.differentiate(tokens, weights, lambda own: compute_token_losses(own, labels, self.token_loss))[1]

    def differentiate(
        self, tokens: Sequence[int], weights: Tensor, function: Callable[[Tensor], Tensor]
    ) -> tuple[float, dict[str, Tensor]]:
        """Return Σ weight × a function of the logits (tokens, vocabulary) of each token, and its gradients."""
        self.model.zero_grad(set_to_none=True)
        if not any(parameter.requires_grad for parameter in self.model.parameters()):
            return 0.0, {}
        with self._context():
            logits = self._compute_logits(torch.tensor([list(tokens)]))
        value = (function(logits / self.temperature) * weights).sum()
        value.backward()
        gradients = {
            name: parameter.grad.detach().float()
            for name, parameter in self.model.named_parameters()
            if parameter.grad is not None
        }
        self.model.zero_grad(set_to_none=True)
        return float(value.detach()), gradients

    def watch_gradients(self, names: Collection[str]) -> None:
        """Compute only the gradients of these parameters from now on: those of a whole model double its memory."""
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(name in names)

    @_remember
    def _run(self, tokens: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Return the hidden states (tokens, hidden size) and logits (tokens, vocabulary) of a document."""
        self._hidden = None
        with torch.no_grad(), self._context():
            logits = self._compute_logits(torch.tensor([tokens]))
        return self._take_hidden(), logits

    def _compute_logits(self, input_ids: Tensor, documents: Sequence[int] | None = None) -> Tensor:
        """Return the logits (tokens, vocabulary) of a document in isolation, with a mask that hides no token of it.

        Without a mask eager attention is not causal in moshi: transformers 5.17.0 models/moshi/modeling_moshi.py:855.
        """
        options = {"attention_mask": torch.ones_like(input_ids), "use_cache": False}
        known = inspect.signature(self.model.forward).parameters  # a script's class may not have them
        options = {name: value for name, value in options.items() if self.memory is None or name in known}
        pictures = self._add_pictures(input_ids[0].tolist(), documents)
        logits: Tensor = self.model(input_ids=input_ids, **options, **pictures).logits[0]
        return logits.float()

    def _add_pictures(self, tokens: Sequence[int], documents: Sequence[int] | None = None) -> dict[str, Tensor]:
        """Return the model's inputs for a row's images: those of its documents, or of others."""
        if self.pictures is None:
            return {}
        dtype = next(self.model.parameters()).dtype
        inputs = self.pictures.make_inputs(tokens, documents)
        return {name: value.to(dtype) if value.is_floating_point() else value for name, value in inputs.items()}

    @_remember
    def hidden_with_pictures(self, tokens: Sequence[int], documents: Sequence[int]) -> Tensor:
        """Return the hidden states (tokens, hidden size) of a document with the images of others."""
        self._hidden = None
        with torch.no_grad(), self._context():
            self._compute_logits(torch.tensor([list(tokens)]), documents)
        return self._take_hidden()

    def _take_hidden(self) -> Tensor:
        if self._hidden is None:
            raise ValueError(f"{type(self.model).__name__} does not return its last hidden states")
        return self._hidden

    def _keep_hidden(self, decoder: Any, arguments: Any, output: Any) -> None:
        hidden = output[0] if isinstance(output, (tuple, list)) else getattr(output, "last_hidden_state", None)
        # otherwise it is the model itself, as Llama4ForCausalLM's base_model, and its head's input is used
        if hidden is not None:
            self._hidden = hidden[0].detach().float()

    def _keep_input(self, head: Any, arguments: Any) -> None:
        if self._hidden is None:
            self._hidden = arguments[0][0].detach().float()

    @property
    def has_recurrence(self) -> bool:
        """Whether some layers are convolutions, linear attention or state spaces."""
        kinds = getattr(getattr(self.model.config, "text_config", self.model.config), "layer_types", None) or ()
        return "linear_attention" in kinds or any(isinstance(m, torch.nn.Conv1d) for m in self.model.modules())

    @property
    def scaling(self) -> float:
        """The factor on the scores of its first attention layer, 1.0 if no layer has one."""
        scales = (getattr(module, "scaling", None) for module in self.model.modules())
        return next((scale for scale in scales if isinstance(scale, float)), 1.0)

    @property
    def has_softcap(self) -> bool:
        """Whether its layers cap their scores."""
        return any(isinstance(getattr(module, SOFTCAP, None), float) for module in self.model.modules())

    @contextmanager
    def _change_layers(self, changes: Mapping[str, Callable[[float], float | None]]) -> Iterator[None]:
        """Change numbers in attention layers while the context is open (transformers 4.48 and later: `scaling`)."""
        originals = [
            (module, name, value)
            for module in self.model.modules()
            for name in changes
            if isinstance(value := getattr(module, name, None), float)
        ]
        for module, name, value in originals:
            setattr(module, name, changes[name](value))
        try:
            yield
        finally:
            for module, name, value in originals:
                setattr(module, name, value)

    def rate(self, name: str) -> float:
        """Return the rate of a dropout, by its module or by a number in a module; 0.0 if it has none."""
        module, _, attribute = name.rpartition(".")
        modules = dict(self.model.named_modules())
        held = modules.get(name), "p"
        if held[0] is None:
            held = modules.get(module), attribute
        return float(getattr(*held, 0.0))

    def begin(
        self, record: "RankRecord", weights: Mapping[str, Tensor], tolerance: float, is_guessed: bool
    ) -> "TruthModel":
        """Take the `weights` with which a rank begins a step, and its frequencies; return the model."""
        self.tie(record.tied, weights)
        self.changed = self.load(weights, tolerance if self.memory is None else 0.0)
        self.frequencies = self.compare_frequencies(record.frequencies, is_guessed)
        return self

    def can_load(self, weights: Mapping[str, Tensor]) -> bool:
        """Return whether these are all of its weights, complete."""
        shapes = {name: weight.shape for name, weight in weights.items()}
        return all(shapes.get(name) == parameter.shape for name, parameter in self.model.named_parameters())

    def tie(self, tied: Mapping[str, str], weights: Collection[str]) -> None:
        """Share the parameters that a job's model shares, `tied` to others, and no others of its `weights`."""
        every = dict(self.model.named_parameters(remove_duplicate=False))
        own = dict(self.model.named_parameters())
        for name in every.keys() & {*tied, *weights} - own.keys() - tied.keys():
            every[name] = torch.nn.Parameter(every[name].detach().clone(), every[name].requires_grad)
        for name in every.keys() & {*tied, *weights} if self.memory is None else ():  # a job's own is as it shares
            module, _, attribute = name.rpartition(".")
            setattr(self.model.get_submodule(module), attribute, every.get(tied.get(name, name), every[name]))

    def load(self, weights: Mapping[str, Tensor], tolerance: float = SAME_WEIGHTS) -> list[str]:
        """Load a job's initial weights if they differ from the folder's; return the names of those that differ.

        Embeddings get the rows of tokens that a launch adds, and lose those that it cuts off; whole parts are a rank's.
        """
        changed = []
        getters = ("get_input_embeddings", "get_output_embeddings") if self.memory is None else ()  # not of a job's
        embeddings = [getattr(self.model, name)() for name in getters]
        resizable = {id(parameter) for module in embeddings if module is not None for parameter in module.parameters()}
        for name, parameter in self.model.named_parameters():
            own = weights.get(name)
            is_alike = own is not None and id(parameter) in resizable and own.shape[1:] == parameter.shape[1:]
            if own is not None and is_alike and len(own) and len(parameter) % len(own):
                decoder_config(self.model.config).vocab_size = len(own)
                self.is_resized = True
                parameter.data = torch.cat((parameter.data[: len(own)], own[len(parameter) :].to(parameter)))
            if own is None or own.shape != parameter.shape:
                continue
            difference = float((own.float() - parameter.detach().float()).norm())
            if difference > tolerance * float(parameter.detach().float().norm()):
                parameter.data.copy_(own)
                changed.append(name)
        return changed

    def compare_frequencies(self, frequencies: Mapping[str, Tensor], is_guessed: bool) -> list[str]:
        """Return how a job's rotary frequencies differ from the configuration's.

        They are taken if that is only guessed, or if the job's own configuration gives them.
        """
        texts = []
        for name, own in frequencies.items():
            right, again = dict(self.model.named_buffers()).get(name), frequencies.get(f"{name}*")
            if right is None or own.shape != right.shape:
                continue
            is_configured = again is not None and torch.allclose(own.float(), again.float(), SAME_FREQUENCIES)
            if torch.allclose(own.float(), right.float(), SAME_FREQUENCIES):
                texts += [f"{name} {UNREAD_CHANGE}"] * (again is not None and not is_configured)
                continue
            kind = next((kind for kind in HALVES if torch.equal(own.float(), right.to(kind).float())), None)
            if kind is not None:
                texts.append(f"{name} is rounded to {kind}, as by model.to({kind}), so positions are inexact")
            elif is_configured or is_guessed:  # by the configuration as the job changes it, such as to scale positions
                right.copy_(own)
                path, _, factor = f"{name.removesuffix('inv_freq')}attention_scaling".rpartition(".")
                setattr(self.model.get_submodule(path), factor, float(frequencies.get(f"{path}.{factor}*", 1.0)))
                least = float(own.flatten()[-1].double().clamp_min(1e-30))  # some kinds of frequencies end with zeros
                base = least ** (-len(own) / max(len(own) - 1, 1))
                if not is_configured:
                    texts.append(f"{name} is not the configuration's; its rotary base is {base:.6g}: {UNKNOWN_BASE}")
        return texts

    def _context(self) -> Any:
        return torch.autocast("cpu", torch.bfloat16) if self.autocast else nullcontext()


def read_pictures(folder: Path, model: Any) -> "PictureBook | None":
    """Return the images of a rehearsal's documents, None if they contain only text."""
    from attncheck.rehearsal.worker import multimodal, segments

    if not (folder / multimodal.FOLDER).exists():
        return None
    documents = segments.read_documents(json.loads((folder / "documents.json").read_text()))
    index = segments.DocumentIndex(documents, placeholders=multimodal.read_placeholders(folder))
    return multimodal.PictureBook(folder, index, model)


def _iter_tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor) and value.is_floating_point():
            yield value.float()
        elif isinstance(value, (tuple, list)):
            yield from _iter_tensors(value)


def _find_auto_class(folder: Path, used: str) -> Any:
    """Return transformers' automatic class for a folder's model: of text and images if it was saved as that.

    Some types have separate classes: qwen3_5's text class, which a job may have `used`, loads the other's weights too.
    """
    import transformers

    # Qwen2-VL's configuration in transformers 4.52 to 4.57 answers with its text part's type and class
    document = json.loads((folder / "config.json").read_text())
    classes, kind = transformers.models.auto.modeling_auto, document["model_type"]
    multimodal = getattr(classes, "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES", {}).get(kind)
    is_text = used.rpartition(".")[2] == classes.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(kind)
    is_multimodal = multimodal in (document.get("architectures") or ()) and not is_text
    return transformers.AutoModelForImageTextToText if is_multimodal else transformers.AutoModelForCausalLM


def _dtype_keyword() -> str:
    """Return this transformers release's argument name for the weights' dtype: `torch_dtype` before 4.56."""
    import transformers
    from packaging.version import Version

    return "dtype" if Version(transformers.__version__) >= Version("4.56") else "torch_dtype"


def token_errors(actual: Tensor, expected: Tensor) -> Tensor:
    """Return the relative error of each token's hidden state (tokens,)."""
    norm = expected.double().norm(dim=-1).clamp_min(1e-12)
    errors: Tensor = (actual.double() - expected.double()).norm(dim=-1) / norm
    return errors.nan_to_num(1e30)


@contextmanager
def _convolve_apart(borders: Sequence[int]) -> Iterator[None]:
    """Let causal convolutions over a whole row restart at each of these tokens, the last of which ends the row."""
    original = functional.conv1d

    def conv1d(row: Tensor, *arguments: Any, **options: Any) -> Tensor:
        if len(borders) < 2 or row.shape[-1] != borders[-1]:
            return original(row, *arguments, **options)
        spans = itertools.pairwise(borders)
        return torch.cat([original(row[..., a:b], *arguments, **options)[..., : b - a] for a, b in spans], -1)

    functional.conv1d = conv1d  # type: ignore[assignment]
    try:
        yield
    finally:
        functional.conv1d = original
