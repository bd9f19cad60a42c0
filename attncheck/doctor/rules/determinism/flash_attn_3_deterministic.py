"""flash-attn-3's deterministic backward has been observed to differ between runs.

What it checks: flash-attn-3 installed and determinism requested. This is a prediction: builds before the fix are
affected, and a build's version does not show whether it has the fix.

Why it matters: dq differs between two equal backward passes although `deterministic=True`.

What to do: use flash_attention_2 for reproducible runs, or test this build with `attncheck determinism`.

Source: Dao-AILab/flash-attention#2244. Not confirmed in the source; only a run on this GPU can tell.
"""

from attncheck.doctor.fixes import install
from attncheck.doctor.knowledge import determinism
from attncheck.doctor.rules import Known, Problem, Problems, Rule, Snapshot

DISTRIBUTIONS = ("flash-attn-3", "flashattn-hopper")


def check(snapshot: Snapshot) -> Problems:
    settings = determinism.determinism_settings(snapshot)
    package = next((fact for name in DISTRIBUTIONS if isinstance(fact := snapshot.package(name), Known)), None)
    if package is None or not settings:
        return
    name = f"{package.value.name} {package.value.version}"
    yield Problem(
        message=f"{name} may not be deterministic although determinism is requested: some builds are not",
        subject=name,
        evidence=settings,
        fixes=(
            install.set_attn_implementation(snapshot, "flash_attention_2" if snapshot.has("flash-attn") else "sdpa"),
        ),
        predicted=True,
    )


RULE = Rule("ATN706", "note", check, needs=frozenset({"flash"}))
