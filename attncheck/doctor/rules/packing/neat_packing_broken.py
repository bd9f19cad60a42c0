"""LLaMA-Factory's neat packing does not work with this transformers.

What it checks: LLaMA-Factory before 0.9.5 with transformers 4.53.0 or newer.

Why it matters: neat packing numbers the documents in the attention mask, but transformers casts masks to bool since
4.53.0. With LLaMA-Factory 0.9.3 and older, flash attention silently gets documents of one token each. 0.9.4 raises
"Neat packing is incompatible with transformers>=4.53.0." It only matters with `neat_packing: true`. Under sdpa, 0.9.3
builds a mask of (batch, 1, seqlen, seqlen) from the numbers itself, and a rehearsal with 4.53.3 is right.

What to do: upgrade LLaMA-Factory to 0.9.5, which packs by positions with `flash_attn: fa2`.

Source: llamafactory 0.9.3, 0.9.4 and 0.9.5 (hparams/parser.py or model/patcher.py, data/collator.py); transformers
4.53.0, masking_utils.py; hiyouga/LLaMA-Factory#8919.
"""

from attncheck.doctor.fixes.install import install_packages
from attncheck.doctor.knowledge.padding import MASKS_ARE_BOOL, NEAT_PACKING_BY_POSITIONS, NEAT_PACKING_REFUSES
from attncheck.doctor.queries.models import is_at_least, is_older
from attncheck.doctor.rules import Fix, Problem, Problems, Rule, Snapshot, need


def check(snapshot: Snapshot) -> Problems:
    factory, transformers = snapshot.version("llamafactory"), snapshot.version("transformers")
    if not is_older(factory, NEAT_PACKING_BY_POSITIONS) or not is_at_least(transformers, MASKS_ARE_BOOL):
        return
    installed = need(factory, "the version of llamafactory")
    raises = is_at_least(factory, NEAT_PACKING_REFUSES)
    effect = (
        "refuses neat packing"
        if raises
        else "lets documents attend to each other in neat packing under flash attention"
    )
    yield Problem(
        message=f"llamafactory {installed} {effect} with transformers {need(transformers, 'transformers')}",
        evidence=(f"transformers casts masks to bool since {MASKS_ARE_BOOL}",),
        fixes=(
            install_packages(snapshot, f"llamafactory>={NEAT_PACKING_BY_POSITIONS}"),
            Fix("pack without it", "setting", "neat_packing: false"),
        ),
        subject=f"llamafactory {installed}",
    )


RULE = Rule("ATN410", "warning", check, general=True)
