"""An attention function is registered with transformers without a mask function.

What it checks: the names that importing the environment's packages put into ALL_ATTENTION_FUNCTIONS, and those that
the model's own code puts there (read, never run), against ALL_MASK_ATTENTION_FUNCTIONS. vLLM's and TGI's are
excluded, because they separate rows themselves.

Why it matters: the error is silent. transformers creates a mask only for names in the second table. For any other
name every layer gets attention_mask=None: padding is attended to, windows are lost, and packed documents attend to
each other. It is an error if the launch or config.json requests that name, otherwise a warning.

What to do: register the mask function of the implementation that takes the same masks: sdpa's for a kernel with a 4-D
mask, flash_attention_2's for one with a 2-D mask.

Source: transformers 4.53.2, 5.17.0 and 5.23.0, masking_utils.py (`_preprocess_mask_arguments`: "other custom attention
without equivalent mask creation: we don't need a mask!"). Run with 5.17.0 on a CPU: a left-padded row under a copy of
sdpa differs from the row alone, and no longer after the registration (tests/doctor/test_registered_attention.py).
"""

from attncheck.core.environment import Interfaces
from attncheck.doctor.queries.models import requested_model
from attncheck.doctor.rules import Fix, Known, Problem, Problems, Rule, Snapshot, value_or

MASKLESS_BY_DESIGN = ("vllm", "tgi")


def check(snapshot: Snapshot) -> Problems:
    interfaces = value_or(snapshot.interfaces, Interfaces())
    model = requested_model(snapshot)
    imported: tuple[str, ...] = ()
    if isinstance(interfaces.mask_functions, Known):
        masks = interfaces.mask_functions.value
        imported = tuple(name for name in value_or(interfaces.attention_functions, ()) if name not in masks)
    brought = model.registered_attentions if model is not None else ()
    for name in dict.fromkeys((*imported, *brought)):
        if name == "eager" or "paged" in name or name.lower() in MASKLESS_BY_DESIGN:
            continue  # "paged|sdpa" ("sdpa_paged" in older releases) gets its masks from continuous batching
        where = "import lane: ALL_ATTENTION_FUNCTIONS holds it" if name in imported else "the model's own code"
        yield Problem(
            message=f"attn_implementation {name!r} has no mask function: its layers get attention_mask=None",
            evidence=(f"{where}; ALL_MASK_ATTENTION_FUNCTIONS does not",),
            fixes=(
                Fix(f"register the mask function of {find_template(name)} for it", "edit", write_registration(name)),
            ),
            subject=name,
            predicted=not _is_requested(snapshot, name),
        )


def find_template(name: str) -> str:
    """Return the implementation whose masks a kernel of this name can use; a flash kernel needs the 2-D mask."""
    return "flash_attention_2" if "flash" in name else "sdpa"


def write_registration(name: str) -> str:
    """Return the lines that give the implementation `name` the masks of a compatible one."""
    template = find_template(name)
    other = "2-D mask: flash_attention_2's" if template == "sdpa" else "4-D mask: sdpa's"
    return (
        "from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS\n"
        f'ALL_MASK_ATTENTION_FUNCTIONS.register("{name}", ALL_MASK_ATTENTION_FUNCTIONS["{template}"])'
        f"  # a kernel that takes a {other}"
    )


def _is_requested(snapshot: Snapshot, name: str) -> bool:
    """Return whether the launch, or else config.json, requests this implementation."""
    if isinstance(snapshot.job, Known):
        return snapshot.job.value.plan.attn_implementation == name
    return isinstance(snapshot.model, Known) and value_or(snapshot.model.value.attn_implementation, "") == name


RULE = Rule("ATN350", "error", check)
