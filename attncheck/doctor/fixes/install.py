"""Fixes that depend on the examined interpreter, its installer and its frameworks."""

from collections.abc import Iterable

from attncheck.core.findings import Fix
from attncheck.core.snapshot import Absent, Distribution, ImportOutcome, Known, Snapshot
from attncheck.doctor.queries.requirements import avoid_faulty


def install_command(snapshot: Snapshot) -> str:
    """Return the install command of the examined environment, pip's or uv's, without its arguments.

    uv is preferred if it installed the packages there or if the environment has no pip. If uv filled an environment
    without pip and is no longer on PATH, the command is still uv's. In any other environment without pip, pip is
    installed first. An interpreter of the operating system refuses to be changed: a virtual environment on top of it is
    created first.
    """
    if snapshot.gaps.reason:
        return "pip install"  # for an environment on another machine
    python = snapshot.host.executable
    if refuses_installs(snapshot):
        return f"{python} -m venv --system-site-packages .venv && .venv/bin/python -m pip install"
    uv_found = isinstance(snapshot.build_tools.uv, Known)
    installed_by_uv = any(distribution.installer == "uv" for distribution in snapshot.distributions)
    if uv_found and (installed_by_uv or not isinstance(snapshot.build_tools.pip, Known)):
        return f"uv pip install --python {python}"
    if isinstance(snapshot.build_tools.pip, Absent):
        if installed_by_uv:
            return f"uv pip install --python {python}"
        return f"{python} -m ensurepip && {python} -m pip install"
    return f"{python} -m pip install"


def refuses_installs(snapshot: Snapshot) -> bool:
    """Return whether the operating system manages the interpreter, so that pip and uv do not install into it."""
    host = snapshot.host
    return snapshot.build_tools.externally_managed and not host.virtual_environment and not host.conda


def uninstall_command(snapshot: Snapshot) -> str:
    """Return the uninstall command of the examined environment, without its arguments."""
    if snapshot.gaps.reason:
        return "pip uninstall -y"
    if install_command(snapshot).startswith("uv "):
        return f"uv pip uninstall --python {snapshot.host.executable}"
    return f"{snapshot.host.executable} -m pip uninstall -y"


def quote_for_shell(text: str) -> str:
    """Return `text`, quoted if it holds a character that the shell would interpret."""
    return f"'{text}'" if any(character in text for character in "<>!*[]; ") else text


def install_packages(
    snapshot: Snapshot,
    *requirements: str,
    options: tuple[str, ...] = (),
    title: str = "",
    allows: tuple[str, ...] = (),
    follows: bool = False,
) -> Fix:
    """Return the command that installs `requirements` into the examined environment.

    A range whose newest release is known to be faulty is replaced by the newest release without a known fault. The
    command is "safe" only with "--no-deps" among `options`; otherwise other packages may change their version. `allows`
    and `follows` are passed to the fix.
    """
    requirements = tuple(avoid_faulty(requirement) or requirement for requirement in requirements)
    tokens = [install_command(snapshot), *options, *(quote_for_shell(requirement) for requirement in requirements)]
    return Fix(
        title=title or "install " + " ".join(requirements),
        kind="command",
        text=" ".join(tokens),
        safety="safe" if "--no-deps" in options else "unsafe",
        installs=requirements,
        allows=allows,
        follows=follows,
    )


def meet_requirements(
    snapshot: Snapshot, owner: str, requirements: Iterable[str], options: tuple[str, ...] = ()
) -> tuple[Fix, ...]:
    """Return the command that installs the packages `owner` requires.

    If that would install a faulty release, the command installs another release of `owner`.
    """
    lines = tuple(requirements)
    faulty = ", ".join(line for line in lines if not avoid_faulty(line))
    if faulty:
        return (
            Fix(
                f"another release of {owner}: this one requires a package that is known to be faulty", "manual", faulty
            ),
        )
    return (install_packages(snapshot, *lines, options=options),)


def reinstall_distribution(snapshot: Snapshot, distribution: Distribution) -> Fix:
    """Return the command that reinstalls one distribution and changes no other."""
    options = ("--no-deps", "--force-reinstall")
    requirement = distribution.name + (f"=={distribution.version}" if distribution.version else "")
    return install_packages(snapshot, requirement, options=options, title=f"reinstall {distribution.name}")


def uninstall_packages(snapshot: Snapshot, *names: str, title: str = "") -> Fix:
    """Return the command that removes the distributions `names` from the examined environment."""
    return Fix(
        title or "remove " + ", ".join(names), "command", " ".join([uninstall_command(snapshot), *names]), "unsafe"
    )


def export_variable(name: str, value: str, title: str = "") -> Fix:
    """Return the line that sets an environment variable for the job."""
    return Fix(title or f"set {name}", "env", f"export {name}={value}")


def unset_variable(name: str, title: str = "") -> Fix:
    """Return the line that removes an environment variable for the job."""
    return Fix(title or f"unset {name}", "env", f"unset {name}")


def extend_import_timeout(outcome: ImportOutcome) -> tuple[Fix, ...]:
    """Return the longer timeout to try first after an import that hung; empty for other outcomes."""
    if outcome.outcome != "hung":
        return ()
    seconds = max(300, round(outcome.seconds) * 5)
    title = "allow more time: imports from a cold or shared disk can be slow"
    return (Fix(title, "advice", f"attncheck doctor --timeout {seconds}"),)


def set_attn_implementation(snapshot: Snapshot, value: str) -> Fix:
    """Return the setting `attn_implementation=value`, in the option names of each framework installed here."""
    lines = [f'attn_implementation="{value}"']
    if snapshot.lists("openrlhf"):
        lines.append(f"OpenRLHF:      --ds.attn_implementation {value}")
    if snapshot.lists("verl"):
        lines.append(f"verl:          +actor_rollout_ref.model.override_config.attn_implementation={value}")
    if snapshot.lists("llamafactory"):
        short = {"flash_attention_2": "fa2", "flash_attention_3": "fa3", "eager": "disabled"}.get(value, value)
        lines.append(f"LLaMA-Factory: flash_attn: {short}")
    if snapshot.lists("ms-swift"):
        lines.append(f"ms-swift:      --attn_impl {value}")
    return Fix(f"use {value}", "setting", "\n".join(lines))
