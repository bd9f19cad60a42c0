"""A Hub kernel is needed, but this machine or the launch is set to offline mode.

What it checks: whether the launch or config.json requests a Hub kernel, or a flash attention that transformers would
replace with one (it is not installed, but `kernels` is). It is reported if HF_HUB_OFFLINE or a similar variable is
set, here or in the launch, and the cache does not have the version that transformers requires. If nothing is
requested, flash_attention_2 is checked.

Why it matters: the job fails when the model is loaded, on every rank.

What to do: download the kernel into the same cache on a node with network access, install flash-attn, or use sdpa.

Source: wheels of transformers 4.56.0-5.23.0, `modeling_utils.py`; huggingface/transformers#45399;
huggingface/kernels#327. The command was run with kernels 0.12.3, 0.15.2, 0.16.1 and 0.17.2, without a network: it gets
as far as the download, where since 0.15 a call without version or revision raises ValueError.
"""

from attncheck.doctor.fixes import install
from attncheck.doctor.knowledge.transformers import FLASH_DISTRIBUTIONS
from attncheck.doctor.queries import (
    OFFLINE_VARIABLES,
    find_hub_fallback,
    find_requested_kernel,
    is_hub_offline,
    locate_variables,
    requested_implementation,
)
from attncheck.doctor.rules import Fix, Problem, Problems, Rule, Snapshot


def check(snapshot: Snapshot) -> Problems:
    if not is_hub_offline(snapshot):
        return
    requested = requested_implementation(snapshot)
    kernel = find_requested_kernel(snapshot, requested) if requested else find_hub_fallback(snapshot)
    if kernel is None or kernel.is_cached(snapshot):
        return
    implementation = requested or "flash_attention_2"
    replaced = FLASH_DISTRIBUTIONS.get(implementation, "")
    download = f"HF_HUB_OFFLINE=0 {kernel.format_download(snapshot)}"
    yield Problem(
        message=(
            f"{implementation if replaced else 'the job'} needs {kernel} from the Hub, which is not "
            "cached, but the Hub is offline"
        ),
        subject=implementation,
        evidence=(
            f"{' or '.join(OFFLINE_VARIABLES)} is set",
            *((f"{replaced} is not installed",) if replaced else ()),
        ),
        fixes=(
            install.set_attn_implementation(snapshot, "sdpa"),
            Fix("download it on a machine with a network, into the same cache", "command", download, "safe"),
        ),
        locations=locate_variables(snapshot, *OFFLINE_VARIABLES),
    )


RULE = Rule("ATN158", "warning", check, needs=frozenset({"flash", "job"}))
