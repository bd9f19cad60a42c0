"""attncheck trust: allow a policy's launches to run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attncheck.cli.commands import GATING, Command
from attncheck.cli.parts import POLICY, BadUsage, Python, option, select_interpreter, write_text

if TYPE_CHECKING:
    from attncheck.gate.launch_code import LaunchCode
    from attncheck.gate.policy import Policy

SECONDS = 60.0  # timeout of the probe of files
Place = Annotated[
    str,
    typer.Argument(
        metavar="FOLDER", show_default=False, help="A folder or a policy's file. Default: the policy that applies here."
    ),
]
Revoke = Annotated[bool, option(POLICY, "--revoke", help="Stop trusting the policy.")]
ListAll = Annotated[bool, option(POLICY, "--list", help="List the policies that are trusted.")]


def trust(place: Place = ".", revoke: Revoke = False, list_all: ListAll = False, python: Python = None) -> None:
    """Allow a policy's launches to run in their current form.

    `gate` and `run` rehearse what a policy names only after this, or if the command line names it.
    """
    from attncheck.gate import trust

    if list_all:
        write_text("".join(f"{entry.path}  {entry.date}\n" for entry in trust.list_trusts()) or "nothing is trusted\n")
    elif revoke:
        write_text(_revoke(place))
    else:
        write_text(_trust(_find_policy(place), python))


def _revoke(place: str) -> str:
    """Stop trusting the policy that applies in a folder, whether or not it can still be read."""
    from attncheck.gate.policy import POLICY_FILE, PYPROJECT_FILE, policy_path
    from attncheck.gate.trust import remove_trust

    start = Path(os.path.abspath(place))
    names = (POLICY_FILE, PYPROJECT_FILE)
    if start.name in names:
        paths = [policy_path(start.parent, start.name)]
    else:
        paths = [policy_path(folder, name) for folder in (start, *start.parents) for name in names]
    removed = next(filter(remove_trust, paths), "")
    return f"{removed} is no longer trusted\n" if removed else f"no policy of {start} was trusted\n"


def _find_policy(place: str) -> Policy:
    """Change to a folder and return the policy that applies there. Raises `BadUsage` if there is none."""
    from attncheck.gate.policy import load_policy, policy_path

    path = Path(os.path.abspath(place))
    folder = path if path.is_dir() else path.parent
    try:
        os.chdir(folder)  # so that it is read as `attncheck gate` will read it there
    except OSError as error:
        raise BadUsage(f"cannot read {folder}: {error.strerror}") from None
    policy = load_policy(Path.cwd())
    if not policy.path:
        raise BadUsage(f"no policy applies in {folder}: neither attncheck.toml nor [tool.attncheck] of pyproject.toml")
    if folder != path and policy_path(folder, path.name) != policy.path:
        raise BadUsage(f"{place} is not the policy that applies in {folder}, which is {policy.path}")
    return policy


def _trust(policy: Policy, python: str | None) -> str:
    from attncheck.gate.dates import today
    from attncheck.gate.trust import add_trust

    code = _read_code(policy, python)
    add_trust(policy, code.files, today())
    lines = [f"{policy.path} is now trusted in its current form"]
    lines += [f"  with {path}" for path in code.files]
    lines += [f"a rehearsal may run: {command}" for command in code.commands]
    return "\n".join(lines if code.commands else [*lines, "it names no launch that a rehearsal would run"]) + "\n"


def _read_code(policy: Policy, python: str | None) -> LaunchCode:
    """Return the code that the launches of a policy run, as the gate reads it."""
    from attncheck.doctor.probes.collect import collect_snapshot
    from attncheck.gate.inputs import Inputs
    from attncheck.gate.launch_code import CodeReader
    from attncheck.gate.run import read_policy_sources

    sources = read_policy_sources(policy)
    snapshot = collect_snapshot(select_interpreter(python).python, ("static",), seconds=SECONDS)
    return CodeReader(Inputs(sources)).read_code(snapshot, sources, own_loops=True)


COMMAND = Command(trust, GATING, 15, examples=("trust", "trust --list", "trust --revoke"))
