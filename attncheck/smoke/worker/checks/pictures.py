"""Checks, with the job's own class, whether images and text in one batch equal each document in isolation.

The class in the configuration is built with a small tower. Its documents are text and images; some have none. Padded
and packed rows are compared with each document in isolation (float32, eager): logits, loss, gradients, and the
gradients of the layers that make an image's features. A bidirectional mask inside an image is tested by changing one
of the image's tokens inside the decoder: its other tokens must change, and none before it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from attncheck.attention.device import describe_exception
from attncheck.core.results.smoke import CheckResult, Measure
from attncheck.smoke.worker.data.language import LANGUAGE_VOCABULARY, Language
from attncheck.smoke.worker.data.packing import IGNORE_INDEX, Batch
from attncheck.smoke.worker.data.pictures import (
    DOCUMENTS,
    UNSUPPORTED_ERRORS,
    Document,
    PictureBatches,
    PictureMaker,
    TokenTypes,
    find_token_types,
)
from attncheck.smoke.worker.models import towers
from attncheck.smoke.worker.models.architectures import Unbuildable
from attncheck.smoke.worker.models.shrink import decoder_config, read_full_config, select_buildable_config
from attncheck.smoke.worker.testbed import (
    DTYPES,
    HALF_PRECISION_ONLY,
    ROUNDING_MULTIPLE,
    TINY,
    Gradients,
    ModelRun,
    Testbed,
    collect_gradients,
    collect_run,
    gradient_error,
    measure_errors,
    relative_error,
    scale_fp32_limits,
    summed_loss,
    worst_parameter,
)

VOCABULARY_SIZE = LANGUAGE_VOCABULARY + towers.EXTRA_TOKENS + 8
PROBE_SCALE = 10.0  # size of the change of a token inside the decoder, relative to the states
UNSEEN = 1e-6  # relative change of logits of a token that does not attend to the changed one


def run(testbed: Testbed) -> CheckResult:
    """Compare batches of text and images with each document in isolation.

    The result is "skipped" without a reason for a text model.
    """
    if testbed.source.weights or not towers.is_multimodal(testbed.source):
        return CheckResult("pictures", "skipped")
    try:
        bed = PictureBed(testbed)
    except Unbuildable as error:
        return CheckResult("pictures", "skipped", f"not asked: {error}")
    measures = [*bed.compare(f"{testbed.plan.padding_side} padding", bed.make_padded(bed.documents))]
    measures += bed.compare_own_loss()
    violations = [*bed.find_broken_paths(), *bed.find_wrong_masks()]
    unasked = ""
    if testbed.plan.packed:
        packed, unasked = bed.compare_packed()
        measures += packed
    if unasked and not violations and not any(measure.beyond for measure in measures):
        return CheckResult("pictures", "skipped", unasked, tuple(measures), notes=tuple(bed.notes))
    warnings = [*bed.find_warnings()]  # which adds notes
    return CheckResult(
        "pictures",
        measures=tuple(measures),
        violations=tuple(violations),
        warnings=tuple(warnings),
        notes=tuple(bed.notes),
    )


class PictureBed:
    """The job's class with a small tower, documents of text and images, and their results in isolation."""

    def __init__(self, testbed: Testbed) -> None:
        self.plan, self.device = testbed.plan, testbed.device
        self.source = replace(testbed.source, vocabulary_size=VOCABULARY_SIZE)
        is_half = bool(HALF_PRECISION_ONLY.search(self.plan.attn_implementation))
        self.dtype = DTYPES[self.plan.precision] if is_half else torch.float32
        self.maker = PictureMaker(towers.build_multimodal_model(self.source, "eager", self.plan.max_length, 0))
        self.types = self._find_types()
        self.batches = PictureBatches(self.maker, self.types, self.source.pad_token_id)
        language = Language(self.plan.seed)
        try:
            self.documents = [
                self.maker.make_document(pieces, language, seed) for seed, pieces in enumerate(DOCUMENTS, 1)
            ]
            self.reference = self.run_alone(self.build_model("eager", torch.float32), torch.float32)
        except UNSUPPORTED_ERRORS as error:
            name = type(self.maker.model).__name__
            raise Unbuildable(f"{name} does not run on the synthetic images: {describe_exception(error)}") from None

    def build_model(self, implementation: str | None = None, dtype: torch.dtype | None = None) -> Any:
        """Return a new model of the job's class, by default in the plan's implementation; weights are always equal."""
        name = self.plan.attn_implementation if implementation is None else implementation
        model = towers.build_multimodal_model(self.source, name, self.plan.max_length, self.plan.seed)
        return model.to(self.device).to(dtype or self.dtype)

    @cached_property
    def model(self) -> Any:
        """The model in the plan's implementation."""
        return self.build_model()

    @cached_property
    def notes(self) -> list[str]:
        """Remarks that are reported with the verdict."""
        notes = [f"{type(self.maker.model).__name__}, with a tower of {towers.TOWER_LAYERS} layers"]
        text_config = select_buildable_config(read_full_config(self.source))
        if type(text_config) is not type(self.maker.config):
            notes.append(f"the other checks train only its text part, a {text_config.model_type}")
        if self.batches.has_rope_index and self.plan.packed and self.plan.positions == "reset":
            notes.append("packed rows have positions of shape (4, batch, seqlen), as get_rope_index computes them")
        return notes

    def make_padded(self, documents: Sequence[Document]) -> Batch:
        """Return documents as padded rows."""
        return self.batches.make_padded(documents, self.plan.padding_side)

    def move(self, inputs: Mapping[str, Any], dtype: torch.dtype | None = None) -> dict[str, Any]:
        """Return a model's inputs on the device, with the floating-point ones in a precision."""
        return {
            name: value.to(self.device, dtype or self.dtype if value.is_floating_point() else value.dtype)
            if isinstance(value, Tensor)
            else value
            for name, value in inputs.items()
        }

    def call(self, model: Any, inputs: Mapping[str, Any], dtype: torch.dtype | None = None) -> Any:
        """Return a model's output on a batch's inputs."""
        return model(**self.move(inputs, dtype))

    def run_batch(self, batch: Batch, model: Any = None) -> ModelRun:
        """Return the results of a batch, forward and backward."""
        model = model or self.model
        moved = Batch(batch.inputs, batch.labels.to(self.device), batch.spans)
        return collect_run(model, self.call(model, batch.inputs).logits, moved)

    def run_alone(self, model: Any, dtype: torch.dtype, documents: Sequence[Document] = ()) -> ModelRun:
        """Return the results of documents one at a time, forward and backward; the loss is the mean over all tokens."""
        batches = [self.batches.make_padded([document], "right") for document in documents or self.documents]
        total = sum(batch.predicted_tokens for batch in batches)
        logits, losses = [], []
        model.zero_grad(set_to_none=True)
        for batch in batches:
            output = self.call(model, batch.inputs, dtype).logits
            loss = summed_loss(output[0], batch.labels[0].to(self.device))
            (loss / total).backward()
            losses.append(float(loss.detach()) / total)
            logits.append(output[0].detach().float())
        return ModelRun(tuple(logits), sum(losses), collect_gradients(model))

    @cached_property
    def limits(self) -> tuple[float, float]:
        """The largest allowed relative errors of logits and gradients: see `Testbed.error_limits`."""
        coarse_dtype = torch.bfloat16 if self.dtype is torch.float32 else self.dtype
        coarse = self.run_alone(self.build_model("eager", coarse_dtype), coarse_dtype)
        errors = measure_errors(coarse, self.reference)
        if self.dtype is not torch.float32:
            return ROUNDING_MULTIPLE * errors[0], ROUNDING_MULTIPLE * errors[1]
        return scale_fp32_limits(errors)

    def compare(self, title: str, batch: Batch, expected: ModelRun | None = None) -> Iterator[Measure]:
        """Yield the differences of a batch's logits, loss and gradients from those of its documents in isolation."""
        actual, expected = self.run_batch(batch), expected or self.reference
        errors = [relative_error([a], [e]) for a, e in zip(actual.logits, expected.logits, strict=True)]
        worst = max(range(len(errors)), key=lambda index: errors[index])
        where = f"worst in document {worst}"
        yield Measure(f"logits, {title}", relative_error(actual.logits, expected.logits), self.limits[0], where)
        error = abs(actual.loss - expected.loss) / max(abs(expected.loss), TINY)
        yield Measure(f"loss, {title}", error, self.limits[0])
        yield from self._compare_gradients(title, actual.gradients, expected.gradients)

    def _compare_gradients(self, title: str, actual: Gradients, expected: Gradients) -> Iterator[Measure]:
        tower = {name: gradient for name, gradient in expected.items() if name in self.picture_parameters}
        for part, wanted in (("gradients", expected), ("the tower's gradients", tower)):
            if wanted:
                where = f"worst in {worst_parameter(actual, wanted)}"
                yield Measure(f"{part}, {title}", gradient_error(actual, wanted), self.limits[1], where)

    def compare_packed(self) -> tuple[list[Measure], str]:
        """Return the measures of packed rows, or why they are not checked."""
        texts = [document for document in self.documents if not document.pictures]
        try:
            alone = self.run_alone(self.build_model("eager", torch.float32), torch.float32, texts)
            text_measures = [*self.compare("packed", self.batches.make_packed([texts], self.plan, self.dtype), alone)]
            if any(measure.beyond for measure in text_measures):
                return [], "not checked for packed rows: rows of text already differ, see isolation"
            packed = self.batches.make_packed([self.documents], self.plan, self.dtype)
            return [*self.compare("packed", packed)], ""
        except UNSUPPORTED_ERRORS as error:
            return [], f"not checked for packed rows, which the class refuses: {describe_exception(error)}"

    def compare_own_loss(self) -> Iterator[Measure]:
        """Yield the difference of the class's own loss from the mean over its documents."""
        batch = self.make_padded(self.documents)
        labels = torch.full_like(batch.labels, IGNORE_INDEX)
        labels[:, 1:] = batch.labels[:, :-1]
        with torch.no_grad():
            loss = getattr(self.call(self.model, {**batch.inputs, "labels": labels}), "loss", None)
        if loss is None:
            self.notes.append("the class computes no loss")
            return
        error = abs(float(loss) - self.reference.loss) / max(abs(self.reference.loss), TINY)
        yield Measure("loss, computed by the class", error, self.limits[0])

    # The path of gradients through the tower.

    @cached_property
    def picture_parameters(self) -> tuple[str, ...]:
        """The names of the parameters that an image passes through, in the order of the layers."""
        picture = next(document.pictures for document in self.documents if document.pictures)
        with watch_parameters(self.model) as names, torch.no_grad():
            self.maker.run_features(self.move(picture), self.model)
        return tuple(names)

    def find_broken_paths(self) -> Iterator[str]:
        """Yield a line if the first layer of an image's path gets no gradient from the loss."""
        gradients = self.run_batch(self.make_padded(self.documents)).gradients
        parameters = dict(self.model.named_parameters())
        trained = [name for name in self.picture_parameters if parameters[name].requires_grad]
        if not trained:
            self.notes.append("the class does not train its vision tower")
            return
        for name in trained[:1]:
            if name not in gradients or not float(gradients[name].abs().sum()):
                yield f"{name}, the first layer that processes an image, gets no gradient from the loss"
        infinite = [name for name, gradient in gradients.items() if not bool(torch.isfinite(gradient).all())]
        if infinite:
            yield f"the gradient of {infinite[0]} is not finite in a batch of rows with and without images"

    def find_warnings(self) -> Iterator[str]:
        """Yield a line if the class refuses a batch without images; add a note if the tower then has no gradient."""
        texts = [document for document in self.documents if not document.pictures]
        batch = self.make_padded(texts)
        plain = {name: value for name, value in batch.inputs.items() if name != self.types.name}
        try:
            self.call(self.model, plain)
        except UNSUPPORTED_ERRORS as error:
            yield f"a batch of text without {self.types.name or 'images'} raises {describe_exception(error)}"
        gradients = self.run_batch(batch).gradients
        if not any(name in gradients for name in self.picture_parameters):
            self.notes.append(
                "a batch without images gives the tower no gradient: if only some ranks' batches have images, DDP and "
                "ZeRO may wait forever"
            )

    # The mask.

    def _find_types(self) -> TokenTypes:
        """Return the token types with which an image's tokens attend to each other in both directions.

        The types are unchanged if the class has no such attention.
        """
        types = find_token_types(self.maker.forward_names)
        if types.name != "token_type_ids":
            return types
        for candidate in (types, TokenTypes(types.name, text=1, picture=0)):
            if self._sees_both_ways(self.maker, candidate):
                return candidate
        return types

    def _sees_both_ways(self, maker: PictureMaker, types: TokenTypes) -> bool:
        document = maker.make_document(("P", 4), Language(0), 1)
        first, last = _first_and_last(document)
        if first == last:
            return True
        batch = PictureBatches(maker, types, self.source.pad_token_id).make_padded([document], "right")
        model = maker.model
        return bool(probe(model, lambda: model(**batch.inputs).logits[0], last)[first] > UNSEEN)

    def find_wrong_masks(self) -> Iterator[str]:
        """Yield a line if an image's tokens do not attend to each other although their types require it.

        Also yield a line if they attend to later tokens.
        """
        document = next(document for document in self.documents if document.pictures)
        inputs = self.make_padded([document]).inputs
        first, last = _first_and_last(document)
        with torch.no_grad():
            try:
                changes = probe(self.model, lambda: self.call(self.model, inputs).logits[0], last)
                after = probe(self.model, lambda: self.call(self.model, inputs).logits[0], last + 1)
            except LookupError as error:
                self.notes.append(f"its mask was not probed: {error}")
                return
        if self.types.name == "token_type_ids" and first < last and changes[first] <= UNSEEN:
            yield (
                "the mask is causal inside an image: its first token does not attend to its last, "
                "although the class takes token_type_ids"
            )
        for change, what in (
            (float(changes[:first].max()), "text attends to a later image"),
            (float(after[: last + 1].max()), "an image attends to later text"),
        ):
            if change > UNSEEN:
                yield f"the mask is not causal: {what}; its logits change by {change:.2g}"


