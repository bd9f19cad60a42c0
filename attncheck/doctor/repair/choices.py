"""Picks one way to fix each finding, so that their demands on packages and variables do not conflict."""

import itertools
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from attncheck.core.findings import SEVERITIES, Finding, Fix
from attncheck.core.lists import group_values
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.queries import requirements

MAX_COMBINATIONS = 512  # combinations of ways that are compared
REMOVED = "!"  # in place of a specifier: the package must be removed
_EXPORT = re.compile(r"([A-Za-z_]\w*)=(\S*)")


@dataclass(frozen=True)
class Way:
    """One way to fix a finding: a fix, and the fixes that accompany it."""

    finding: Finding
    fixes: tuple[Fix, ...]

    @cached_property
    def demands(self) -> tuple[tuple[str, str], ...]:
        """The conditions to hold afterwards: (package, specifier), (package, `REMOVED`) or ("$" + variable, value)."""
        return tuple(demand for fix in self.fixes for demand in list_demands(fix))

    @property
    def is_by_hand(self) -> bool:
        """Whether the way contains no command for the repair."""
        return not any(is_step(fix) for fix in self.fixes)


def is_step(fix: Fix) -> bool:
    """Return whether a fix can be a step of the repair: it changes packages or a variable."""
    return bool(
        fix.installs or removed_names(fix) or (fix.kind == "env" and fix.text.startswith(("export ", "unset ")))
    )


def list_demands(fix: Fix) -> Iterator[tuple[str, str]]:
    """Yield the demands of a fix on packages and variables."""
    for text in fix.allows or fix.installs:
        name, specifier = parse_requirement(text)
        if name:
            yield name, specifier
    for name in removed_names(fix):
        if name not in {parse_requirement(text)[0] for text in fix.installs}:
            yield name, REMOVED
    if fix.kind == "env":
        for line in fix.text.splitlines():
            word, _, rest = line.partition(" ")
            if word == "export":
                yield from (("$" + name, value) for name, value in _EXPORT.findall(rest))
            elif word == "unset":
                yield from (("$" + name, REMOVED) for name in rest.split())


def parse_requirement(text: str) -> tuple[str, str]:
    """Return the package and specifier of a requirement or a wheel's URL; ("", "") for the URL of a source."""
    if "://" in text and " @ " not in text:
        try:
            name, version, _, _ = parse_wheel_filename(text.rpartition("/")[2])
        except InvalidWheelFilename:
            return ("flash-attn", "") if "flash-attention" in text else ("", "")
        return str(name), f"=={version.public}"
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        return "", ""
    return requirements.canonical_name(requirement.name), str(requirement.specifier)


def removed_names(fix: Fix) -> tuple[str, ...]:
    """Return the packages that a fix removes."""
    return find_removed_packages(fix.text) if fix.kind == "command" else ()


def find_removed_packages(commands: str) -> tuple[str, ...]:
    """Return the packages that commands, joined by "&&", uninstall."""
    names: list[str] = []
    for command in commands.split("&&"):
        try:
            words = shlex.split(command)
        except ValueError:
            continue
        if "uninstall" in words:
            rest = words[words.index("uninstall") + 1 :]
            options = {"--python": 1}
            while rest and rest[0].startswith("-"):
                rest = rest[1 + options.get(rest[0], 0) :]
            names += map(requirements.canonical_name, rest)
    return tuple(names)


def list_ways(finding: Finding) -> tuple[Way, ...]:
    """Return the ways to fix a finding, the rule's first choice first."""
    groups: list[list[Fix]] = []
    for fix in finding.fixes:
        if fix.text.startswith("attncheck "):
            continue  # it only examines again and fixes nothing
        if fix.follows and groups:
            groups[-1].append(fix)
        else:
            groups.append([fix])
    return tuple(Way(finding, tuple(group)) for group in groups)


