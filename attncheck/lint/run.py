"""`attncheck lint`: what a launch will really do here, what is wrong with it, and the corrected launch.

A launch is read (attncheck.lint.launches), a framework turns it into a job, the rules judge it together with the
machine, the versions and the model, and the settings that fixes ask for are written back. The corrected text is then
read and judged again: a fix is called proven where its finding is gone.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from attncheck.core.errors import BadUsage, Unanswered
from attncheck.core.facts import Absent, Fact, Known
from attncheck.core.findings import Finding, Fix, Problem
from attncheck.core.job import Job, LintedLaunch
from attncheck.core.launch import COMMAND, Edit, Launch, Source, Word
from attncheck.core.model import Model
from attncheck.core.report import Report, merge
from attncheck.core.results.lint import LintSection, launches_of
from attncheck.core.snapshot import Snapshot
from attncheck.doctor import engine
from attncheck.doctor.profile import needs_of_job
from attncheck.doctor.queries.launch import SAFE_KEYS
from attncheck.lint import frameworks, redaction
from attncheck.lint import launches as launching
from attncheck.lint.files import editing
from attncheck.lint.frameworks import Framework

ROUNDS = 4  # a corrected launch may be found wanting again: a renamed flag whose value does not fit
ReadModel = Callable[[str], Fact[Model]]
ReadFile = Callable[[str], "Source | None"]


@dataclass(frozen=True)
class Request:
    """What to lint, in whose names, and for which model where it is not the launch's own."""

    sources: tuple[Source, ...]
    framework: str = ""  # "": recognised
    version: str = ""  # of the framework; "": the installed one, else the newest that is known
    model: str = ""
    skip_unknown: bool = False  # say nothing of sources that start no training
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()


@dataclass(frozen=True)
class Found:
    """A launch that a framework knows as its own."""

    launch: Launch
    framework: Framework
    number: int  # of the launch within its source


def run(snapshot: Snapshot, request: Request, read_model: ReadModel, read_file: ReadFile) -> Report:
    """Return the report on every launch in the sources.

    Raises `BadUsage` for a framework that is not known or a file that does not parse, `Unanswered` where no source
    starts anything that attncheck knows.
    """
    known = frameworks.load()
    _check_framework(request.framework, known)
    reports: list[Report] = []
    strange: list[Source] = []
    for source in request.sources:
        found = list(_found(source, request, known, read_file))
        reports += [_linted(snapshot, each, request, read_model, read_file) for each in found]
        if not found and not request.skip_unknown:
            strange.append(source)
    if strange and not reports:
        names = ", ".join(source.name for source in strange)
        raise Unanswered(
            f"{names}: starts no training that attncheck knows; --framework NAME reads it as one of "
            f"{', '.join(framework.name for framework in known)}"
        )
    report = merge("lint", snapshot, reports)
    return engine.add_findings(report, [_not_recognised(source) for source in strange], request.select, request.ignore)


def _check_framework(name: str, known: Iterable[Framework]) -> None:
    names = [framework.name for framework in known]
    if name and name not in names:
        raise BadUsage(f"--framework {name!r} is not one of {', '.join(names)}")


def _found(source: Source, request: Request, known: tuple[Framework, ...], read_file: ReadFile) -> Iterator[Found]:
    for number, launch in enumerate(launching.find_launches(source, read_file)):
        for framework in known:
            if request.framework in ("", framework.name) and framework.trainer(launch):
                yield Found(launch, framework, number)
                break


