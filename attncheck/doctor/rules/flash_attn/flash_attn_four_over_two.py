"""flash-attn-4 and flash-attn own the same files.

What it checks: both distributions in one site directory, the files that both RECORDs name, and which of the two
copies is on disk.

Why it matters: both install into `flash_attn/cute`, with different contents. The last one installed overwrites the
other, and uninstalling either one removes the other's files. If flash-attn 2.8.3's older copy is on disk,
flash_attention_4 and `import megatron.core` fail ("No module named 'cutlass.utils.ampere_helpers'"). flash-attn 2
itself does not use the folder.

What to do: if flash-attn-4 is not used, remove it and reinstall flash-attn. If both are used, install flash-attn
first and then flash-attn-4.

Source: flash_attn_4 4.0.0b36 wheel (RECORD: `flash_attn/cute/*`, no `flash_attn/__init__.py`) and flash-attn 2.8.3
source distribution (`flash_attn/cute/*`); verl `docker/Dockerfile.stable.sglang`; prime-rl#1945, #1952.
"""

from collections.abc import Iterator

from attncheck.doctor.fixes import flash_attn_fixes, install
from attncheck.doctor.rules import Distribution, Fix, Known, Problem, Problems, Rule, Snapshot


def check(snapshot: Snapshot) -> Problems:
    flash_attn_2, flash_attn_4 = snapshot.package("flash-attn"), snapshot.package("flash-attn-4")
    if not isinstance(flash_attn_2, Known) or not isinstance(flash_attn_4, Known):
        return
    shared = [clash.path for clash in snapshot.clashes if {"flash-attn", "flash-attn-4"} <= set(clash.owners)]
    overwritten = {
        name: _overwritten_files(package.value)
        for name, package in (("flash-attn", flash_attn_2), ("flash-attn-4", flash_attn_4))
    }
    if not shared and not any(overwritten.values()):
        return
    loser = "flash-attn-4" if len(overwritten["flash-attn-4"]) > len(overwritten["flash-attn"]) else "flash-attn"
    winner = "flash-attn" if loser == "flash-attn-4" else "flash-attn-4"
    count = len(shared) or len(overwritten[loser])
    files = "1 file" if count == 1 else f"{count} files"
    yield Problem(
        message=f"flash-attn-4 {flash_attn_4.value.version} and flash-attn {flash_attn_2.value.version} share {files}; "
        f"those on disk are {winner}'s",
        subject="flash-attn-4",
        evidence=(
            *(
                f"{name}: {len(paths)} files belong to the other package, for instance {paths[0]}"
                for name, paths in overwritten.items()
                if paths
            ),
            *(f"claimed by both: {path}" for path in shared[:2]),
        ),
        fixes=tuple(_fixes(snapshot, flash_attn_4.value, loser)),
    )


def _overwritten_files(distribution: Distribution) -> list[str]:
    return [
        path for path in (*distribution.files_missing, *distribution.files_altered) if path.startswith("flash_attn/")
    ]


def _fixes(snapshot: Snapshot, flash_attn_4: Distribution, overwritten_package: str) -> Iterator[Fix]:
    reinstall = install.install_packages(
        snapshot,
        f"flash-attn-4=={flash_attn_4.version}",
        options=("--no-deps", "--force-reinstall"),
        title="if you use flash-attn-4: reinstall it over flash-attn",
    )
    if overwritten_package == "flash-attn-4":
        yield reinstall
    remove = install.uninstall_packages(snapshot, "flash-attn-4", title="if you do not use flash-attn-4: remove it …")
    yield remove
    for fix in flash_attn_fixes(snapshot)[:1]:
        yield Fix("… and reinstall flash-attn: " + fix.title, fix.kind, fix.text, fix.safety)


RULE = Rule("ATN113", "warning", check, needs=frozenset({"flash"}))
