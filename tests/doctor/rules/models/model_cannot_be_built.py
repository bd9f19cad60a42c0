"""Cases for ATN348."""

from __future__ import annotations

from attncheck.core.model import BuildFailure
from tests import snapshots as s


def failed(error: str, **fields: str) -> s.Known[BuildFailure]:
    """Return what the child observed that could not build the class."""
    return s.Known(BuildFailure(error, fields))


NO_ANSWER = s.Unreadable("the model cannot be built: KeyError")
FIRES = {
    "a padding id past the vocabulary": s.with_model(
        s.h200(),
        model_type="llama",
        accepts=NO_ANSWER,
        build_failure=failed("AssertionError: Padding_idx must be within num_embeddings", pad_token_id="32000"),
    ),
    "a rope that it does not know": s.with_model(
        s.laptop(),
        accepts=NO_ANSWER,
        build_failure=failed("KeyError: 'llama9'", rope_scaling='{"rope_type": "llama9", "factor": 8.0}'),
    ),
    "no single field to blame": s.with_model(
        s.h200(), accepts=NO_ANSWER, build_failure=failed("TypeError: unsupported operand")
    ),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "a class that cannot be built without real tensors": s.with_model(
        s.h200(),
        accepts=NO_ANSWER,
        build_failure=failed("RuntimeError: Tensor.item() cannot be called on meta tensors"),
    ),
    "its own code": s.with_model(
        s.h200(), remote_code=True, accepts=s.Unreadable("the model brings its own code, which attncheck never runs")
    ),
    "transformers was not asked": s.with_model(s.h200(), accepts=s.Unreadable("the import lane did not run")),
    "transformers could not be imported": s.with_model(
        s.h200(), accepts=s.Unreadable("querying transformers failed: ImportError: no torch")
    ),
}


def says(text: str) -> bool:
    """Return whether the finding names the exception and what to do if a field is to blame."""
    return (
        ("Padding_idx" in text and "remove" in text)
        or ("llama9" in text and "complete" in text)
        or ("unsupported operand" in text)
    )
