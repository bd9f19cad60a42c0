"""The model's tokenizer_config.json cannot be read.

What it checks: whether tokenizer_config.json, if there is one, is JSON of the expected shape.

Why it matters: `AutoTokenizer.from_pretrained` raises after the job was queued, and attncheck's padding checks are
skipped.

What to do: download the file again.

Source: transformers 5.17.0 `tokenization_utils_base.py`, `_from_pretrained`.
"""

from attncheck.doctor.rules import Fix, Model, Problem, Problems, Rule, Snapshot, Unreadable, about_model


@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    if not isinstance(model.tokenizer, Unreadable):
        return
    yield Problem(
        message=f"the tokenizer's configuration of {model.source} cannot be read",
        subject="model",
        evidence=(f"static lane: {model.tokenizer.reason}",),
        fixes=(Fix("fetch it again", "manual", f"tokenizer_config.json of {model.source}"),),
    )


RULE = Rule("ATN412", "warning", check)
