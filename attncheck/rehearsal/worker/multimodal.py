"""Makes a small multimodal model of the job's own class, and its processor, without the model's released files.

The processor is transformers' own class for the model's type, with its image processor fitted to the small tower. In
the synthetic tokenizer, each of the configuration's image markers is a token. The processor is tested on an image:
it must give as many tokens as the model computes features, otherwise rows contain only text.
"""

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attncheck.core.rehearsal import Pictures
from attncheck.smoke.worker.models.architectures import Unbuildable
from attncheck.smoke.worker.models.fitting import describe_error
from attncheck.smoke.worker.models.towers import image_token, list_markers, patch_side, picture_side

if TYPE_CHECKING:
    from attncheck.rehearsal.worker.segments import DocumentIndex

SIDE, MAX_SIDE = 32, 112  # pixels of an image, if its processor's own size is unknown or larger than that
PICTURE_EVERY = 3  # one of so many documents has no image
FOLDER = "pictures"  # next to the model
TAG = "<image>"  # the tag that LLaMA-Factory and ms-swift replace in a text
# A turn is text, or parts: TRL's SFT splits every turn into parts if there is a processor.
TURN_MACRO = (
    "{%- macro turn(content) -%}{%- if content is string -%}{{ content }}{%- else -%}{%- for part in content -%}"
    "{%- if part['type'] == 'text' -%}{{ part['text'] }}{%- else -%}{{ 'PICTURE' }}{%- endif -%}{%- endfor -%}"
    "{%- endif -%}{%- endmacro -%}"
)


def write_chat_template(template: str, picture: str = "<image_token>") -> str:
    """Return a text chat template that also accepts turns with parts; `picture` is written for an image."""
    return TURN_MACRO.replace("PICTURE", picture) + template.replace("message['content']", "turn(message['content'])")


def save_processor(model: Any, tokenizer: Any, template: str, folder: Path) -> str:
    """Save a processor for a multimodal model, with its tokenizer and chat template.

    Return why it does not accept images, "" if it does. Raises `Unbuildable` if none can be made.
    """
    try:
        known, wanted = _collect_parts(model.config, tokenizer)
        processor, reason = _fit_processor(known, wanted, model, template)
        processor.save_pretrained(folder)
        from transformers import AutoProcessor

        AutoProcessor.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # the class decides the exception: one requires torchvision, another a video processor
        name = type(model.config).__name__
        raise Unbuildable(f"no processor could be made for {name}: {describe_error(error)}") from None
    return reason


def _collect_parts(config: Any, tokenizer: Any) -> tuple[dict[str, Any], Callable[..., Any]]:
    """Return the processor's parts by argument name, and the function that makes it."""
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

    processor_class: Any = PROCESSOR_MAPPING[type(config)]
    _fit_tokenizer(processor_class, tokenizer)
    known = {"image_processor": _make_first(IMAGE_PROCESSOR_MAPPING[type(config)]), "tokenizer": tokenizer}
    wanted = inspect.signature(processor_class).parameters
    if "video_processor" in wanted:
        from transformers.models.auto.video_processing_auto import VIDEO_PROCESSOR_MAPPING

        known["video_processor"] = _make_first(VIDEO_PROCESSOR_MAPPING[type(config)])
    for name in known.keys() - {"tokenizer"}:
        _fit_pictures(known[name], config)
    for level in (config, config.vision_config):
        sizes = {name: getattr(level, name, None) for name in wanted if name not in known}
        known |= {name: value for name, value in sizes.items() if isinstance(value, (int, str))}
    return {name: value for name, value in known.items() if name in wanted}, processor_class


def _fit_tokenizer(processor_class: Any, tokenizer: Any) -> None:
    """Give a tokenizer the class that a processor of transformers 4 requires: 4.57.3 processing_utils.py:590."""
    import transformers

    names = getattr(processor_class, "tokenizer_class", None) if transformers.__version__.startswith("4.") else None
    names = (names,) if isinstance(names, str) else names or ()
    fast = [getattr(transformers, name) for name in names if name and name.endswith("Fast")]
    if fast and not isinstance(tokenizer, tuple(fast)):
        tokenizer.__class__ = fast[0]


