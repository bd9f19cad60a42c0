"""No act of a hostile launch changes, sends or touches anything outside its folder, in any isolation that is to be had.

Without isolation each act does its damage (the control). What Landlock alone cannot deny is in `LEFT_OPEN`.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from attncheck.core.rehearsal import Isolation
from tests.adversary.rehearsal import acts, drive
from tests.adversary.rehearsal.ground import NOBODY, World, lay_ground, take_digest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is Linux's")
USERS = {"self": os.getuid(), **({"nobody": NOBODY} if os.getuid() == 0 else {})}
ISOLATIONS = ("all", "namespaces", "landlock")
QUICK = {("self", "all"), ("self", "landlock"), ("nobody", "all")}
WANTED_FILES = {"all": ("overlay", "read-only"), "namespaces": ("overlay", "read-only"), "landlock": ("landlock",)}
# Landlock alone: ranks meet over ports, and programs share memory; sockets' files and processors it does not know.
LEFT_OPEN = {
    *("tcp_loopback", "tcp_own_address", "tcp_raw_call", "udp_loopback", "udp_own_address", "unix_path"),
    *("hub_by_urllib", "tracker_by_urllib", "hub_by_curl", "bind_process"),
}
# What the kernel answers if an act cannot be done without isolation either: another user's right, an older kernel,
# a file system without the call, no such device, no typing into terminals.
IMPOSSIBLE = (
    "PermissionError",
    "OSError(38",
    "OSError(95",
    "FileNotFoundError",
    "OSError(25",
    "OSError(5,",
    "OSError(22",
)
CROSSING = ("copy_range", "rename_out", "move_in", "link_out", "link_in", "unmount")  # impossible from shared memory
MIN_ACTS = 60


@dataclass(frozen=True)
class Outcome:
    """What a sandbox let through: each act with its place, and what it did; the acts' own answers."""

    isolation: Isolation
    damage: Mapping[str, str]
    answers: Mapping[str, str]

    def find_damage(self, name: str) -> dict[str, str]:
        """Return the damage of one act, by its place."""
        return {key: text for key, text in self.damage.items() if key.split()[0] == name}


def combine() -> list[object]:
    """Return the combinations of user and isolation, those that take long at night."""
    return [
        pytest.param(user, means, marks=() if (user, means) in QUICK else pytest.mark.nightly)
        for user in USERS
        for means in ISOLATIONS
    ]


def require(means: str, user: str) -> Outcome:
    """Return what an attack did; skip if the kernel or the machine has not what it takes."""
    if USERS[user] != os.getuid() and not drive.find_interpreter(USERS[user]):
        pytest.skip(f"user {USERS[user]} can start no interpreter that reads these tests")
    outcome = attack(means, user)
    if outcome.isolation.files not in WANTED_FILES[means]:
        pytest.skip(f"this kernel does not grant {user} {means}: files are {outcome.isolation.files}")
    return outcome


@cache
def attack(means: str, user: str) -> Outcome:
    """Try every act in a sandbox, as a user."""
    number = USERS[user]
    python = sys.executable if number == os.getuid() else drive.find_interpreter(number)
    with lay_ground(number) as ground:
        victims = ground.lay_victims(acts.FILES)
        world = World(ground.root, number)
        try:
            plan = {"victims": victims, "world": list(acts.WORLD), "job": str(ground.job), "targets": world.targets}
            (ground.root / "plan.json").write_text(json.dumps(plan))
            (ground.root / "acts.py").write_text(Path(acts.__file__).read_text())
            before = {folder: take_digest(Path(folder)) for folders in victims.values() for folder in folders.values()}
            words = [python, "-I", "-S", "-B", f"{ground.root}/acts.py", f"{ground.root}/plan.json"]
            ended = drive.run_as(
                number,
                drive.Order(
                    shlex.join(words),
                    str(ground.project),
                    str(ground.job.parent),
                    drive.MEANS[means],
                    [str(ground.home), str(ground.project)],
                    world.environment,
                    needs_files=means != "none",
                ),
            )
            answers: dict[str, str] = next((json.loads(line) for line in ended.lines if line.startswith("{")), {})
            damage = {}
            for name, folders in victims.items():
                for place, folder in folders.items():
                    after = take_digest(Path(folder))
                    if after != before[folder]:
                        damage[f"{name} {place}"] = "\n".join(_compare(before[folder], after))
            return Outcome(ended.isolation, {**damage, **world.find_damage(answers)}, answers)
        finally:
            world.close()


