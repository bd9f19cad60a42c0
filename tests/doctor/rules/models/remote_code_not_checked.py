"""Cases for ATN303."""

from __future__ import annotations

from tests import snapshots as s

FIRES = {
    "chatglm": s.with_model(
        s.h200(),
        model_type="chatglm",
        remote_code=True,
        remote_imports=("torch", "transformers"),
        accepts=s.Unreadable("the model brings its own code, which attncheck never runs"),
    ),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "auto_map, but transformers has the class": s.with_model(s.h200(), remote_code=True),
    "transformers was not asked": s.with_model(
        s.h200(), remote_code=True, accepts=s.Unreadable("the import lane did not run")
    ),
}


def says(text: str) -> bool:
    """Return whether the finding names the cause and a fix."""
    return "own code" in text