def _first_and_last(document: Document) -> tuple[int, int]:
    """Return the first and the last token of a document's first image."""
    places = document.is_picture.long()
    first = int(places.argmax())
    return first, first + int(places[first:].cumprod(0).sum()) - 1


@contextmanager
def watch_parameters(model: nn.Module) -> Iterator[list[str]]:
    """Collect the names of the parameters of modules that run while the context is open, in that order."""
    names: list[str] = []
    handles = []
    for path, module in model.named_modules():
        own = [f"{path}.{name}" for name, _ in module.named_parameters(recurse=False)]
        if own:
            handles.append(module.register_forward_hook(lambda *_, own=own: names.extend(own)))
    try:
        yield names
    finally:
        for handle in handles:
            handle.remove()


def probe(model: Any, run: Any, position: int) -> Tensor:
    """Return the relative change (seqlen,) of each token's logits if the state of one token is changed.

    `run` returns logits (seqlen, vocabulary); the change is made before the decoder's first layer. Raises LookupError
    if that layer is not found.
    """
    layer = find_first_layer(model)

    def change(module: nn.Module, args: Any, kwargs: Any) -> Any:
        states = args[0] if args else kwargs["hidden_states"]
        changed = states.clone()
        noise = torch.randn(states.shape[-1], generator=torch.Generator().manual_seed(0)).to(states)
        changed[..., position, :] += PROBE_SCALE * states.float().std().to(states) * noise
        return ((changed, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": changed})

    before = run().detach().float()
    handle = layer.register_forward_pre_hook(change, with_kwargs=True)
    try:
        after = run().detach().float()
    finally:
        handle.remove()
    changes: Tensor = (after - before).norm(dim=-1) / before.norm(dim=-1).clamp(min=TINY)
    return changes


def find_first_layer(model: Any) -> nn.Module:
    """Return the first layer of a multimodal model's decoder. Raises LookupError if it is not found."""
    count = decoder_config(model.config).num_hidden_layers
    for path, module in model.named_modules():
        is_tower = any(word in path for word in ("vision", "visual", "tower", "audio"))
        if isinstance(module, nn.ModuleList) and len(module) == count and not is_tower and path.endswith("layers"):
            return module[0]
    raise LookupError(f"no list of {count} decoder layers was found")
