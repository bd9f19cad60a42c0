"""A folder or file shadows an installed package.

What it checks: whether `import flash_attn`, torch, transformers, ring_flash_attn, triton, liger_kernel, vllm, verl or
openrlhf would import something that no installed distribution owns: a cloned repository on PYTHONPATH or next to the
script, or a leftover of an uninstall.

Why it matters: the code that runs is not the version that `pip list` shows. Next to a clone of flash-attention,
`import flash_attn` finds the sources without the compiled extension; an empty leftover folder becomes a namespace
package ("cannot import name 'flash_attn_func' from 'flash_attn' (unknown location)").

What to do: run from another directory, remove the folder from PYTHONPATH, or delete the leftovers.

Source: Python's import system (docs.python.org/3/reference/import.html, "Path entry finders", "Namespace packages");
Dao-AILab/flash-attention#469.
"""

from attncheck.doctor.fixes import install, reinstall_torch
from attncheck.doctor.queries.packages import describe_failed_import, find_failed_import
from attncheck.doctor.rules import Fix, Problem, Problems, Rule, Snapshot


def check(snapshot: Snapshot) -> Problems:
    for shadow in snapshot.shadows:
        name, _, place = shadow.partition(" at ")
        path, has_no_init, _ = place.partition(" (no __init__.py)")
        outcome = find_failed_import(snapshot, name)
        in_site_packages = path.rpartition("/")[0] in {distribution.location for distribution in snapshot.distributions}
        yield Problem(
            message=f"import {name} takes {path}, which no installed package owns"
            + (": its metadata is missing, or it is a leftover" if in_site_packages else ""),
            subject=name,
            evidence=(f"static lane: {shadow}", *((describe_failed_import(outcome),) if outcome else ())),
            fixes=_fixes(snapshot, name, path, in_site_packages and not has_no_init),
        )


def _fixes(snapshot: Snapshot, name: str, path: str, reinstalls: bool) -> tuple[Fix, ...]:
    move_away = Fix("move it away", "manual", f"{path}: run elsewhere, or rename or delete it")
    if not reinstalls:
        return (move_away,)
    if name == "torch":
        return (reinstall_torch(snapshot),)
    return (
        install.install_packages(snapshot, name.replace("_", "-"), options=("--no-deps", "--force-reinstall")),
        move_away,
    )


RULE = Rule("ATN118", "warning", check)
