"""The ranges of releases in which frameworks' objections hold: of one objection they run forward and do not overlap."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from attncheck.lint.fields.constraints import Constraint, Constraints, find_constraint
from attncheck.lint.fields.releases import list_releases

FOLDER = Path(__file__).parents[3] / "attncheck" / "lint" / "frameworks"
FRAMEWORKS = ("verl", "openrlhf", "llamafactory", "trl", "axolotl", "ms_swift")


def list_constraints(value: Any) -> Iterator[Constraints]:
    if isinstance(value, Mapping):
        for inner in value.values():
            yield from list_constraints(inner)
    elif isinstance(value, tuple) and value and isinstance(value[0], Constraint):
        yield value


def read_names(framework: str) -> tuple[str, ...]:
    """Return the names in a framework's table."""
    text = (FOLDER / framework / "constraints.toml").read_text(encoding="utf-8")
    return tuple(dict.fromkeys(re.findall(r"^\[\[(\w+)\]\]$", text, re.MULTILINE)))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_name_is_there_and_used(framework: str) -> None:
    module = import_module(f"attncheck.lint.frameworks.{framework}.constraints")
    texts = [path.read_text(encoding="utf-8") for path in (FOLDER / framework).glob("*.py")]
    used = {name for text in texts for name in re.findall(r"\bconstraints\.([A-Z]\w+)", text)}
    assert all(hasattr(module, name) for name in used)
    assert set(read_names(framework)) <= used
    with pytest.raises(AttributeError, match="have no NEVER_READ"):
        _ = module.NEVER_READ


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_ranges_run_forward_and_do_not_overlap(framework: str) -> None:
    module = import_module(f"attncheck.lint.frameworks.{framework}.constraints")
    values = [*vars(module).values(), *(getattr(module, name) for name in read_names(framework))]
    ranges = [constraints for value in values for constraints in list_constraints(value)]
    assert len(ranges) > 10
    for constraints in ranges:
        for constraint in constraints:
            assert not constraint.until or Version(constraint.since) < Version(constraint.until), constraint
            assert constraint.source.split()[0] in (framework.replace("_", "-"), "transformers"), constraint
        for release in list_releases(framework):
            assert sum(constraint.holds_in(release) for constraint in constraints) <= 1, (release, constraints)


def test_a_development_version_is_the_next_release() -> None:
    constraint = Constraint("verl 0.5.0 a.py:1", "0.4.1", "0.6.0", "no")
    versions = ("0.4.0", "0.4.1.dev0", "0.4.1", "0.5.0.post1", "0.6.0.dev1", "0.6.0")
    assert [constraint.holds_in(version) for version in versions] == [False, True, True, True, False, False]
    assert find_constraint((constraint,), "0.6.0") is None and find_constraint((), "0.5.0") is None
    assert constraint.evidence == "verl 0.5.0 a.py:1, since 0.4.1, until 0.6.0: no"
