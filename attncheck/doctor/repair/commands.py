"""Writes the commands of a repair in the order to run them; packages installed with the same options share a line."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from attncheck.core.findings import Fix
from attncheck.core.results.repair import RepairStep
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.fixes import install
from attncheck.doctor.queries import requirements
from attncheck.doctor.repair.choices import REMOVED, Way, is_step, join_specifiers, parse_requirement, removed_names


@dataclass
class _Line:
    """An install command under construction."""

    options: tuple[str, ...]
    installs: dict[str, str] = field(default_factory=dict)  # package -> requirement
    titles: dict[str, None] = field(default_factory=dict)
    codes: dict[str, None] = field(default_factory=dict)


def join_requirements(snapshot: Snapshot, ways: Iterable[Way]) -> dict[str, str]:
    """Return, for each package that the ways install, one requirement that serves all of them."""
    demands: dict[str, dict[str, None]] = {}
    texts: dict[str, dict[str, None]] = {}
    for way in ways:
        for name, specifier in way.demands:
            if not name.startswith("$") and specifier != REMOVED:
                demands.setdefault(name, {})[specifier] = None
        for fix in way.fixes:
            for text in fix.installs:
                texts.setdefault(parse_requirement(text)[0] or text, {})[text] = None
    joined = {name: _join_texts(name, list(written), list(demands.get(name, ()))) for name, written in texts.items()}
    if "transformers" in joined and (kernels := _kernels_for(snapshot, joined["transformers"])):
        joined["kernels"] = kernels
    return joined


def _kernels_for(snapshot: Snapshot, transformers: str) -> str:
    """Return the `kernels` that the repair's transformers needs; "" if the installed one is suitable."""
    specifier = parse_requirement(transformers)[1]
    needed = requirements.resolve_transformers(snapshot, specifier)
    return next((text for text in needed if parse_requirement(text)[0] == "kernels"), "")


def _join_texts(name: str, written: list[str], specifiers: list[str]) -> str:
    """Return the requirement to write for a package; an exact version or a URL takes precedence over a range."""
    if len(written) == 1:
        return written[0]
    wanted = SpecifierSet(join_specifiers(specifiers))
    for text in sorted(written, key=lambda text: "://" not in text):
        specifier = parse_requirement(text)[1]
        if specifier.startswith("==") and "*" not in specifier and wanted.contains(specifier[2:], prereleases=True):
            return text
    return f"{name}{wanted}"


def write_steps(snapshot: Snapshot, ways: Sequence[Way]) -> tuple[RepairStep, ...]:
    """Return the commands of the ways in the order to run them: removals, torch, packages, builds, variables."""
    joined = join_requirements(snapshot, ways)
    lines: dict[tuple[str, ...], _Line] = {}
    verbatim: dict[str, RepairStep] = {}
    placed: set[str] = set()
    for way in ways:
        for fix in filter(is_step, way.fixes):
            options = read_options(snapshot, fix)
            names = [parse_requirement(text)[0] or text for text in fix.installs]
            if options is None or (placed.isdisjoint(names) and any("://" in joined[name] for name in names)):
                _add_verbatim(verbatim, way, fix)
                placed.update(names)
                continue
            line = next((line for line in lines.values() if set(names) & set(line.installs)), None)
            line = line or lines.setdefault(options, _Line(options))
            line.installs |= {name: joined[name] for name in names if name not in placed}
            line.titles[fix.title] = None
            line.codes[way.finding.code] = None
            placed.update(names)
    for line in lines.values():  # packages that accompany another version of transformers
        if "transformers" in line.installs and "kernels" in joined and "kernels" not in placed:
            line.installs["kernels"] = joined["kernels"]
    written = [_write_line(snapshot, line) for line in lines.values() if line.installs]
    return tuple(sorted((*verbatim.values(), *written), key=_order))


def read_options(snapshot: Snapshot, fix: Fix) -> tuple[str, ...] | None:
    """Return the options of a plain install command; None if the fix does more than install."""
    prefix = install.install_command(snapshot) + " "
    if not fix.installs or not fix.text.startswith(prefix):
        return None
    try:
        words = shlex.split(fix.text[len(prefix) :])
    except ValueError:
        return None
    options = tuple(word for word in words if word not in fix.installs)
    return options if "&&" not in options and len(words) == len(options) + len(fix.installs) else None


def _add_verbatim(steps: dict[str, RepairStep], way: Way, fix: Fix) -> None:
    codes = steps[fix.text].codes if fix.text in steps else ()
    steps[fix.text] = RepairStep(fix.text, fix.title, tuple(dict.fromkeys((*codes, way.finding.code))), fix.installs)


def _write_line(snapshot: Snapshot, line: _Line) -> RepairStep:
    installs = tuple(line.installs.values())
    fix = install.install_packages(snapshot, *installs, options=line.options)
    own_titles = [title for title in line.titles if not title.startswith("install ")]
    return RepairStep(fix.text, "; ".join(own_titles) or fix.title, tuple(line.codes), installs)


def _order(step: RepairStep) -> int:
    names = {parse_requirement(text)[0] for text in step.installs}
    if not step.installs:
        return 5 if step.command.startswith(("export ", "unset ")) else 0
    if "torch" in names:
        return 1
    if "MAX_JOBS=" in step.command:
        return 4
    return 3 if "--no-deps" in step.command else 2


def rewrite_fix(fix: Fix, joined: Mapping[str, str], steps: Sequence[RepairStep]) -> Fix:
    """Return a fix with the requirements of the repair; if one changes, it becomes the repair's own command."""
    names = [parse_requirement(text)[0] or text for text in fix.installs]
    if all(joined.get(name, text) == text for name, text in zip(names, fix.installs)):
        return fix
    for step in steps:
        if set(names) <= {parse_requirement(text)[0] or text for text in step.installs}:
            return replace(fix, title=step.title, text=step.command, installs=step.installs)
    return fix


def agrees(fix: Fix, joined: Mapping[str, str], removed: Iterable[str]) -> bool:
    """Return whether a fix is compatible with the repair: it allows every version that the repair installs."""
    wanted = [parse_requirement(text) for text in (fix.allows or fix.installs)]
    if any(name in joined for name in removed_names(fix)) or any(name in removed for name, _ in wanted):
        return False
    for name, specifier in wanted:
        taken = parse_requirement(joined[name])[1] if name in joined else ""
        if not taken:
            continue
        exact = taken[2:] if taken.startswith("==") and "*" not in taken and "," not in taken else ""
        allowed = SpecifierSet(specifier)
        if exact and not allowed.contains(Version(exact), prereleases=True):
            return False
        if not exact and not requirements.have_common_version([allowed, SpecifierSet(taken)]):
            return False
    return True