def _make_first(classes: Any) -> Any:
    """Return a processor of the first available class, since classes may need missing backends."""
    if isinstance(classes, Mapping):
        classes = tuple(classes.values())
    classes = classes if isinstance(classes, tuple) else (classes,)
    made = next((made for made in classes if made is not None), None)
    if made is None:
        raise ImportError("a part of it cannot be imported (is torchvision installed?)")
    return made()


def _fit_pictures(processor: Any, config: Any) -> None:
    """Set an image processor's image and patch sizes to those of the small tower."""
    tower = config.vision_config
    for name, value in (
        ("patch_size", patch_side(tower)),
        ("merge_size", getattr(tower, "spatial_merge_size", None)),
        ("temporal_patch_size", getattr(tower, "temporal_patch_size", None)),
    ):
        if value and hasattr(processor, name):
            setattr(processor, name, value)
    side = picture_side(tower)
    merge = getattr(processor, "merge_size", None)
    if merge and _read_size(processor.size, "shortest_edge"):  # the pixels of the smallest image: four tokens
        processor.size["shortest_edge"] = 4 * (processor.patch_size * merge) ** 2
    if not side:
        return
    for name in ("size", "crop_size", "max_image_size"):
        former = getattr(processor, name, None)
        if former is not None:
            keys = {key for key in ("height", "width", "shortest_edge", "longest_edge") if _read_size(former, key)}
            setattr(processor, name, type(former)(**dict.fromkeys(keys, side)))
    if getattr(processor, "image_grid_pinpoints", None):
        processor.image_grid_pinpoints = config.image_grid_pinpoints
    if hasattr(processor, "do_image_splitting"):
        processor.do_image_splitting = False


def _read_size(size: Any, key: str) -> Any:
    return size.get(key) if isinstance(size, Mapping) else getattr(size, key, None)


def _fit_processor(known: Mapping[str, Any], make: Callable[..., Any], model: Any, template: str) -> tuple[Any, str]:
    """Return the first processor whose tokens of an image match the model's features, otherwise the first one."""
    wanted = inspect.signature(make).parameters
    first, reason = None, ""
    for options in _iter_token_counts(model.config, wanted):
        processor = make(**{**known, **options})
        picture = getattr(processor, "boi_token", "") or str(getattr(processor, "image_token", "<image_token>"))
        begin, end = (getattr(processor.tokenizer, f"vision_{name}_token", "") or "" for name in ("start", "end"))
        processor.tokenizer.chat_template = write_chat_template(template, f"{begin}{picture}{end}")
        processor.chat_template = processor.tokenizer.chat_template
        first = first or processor
        try:
            _run_on_picture(processor, model)
        except Exception as error:  # the class decides the type of the exception
            reason = reason or describe_error(error)
            continue
        return processor, ""
    return first, reason


