"""USE_HUB_KERNELS is off, but flash_attention_2 would come from the Hub anyway.

What it checks: the variable, if transformers would replace flash_attention_2 with a Hub kernel.

Why it matters: the variable affects layer kernels only. It does not keep third-party code or the network out.

What to do: use sdpa, install flash-attn, or remove `kernels`.

Source: transformers 5.17.0 and 5.23.0: `integrations/hub_kernels.py` reads USE_HUB_KERNELS, `modeling_utils.py`
(FLASH_ATTN_KERNEL_FALLBACK) checks only is_kernels_available().
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
        evidence=("flash-attn is not installed, but kernels is",),
        fixes=(install.set_attn_implementation(snapshot, "sdpa"), install.uninstall_packages(snapshot, "kernels")),
        locations=locate_variables(snapshot, NAME),
    )


RULE = Rule("ATN560", "note", check)
