"""OpenRLHF's compatibility patch for ring-flash-attn fails under transformers 5.4.

What it checks: OpenRLHF with ring-flash-attn and transformers 5.4.x. ring-flash-attn imports the name
`is_flash_attn_greater_or_equal_2_10` from a module that lost it in 5.4.0. OpenRLHF restores it there from
`transformers.utils`. In 5.4.0 that module lacks it too; 5.5.0 has it again.

Why it matters: with `--ds.ring_attn_size` above 1 the job stops with "cannot import name
'is_flash_attn_greater_or_equal_2_10' from 'transformers.utils'". axolotl reports the same as "ring_flash_attn is not
installed".

What to do: do not use 5.4. OpenRLHF's patch works with 5.5.0 to 5.18.0.

Source: openrlhf 0.11.2, `openrlhf/models/ring_attn_utils.py` (patch_transformers_for_ring_flash_attn) and
`openrlhf/utils/deepspeed/deepspeed.py`; wheels of transformers 5.3.0, 5.4.0, 5.5.0.
"""

from attncheck.doctor.fixes import install
from attncheck.doctor.knowledge import ring_flash_attn
from attncheck.doctor.queries import requirements
from attncheck.doctor.rules import Problem, Problems, Rule, Snapshot, need, only_if


@only_if(Snapshot.has, "openrlhf")
@only_if(Snapshot.has, "ring-flash-attn")
@only_if(Snapshot.has, "transformers")
def check(snapshot: Snapshot) -> Problems:
    transformers = need(snapshot.version("transformers"), "transformers' version")
    if not requirements.is_version_allowed(ring_flash_attn.WITHOUT_SYMBOL, transformers):
        return
    ranges = (ring_flash_attn.COMPATIBLE_WITH_SHIM, ring_flash_attn.COMPATIBLE_TRANSFORMERS["0.1.8"])
    resolved = ((specifier, requirements.resolve_transformers(snapshot, specifier)) for specifier in ranges)
    openrlhf = need(snapshot.package("openrlhf"), "openrlhf").version
    yield Problem(
        message=(
            f"OpenRLHF {openrlhf} cannot load ring-flash-attn under transformers {transformers}: no "
            f"module has {ring_flash_attn.MOVED_SYMBOL}"
        ),
        subject=f"transformers {transformers}",
        evidence=("static lane: the name left both modules in 5.4.0 and came back to transformers.utils in 5.5.0",),
        fixes=tuple(
            install.install_packages(snapshot, *packages, allows=(f"transformers{specifier}",))
            for specifier, packages in resolved
            if packages
        ),
    )


RULE = Rule("ATN145", "error", check, needs=frozenset({"ring"}))
