"""This TransformerEngine does not use the installed flash-attn version.

What it checks: the installed flash-attn against the range written into the installed TransformerEngine: up to 2.6.3
for 1.13, 2.7.4.post1 for 2.1 to 2.5, 2.8.1 for 2.6 to 2.9, 2.8.3 (without its post-releases) for 2.10 to 2.18, and
all of 2.8.3 since 2.19.

Why it matters: TransformerEngine then ignores flash-attn with one warning. If the other backends are unavailable too,
it stops with "No dot product attention backend is available for the provided inputs".

What to do: install the flash-attn that the finding names, or run once with NVTE_DEBUG=1 NVTE_DEBUG_LEVEL=2 and read
which backend is used.

Source: wheels of transformer-engine 1.13.0-2.20.2, `pytorch/attention/dot_product_attention/utils.py` and
`backends.py`; NVIDIA/TransformerEngine#1821, #2285; NVIDIA/Megatron-LM#3984.
"""

from attncheck.doctor.fixes import install, missing_dependencies
from attncheck.doctor.knowledge import transformer_engine
from attncheck.doctor.queries import requirements
from attncheck.doctor.rules import Fix, Known, Problem, Problems, Rule, Snapshot, Version, need

DISTRIBUTIONS = ("transformer-engine", "transformer-engine-torch", "transformer-engine-cu13", "transformer-engine-cu12")


def check(snapshot: Snapshot) -> Problems:
    name = next((name for name in DISTRIBUTIONS if snapshot.has(name)), None)
    if name is None or not snapshot.has("flash-attn"):
        return
    engine = need(snapshot.version(name), "TransformerEngine's version")
    flash = need(snapshot.version("flash-attn"), "flash-attn's version")
    specifier = transformer_engine.compatible_flash_attn(engine)
    public = Version(flash.public)  # only the newest TransformerEngine compares 2.8.3+local with 2.8.3
    if specifier is None or requirements.is_version_allowed(specifier, public):
        return
    is_newer_than_table = engine > Version(transformer_engine.LAST_RELEASE_READ)
    yield Problem(
        message=f"TransformerEngine {engine} supports flash-attn {specifier}, but {flash} is installed",
        subject=f"flash-attn {flash}",
        evidence=("static lane: the range in TransformerEngine's source", *_import_evidence(snapshot)),
        fixes=(
            install.install_packages(
                snapshot,
                f"flash-attn{specifier}",
                *missing_dependencies(snapshot),
                options=("--no-build-isolation", "--no-deps"),
            ),
            Fix("see which backend it uses", "advice", "export NVTE_DEBUG=1 NVTE_DEBUG_LEVEL=2"),
        ),
        predicted=is_newer_than_table,
    )


def _import_evidence(snapshot: Snapshot) -> tuple[str, ...]:
    outcome = snapshot.imported("transformer_engine.pytorch")
    return (f"import lane: transformer_engine {outcome.value.outcome}",) if isinstance(outcome, Known) else ()


RULE = Rule("ATN161", "warning", check, needs=frozenset({"flash"}))
