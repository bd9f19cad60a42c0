"""The installed liger-kernel and transformers are incompatible.

What it checks: the oldest transformers that the installed liger-kernel can patch (0.7.0 to 0.8.4: 4.52; 0.8.5: 5.0);
if its patches were imported, the outcome decides. For a vision-language model, it also checks whether liger's forward
accepts the arguments of transformers 5.3 (since liger-kernel 0.8.0); this part is a prediction.

Why it matters: `apply_liger_kernel_to_…` raises "liger-kernel requires transformers >= X", or the first step raises
"lce_forward() got an unexpected keyword argument 'mm_token_type_ids'".

What to do: install the liger-kernel that the finding names. No other package has to change.

Source: wheels of liger_kernel 0.5.10-0.8.5, `transformers/monkey_patch.py` and `transformers/model/qwen2_vl.py`;
hiyouga/LLaMA-Factory#9387; linkedin/Liger-Kernel#827.
"""

from attncheck.doctor.fixes import install
from attncheck.doctor.knowledge import liger
from attncheck.doctor.knowledge.transformers import entry_for_version
from attncheck.doctor.queries import has_vision_tower, requirements
from attncheck.doctor.rules import Known, Problem, Problems, Rule, Snapshot, Version, need, only_if

MODULE = "liger_kernel.transformers"


@only_if(Snapshot.has, "liger-kernel")
@only_if(Snapshot.has, "transformers")
def check(snapshot: Snapshot) -> Problems:
    liger_version = need(snapshot.version("liger-kernel"), "liger-kernel's version")
    transformers_version = need(snapshot.version("transformers"), "transformers' version")
    specifier = entry_for_version(liger.TRANSFORMERS_BY_LIGER, liger_version)
    outcome = snapshot.imported(MODULE)
    is_imported = isinstance(outcome, Known) and outcome.value.outcome == "ok"
    if specifier is not None and not requirements.is_version_allowed(specifier, transformers_version):
        if not is_imported:
            yield _refused_problem(snapshot, liger_version, transformers_version, specifier)
    elif _forward_lags(snapshot, liger_version, transformers_version):
        yield _lagging_problem(snapshot, liger_version, transformers_version)


def _refused_problem(
    snapshot: Snapshot, liger_version: Version, transformers_version: Version, specifier: str
) -> Problem:
    outcome = snapshot.imported(MODULE)
    has_raised = isinstance(outcome, Known) and outcome.value.outcome == "raised"
    evidence = f"import lane: {outcome.value.message}" if has_raised and isinstance(outcome, Known) else "static lane"
    older = liger.choose_release(transformers_version)
    return Problem(
        message=(
            f"liger-kernel {liger_version} patches transformers {specifier}, but {transformers_version} is installed"
        ),
        subject=f"liger-kernel {liger_version}",
        evidence=(evidence,),
        fixes=(install.install_packages(snapshot, f"liger-kernel=={older}", options=("--no-deps",)),),
    )


def _forward_lags(snapshot: Snapshot, liger_version: Version, transformers_version: Version) -> bool:
    since, needed = (Version(text) for text in liger.MM_TOKEN_TYPE_IDS)
    return has_vision_tower(snapshot) and transformers_version >= since and liger_version < needed


def _lagging_problem(snapshot: Snapshot, liger_version: Version, transformers_version: Version) -> Problem:
    needed = liger.MM_TOKEN_TYPE_IDS[1]
    return Problem(
        message=f"liger-kernel {liger_version} does not know the arguments that transformers {transformers_version} "
        "passes to a vision-language model",
        subject=f"liger-kernel {liger_version}",
        evidence=("static lane: mm_token_type_ids, known to liger-kernel 0.8.0",),
        fixes=(install.install_packages(snapshot, f"liger-kernel>={needed}", options=("--no-deps",)),),
        predicted=True,
    )


RULE = Rule("ATN150", "error", check, needs=frozenset({"liger"}))
