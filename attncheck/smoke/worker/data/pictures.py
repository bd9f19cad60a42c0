"""Documents of text and images, and a multimodal model's input tensors for them.

An image is random pixels, the same for the same seed. Its tensors follow from the parameters of `get_image_features`:
patches with their grid, or whole images, with their sizes if the class needs them. The first of several shapes for
which the class computes features is used. The number of an image's tokens is the number of those features.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attncheck.core.plan import Plan
from attncheck.smoke.worker.data import packing
from attncheck.smoke.worker.data.language import Language
from attncheck.smoke.worker.data.packing import IGNORE_INDEX, Batch
from attncheck.smoke.worker.models.architectures import Unbuildable
from attncheck.smoke.worker.models.fitting import describe_error
from attncheck.smoke.worker.models.towers import PATCHES, image_token, patch_side, picture_side

# Pieces of the checks' documents: numbers are text tokens, P an image, Q one of another size if the class supports it.
DOCUMENTS: tuple[tuple[int | str, ...], ...] = (
    (5, "P", 9),
    (12,),
    (3, "Q", 4, "P", 6),
    (8,),
    (2, "P", 11),
)
UNSUPPORTED_ERRORS = (ValueError, RuntimeError, NotImplementedError, TypeError, KeyError, IndexError, AttributeError)


@dataclass(frozen=True)
class Document:
    """Tokens (seqlen,), a mask of image tokens (bool), and the tensors of its images, one after another."""

    tokens: Tensor
    is_picture: Tensor
    pictures: Mapping[str, Tensor]

    @property
    def labels(self) -> Tensor:
        """The target of each token: the next one of its document if that is text, otherwise IGNORE_INDEX."""
        return packing.next_token_labels(self.tokens.masked_fill(self.is_picture, IGNORE_INDEX))


class PictureMaker:
    """Makes images and documents for one model, in the form that its class accepts. Raises `Unbuildable`."""

    def __init__(self, model: Any) -> None:
        self.model, self.config = model, model.config
        self.token = image_token(self.config)
        self.forward_names = _parameters(model.forward)
        self._features = find_method(model, "get_image_features")
        if self._features is None:
            raise Unbuildable(f"{type(model).__name__} has no get_image_features, which attncheck needs to make images")
        self._shapes = self._find_shapes()

    def make_picture(self, seed: int, is_wide: bool = False) -> dict[str, Tensor]:
        """Return the tensors of one image; a wide one has twice as many patches, if the class accepts any grid."""
        pixels = torch.Generator().manual_seed(seed)
        picture = self._shapes(1 + is_wide)
        return {
            name: torch.randn(value.shape, generator=pixels) if name == "pixel_values" else value
            for name, value in picture.items()
        }

    def count_tokens(self, picture: Mapping[str, Tensor]) -> int:
        """Return the number of features that the class computes for an image."""
        return int(self.run_features(picture).shape[0])

    def run_features(self, picture: Mapping[str, Tensor], model: Any = None) -> Tensor:
        """Return the features of an image (tokens, hidden size), from another model of the class if one is given."""
        get_features = find_method(model, "get_image_features") if model is not None else self._features
        inputs: dict[str, Any] = dict(picture)
        for parameter in inspect.signature(self._features).parameters.values():
            if parameter.default is parameter.empty and hasattr(self.config, parameter.name):
                inputs.setdefault(parameter.name, getattr(self.config, parameter.name))
        features = get_features(**inputs)
        features = getattr(features, "pooler_output", features)
        if isinstance(features, (list, tuple)):
            features = torch.cat([part.reshape(-1, part.shape[-1]) for part in features])
        rows: Tensor = features.reshape(-1, features.shape[-1])
        return rows

    def make_document(self, pieces: Sequence[int | str], language: Language, seed: int) -> Document:
        """Return the document of these pieces."""
        tokens, is_picture, pictures = [], [], []
        for index, piece in enumerate(pieces):
            if isinstance(piece, int):
                tokens.append(language.next_document(piece))
            else:
                pictures.append(self.make_picture(seed * 100 + index, piece == "Q"))
                tokens.append(torch.full((self.count_tokens(pictures[-1]),), self.token))
            is_picture.append(torch.full((len(tokens[-1]),), not isinstance(piece, int)))
        return Document(torch.cat(tokens), torch.cat(is_picture), join_pictures(pictures))

    def _find_shapes(self) -> Any:
        reasons: list[str] = []
        for make in _iter_shapes(self.config, {*_parameters(self._features), *self.forward_names}):
            try:
                with torch.no_grad():
                    features = self.run_features(make(1))
            except UNSUPPORTED_ERRORS as error:
                reasons.append(describe_error(error))
                continue
            if features.is_floating_point() and len(features):
                return make
            reasons.append("its features are not numbers")
        raise Unbuildable(f"no image could be made that {type(self.model).__name__} accepts: {'; '.join(reasons)}")


def _parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def find_method(model: Any, name: str) -> Any:
    """Return a method of a model, or of the headless model inside it; None if neither has it."""
    return getattr(model, name, getattr(getattr(model, "model", None), name, None))


def _iter_shapes(config: Any, names: set[str]) -> Iterator[Any]:
    """Yield functions that return an image's tensors, `times` as wide if the class accepts images of any size."""
    tower = config.vision_config
    patch, channels = patch_side(tower) or 14, 3
    side = picture_side(tower) or PATCHES * patch
    frames = int(getattr(tower, "temporal_patch_size", 1) or 1)

    def grid(times: int) -> tuple[int, int]:
        return PATCHES // 2, PATCHES // 2 * times

    def whole(*tiles: int, has_size: bool = False) -> Any:
        pixels = torch.ones(*tiles, channels, side, side)
        sizes = {"image_sizes": torch.tensor([[side, side]])} if has_size else {}
        return lambda times: {"pixel_values": pixels, **sizes}

    if "image_grid_thw" in names:
        for shape in ((channels * frames * patch**2,), (channels, patch, patch)):
            yield lambda times, shape=shape: {
                "pixel_values": torch.ones(grid(times)[0] * grid(times)[1], *shape),
                "image_grid_thw": torch.tensor([[1, *grid(times)]]),
            }
    elif "spatial_shapes" in names:
        yield lambda times: {
            "pixel_values": torch.ones(1, 2 * grid(1)[0] * grid(1)[1], channels * patch**2),
            "spatial_shapes": torch.tensor([grid(times)]),
            "pixel_attention_mask": (torch.arange(2 * grid(1)[0] * grid(1)[1]) < grid(times)[0] * grid(times)[1])[None],
        }
    elif "image_position_ids" in names:
        cells = torch.cartesian_prod(torch.arange(PATCHES), torch.arange(PATCHES)).flip(-1)[None]
        yield lambda times: {
            "pixel_values": torch.ones(1, PATCHES**2, channels * patch**2),
            "image_position_ids": cells,
        }
    elif "image_sizes" in names and getattr(config, "image_grid_pinpoints", None):
        yield whole(1, 2, has_size=True)
    else:
        yield whole(1)
        if "image_sizes" in names:
            yield whole(1, has_size=True)
        yield whole(1, 1)


