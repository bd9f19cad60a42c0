"""Files of an attention package are not the ones that were installed.

What it checks: the files of flash-attn, flash-attn-3, flash-attn-4, ring-flash-attn and liger-kernel against their
RECORD, by size. Of ring-flash-attn and liger-kernel, which people patch on purpose, missing files alone count. What
flash-attn and flash-attn-4 do to one another is ATN113.

Why it matters: two versions mixed in one folder fail in odd ways ("not enough values to unpack (expected 8, got 7)"),
and a reinstall from pip's cache reports success without changing anything.

What to do: remove the package and install it again without pip's cache.

Source: Dao-AILab/flash-attention#469, #723; NVlabs/Long-RL#16; instructlab/training#494.
"""

from __future__ import annotations

from collections.abc import Iterator

from attncheck import advice
from attncheck.findings import Fix, Problem
from attncheck.flash_attn_advice import install_flash_attn
from attncheck.reading import flash_fault
from attncheck.rules import Rule
from attncheck.snapshot import Distribution, Snapshot

SHARING = ("flash-attn", "flash-attn-4")


def check(snapshot: Snapshot) -> Iterator[Problem]:
    """Yield a problem for each package whose files were changed or removed."""
    for distribution in snapshot.distributions:
        altered, missing = _disturbed(snapshot, distribution)
        if not altered and not missing:
            continue
        counts = [f"{len(paths)} {what}" for paths, what in ((missing, "missing"), (altered, "changed")) if paths]
        yield Problem(
            message=f"{distribution.name} {distribution.version} is not as it was installed: files "
            + " and ".join(counts),
            subject=f"{distribution.name} {distribution.version}",
            evidence=(*(f"missing: {p}" for p in missing[:3]), *(f"changed: {p}" for p in altered[:3])),
            fixes=tuple(_fixes(snapshot, distribution)),
        )


def _disturbed(snapshot: Snapshot, distribution: Distribution) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if distribution.editable or distribution.problem:
        return (), ()
    altered, missing = distribution.files_altered, distribution.files_missing
    if distribution.name in ("ring-flash-attn", "liger-kernel"):
        altered = ()
    if distribution.name in SHARING and snapshot.has(*SHARING[:1]) and snapshot.has(*SHARING[1:]):
        altered = tuple(path for path in altered if not path.startswith("flash_attn/cute/"))
        missing = tuple(path for path in missing if not path.startswith("flash_attn/cute/"))
    if distribution.name == "flash-attn" and flash_fault(snapshot) not in (None, "other"):
        return (), ()  # ATN104 to ATN107 name what broke and lay it down again
    return altered, missing


def _fixes(snapshot: Snapshot, distribution: Distribution) -> Iterator[Fix]:
    if distribution.name == "flash-attn":
        yield from install_flash_attn(snapshot)[:1]
        return
    options = ("--no-deps", "--no-cache-dir", "--force-reinstall")
    yield advice.install(snapshot, f"{distribution.name}=={distribution.version}", options=options)


RULE = Rule("ATN115", "warning", check)
