"""flash-attn-4 and flash-attn own the same files.

What it checks: both distributions in one site directory, and the files that both their RECORDs name, with whose copies
lie on disk.

Why it matters: both install into `flash_attn/cute`, with different contents. The one installed last has won;
uninstalling either takes the other's files along. Where flash-attn 2.8.3's older copy won, flash_attention_4 and
`import megatron.core` fail ("No module named 'cutlass.utils.ampere_helpers'"). flash-attn 2 itself does not use the
folder.

What to do: remove flash-attn-4 where it is not used, and lay flash-attn down again; where both are,
flash-attn first and flash-attn-4 over it.

Source: flash_attn_4 4.0.0b36 wheel (RECORD: `flash_attn/cute/*`, no `flash_attn/__init__.py`) and flash-attn 2.8.3
source distribution (`flash_attn/cute/*`); verl `docker/Dockerfile.stable.sglang`; prime-rl#1945, #1952.
"""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.environment import Distribution
from attncheck.core.facts import Known
from attncheck.core.findings import Fix, Problem
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.fixes import install
from attncheck.doctor.fixes.flash_attn import install_flash_attn
from attncheck.doctor.rules import Rule


def check(snapshot: Snapshot) -> Iterator[Problem]:
    """Yield a problem where the two distributions are laid over one another."""
    two, four = snapshot.package("flash-attn"), snapshot.package("flash-attn-4")
    if not isinstance(two, Known) or not isinstance(four, Known):
        return
    shared = [c.path for c in snapshot.clashes if {"flash-attn", "flash-attn-4"} <= set(c.owners)]
    lost = {name: _lost(found.value) for name, found in (("flash-attn", two), ("flash-attn-4", four))}
    if not shared and not any(lost.values()):
        return
    loser = "flash-attn-4" if len(lost["flash-attn-4"]) > len(lost["flash-attn"]) else "flash-attn"
    winner = "flash-attn" if loser == "flash-attn-4" else "flash-attn-4"
    count = len(shared) or len(lost[loser])
    files = "1 file" if count == 1 else f"{count} files"
    files = "1 file" if count == 1 else f"{count} files"
    yield Problem(
        message=f"flash-attn-4 {four.value.version} and flash-attn {two.value.version} share {files}; "
        f"those on disk are {winner}'s",
        subject="flash-attn-4",
        evidence=(
            *(
                f"{name}: {len(paths)} files are not its own, for instance {paths[0]}"
                for name, paths in lost.items()
                if paths
            ),
            *(f"claimed by both: {path}" for path in shared[:2]),
        ),
        fixes=tuple(_fixes(snapshot, four.value, loser)),
    )


def _lost(distribution: Distribution) -> list[str]:
    return [p for p in (*distribution.files_missing, *distribution.files_altered) if p.startswith("flash_attn/")]


def _fixes(snapshot: Snapshot, four: Distribution, loser: str) -> Iterator[Fix]:
    again = install.install(
        snapshot,
        f"flash-attn-4=={four.version}",
        options=("--no-deps", "--force-reinstall"),
        title="where flash-attn-4 is used: lay it over flash-attn",
    )
    if loser == "flash-attn-4":
        yield again
    remove = install.uninstall(snapshot, "flash-attn-4", title="where flash-attn-4 is not used: remove it …")
    yield remove
    for fix in install_flash_attn(snapshot)[:1]:
        yield Fix("… and lay flash-attn down again: " + fix.title, fix.kind, fix.text, fix.safety)


RULE = Rule("ATN113", "warning", check, needs=frozenset({"flash"}))
