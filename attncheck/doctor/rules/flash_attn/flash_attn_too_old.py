"""This flash-attn is older than transformers accepts.

What it checks: flash-attn's version against the minimum of the installed transformers: 2.1.0 in 4.x, 2.3.3 since 5.0.

Why it matters: transformers treats it as missing; `attn_implementation="flash_attention_2"` raises ImportError, or is
replaced by a kernel from the Hub.

What to do: install a flash-attn that is compatible with this torch.

Source: `is_flash_attn_2_available` in `utils/import_utils.py` of the transformers 4.57.6 and 5.17.0 wheels. Keywords:
`window_size` came with flash-attn 2.3.0, `deterministic` with 2.4.1 (ATN701), `softcap` with 2.6.0 (ATN311)
(flash_attn_interface.py at the tags).
"""

from attncheck.doctor.fixes.flash_attn import flash_attn_fixes
from attncheck.doctor.knowledge import transformers
from attncheck.doctor.knowledge.flash_attn_build import MINIMUM_FOR_TRANSFORMERS
from attncheck.doctor.queries.launch import may_import
from attncheck.doctor.rules import Problem, Problems, Rule, Snapshot, Version, need, only_if


@only_if(may_import, "flash-attn")
@only_if(Snapshot.has, "flash-attn")
@only_if(Snapshot.has, "transformers")
def check(snapshot: Snapshot) -> Problems:
    flash_version = need(snapshot.version("flash-attn"), "flash-attn's version")
    transformers_version = need(snapshot.version("transformers"), "transformers' version")
    minimum = transformers.entry_for_version(MINIMUM_FOR_TRANSFORMERS, transformers_version)
    if minimum is None or flash_version >= Version(minimum):
        return
    yield Problem(
        message=f"flash-attn {flash_version} is too old: transformers {transformers_version} needs {minimum} or newer",
        subject=f"flash-attn {flash_version}",
        evidence=(f"static lane: flash-attn {flash_version}, transformers {transformers_version}",),
        fixes=flash_attn_fixes(snapshot),
    )


RULE = Rule("ATN119", "error", check, needs=frozenset({"flash"}))
