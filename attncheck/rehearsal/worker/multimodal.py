"""Makes a small multimodal model of the job's own class, and a processor for it without files of its release.

The processor is transformers' own class for the model's type, with its image processor in default settings and the
synthetic tokenizer, in which each picture marker of the configuration is a token.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from attncheck.smoke.worker.models.architectures import Unbuildable
from attncheck.smoke.worker.models.fitting import describe_error
from attncheck.smoke.worker.models.towers import list_markers

# A turn is text, or parts: TRL's SFT makes parts of every turn if it has a processor.
TURN_MACRO = (
    "{%- macro turn(content) -%}{%- if content is string -%}{{ content }}{%- else -%}{%- for part in content -%}"
    "{%- if part['type'] == 'text' -%}{{ part['text'] }}{%- else -%}{{ '<image_token>' }}{%- endif -%}{%- endfor -%}"
    "{%- endif -%}{%- endmacro -%}"
)


def write_chat_template(template: str) -> str:
    """Return a chat template of text as one whose turns may have parts."""
    return TURN_MACRO + template.replace("message['content']", "turn(message['content'])")


def save_processor(config: Any, tokenizer: Any, folder: Path) -> None:
    """Save a processor for a multimodal configuration, with its tokenizer. Raises `Unbuildable` if none can be made."""
    from transformers import AutoProcessor
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

    try:
        processor_class: Any = PROCESSOR_MAPPING[type(config)]
        classes: Any = IMAGE_PROCESSOR_MAPPING[type(config)]
        classes = classes.values() if isinstance(classes, dict) else classes
        image_processor = next(image_class for image_class in classes if image_class is not None)()
        known = {"image_processor": image_processor, "tokenizer": tokenizer, "chat_template": tokenizer.chat_template}
        wanted = inspect.signature(processor_class).parameters
        for level in (config, config.vision_config):
            sizes = {name: getattr(level, name, None) for name in wanted if name not in known}
            known |= {name: value for name, value in sizes.items() if isinstance(value, (int, str))}
        processor_class(**{name: value for name, value in known.items() if name in wanted}).save_pretrained(folder)
        AutoProcessor.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # which is the class's own choice: one wants torchvision, another a video processor
        raise Unbuildable(f"no processor could be made for {type(config).__name__}: {describe_error(error)}") from None


def name_markers(config: Any) -> dict[str, tuple[str, int]]:
    """Return what a tokenizer calls each marker of a configuration, its text and its number.

    `image_token_id` and `image_token_index` are the number of what a processor looks up as `image_token`.
    """
    markers = {}
    for name, number in list_markers(config).items():
        attribute = name.removesuffix("_id").removesuffix("_index")
        markers[attribute] = (f"<{attribute}>", number)
    return markers
