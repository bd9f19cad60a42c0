"""Cases for ATN306."""

from __future__ import annotations

from tests import snapshots as s

REMOTE = s.with_model(s.h200(), remote_code=True, accepts=s.Unreadable("the model brings its own code"))
HYBRID = {"source": "transformers.cache_utils", "name": "HybridCache", "path": "modeling_x.py"}

FIRES = {
    "read in the installed files": s.with_links(REMOTE, s.make_link(consumer="model", **HYBRID)),
    "under a condition that only running decides": s.with_links(
        REMOTE, s.make_link(consumer="model", conditions=("is_flash_attn_2_available()",), **HYBRID)
    ),
    "_flash_supports_window_size on 4.54.0": s.with_model(
        s.with_package(s.h200(), "transformers", "4.54.0"),
        remote_code=True,
        remote_imports=("transformers", "transformers.modeling_flash_attention_utils:_flash_supports_window_size"),
        accepts=s.Unreadable("the model brings its own code"),
    ),
    "the hole of 5.4.0": s.with_model(
        s.with_package(s.h200(), "transformers", "5.4.0"),
        remote_code=True,
        remote_imports=("transformers", "transformers.utils:is_flash_attn_greater_or_equal_2_10"),
    ),
}
SILENT = {
    "caught": s.with_links(REMOTE, s.make_link(consumer="model", fallback_line=30, **HYBRID)),
    "in a function, which is ATN346's": s.with_links(REMOTE, s.make_link(consumer="model", function="f", **HYBRID)),
    "in the table, but not gone from the installed files": s.with_links(
        s.with_model(
            s.with_package(s.h200(), "transformers", "5.4.0"),
            remote_code=True,
            remote_imports=("transformers.utils:is_flash_attn_greater_or_equal_2_10",),
        )
    ),
    "the recorded machine without a model": s.h200(),
    "the laptop without a model": s.laptop(),
    "a healthy Qwen2 on the recorded machine": s.with_model(s.h200()),
    "_flash_supports_window_size on 4.53.3": s.with_model(
        s.with_package(s.h200(), "transformers", "4.53.3"),
        remote_code=True,
        remote_imports=("transformers", "transformers.modeling_flash_attention_utils:_flash_supports_window_size"),
        accepts=s.Unreadable("the model brings its own code"),
    ),
    "back in 5.5.0": s.with_model(
        s.with_package(s.h200(), "transformers", "5.5.0"),
        remote_code=True,
        remote_imports=("transformers", "transformers.utils:is_flash_attn_greater_or_equal_2_10"),
    ),
    "before the hole": s.with_model(
        s.with_package(s.h200(), "transformers", "5.3.0"),
        remote_code=True,
        remote_imports=("transformers", "transformers.utils:is_flash_attn_greater_or_equal_2_10"),
    ),
}


def says(text: str) -> bool:
    """Return whether the finding names the cause and a fix."""
    return ("transformers<" in text or "transformers==5.1.0" in text) and "removed in" in text
