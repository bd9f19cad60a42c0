"""An attention mask in a packed batch disables the separation of documents.

What it checks: nothing is wrong yet. This is a reminder for training this model with a custom collator or loop, if no
installed framework takes care of it.

Why it matters: the error is silent. flash attention looks for restarting position_ids only if there is no mask and
the batch has one row. An all-ones mask, which most collators add, joins all documents of the row.

What to do: remove attention_mask from packed batches (DataCollatorWithFlattening does) and use one packed row per
batch, or pass cu_seq_lens_q/k and max_length_q/k.

Source: transformers 5.23.0, modeling_flash_attention_utils.py (`_is_packed_sequence`), masking_utils.py; measured on
CPU: all-ones mask, largest logit error 0.42; huggingface/trl#3910.
"""

from attncheck.doctor.knowledge.frameworks import PACKING_FRAMEWORKS
from attncheck.doctor.queries.models import refuses_implementation
from attncheck.doctor.rules import Fix, Model, Problem, Problems, Rule, Snapshot, about_model


@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    if not model.causal or snapshot.has(*PACKING_FRAMEWORKS) or not snapshot.has("transformers"):
        return
    if refuses_implementation(model, "flash_attention_2"):
        return
    yield Problem(
        message="if you pack, do not pass an attention_mask: with one, packed documents attend to each other",
        evidence=("transformers detects packed rows by their position_ids, but only without a mask",),
        fixes=(Fix("collate without a mask", "edit", "DataCollatorWithFlattening(return_flash_attn_kwargs=True)"),),
        subject=model.source,
    )


RULE = Rule("ATN402", "note", check, needs=frozenset({"flash"}), general=True)
