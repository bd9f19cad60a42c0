"""Cases for ATN349."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from attncheck.core.launch import NOWHERE, Setting, SourceLocation
from attncheck.core.model import Tokenizer, Tower
from attncheck.core.snapshot import Snapshot
from tests import snapshots as s

BUILT = s.Known(32000)


def with_tokens(rows: Any = BUILT, snapshot: Snapshot | None = None, **fields: Any) -> Snapshot:
    """Return the recorded machine with a model of 32000 words whose tokenizer has these fields."""
    tokenizer = replace(Tokenizer(s.Known("right"), s.Known("<pad>"), s.Known("</s>")), **fields)
    return s.with_model(
        snapshot or s.h200(), vocab_size=s.Known(32000), embedding_rows=rows, tokenizer=s.Known(tokenizer)
    )


ADDED: dict[str, Any] = {"added_token": s.Known("<tool>"), "added_token_id": s.Known(32000)}
FIRES = {
    "a padding token was added": with_tokens(token_ids={"pad_token": 32000}),
    "loading appends the padding token": with_tokens(appended={"pad_token": 32000}),
    "an added token, vocab_size from config.json": with_tokens(s.Absent(), **ADDED),
    "the padding id of config.json": s.with_model(
        s.h200(), vocab_size=s.Known(32000), token_ids={"config.json: pad_token_id": (32000,)}
    ),
    "one end id of several": s.with_model(
        s.laptop(), embedding_rows=BUILT, token_ids={"generation_config.json: eos_token_id": (2, 128009)}
    ),
    "in a launch that does not resize": s.with_job(with_tokens(token_ids={"pad_token": 32000})),
    "in a launch of LLaMA-Factory without resize_vocab": s.with_job(
        with_tokens(token_ids={"pad_token": 32000}), framework="llamafactory"
    ),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "the last row": with_tokens(
        token_ids={"pad_token": 31999}, added_token=s.Known("<tool>"), added_token_id=s.Known(31999)
    ),
    "an embedding with rows to spare": with_tokens(s.Known(32064), **ADDED),
    "an image token that the model's code replaces": s.with_model(
        with_tokens(**ADDED), towers=(Tower("vision_config", 16, 72),)
    ),
    "mllama has 8 rows more than words, and was not built": s.with_model(
        with_tokens(s.Absent(), **ADDED), model_type="mllama"
    ),
    "its own code, not built": s.with_model(with_tokens(s.Absent(), **ADDED), remote_code=True),
    "axolotl resizes": s.with_job(with_tokens(**ADDED), framework="axolotl"),
    "LLaMA-Factory told to resize": s.with_job(
        with_tokens(**ADDED),
        framework="llamafactory",
        settings=(Setting("resize_vocab", "true", SourceLocation("a.yaml", 1), NOWHERE),),
    ),
}


def says(text: str) -> bool:
    """Return whether the finding names the id, the rows and a fix."""
    return "32000 rows" in text and ("resize_token_embeddings" in text or "remove" in text)
