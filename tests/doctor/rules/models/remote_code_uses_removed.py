"""Cases for ATN346."""

from __future__ import annotations

from typing import Any

from attncheck.core.links import UnresolvedName
from tests import snapshots as s

REMOTE = s.with_model(s.h200(), remote_code=True, accepts=s.Unreadable("the model brings its own code"))


def of_model(**fields: Any) -> UnresolvedName:
    """Return `past_key_values.seen_tokens` in a model's own code."""
    fields = {"source": "transformers.cache_utils", "name": "DynamicCache.seen_tokens", "kind": "attribute", **fields}
    return s.make_link(consumer="model", module="own_code.modeling_phi3", path="modeling_phi3.py", **fields)


FIRES = {
    "in forward": s.with_links(REMOTE, of_model(function="Phi3Model.forward")),
    "in generation": s.with_links(REMOTE, of_model(function="Phi3Model.prepare_inputs_for_generation")),
    "an argument": s.with_links(
        REMOTE, of_model(function="A.forward", kind="argument", argument="x", reason="it takes no argument x")
    ),
    "alongside a class of the library": s.with_links(
        s.with_model(s.h200(), remote_code=True), of_model(function="Phi3Model.forward")
    ),
}
SILENT = {
    "the recorded machine without a model": s.h200(),
    "nothing no longer exists": s.with_links(REMOTE),
    "caught": s.with_links(REMOTE, of_model(function="f", fallback_line=3)),
    "at import, which is ATN306's": s.with_links(REMOTE, of_model(kind="import", name="HybridCache")),
}


def says(text: str) -> bool:
    """Return whether the finding names the use and the place."""
    return "transformers.cache_utils.DynamicCache.seen_tokens" in text and "modeling_phi3.py:24" in text
