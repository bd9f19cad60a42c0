"""transformers reports a working flash-attn as missing.

What it checks: `is_flash_attn_2_available()` against the import of flash_attn, on a machine where torch finds CUDA.
ATN104 to ATN108 report the opposite case, with its cause.

Why it matters: transformers refuses flash_attention_2 or uses a Hub kernel, although flash-attn works. transformers
reads metadata, so another distribution with a top-level `flash_attn`, or metadata without the name flash-attn, is
enough to cause this.

What to do: install flash-attn from a wheel or its sources, so that it has metadata, and remove any package that
installs another `flash_attn`.

Source: `is_flash_attn_2_available` in `utils/import_utils.py` of transformers 5.17.0; huggingface/transformers#41651,
#42999, #43060.
"""

from attncheck.doctor.fixes.flash_attn import flash_attn_fixes
from attncheck.doctor.knowledge import transformers
from attncheck.doctor.knowledge.flash_attn_build import MINIMUM_FOR_TRANSFORMERS
from attncheck.doctor.queries import can_import, cannot_be_imported, hidden_by, require_torch
from attncheck.doctor.rules import Known, MissingFact, Problem, Problems, Rule, Snapshot, Version, value_or


def check(snapshot: Snapshot) -> Problems:
    if not snapshot.has("flash-attn", "transformers") or not isinstance(snapshot.imports, Known):
        return
    is_installed = snapshot.has("flash-attn")
    if is_installed:
        require_torch(snapshot)
    answers = snapshot.interfaces.value.availability if isinstance(snapshot.interfaces, Known) else {}
    if is_installed and not answers and cannot_be_imported(snapshot, "transformers"):
        raise hidden_by("transformers")
    if answers.get("is_flash_attn_2_available") is not False:
        return
    if not can_import(snapshot, "flash_attn") or not can_import(snapshot, "flash_attn_2_cuda"):
        if is_installed:
            raise hidden_by("flash_attn")
        return
    if not isinstance(snapshot.torch, Known) or not value_or(snapshot.torch.value.cuda_available, False):
        raise hidden_by("CUDA")  # without CUDA, False is correct
    if _is_too_old(snapshot):
        raise MissingFact("flash-attn is too old for transformers", ("ATN119",))
    owners = ", ".join(
        f"{distribution.name} {distribution.version}"
        for distribution in snapshot.distributions
        if distribution.name.startswith("flash-attn")
    )
    yield Problem(
        message="transformers reports flash-attn as missing although it can be imported",
        subject="flash-attn",
        evidence=(
            "import lane: flash_attn and flash_attn_2_cuda import, is_flash_attn_2_available() says False",
            f"distributions: {owners or 'none is called flash-attn'}",
        ),
        fixes=flash_attn_fixes(snapshot)[:1],
    )


def _is_too_old(snapshot: Snapshot) -> bool:
    flash_version, transformers_version = snapshot.version("flash-attn"), snapshot.version("transformers")
    if not isinstance(flash_version, Known) or not isinstance(transformers_version, Known):
        return False
    minimum = transformers.entry_for_version(MINIMUM_FOR_TRANSFORMERS, transformers_version.value)
    return minimum is not None and flash_version.value < Version(minimum)


RULE = Rule("ATN120", "warning", check, needs=frozenset({"flash"}))
