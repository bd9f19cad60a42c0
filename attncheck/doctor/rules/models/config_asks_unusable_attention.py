"""config.json requests an attention that cannot be used here.

What it checks: `attn_implementation` (or `_attn_implementation`) in config.json against the answer of the installed
transformers. Some checkpoints ship with flash_attention_2 written into their configuration.

Why it matters: if the caller names no implementation, from_pretrained uses the file's and raises: a ValueError if the
class refuses, an ImportError if the package is missing.

What to do: name the attention in the call, which overrides the file.

Source: transformers 4.57.3 and 5.23.0, configuration_utils.py (`_attn_implementation`), modeling_utils.py.
"""

from attncheck.doctor.fixes.model import use_other_attention
from attncheck.doctor.queries.models import transformers_answer
from attncheck.doctor.rules import Known, Model, Problem, Problems, Rule, Snapshot, about_model


@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    if not isinstance(model.attn_implementation, Known):
        return
    requested = model.attn_implementation.value
    if isinstance(snapshot.job, Known) and snapshot.job.value.plan.attn_implementation not in ("", requested):
        return  # the launch names another one, which overrides the file
    answer = transformers_answer(model, requested)
    if not answer or answer.startswith("error: "):
        return
    missing = answer.startswith("not installed: ")
    yield Problem(
        message=(f"config.json requests {requested}, which {'is not usable here' if missing else 'the class refuses'}"),
        evidence=(f"import lane: {answer}",),
        fixes=use_other_attention(snapshot, model, requested),
        subject=model.source,
        predicted=missing,
    )


RULE = Rule("ATN320", "error", check)