def _linted(snapshot: Snapshot, found: Found, request: Request, read_model: ReadModel, read_file: ReadFile) -> Report:
    """Return the report on one launch, with the corrected launch judged again."""
    version, remark = _version(snapshot, found.framework, request.version)
    aimed = _with_model(snapshot, request.model or found.framework.model(found.launch), read_model)

    def judged(launch: Launch) -> tuple[Job, Report]:
        job = found.framework.read(launch, version, aimed)
        job = replace(job, remarks=(*launch.notes, *remark, *job.remarks, *_unread(aimed.model)))
        job = redaction.shown(job)
        here = replace(aimed, job=Known(job))
        return job, engine.run_rules(here, needs_of_job(job), request.select, request.ignore)

    job, report = judged(found.launch)
    sets: dict[str, str] = {}
    edits: tuple[Edit, ...] = ()
    after, launch = report, found.launch
    for _ in range(ROUNDS):
        wanted = _wanted(after.findings, sets)
        if wanted == sets and (edits or not job.unknown_settings):
            break
        sets = wanted
        edits = found.framework.write(found.launch, job, sets)
        corrected = _again(found, edits, read_file)
        if corrected is None or not found.framework.trainer(corrected):
            edits = ()
            break
        launch = corrected
        after = judged(launch)[1]
    findings = tuple(_told(finding, found, job, after if edits else None) for finding in report.findings)
    harmless: dict[str, str] = {key: value for key, value in sets.items() if key in SAFE_KEYS}
    safe = found.framework.write(found.launch, job, harmless) if edits else ()
    said = LintedLaunch(job, _diff(found.launch, edits), _command(launch) if edits else "", edits, safe)
    section = LintSection((said,), tuple(sorted(needs_of_job(job))))
    return replace(report, command="lint", findings=findings, sections={"lint": section})


def _version(snapshot: Snapshot, framework: Framework, asked: str) -> tuple[str, tuple[str, ...]]:
    """Return the version whose names to read a launch in, and what is to be said of it."""
    if asked:
        return asked, ()
    here = snapshot.package(framework.distribution)
    if isinstance(here, Known) and here.value.version:
        return here.value.version, ()
    text = f"{framework.distribution} is not installed: read in the names of {framework.newest}, the newest known"
    return framework.newest, (text,)


def _with_model(snapshot: Snapshot, name: str, read_model: ReadModel) -> Snapshot:
    if isinstance(snapshot.model, Known):
        return snapshot
    if not name or any(character in name for character in "$`{}\n"):
        return replace(snapshot, model=Absent("the launch names no model that can be known without running it"))
    return replace(snapshot, model=read_model(name))


def _unread(model: Fact[Model]) -> tuple[str, ...]:
    """Return what is to be said where the model is not known: what depends on it was not judged."""
    if isinstance(model, Known):
        return ()
    return (f"the model: {model.reason}; its heads, windows and layers were not judged (--model FOLDER)",)


