"""The installed transformers silently computes this model wrongly.

What it checks: the model's type, the job's implementation and its way of batching, against a table of measured faults
in transformers 5.17's causal models: attention that is not causal (doge under sdpa, moshi under eager), packed
documents that attend to each other (afmoe, gpt_oss under eager, falcon, opt …), left padding that is attended to. If
the installed modeling file can be read, it must still show the defect. Defects that reading cannot show are judged by
the release.

Why it matters: the error is silent. The loss falls, but on contexts that never occur in use.

What to do: use the implementation or way of batching that was measured to be right, or a transformers with the fix.
`attncheck smoke MODEL` measures it here.

Source: transformers 5.17.0, all 178 types of MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, tiny, in float32 on a CPU, each
document alone against packed and padded (tests/smoke/types); the modeling files of the wheels 4.53.1 to 5.23.0.
"""

import re
from collections.abc import Iterator

from attncheck.core.plan import Plan
from attncheck.doctor.fixes import change_transformers, set_attn_implementation
from attncheck.doctor.knowledge.wrong_models import LAST_READ, WRONG_MODELS, WrongModel
from attncheck.doctor.queries import (
    change_settings,
    locate_settings,
    refuses_implementation,
    requested_implementation,
    transformers_answer,
)
from attncheck.doctor.rules import (
    Fix,
    Known,
    Model,
    Problem,
    Problems,
    Rule,
    Snapshot,
    Version,
    about_model,
    need,
    value_or,
)


@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    if not model.causal or not snapshot.has("transformers"):
        return
    version = need(snapshot.version("transformers"), "the version of transformers")
    job = snapshot.job.value if isinstance(snapshot.job, Known) else None
    plan = job.plan if job is not None else None
    requested = requested_implementation(snapshot)
    for row in WRONG_MODELS:
        lacks_sdpa = row.only_eager and transformers_answer(model, "sdpa") is None
        implementation = requested or ("eager" if lacks_sdpa else choose_implementation(model))
        if model.model_type not in row.model_types or implementation not in row.implementations:
            continue
        if not has_defect(row, version, model) or not may_meet(row, plan, model):
            continue
        yield Problem(
            message=f"{describe_defect(row, model, implementation)} (transformers {version})",
            evidence=(row.source, _describe_reading(row, model)),
            fixes=tuple(_iter_fixes(snapshot, row, plan)),
            subject=model.model_type,
            predicted=plan is None and row.batching != "any",
            locations=locate_settings(job, "attn_implementation", "packing") if job is not None else (),
        )


def choose_implementation(model: Model) -> str:
    """Return the implementation that transformers uses if none is requested: sdpa, or eager if sdpa is refused."""
    return "eager" if refuses_implementation(model, "sdpa") else "sdpa"


def has_defect(row: WrongModel, version: Version, model: Model) -> bool:
    """Return whether the installed transformers has the defect, judged by its file if possible, else by release."""
    if row.shown_by and isinstance(model.mask_calls, Known):
        return re.search(row.shown_by, "\n".join(model.mask_calls.value)) is not None
    if not row.before and version > Version(LAST_READ):
        return False  # a later release may have fixed it
    return Version(row.since) <= version and (not row.before or version < Version(row.before))


def may_meet(row: WrongModel, plan: Plan | None, model: Model) -> bool:
    """Return whether the job's kind of batch triggers the defect; without a launch, whether an ordinary job may."""
    if plan is None:
        return not row.beyond_chunk
    if row.beyond_chunk and plan.max_length <= value_or(model.attention_chunk_size, plan.max_length):
        return False
    if row.batching == "packed":
        return plan.packed and plan.packing in ("position_ids", "cu_seqlens", "mask_2d")
    return row.batching == "any" or (not plan.packed and plan.padding_side == "left")


def describe_defect(row: WrongModel, model: Model, implementation: str) -> str:
    """Return what is wrong with the model, and with which implementation and kind of batch."""
    way = {"any": "", "packed": ", packed", "left padding": ", padded on the left"}[row.batching]
    return f"{model.model_type} under {implementation}{way}: {row.defect}"


def _describe_reading(row: WrongModel, model: Model) -> str:
    if row.shown_by and isinstance(model.mask_calls, Known):
        return f"the installed modeling file: {'; '.join(model.mask_calls.value) or 'makes no mask of masking_utils'}"
    return f"known for transformers {row.since} to {f'before {row.before}' if row.before else LAST_READ}"


def _iter_fixes(snapshot: Snapshot, row: WrongModel, plan: Plan | None) -> Iterator[Fix]:
    for way in row.works:
        if way in ("padding", "right padding"):
            side = {"padding_side": "right"} if way == "right padding" else {}
            off = {"packing": "off"} if row.batching == "packed" else {}
            if plan is not None:
                yield change_settings(
                    "pad documents on the right instead of packing" if side else "pad documents", {**off, **side}
                )
            else:
                text = 'tokenizer.padding_side = "right"' if row.batching == "left padding" else "packing: false"
                yield Fix(f"{way} instead", "setting", text)
        elif plan is not None:
            yield change_settings(f"use {way}", {"attn_implementation": way})
        else:
            yield set_attn_implementation(snapshot, way)
    if row.before:
        yield from change_transformers(snapshot, f">={row.before}")


RULE = Rule("ATN357", "error", check)
