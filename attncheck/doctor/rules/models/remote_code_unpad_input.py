"""The model's own code may unpack the wrong number of values from unpad_input.

What it checks: whether the *.py files next to config.json import `unpad_input` from flash_attn.bert_padding, and how
many values it returns in the installed flash-attn: four before 2.7.0, five since.

Why it matters: code written for the other version stops at the first forward with "too many values to unpack
(expected 4)" or "not enough values to unpack (expected 5, got 4)". Most such code is older than 2.7.0.

What to do: in the model's file write `hidden, indices, cu_seqlens, max_seqlen, *_ = unpad_input(...)`, or install the
flash-attn that it was written for.

Source: flash_attn 2.8.3, bert_padding.py; mosaicml/llm-foundry#1732; huggingface/nanotron#289.
"""

from attncheck.core.environment import Interfaces
from attncheck.doctor.knowledge.models import FIVE_FROM_UNPAD_INPUT
from attncheck.doctor.queries.models import is_at_least
from attncheck.doctor.rules import Fix, Known, Model, Problem, Problems, Rule, Snapshot, about_model, need, value_or

UNPAD_INPUT = "flash_attn.bert_padding:unpad_input"


@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    if UNPAD_INPUT not in model.remote_imports or not snapshot.has("flash-attn"):
        return
    version = snapshot.version("flash-attn")
    arity = value_or(snapshot.interfaces, Interfaces()).unpad_input_arity
    if isinstance(arity, Known):
        returns_five, evidence = arity.value == 5, f"import lane: unpad_input returns {arity.value} values"
    else:
        installed = need(version, "the version of flash-attn")
        returns_five, evidence = is_at_least(version, FIVE_FROM_UNPAD_INPUT), f"static lane: flash-attn {installed}"
    if returns_five:
        yield Problem(
            message=(f"the code of {model.source} calls unpad_input, which returns 5 values here but used to return 4"),
            evidence=(evidence, f"{UNPAD_INPUT.replace(':', '.')} is imported by the model's files"),
            fixes=(
                Fix(
                    "unpack the result of either version", "edit", "hidden, indices, cu, longest, *_ = unpad_input(...)"
                ),
            ),
            subject=model.source,
            predicted=True,
        )


RULE = Rule("ATN305", "warning", check)