def _wanted(findings: Iterable[Finding], settled: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that mend what is wrong; what was settled stays, and the gravest finding goes first.

    Only a finding's first way out is taken. A warning changes nothing that could change what is trained.
    """
    wanted = dict(settled)
    for finding in findings:
        fix = finding.fixes[0] if finding.fixes else None
        if fix is None or not fix.sets or (finding.severity != "error" and fix.safety != "safe"):
            continue
        if not any(wanted.get(key, value) != value for key, value in fix.sets.items()):
            wanted.update(fix.sets)
    return wanted


def _again(found: Found, edits: tuple[Edit, ...], read_file: ReadFile) -> Launch | None:
    """Return the launch as it is read after the edits; None where nothing is left to read or nothing was edited."""
    if not edits:
        return None
    texts = _edited(found.launch, edits)

    def read(path: str) -> Source | None:
        source = read_file(path)
        return replace(source, text=texts.get(source.name, source.text)) if source is not None else None

    own = found.launch.source
    launches = launching.find_launches(replace(own, text=texts.get(own.name, own.text)), read)
    return launches[found.number] if found.number < len(launches) else None


def _edited(launch: Launch, edits: tuple[Edit, ...]) -> dict[str, str]:
    """Return the text of each source of a launch after the edits."""
    return {
        name: editing.apply_edits(source, [edit for edit in edits if edit.source == name])
        for name, source in _sources(launch).items()
    }


def _sources(launch: Launch) -> dict[str, Source]:
    """Return what a launch was read from, by name: its own source, and the configuration file it names."""
    return {source.name: source for source in (launch.source, launch.file) if source is not None}


def _diff(launch: Launch, edits: tuple[Edit, ...]) -> str:
    texts = _edited(launch, edits)
    return "".join(editing.format_diff(source, texts[name]) for name, source in _sources(launch).items())


def _command(launch: Launch) -> str:
    """Return a launch's command on one line, ready to paste; "" for a configuration file."""
    return " ".join(_pasted(word) for word in launch.whole)


def _pasted(word: Word) -> str:
    """Return a word as a shell takes it; what only running can tell is left to the shell."""
    return shlex.quote(word.text) if word.known else f'"{word.text}"' if " " in word.text else word.text


def _told(finding: Finding, found: Found, job: Job, after: Report | None) -> Finding:
    """Return the finding with its settings in the framework's words, and proven where the corrected launch lost it."""
    gone = after is not None and not any(_same(finding, other) for other in after.findings)
    fixes = []
    for number, fix in enumerate(finding.fixes):
        if fix.sets and not fix.text:
            fix = replace(fix, text=_spelled(fix, found, job))
        elif not fix.sets and finding.code == "ATN440" and gone:
            fix = replace(fix, proven=PROVEN)
        if gone and fix.sets and number == 0:
            fix = replace(fix, proven=PROVEN)
        fixes.append(fix)
    return replace(finding, fixes=tuple(fixes))


PROVEN = "the corrected launch, linted again, is without it"


def _same(one: Finding, other: Finding) -> bool:
    return (one.code, one.subject, one.message) == (other.code, other.subject, other.message)


def _spelled(fix: Fix, found: Found, job: Job) -> str:
    """Return the settings of a fix as this version of the framework writes them."""
    edits = found.framework.write(found.launch, replace(job, unknown_settings=()), fix.sets)
    texts = [" ".join(_whole(edit, found.launch, job).replace("\\\n", " ").split()) for edit in edits]
    said = [text for text in texts if text]
    return "\n".join(said) if said else "\n".join(_removed(found.launch, edits)) or _plain(fix.sets)


def _whole(edit: Edit, launch: Launch, job: Job) -> str:
    """Return the text of an edit; where it replaces a value, the setting with its new value."""
    source = _sources(launch).get(edit.source, launch.source)
    for setting in (*job.settings, *launch.entries):
        if setting.location.source == edit.source and setting.value_span == edit.span and edit.text:
            text = source.text
            before, after = text[setting.span[0] : edit.span[0]], text[edit.span[1] : setting.span[1]]
            return before + edit.text + after
    return edit.text


def _removed(launch: Launch, edits: tuple[Edit, ...]) -> Iterator[str]:
    sources = _sources(launch)
    for edit in edits:
        text = sources[edit.source].text if edit.source in sources else ""
        gone = " ".join(text[slice(*edit.span)].replace("\\\n", " ").split())
        if gone:
            yield f"# without {gone}"


def _plain(sets: Mapping[str, str]) -> str:
    return "\n".join(f"{key}={value}" for key, value in sets.items())


def _not_recognised(source: Source) -> Finding:
    return engine.make_finding_by_code(
        "ATN454",
        Problem(
            message=f"{source.name} starts no training that attncheck knows",
            evidence=("no command or key in it is one of a framework that attncheck reads",),
            subject=source.name,
        ),
    )


def write(report: Report, read_file: ReadFile) -> Iterator[str]:
    """Write the edits that leave the jobs what they are into their files; yield the name of each file written.

    What is not a file (a command line, standard input) is passed over. Raises `BadUsage` for a file that changed
    meanwhile or cannot be written.
    """
    edits: dict[str, set[Edit]] = {}
    for said in launches_of(report):
        for edit in said.safe:
            edits.setdefault(edit.source, set()).add(edit)
    for name, wanted in edits.items():
        source = None if name in (COMMAND, "-") else read_file(name)
        if source is not None:
            text = editing.apply_edits(source, sorted(wanted, key=lambda edit: edit.span))
            editing.write_corrected(source, name, text)
            yield name
