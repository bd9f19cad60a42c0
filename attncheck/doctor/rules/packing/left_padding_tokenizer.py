"""The tokenizer pads on the left, which suits generation but not training.

What it checks: padding_side in tokenizer_config.json of a causal model.

Why it matters: models with learned positions misread left-padded rows unless position_ids are derived from the mask.
Rows that start with fully masked positions gave NaN on some attention kernels.

What to do: train with padding_side="right", and generate with "left".

Source: huggingface/transformers#29029, #41966; pytorch/pytorch#103749.
"""

from attncheck.doctor.rules import Fix, Known, Model, Problem, Problems, Rule, Snapshot, about_model, value_or


@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    if not model.causal or not isinstance(model.tokenizer, Known) or snapshot.has("openrlhf", "verl"):
        return
    if value_or(model.tokenizer.value.padding_side, "right") == "left":
        yield Problem(
            message=f"the tokenizer of {model.source} pads on the left; train with right padding",
            evidence=("static lane: padding_side in tokenizer_config.json",),
            fixes=(Fix("pad on the right in training", "setting", 'tokenizer.padding_side = "right"'),),
            subject=model.source,
        )


RULE = Rule("ATN407", "note", check, general=True)
