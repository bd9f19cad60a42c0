"""vllm was built for a different torch.

What it checks: the torch that the installed vllm requires (its wheels name exactly one) against the installed torch;
if vllm's extension was imported, the outcome decides.

Why it matters: vllm's extensions are compiled against that torch; with another torch they fail with an undefined
symbol, and the rollout engine does not start. The usual cause is that torch was upgraded, or vllm installed,
afterwards.

What to do: install the torch that vllm requires, then build or install flash-attn for that torch.

Source: vllm's METADATA as installed (`torch==…`); instructlab/training#494; modelscope/ms-swift#8434.
"""

from attncheck.doctor.fixes import install
from attncheck.doctor.queries import need_torch, requirements
from attncheck.doctor.rules import Known, Problem, Problems, Rule, Snapshot, need, only_if

COMPILED_PACKAGES = (
    "flash-attn",
    "flash-attn-3",
    "xformers",
    "transformer-engine",
    "causal-conv1d",
    "mamba-ssm",
    "apex",
)


@only_if(Snapshot.has, "vllm")
def check(snapshot: Snapshot) -> Problems:
    need_torch(snapshot)
    if not snapshot.has("torch"):
        return
    vllm = need(snapshot.package("vllm"), "vllm")
    torch = need(snapshot.version("torch"), "torch's version")
    unmet = [
        requirement
        for requirement in requirements.applicable_requirements(snapshot, vllm, "torch")
        if not requirements.is_version_allowed(requirement.specifier, torch)
    ]
    outcome = snapshot.imported("vllm._C")
    if not unmet or (isinstance(outcome, Known) and outcome.value.outcome == "ok"):
        return
    evidence = "static lane: METADATA of vllm"
    if isinstance(outcome, Known) and outcome.value.outcome == "raised":
        evidence = f"import lane: {outcome.value.message}"
    others = [name for name in COMPILED_PACKAGES if snapshot.has(name)]
    afterwards = (f"afterwards {', '.join(others)} must be compatible with that torch too",) if others else ()
    yield Problem(
        message=f"vllm {vllm.version} is built for torch{unmet[0].specifier}, but {torch} is installed",
        subject=f"vllm {vllm.version}",
        evidence=(evidence, *afterwards),
        fixes=(install.install_packages(snapshot, f"torch{unmet[0].specifier}", f"vllm=={vllm.version}"),),
    )


RULE = Rule("ATN156", "error", check, needs=frozenset({"rl"}))
