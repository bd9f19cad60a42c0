"""Cases for ATN302."""

from __future__ import annotations

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s


def unknown(model_type: str) -> Snapshot:
    """Return the recorded machine, whose transformers does not know this type."""
    reason = f"transformers 5.17.0 does not know model_type '{model_type}'"
    return s.with_model(s.h200(), model_type=model_type, accepts=s.Unreadable(reason))


FIRES = {
    "a type that nobody knows": s.with_model(
        s.h200(), model_type="foo", accepts=s.Unreadable("transformers 5.17.0 does not know model_type 'foo'")
    ),
    "a type of a later release": unknown("flint"),
    "a type of an earlier release": unknown("mctct"),
    "a misspelt type": unknown("qwen2moe"),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "the same with its own code": s.with_model(
        s.h200(),
        model_type="foo",
        accepts=s.Unreadable("the model brings its own code, which attncheck never runs"),
        remote_code=True,
    ),
    "transformers was not asked": s.with_model(s.h200(), accepts=s.Unreadable("the import lane did not run")),
}


def says(text: str) -> bool:
    """Return whether the finding names the type and what to do about it."""
    wanted = {"foo": "5.23.0", "flint": "transformers>=5.23.0", "mctct": "<5.0.0", "qwen2moe": "qwen2_moe"}
    return any(f"model_type '{name}'" in text and words in text for name, words in wanted.items())