def find_conflict(snapshot: Snapshot, ways: Iterable[Way]) -> tuple[str, tuple[Way, ...]] | None:
    """Return a package or variable on which several ways make incompatible demands, with these ways."""
    by_name = group_values((name, (wanted, way)) for way in ways for name, wanted in way.demands)
    for name, demands in by_name.items():
        wanted_values = list(dict.fromkeys(wanted for wanted, _ in demands))
        if len(wanted_values) > 1 and not can_hold(snapshot, name, wanted_values):
            return name, tuple(dict.fromkeys(way for _, way in demands))
    return None


def can_hold(snapshot: Snapshot, name: str, wanted: Sequence[str]) -> bool:
    """Return whether one version of a package, or one value of a variable, satisfies every demand in `wanted`."""
    if name.startswith("$") or REMOVED in wanted:
        return len(set(wanted)) == 1
    if name == "transformers":
        return bool(requirements.resolve_transformers(snapshot, join_specifiers(wanted)))
    return requirements.have_common_version([SpecifierSet(specifier) for specifier in wanted])


def join_specifiers(specifiers: Iterable[str]) -> str:
    """Return the specifier that combines all of `specifiers`, with only the highest `>=` and the lowest `<`."""
    clauses = SpecifierSet(",".join(filter(None, specifiers)))
    for operator, decide in ((">=", max), ("<", min)):
        bounds = [Version(clause.version) for clause in clauses if clause.operator == operator]
        kept = [
            clause for clause in clauses if clause.operator != operator or Version(clause.version) == decide(bounds)
        ]
        clauses = SpecifierSet(",".join(map(str, kept)))
    return str(clauses)


def choose_ways(snapshot: Snapshot, findings: Sequence[Finding]) -> tuple[list[Way], list[str]]:
    """Return compatible ways, one for each finding if possible, and a line for each finding that was left out.

    The most severe finding keeps its rule's first choice if possible. A different kind of fix is preferred to leaving a
    finding out, and warnings are left out before errors.
    """
    options = [ways for finding in findings if (ways := list_ways(finding))]
    best: tuple[tuple[int, ...], list[Way], list[Way]] | None = None
    for combination in itertools.islice(itertools.product(*options), MAX_COMBINATIONS):
        kept, left = _drop_conflicts(snapshot, combination)
        ranks = [sum(way.finding.severity == severity for way in left) for severity in SEVERITIES]
        order = [list_ways(way.finding).index(way) for way in combination]
        score = (*ranks, *order)
        if best is None or score < best[0]:
            best = (score, kept, left)
        if not left:
            break
    if best is None:
        return [], []
    return best[1], [_describe_conflict(snapshot, way, best[1]) for way in best[2]]


def _drop_conflicts(snapshot: Snapshot, ways: Iterable[Way]) -> tuple[list[Way], list[Way]]:
    """Return the ways, most severe first, that are compatible, and those that conflict with them."""
    kept: list[Way] = []
    left: list[Way] = []
    for way in ways:
        (left if find_conflict(snapshot, (*kept, way)) else kept).append(way)
    return kept, left


def _describe_conflict(snapshot: Snapshot, way: Way, kept: list[Way]) -> str:
    conflict = find_conflict(snapshot, (*kept, way))
    assert conflict is not None
    name, ways = conflict
    others = [other.finding for other in ways if other is not way]
    wanted = " and ".join(f"{wanted or 'any version'}" for key, wanted in way.demands if key == name)
    label = name.lstrip("$")
    codes = ", ".join(dict.fromkeys(finding.code for finding in others))
    reason = (
        "the more severe finding takes precedence"
        if any(finding.severity != way.finding.severity for finding in others)
        else "the earlier finding takes precedence"
    )
    wants = "its removal" if wanted == REMOVED else f"{label}{wanted}" if not name.startswith("$") else wanted
    return f"{way.finding.code} needs {wants}, which {codes} excludes: {reason}"
