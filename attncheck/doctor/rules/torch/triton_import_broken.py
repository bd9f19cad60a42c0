"""triton is installed but cannot be imported.

What it checks: how importing triton ended in its own process.

Why it matters: liger-kernel, flash-attn's cross entropy, torch.compile and flex_attention are triton kernels. liger
and the frameworks then fail with the same error, or continue without their kernels. triton 3.0 to 3.2 (torch 2.4 to
2.6) import setuptools, which no package requires below Python 3.12 and which uv's environments do not have.

What to do: install the missing module. Otherwise reinstall the triton version that torch requires.

Source: triton 3.2.0, `triton/runtime/build.py` (`import setuptools`); METADATA of torch 2.6.0 (setuptools only since
Python 3.12). Run: triton 3.2.0 in an environment without setuptools raises, and imports once it is installed.
"""

from collections.abc import Iterator

from attncheck.doctor.fixes import TRITON_DISTRIBUTIONS, install, required_triton
from attncheck.doctor.queries import describe_failed_import, find_failed_import, hidden_by, is_shadowed, missing_module
from attncheck.doctor.rules import Fix, ImportOutcome, Known, Problem, Problems, Rule, Snapshot

USERS = ("liger-kernel", "verl", "openrlhf", "unsloth")


def check(snapshot: Snapshot) -> Problems:
    outcome = find_failed_import(snapshot, "triton")
    if outcome is None or not snapshot.has(*TRITON_DISTRIBUTIONS):
        return
    if is_shadowed(snapshot, "triton"):
        raise hidden_by("triton")
    versions = (snapshot.package(name) for name in TRITON_DISTRIBUTIONS)
    triton = next(f"{package.value.name} {package.value.version}" for package in versions if isinstance(package, Known))
    users = list_users(snapshot)
    needed = ", which " + ", ".join(users) + (" needs" if len(users) == 1 else " need") if users else ""
    module = missing_module(outcome).replace("triton", "")  # triton's own modules are not another package
    cause = f": {module} is not installed" if module else ""
    yield Problem(
        message=f"{triton} cannot be imported{needed}{cause}",
        subject=triton,
        evidence=(describe_failed_import(outcome), *(f"at {frame}" for frame in outcome.frames[-2:])),
        fixes=(*install.extend_import_timeout(outcome), *_list_fixes(snapshot, outcome)),
        predicted=not users,  # torch works without triton until something is compiled
    )


def list_users(snapshot: Snapshot) -> list[str]:
    """Return the users of triton kernels here: packages, and a launch that compiles."""
    users = [name for name in USERS if snapshot.lists(name)]
    compiles = isinstance(snapshot.job, Known) and snapshot.job.value.plan.compile
    return [*users, "torch.compile"] if compiles else users


def _list_fixes(snapshot: Snapshot, outcome: ImportOutcome) -> Iterator[Fix]:
    module = missing_module(outcome)
    if module not in ("", "triton"):
        yield install.install_packages(snapshot, module.replace("_", "-"))
    else:
        options = ("--no-deps", "--force-reinstall")
        yield install.install_packages(snapshot, required_triton(snapshot) or "triton", options=options)
    if snapshot.lists("liger-kernel"):
        yield Fix("or remove liger-kernel", "setting", "use_liger_kernel=False")


RULE = Rule("ATN171", "error", check)
