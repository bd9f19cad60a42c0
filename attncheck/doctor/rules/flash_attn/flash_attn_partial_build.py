"""This build of flash-attn 2 lacks features that the model or training needs.

What it checks: the error messages in flash-attn's extension. For each feature that a build omits, it contains a
message ("This flash attention build does not support backward."); a full build contains none. They are compared with
the needs of training and of the model: windows, soft-capping, dropout, ALiBi, a head size that is not a multiple of
32.

Why it matters: images for inference, and builds that were shortened to save time, omit the backward pass or less
common features. The import works, but the first step raises.

What to do: install the published wheel or build flash-attn without those switches; or use another attention.

Source: flash-attn 2.8.3, csrc/flash_attn/flash_api.cpp (the messages, each under the #ifdef of its switch) and
setup.py lines 212-217. A full build of 2.8.3, read on one H200, contains no such message.
"""

from collections.abc import Iterator

from attncheck.doctor.fixes.flash_attn import avoid_flash_attn, flash_attn_fixes
from attncheck.doctor.queries.launch import may_import
from attncheck.doctor.rules import Known, Model, Problem, Problems, Rule, Snapshot, need, only_if, value_or

PREFIX = "FLASHATTENTION_DISABLE_"


@only_if(may_import, "flash-attn")
def check(snapshot: Snapshot) -> Problems:
    build = snapshot.build("flash-attn")
    if not isinstance(build, Known) or not snapshot.has("flash-attn"):
        return
    version = need(snapshot.package("flash-attn"), "flash-attn").version
    for switch, purpose in _list_wants(snapshot.model.value if isinstance(snapshot.model, Known) else None):
        if build.value.leaves_out(switch):
            fixes = (*flash_attn_fixes(snapshot), *avoid_flash_attn(snapshot))
            yield Problem(
                message=f"this build of flash-attn {version} lacks {purpose}",
                subject=f"flash-attn {version}",
                evidence=(f"its extension contains the error message of a build with {PREFIX}{switch}",),
                fixes=tuple(dict.fromkeys(fixes)),
            )


def _list_wants(model: Model | None) -> Iterator[tuple[str, str]]:
    """Yield the switches that must not be set, each with the feature that needs it."""
    yield "BACKWARD", "the backward pass, which training needs"
    if model is None:
        return
    if isinstance(model.sliding_window, Known):
        yield "LOCAL", f"sliding windows, which {model.model_type} has"
    if isinstance(model.softcap, Known):
        yield "SOFTCAP", f"soft-capping, which {model.model_type} has"
    if value_or(model.attention_dropout, 0.0) > 0:
        yield "DROPOUT", f"dropout, which {model.model_type} has"
    if model.alibi:
        yield "ALIBI", f"ALiBi, which {model.model_type} has"
    uneven = [dim for dim in model.head_dims if dim % 32]
    if uneven:
        yield "UNEVEN_K", f"head size {uneven[0]} of {model.model_type}, which is not a multiple of 32"


RULE = Rule("ATN174", "error", check, needs=frozenset({"flash", "ring"}))
