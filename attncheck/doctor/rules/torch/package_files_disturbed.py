"""Files of an attention package differ from the installed ones.

What it checks: the modules of flash-attn, flash-attn-3, flash-attn-4, ring-flash-attn and liger-kernel against their
RECORD, by size, and whether an extension no longer exists. An extension that was only stripped is not reported. For
ring-flash-attn and liger-kernel, which people patch on purpose, only missing files count. ATN113 reports conflicts of
flash-attn and flash-attn-4.

Why it matters: two versions mixed in one folder fail in unexpected ways ("not enough values to unpack (expected 8,
got 7)"), and a reinstall from pip's cache reports success without changing anything.

What to do: remove the package and install it again without pip's cache.

Source: Dao-AILab/flash-attention#469, #723; NVlabs/Long-RL#16; instructlab/training#494.
"""

from collections.abc import Iterator

from attncheck.doctor.fixes import flash_attn_fixes, install
from attncheck.doctor.queries.packages import changed_flash_attn_files, diagnose_flash_attn
from attncheck.doctor.rules import Distribution, Fix, MissingFact, Problem, Problems, Rule, Snapshot

FOLDER_BY_PACKAGE = {
    "flash-attn": "flash_attn/",
    "flash-attn-3": "flash_attn_",
    "flash-attn-4": "flash_attn/",
    "ring-flash-attn": "ring_flash_attn/",
    "liger-kernel": "liger_kernel/",
}
PATCHED_PACKAGES = ("ring-flash-attn", "liger-kernel")


def check(snapshot: Snapshot) -> Problems:
    problems = list(_find_problems(snapshot))
    if not problems and diagnose_flash_attn(snapshot) == "other" and changed_flash_attn_files(snapshot):
        raise MissingFact("flash-attn's changed files are listed if its import failed", ("ATN108",))
    yield from problems


def _find_problems(snapshot: Snapshot) -> Problems:
    for distribution in snapshot.distributions:
        altered, missing = _changed_files(snapshot, distribution)
        if not altered and not missing:
            continue
        counts = [f"{len(paths)} {change}" for paths, change in ((missing, "missing"), (altered, "changed")) if paths]
        noun = "file" if len(altered) + len(missing) == 1 else "files"
        yield Problem(
            message=(
                f"{distribution.name} {distribution.version} differs from its installed state: "
                f"{' and '.join(counts)} {noun}"
            ),
            subject=f"{distribution.name} {distribution.version}",
            evidence=(*(f"missing: {path}" for path in missing[:3]), *(f"changed: {path}" for path in altered[:3])),
            fixes=tuple(_fixes(snapshot, distribution)),
        )


def _changed_files(snapshot: Snapshot, distribution: Distribution) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if distribution.editable or distribution.problem or distribution.name not in FOLDER_BY_PACKAGE:
        return (), ()
    if distribution.name == "flash-attn" and diagnose_flash_attn(snapshot) == "other":
        return (), ()  # ATN108 reports what broke and reinstalls it
    altered = tuple(path for path in distribution.files_altered if _is_relevant(snapshot, distribution, path))
    missing = tuple(
        path
        for path in distribution.files_missing
        if path.endswith(".so") or _is_relevant(snapshot, distribution, path)
    )
    return () if distribution.name in PATCHED_PACKAGES else altered, missing


def _is_relevant(snapshot: Snapshot, distribution: Distribution, path: str) -> bool:
    """Return whether `path` is a module that the package runs; images often omit tests and strip libraries."""
    is_shared = path.startswith("flash_attn/cute/") and snapshot.has("flash-attn") and snapshot.has("flash-attn-4")
    return path.endswith(".py") and path.startswith(FOLDER_BY_PACKAGE[distribution.name]) and not is_shared


def _fixes(snapshot: Snapshot, distribution: Distribution) -> Iterator[Fix]:
    if distribution.name == "flash-attn":
        yield from flash_attn_fixes(snapshot)[:1]
        return
    options = ("--no-deps", "--no-cache-dir", "--force-reinstall")
    yield install.install_packages(snapshot, f"{distribution.name}=={distribution.version}", options=options)


RULE = Rule("ATN115", "warning", check)
