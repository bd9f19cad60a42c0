"""Cases for ATN136."""

from __future__ import annotations

from tests import snapshots as s

OPENRLHF = s.with_package(s.h200(), "openrlhf", "0.11.2")
REARRANGE = {
    "exception": "AttributeError",
    "message": "module 'ray' has no attribute 'util'",
    "frames": ("openrlhf/models/actor.py:12 in <module>",),
}

FIRES = {
    "a launch of it": s.with_job(s.with_import(OPENRLHF, "openrlhf.models", "raised", **REARRANGE)),
    "it raised": s.with_import(OPENRLHF, "openrlhf.models", "raised", **REARRANGE),
    "it died": s.with_import(OPENRLHF, "openrlhf.models", "died", signal="SIGSEGV"),
    "its files changed": s.with_import(
        s.with_package(s.h200(), "openrlhf", "0.11.2", files_altered=("openrlhf/models/actor.py",)),
        "openrlhf.models",
        "raised",
        **REARRANGE,
    ),
}
SILENT = {
    "a launch of another framework": s.with_job(
        s.with_import(OPENRLHF, "openrlhf.models", "raised", **REARRANGE), framework="trl", trainer="sft"
    ),
    "the recorded machine": s.h200(),
    "it imports": s.with_import(OPENRLHF, "openrlhf.models"),
    "a package is missing, which is ATN130's": s.with_import(
        OPENRLHF, "openrlhf.models", "raised", exception="ModuleNotFoundError", message="No module named 'ray'"
    ),
    "a name is missing, which is ATN131's": s.with_links(
        s.with_import(
            OPENRLHF,
            "openrlhf.models",
            "raised",
            exception="ImportError",
            message="cannot import name 'gone' from 'peft'",
        ),
        s.make_link(consumer="openrlhf", name="gone"),
    ),
    "it failed in torch": s.with_import(
        OPENRLHF,
        "openrlhf.models",
        "raised",
        exception="RuntimeError",
        message="x",
        frames=("torch/_ops.py:3 in <module>",),
    ),
}


def says(text: str) -> bool:
    """Return whether the finding names the module and the next step."""
    return "openrlhf.models" in text and ("import openrlhf.models" in text or "--force-reinstall" in text)
