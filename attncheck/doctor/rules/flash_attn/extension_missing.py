"""A compiled package is installed without its compiled extension.

What it checks: the Python files that run whenever flash-attn, causal-conv1d, mamba-ssm or a similar package is
imported. attncheck reads them, including their guards. A top-level module that they import counts as the package's
missing extension if no file on sys.path provides it and no other distribution is required for it.

Why it matters: metadata and RECORD are complete, so `pip check` and transformers' `is_flash_attn_2_available()`
report the package as installed. The import raises "No module named 'flash_attn_2_cuda'" on every machine.

What to do: build or install it again without pip's cache, which holds the wheel without its extension, and without
FLASH_ATTENTION_SKIP_CUDA_BUILD (also in `[tool.uv.extra-build-variables]` of pyproject.toml), which is what omits the
extension.

Source: flash-attn 2.8.3, setup.py (`SKIP_CUDA_BUILD`) and flash_attn/flash_attn_interface.py;
PrimeIntellect-ai/prime-rl#1972, #2587.
"""

from collections.abc import Iterator
from dataclasses import replace

from attncheck.doctor.fixes import avoid_flash_attn, build_flash_attn, flash_attn_fixes, install
from attncheck.doctor.queries.launch import may_import
from attncheck.doctor.rules import Distribution, Fix, Known, Problem, Problems, Rule, Snapshot

SKIP_BUILD = {
    "flash-attn": "FLASH_ATTENTION_SKIP_CUDA_BUILD",
    "causal-conv1d": "CAUSAL_CONV1D_SKIP_CUDA_BUILD",
    "mamba-ssm": "MAMBA_SKIP_CUDA_BUILD",
}


def check(snapshot: Snapshot) -> Problems:
    for distribution in snapshot.distributions:
        if not distribution.missing_modules or not may_import(snapshot, distribution.name):
            continue
        modules = ", ".join(dict.fromkeys(text.partition(" ")[0] for text in distribution.missing_modules))
        yield Problem(
            message=f"{distribution.name} {distribution.version} is installed without its extension {modules}",
            evidence=(
                *(f"static lane: imported, but not provided: {text}" for text in distribution.missing_modules[:3]),
                *_describe_import(snapshot, distribution),
            ),
            fixes=tuple(dict.fromkeys(_iter_fixes(snapshot, distribution))),
            subject=f"{distribution.name} {distribution.version}",
        )


def _describe_import(snapshot: Snapshot, distribution: Distribution) -> Iterator[str]:
    outcome = snapshot.imported(distribution.name.replace("-", "_"))
    if isinstance(outcome, Known) and outcome.value.exception:
        yield f"import lane: {outcome.value.exception}: {outcome.value.message}"


def _iter_fixes(snapshot: Snapshot, distribution: Distribution) -> Iterator[Fix]:
    is_flash = distribution.name == "flash-attn"
    fixes = (*build_flash_attn(snapshot), *flash_attn_fixes(snapshot), *avoid_flash_attn(snapshot)) if is_flash else ()
    commands = tuple(fix for fix in fixes if fix.kind == "command" and fix.installs)
    variable = SKIP_BUILD.get(distribution.name, "")
    for fix in commands or (_build_again(snapshot, distribution),):
        title = f"{fix.title}, with its extension: {variable} omits it"
        yield replace(fix, title=title, text=f"env -u {variable} {fix.text}") if variable else fix
    if is_flash and not isinstance(snapshot.job, Known):
        yield from avoid_flash_attn(snapshot)


def _build_again(snapshot: Snapshot, distribution: Distribution) -> Fix:
    options = ("--no-build-isolation", "--no-deps", "--no-cache-dir", "--force-reinstall")
    requirement = f"{distribution.name}=={distribution.version}"
    return install.install_packages(snapshot, requirement, options=options, title=f"build {requirement} again")


RULE = Rule("ATN178", "error", check)
