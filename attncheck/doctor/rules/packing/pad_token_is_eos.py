"""The tokenizer's padding token is its EOS token.

What it checks: whether pad_token and eos_token of the tokenizer's files are the same.

Why it matters: the error is silent. A collator that sets labels of the padding id to -100 also removes the real end
of each answer, and the model never learns to stop.

What to do: pad with another token, or mask labels by the attention mask instead of by id.

Source: huggingface/trl#3091; unslothai/unsloth#416.
"""

from attncheck.doctor.rules import Fix, Known, Model, Problem, Problems, Rule, Snapshot, about_model


@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    if not model.causal or not isinstance(model.tokenizer, Known):
        return
    tokenizer = model.tokenizer.value
    if isinstance(tokenizer.pad_token, Known) and tokenizer.pad_token == tokenizer.eos_token:
        yield Problem(
            message=(
                f"the padding token of the tokenizer of {model.source} is its EOS token {tokenizer.pad_token.value}"
            ),
            evidence=("masking labels by the padding id also drops the real EOS tokens",),
            fixes=(Fix("mask by the attention mask", "edit", "labels[attention_mask == 0] = -100"),),
            subject=model.source,
        )


RULE = Rule("ATN406", "warning", check, general=True)
