"""Cases for ATN302."""

from __future__ import annotations

from tests import snapshots as s

FIRES = {
    "a type that nobody knows": s.with_model(
        s.h200(), model_type="foo", accepts=s.Unreadable("transformers 5.17.0 does not know model_type 'foo'")
    ),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "the same with code of its own": s.with_model(
        s.h200(),
        model_type="foo",
        accepts=s.Unreadable("the model brings its own code, which attncheck never runs"),
        remote_code=True,
    ),
    "transformers was not asked": s.with_model(s.h200(), accepts=s.Unreadable("the import lane did not run")),
}


def says(text: str) -> bool:
    """Return whether the finding names the cause and a fix."""
    return "foo" in text and "transformers" in text