def _compare(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    names = sorted(before.keys() | after.keys())
    return [f"{name}: {before.get(name)} {after.get(name)}" for name in names if before.get(name) != after.get(name)]


def is_left_open(key: str, means: str) -> bool:
    return means == "landlock" and (key in LEFT_OPEN or key.endswith(" shared_memory"))


@pytest.mark.parametrize("name", [*acts.FILES, *acts.WORLD])
@pytest.mark.parametrize(("user", "means"), combine())
def test_an_act_is_kept_in(user: str, means: str, name: str) -> None:
    outcome = require(means, user)
    tried = [key for key in outcome.answers if key.split()[0] == name]
    assert tried, "the act was not tried"
    damage = outcome.find_damage(name)
    assert {key: text for key, text in damage.items() if not is_left_open(key, means)} == {}


@pytest.mark.parametrize("name", [*acts.FILES, *acts.WORLD])
def test_without_isolation_an_act_does_damage(name: str) -> None:
    """The control: what the tests above look at is what the acts do."""
    outcome = attack("none", "self")
    assert outcome.isolation.files == "none"
    harmless = {
        key: error
        for key, error in outcome.answers.items()
        if key.split()[0] == name
        and key not in outcome.damage
        and key not in {f"{act} shared_memory" for act in CROSSING}
    }
    if name in acts.FILES and len(outcome.damage) and outcome.find_damage(name):
        assert harmless == {}, "the act failed in some places alone"
    assert all(error.startswith(IMPOSSIBLE) for error in harmless.values()), harmless
    if harmless:
        pytest.skip(f"not possible here without isolation either: {harmless}")


def test_the_control_does_enough_damage() -> None:
    outcome = attack("none", "self")
    assert len({key.split()[0] for key in outcome.damage}) >= MIN_ACTS
    for place in ("home", "project", "elsewhere"):
        assert sum(key.endswith(f" {place}") for key in outcome.damage) >= MIN_ACTS


@pytest.mark.parametrize(("user", "means"), combine())
def test_what_was_written_to_an_overlay_is_reported(user: str, means: str) -> None:
    outcome = require(means, user)
    if outcome.isolation.files != "overlay":
        pytest.skip("this kernel grants no overlay" if means != "landlock" else "Landlock denies, and keeps nothing")
    names = {name.rpartition("/output/")[2].partition("/")[0] for name in outcome.isolation.written}
    assert {"write_new", "overwrite", "map_shared", "shell_redirects", "chmod"} <= names
    removed = {name.rpartition("/output/")[2].partition("/")[0] for name in outcome.isolation.removed}
    assert {"unlink", "rmtree", "shell_rm", "rename"} <= removed


@pytest.mark.parametrize(("user", "means"), combine())
def test_what_is_not_isolated_is_said(user: str, means: str) -> None:
    """A report never says more than is true: what got through is what the isolation's own words leave open."""
    outcome = require(means, user)
    opened = sorted({key for key in outcome.damage if is_left_open(key, means)})
    if opened:
        assert outcome.isolation.network != "namespace" and outcome.isolation.files == "landlock"
        warnings.warn(f"not isolated by {means} as {user}: {', '.join(opened)}", stacklevel=1)
    else:
        assert means != "landlock", "the acts that Landlock leaves open were not tried"
