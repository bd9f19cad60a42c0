"""The launches that the user allows to run, identified by the policy's path and digests of their files.

A policy is part of a folder, and the folder may be a download, so `attncheck gate` in it must not run its scripts. A
check that runs what a policy names starts only after `attncheck trust`, like direnv's `allow`, or if the command line
names the check or the launch. Trust is kept in the user's own state folder, one file for each policy. A policy or a
script that changed is no longer trusted, nor is a file that another user can write.
"""

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from attncheck.core import codec
from attncheck.core.io.errors import BadUsage, Unanswered
from attncheck.core.io.private_folder import describe_other_writers, make_private, replace_private_file, state_path
from attncheck.gate.policy import Policy


@dataclass(frozen=True)
class Trust:
    """One trusted policy: its path, the digest of its settings, digests of files by path, and the date."""

    path: str
    policy: str
    files: Mapping[str, str] = field(default_factory=dict)
    date: str = ""


def digest_text(text: str) -> str:
    """Return the digest of a text."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def find_doubt(policy: Policy, files: Mapping[str, str]) -> str:
    """Return why the code that `policy` names must not run, and what to do; "" if the user trusts it as it is now.

    `files` are digests by path. A policy without a file comes from the user's own command line.
    """
    if not policy.path:
        return ""
    name = f"{policy.file} in {os.path.dirname(policy.path)}"
    if reason := _find_fault(policy, files):
        return f"{name} is not trusted: {reason}"
    trust = read_trust(policy.path)
    if trust is None:
        reason = f"{name} is not trusted"
    elif trust.policy != policy.digest:
        reason = f"{name} changed after it was trusted"
    else:
        changed = [path for path, digest in files.items() if trust.files.get(path) != digest]
        reason = f"{changed[0]} changed after {name} was trusted" if changed else ""
    return f"{reason}; review it and run `attncheck trust`" if reason else ""


def _find_fault(policy: Policy, files: Mapping[str, str]) -> str:
    """Return why a policy and its files cannot be trusted at all; "" if they can."""
    for path in (policy.path, *files):
        if writers := describe_other_writers(path):
            return f"{path}: {writers}"
    unread = next((path for path, digest in files.items() if not digest), "")
    return f"{unread} cannot be read, or is larger than 4 MiB" if unread else ""


def add_trust(policy: Policy, files: Mapping[str, str], date: str) -> None:
    """Trust a policy and its files in their current state. Raises `BadUsage` if others can write one of them."""
    if fault := _find_fault(policy, files):
        raise BadUsage(f"{policy.path} cannot be trusted: {fault}")
    path = _trust_file(policy.path)
    if path is None or make_private(path.parent.parent) is None or make_private(path.parent) is None:
        raise Unanswered(f"cannot create a private folder for trusted policies: {(path and path.parent) or 'no HOME'}")
    replace_private_file(path, codec.dumps(Trust(policy.path, policy.digest, files, date)))


def read_trust(path: str) -> Trust | None:
    """Return the trust record of the policy at `path`; None if there is none, or if others could have written it."""
    file = _trust_file(path)
    trust = _read(file) if file is not None else None
    return trust if trust is not None and trust.path == path else None


def remove_trust(path: str) -> bool:
    """Stop trusting a policy; return whether it was trusted."""
    file = _trust_file(path)
    if file is None or not file.exists():
        return False
    file.unlink()
    return True


def list_trusts() -> list[Trust]:
    """Return the trusted policies by path."""
    folder = _trust_folder()
    files = folder.glob("*.json") if folder is not None else ()
    return sorted((trust for file in files if (trust := _read(file)) is not None), key=lambda trust: trust.path)


def describe_state(policy: Policy) -> list[str]:
    """Return what decides whether the policy's code may run, as part of the key of a kept answer."""
    if not policy.path:
        return []
    return [codec.dumps(read_trust(policy.path)), describe_other_writers(policy.path)]


def _trust_folder() -> Path | None:
    state = state_path(os.environ)
    return state / "trusted" if state is not None else None


def _trust_file(path: str) -> Path | None:
    folder = _trust_folder()
    return folder / f"{digest_text(path)}.json" if folder is not None else None


def _read(file: Path) -> Trust | None:
    with suppress(OSError, ValueError):  # BadDocument is a ValueError
        if not describe_other_writers(file.parent) and not describe_other_writers(file):
            return codec.loads(Trust, file.read_text("utf-8"))
    return None
