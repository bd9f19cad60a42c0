"""The tokenizer has no padding token.

What it checks: pad_token in tokenizer_config.json and special_tokens_map.json.

Why it matters: some frameworks stop with "Asking to pad but the tokenizer does not have a padding token". Others pad
with the EOS token. A collator that masks padding by its id then also masks the real EOS tokens, and the model never
learns to stop.

What to do: set a separate padding token, preferably one that is already in the vocabulary.

Source: openrlhf 0.11.2, utils/utils.py (`get_tokenizer`); huggingface/trl#1623; huggingface/alignment-handbook#127.
"""

from attncheck.doctor.rules import Absent, Fix, Known, Model, Problem, Problems, Rule, Snapshot, about_model


@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    if not model.causal or not isinstance(model.tokenizer, Known):
        return
    tokenizer = model.tokenizer.value
    if not isinstance(tokenizer.pad_token, Absent) or not isinstance(tokenizer.eos_token, Known):
        return
    if snapshot.has("openrlhf"):
        consequence = "OpenRLHF will pad with the EOS token"
    else:
        consequence = "padding raises, or uses the EOS token"
    yield Problem(
        message=f"the tokenizer of {model.source} has no pad_token: {consequence}",
        evidence=(f"eos_token is {tokenizer.eos_token.value}", tokenizer.pad_token.reason or "no pad_token"),
        fixes=(
            Fix("add one", "edit", 'tokenizer.add_special_tokens({"pad_token": "<|pad|>"})  # and resize embeddings'),
        ),
        subject=model.source,
    )


RULE = Rule("ATN405", "warning", check, general=True)
