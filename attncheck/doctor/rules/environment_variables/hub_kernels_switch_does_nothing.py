"""USE_HUB_KERNELS is off, and flash_attention_2 would come from the Hub anyway.

What it checks: the variable where transformers would replace flash_attention_2 by a kernel of the Hub.

Why it matters: the variable governs layer kernels only. Whoever set it to keep foreign code or the network out has not.

What to do: ask for sdpa, install flash-attn, or remove `kernels`.

Source: transformers 5.17.0 and 5.23.0: `integrations/hub_kernels.py` reads USE_HUB_KERNELS, `modeling_utils.py`
(FLASH_ATTN_KERNEL_FALLBACK) asks is_kernels_available() alone.
"""

from attncheck.doctor.fixes import install
from attncheck.doctor.queries import find_hub_fallback, locate_variables
from attncheck.doctor.rules import Problem, Problems, Rule, Snapshot, value_or

NAME = "USE_HUB_KERNELS"


def check(snapshot: Snapshot) -> Problems:
    value = value_or(snapshot.env(NAME), "")
    kernel = find_hub_fallback(snapshot)
    if kernel is None or value.upper() not in ("0", "OFF", "NO", "FALSE"):
        return
    yield Problem(
        message=f"{NAME}={value} does not keep flash_attention_2 from running {kernel} from the Hub",
        subject=NAME,
        evidence=("flash-attn is not installed, kernels is",),
        fixes=(install.set_attn_implementation(snapshot, "sdpa"), install.uninstall_packages(snapshot, "kernels")),
        locations=locate_variables(snapshot, NAME),
    )


RULE = Rule("ATN560", "note", check)