def join_pictures(pictures: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the tensors of several images, one after another."""
    names = pictures[0] if pictures else ()
    return {name: torch.cat([picture[name] for picture in pictures]) for name in names}


@dataclass(frozen=True)
class TokenTypes:
    """The class's name for token types ("" if it has none), and its types of text and of image tokens."""

    name: str
    text: int = 0
    picture: int = 1


def find_token_types(names: Sequence[str]) -> TokenTypes:
    """Return the token types of a class's forward."""
    return TokenTypes(next((name for name in ("mm_token_type_ids", "token_type_ids") if name in names), ""))


class PictureBatches:
    """Makes a model's inputs from documents: a single one, padded rows, packed rows."""

    def __init__(self, maker: PictureMaker, types: TokenTypes, pad_token_id: int) -> None:
        self.types, self.pad_token_id = types, pad_token_id
        self._rope_index = find_method(maker.model, "get_rope_index")

    @property
    def has_rope_index(self) -> bool:
        """Whether the class computes positions of images in rows: time, height and width."""
        return self._rope_index is not None

    def make_padded(self, documents: Sequence[Document], side: str) -> Batch:
        """Return documents as rows padded to the longest, with a 2-D mask."""
        batch = packing.pad_documents([d.tokens for d in documents], side, "cpu", self.pad_token_id)
        return self._fill(batch, documents)

    def make_packed(self, rows: Sequence[Sequence[Document]], plan: Plan, dtype: torch.dtype) -> Batch:
        """Return rows of documents as the plan packs them; rows with images get positions from the class."""
        batch = packing.make_batch([[d.tokens for d in row] for row in rows], plan, "cpu", self.pad_token_id, dtype)
        documents = [document for row in rows for document in row]
        if self.has_rope_index and plan.positions != "running":
            positions = self._pack_positions(documents, batch, plan)
            batch = Batch({**batch.inputs, "position_ids": positions}, batch.labels, batch.spans)
        return self._fill(batch, documents)

    def _fill(self, batch: Batch, documents: Sequence[Document]) -> Batch:
        """Return a batch of token rows with the documents' images, token types and labels."""
        labels = torch.full_like(batch.labels, IGNORE_INDEX)
        types = torch.full_like(batch.labels, self.types.text)
        for document, span in zip(documents, batch.spans, strict=True):
            labels[span.row, span.start : span.stop] = document.labels
            types[span.row, span.start : span.stop] = self._types_of(document)
        return Batch({**batch.inputs, **self._own_inputs(documents, types)}, labels, batch.spans)

    def _pack_positions(self, documents: Sequence[Document], batch: Batch, plan: Plan) -> Tensor:
        """Return positions (4 or 3, rows, tokens) of each document as the class computes them for it in isolation."""
        plain = batch.inputs["position_ids"]
        plain = plain if plain.dim() == 2 else plain[0]
        positions = plain.expand(3, *plain.shape).clone()
        for document, span in zip(documents, batch.spans, strict=True):
            if document.pictures:
                positions[:, span.row, span.start : span.stop] = self._compute_positions(document)
        return positions if plan.positions == "reset_3d" else torch.cat([plain[None], positions])

    def _compute_positions(self, document: Document) -> Tensor:
        inputs = {"input_ids": document.tokens[None], "attention_mask": torch.ones_like(document.tokens)[None]}
        inputs |= self._own_inputs([document], self._types_of(document)[None])
        names = _parameters(self._rope_index)
        positions: Tensor = self._rope_index(**{name: value for name, value in inputs.items() if name in names})[0]
        return positions[:, 0]

    def _types_of(self, document: Document) -> Tensor:
        return torch.where(document.is_picture, self.types.picture, self.types.text)

    def _own_inputs(self, documents: Sequence[Document], types: Tensor) -> dict[str, Tensor]:
        inputs = join_pictures([document.pictures for document in documents if document.pictures])
        return {**inputs, **({self.types.name: types} if self.types.name else {})}