def _iter_token_counts(config: Any, wanted: Mapping[str, Any]) -> Iterator[dict[str, int]]:
    """Yield settings that may give a processor the number of an image's tokens."""
    patches = (picture_side(config.vision_config) // (patch_side(config.vision_config) or 1)) ** 2
    scaled = patches // int(getattr(config, "scale_factor", 1)) ** 2
    yield {}
    for name, value in (
        ("num_additional_image_tokens", 1),
        ("image_seq_length", getattr(config, "mm_tokens_per_image", 0) or patches),
        ("image_seq_len", scaled),
        ("num_image_tokens", patches),
    ):
        if name in wanted:
            yield {name: value}


def _run_on_picture(processor: Any, model: Any) -> None:
    """Run a model on a row with an image and one without. Raises any error of the processor or the model."""
    rows = [[make_picture(0)], []]
    messages = [
        [
            {
                "role": "user",
                "content": [*({"type": "image", "image": own} for own in row), {"type": "text", "text": "w3"}],
            }
        ]
        for row in rows
    ]
    for own, message in zip(rows, messages, strict=True):
        inputs = encode_row(processor, processor.apply_chat_template(message, tokenize=False), own)
        marker = image_token(model.config)
        if bool(own) != bool((inputs["input_ids"] == marker).any()):
            raise ValueError("no token represents the image")
        with torch.no_grad():
            model(**inputs)


def encode_row(processor: Any, text: str, pictures: Sequence[Any]) -> dict[str, Tensor]:
    """Return a processor's tensors for a row's text and images."""
    options = {"images": list(pictures)} if pictures else {}
    return dict(processor(text=[text], return_tensors="pt", add_special_tokens=False, **options))


def make_picture(number: int, side: int = SIDE) -> Any:
    """Return the image of a document: pixels that no other has."""
    from PIL import Image

    colours = torch.randint(0, 256, (side, side, 3), generator=torch.Generator().manual_seed(number), dtype=torch.uint8)
    return Image.frombytes("RGB", (side, side), bytes(colours.flatten().tolist()))


def _measure_side(processor: Any) -> int:
    """Return the side of images that a processor does not resize: frameworks that do it themselves do it otherwise."""
    made = processor.image_processor(images=[make_picture(0)], return_tensors="pt")
    if "image_grid_thw" in made:
        side = int(made["image_grid_thw"][0, -1]) * int(processor.image_processor.patch_size)
    else:
        side = int(made["pixel_values"].shape[-1]) if made["pixel_values"].dim() > 3 else SIDE
    return side if side <= MAX_SIDE else SIDE


def name_markers(config: Any, plain_tokenizer: Any) -> dict[str, tuple[str, int]]:
    """Return the tokenizer's name of each marker in a configuration, with its text and number.

    `image_token_id` and `image_token_index` are the number of the token that a processor reads as `image_token`. A
    framework may itself write the texts that released tokenizers have. The processor's class says them if it takes
    `plain_tokenizer`, which has no markers.
    """
    try:
        parts, make = _collect_parts(config, plain_tokenizer)
        plain = make(**parts)
        opening, closing = re.fullmatch(r"(\W+)\w+(\W+)", plain.image_token).groups()  # type: ignore[union-attr]
    except Exception:  # which is the class's own choice
        plain, opening, closing = None, "<", ">"
    markers: dict[str, tuple[str, int]] = {}
    for name, number in list_markers(config).items():
        attribute = name.removesuffix("_id").removesuffix("_index")
        named = f"{opening}{attribute.removesuffix('_token') if plain else attribute}{closing}"
        text = getattr(plain, attribute, None)
        texts = {text for text, _ in markers.values()}
        markers[attribute] = (text if isinstance(text, str) and text not in texts else named, number)
    return markers


def lay_pictures(documents: Sequence[dict[str, Any]], folder: Path) -> None:
    """Give two of three documents an image, chosen by their numbers, and write the images."""
    from transformers import AutoProcessor

    side = _measure_side(AutoProcessor.from_pretrained(folder / "model", local_files_only=True))
    for number, document in enumerate(documents):
        if number % PICTURE_EVERY != PICTURE_EVERY - 1:
            document["picture"] = number
            make_picture(number, side).save(_name_file(folder, number))


def _name_file(folder: Path, number: int) -> Path:
    return folder / FOLDER / f"{number}.png"


def add_pictures(
    rows: Sequence[dict[str, Any]], documents: Sequence[Mapping[str, Any]], folder: Path, form: Pictures = "column"
) -> list[dict[str, Any]]:
    """Return rows with the paths of their images; write a "column" of images that a data set decodes.

    In the forms "tagged" and "parts" the first turn says where its image is.
    """
    numbers = [document.get("picture") for document in documents]
    paths = [[] if number is None else [str(_name_file(folder, number))] for number in numbers]
    if form == "parts":
        return [{"messages": list(_split_turns(row["messages"], own))} for row, own in zip(rows, paths, strict=True)]
    laid = [{**row, "images": own} for row, own in zip(rows, paths, strict=True)]
    if form == "tagged":
        for row in laid:
            first, *others = row["messages"]
            row["messages"] = [{**first, "content": f"{TAG} " * len(row["images"]) + first["content"]}, *others]
        return laid
    try:
        import datasets
    except ImportError:
        return laid
    image = datasets.Image()
    feature = datasets.List(image) if hasattr(datasets, "List") else [image]  # before 4.0
    read = [
        {**row, "images": [{"bytes": Path(path).read_bytes(), "path": None} for path in row["images"]]} for row in laid
    ]
    datasets.Dataset.from_list(read).cast_column("images", feature).to_parquet(folder / "data" / "train.parquet")
    return laid


def _split_turns(messages: Sequence[Mapping[str, str]], paths: list[str]) -> Iterator[dict[str, Any]]:
    """Yield messages with their text, and before the first one's the images, as parts of their content."""
    for message in messages:
        images = [{"type": "image", "path": paths.pop()} for _ in [*paths]]
        yield {**message, "content": [*images, {"type": "text", "text": message["content"]}]}


def read_placeholders(folder: Path) -> frozenset[int]:
    """Return a rehearsal's image tokens, including those around an image; none if its rows contain only text."""
    from transformers import AutoConfig

    if not (folder / FOLDER).exists():
        return frozenset()
    return frozenset(list_markers(AutoConfig.from_pretrained(folder / "model", local_files_only=True)).values())


class PictureBook:
    """The images of documents, as processed inputs of a model."""

    def __init__(self, folder: Path, index: "DocumentIndex", model: Any) -> None:
        """Read the images of a rehearsal's folder, for the model that uses them."""
        from transformers import AutoProcessor

        self.processor = AutoProcessor.from_pretrained(folder / "model", local_files_only=True)
        documents = json.loads((folder / "documents.json").read_text())
        self.numbers, self.folder = [document.get("picture") for document in documents], folder
        self.index, self.token = index, image_token(model.config)
        names = inspect.signature(model.forward).parameters
        self.types = next((name for name in ("mm_token_type_ids", "token_type_ids") if name in names), "")
        self.placeholder = str(self.processor.chat_template).partition("{%- else -%}{{ '")[2].partition("' }}")[0]
        self._pictures: dict[int, dict[str, Tensor]] = {}
        self._counts: dict[int, int] = {}

    def find_documents(self, tokens: Sequence[int]) -> list[int]:
        """Return the documents in a row that have an image, all of its placeholders included, by the row's tokens."""
        segments = self.index.find_segments(tokens, (), None)
        return [
            segment.document
            for segment in segments
            if segment.document >= 0
            and self.numbers[segment.document] is not None
            and tokens[segment.start : segment.stop].count(self.token) == self.count_tokens(segment.document)
        ]

    def make_inputs(self, tokens: Sequence[int], documents: Sequence[int] | None = None) -> dict[str, Tensor]:
        """Return a model's inputs for a row besides its tokens: by default with the documents' own images."""
        row = torch.tensor([list(tokens)])
        types = {self.types: (row == self.token).long()} if self.types else {}
        pictures = [self.read(number) for number in (self.find_documents(tokens) if documents is None else documents)]
        joined = {
            name: torch.cat([picture[name] for picture in pictures], int(value.dim() == 5))
            for name, value in (pictures[0] if pictures else {}).items()
        }
        return {**types, **joined}

    def count_tokens(self, document: int) -> int:
        """Return the number of placeholders that the processor writes for a document's image."""
        self.read(document)
        return self._counts[document]

    def read(self, document: int) -> dict[str, Tensor]:
        """Return the processor's tensors for a document's image."""
        from PIL import Image

        if document not in self._pictures:
            with Image.open(_name_file(self.folder, self.numbers[document])) as picture:
                made = encode_row(self.processor, self.placeholder, [picture])
            self._counts[document] = int((made["input_ids"] == self.token).sum())
            own = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids")
            self._pictures[document] = {name: value for name, value in made.items() if name not in own}
        return self._pictures[document]
