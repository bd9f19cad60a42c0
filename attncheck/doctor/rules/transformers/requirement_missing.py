"""A package of the stack requires another that is not installed.

What it checks: the unconditional Requires-Dist of every installed framework and attention package, with markers
evaluated for this interpreter and without extras: is a distribution of each name installed? If importing the package
was tried, the outcome decides. Not reported here: torch (ATN101), triton (ATN121, ATN152), flash-attn (ATN109,
ATN142, ATN146), requirements of flash-attn-4 (ATN127), and packages that are installed in another version (ATN147).

Why it matters: `pip install --no-deps`, which is the best way to install flash-attn's wheels, omits requirements.
Without einops, flash-attn can be imported, but flash_attention_2 fails when the model is loaded: transformers, verl and
OpenRLHF import their unpadding from `flash_attn.bert_padding`, which imports einops.

What to do: install the missing package; the finding has the command. No other package has to change.

Source: flash_attn 2.8.3, METADATA (torch, einops) and `bert_padding.py`; transformers 5.3.0 and 5.17.0,
`modeling_flash_attention_utils.py` (`from flash_attn.bert_padding import pad_input, unpad_input`).
"""

from packaging.requirements import Requirement

from attncheck.doctor.fixes import TRITON_DISTRIBUTIONS, install
from attncheck.doctor.knowledge.frameworks import WATCHED_DISTRIBUTIONS
from attncheck.doctor.queries import can_import, describe_failed_import, find_failed_import, may_import, requirements
from attncheck.doctor.rules import Distribution, Known, Problem, Problems, Rule, Snapshot, Unreadable

REPORTED_ELSEWHERE = ("torch", "flash-attn", *TRITON_DISTRIBUTIONS)
# Modules that the import lane imports per distribution; trl and transformers import their parts only on use.
MODULES = {
    "flash-attn": "flash_attn",
    "flash-attn-3": "flash_attn_interface",
    "kernels": "kernels",
    "liger-kernel": "liger_kernel.transformers",
    "openrlhf": "openrlhf.models",
    "peft": "peft",
    "ring-flash-attn": "ring_flash_attn",
    "transformer-engine": "transformer_engine.pytorch",
    "transformers": "transformers.modeling_utils",
    "verl": "verl",
    "xformers": "xformers.ops",
    "yunchang": "yunchang",
}
UNPADDING = "flash_attn.bert_padding:unpad_input"


def check(snapshot: Snapshot) -> Problems:
    for name in WATCHED_DISTRIBUTIONS:
        package = snapshot.package(name)
        if not isinstance(package, Known) or package.value.problem or name == "flash-attn-4":
            continue
        if not package.value.requires or not may_import(snapshot, name):
            continue
        missing = [
            requirement
            for requirement in requirements.absent_requirements(snapshot, package.value)
            if requirements.canonical_name(requirement.name) not in REPORTED_ELSEWHERE
        ]
        if missing and not _works_without(snapshot, name):
            yield from _make_problem(snapshot, package.value, missing)


def _works_without(snapshot: Snapshot, name: str) -> bool:
    """Return whether the import lane imported everything that the stack uses from a distribution."""
    if name == "flash-attn":
        return isinstance(snapshot.interfaces, Known) and snapshot.interfaces.value.symbols.get(UNPADDING, False)
    return can_import(snapshot, MODULES.get(name, ""))


def _make_problem(snapshot: Snapshot, distribution: Distribution, missing: list[Requirement]) -> Problems:
    failure = _describe_failure(snapshot, distribution.name, missing)
    if failure is None:
        return  # the rule about that import reports it, with the same fix
    for requirement in missing:
        requirement.marker = None
    listed = ", ".join(map(str, missing))
    is_flash_attn = distribution.name == "flash-attn"
    consequence = ": flash_attn.bert_padding cannot be imported" if is_flash_attn else ""
    yield Problem(
        message=f"{distribution.name} {distribution.version} requires {listed}, which "
        f"{'is' if len(missing) == 1 else 'are'} not installed{consequence}",
        subject=f"{distribution.name} {distribution.version}",
        evidence=(failure or f"static lane: Requires-Dist of {distribution.name} {distribution.version}",),
        fixes=install.meet_requirements(
            snapshot, distribution.name, map(str, missing), ("--no-deps",) if is_flash_attn else ()
        ),
        predicted=not failure and not is_flash_attn,
    )


def _describe_failure(snapshot: Snapshot, name: str, missing: list[Requirement]) -> str | None:
    """Return the failed import that proves a missing requirement, or ""; None if another rule reports it."""
    absent_modules = tuple(f"No module named '{requirement.name.replace('-', '_')}" for requirement in missing)
    failed = find_failed_import(snapshot, MODULES.get(name, ""), name.replace("-", "_"))
    if failed is not None and any(text in failed.message for text in absent_modules):
        return None if name in ("flash-attn", "transformers") else describe_failed_import(failed)  # ATN108, ATN154
    if name == "flash-attn" and isinstance(snapshot.interfaces, Known):
        arity = snapshot.interfaces.value.unpad_input_arity
        if isinstance(arity, Unreadable) and any(text in arity.reason for text in absent_modules):
            return f"import lane: flash_attn.bert_padding: {arity.reason}"
    return ""


RULE = Rule("ATN170", "error", check)
