"""This version of the framework does not know a setting of the launch.

What it checks: every option, override and key of the launch against the names that the started program accepts. They
are read from its source, next to the launch or installed, or else from the table of the installed or named release.
If the parser refuses the name, it is an error. If no available source knows the name but nothing proves that it is
refused, it is a warning, and the launch keeps it.

Why it matters: frameworks rename settings without keeping the old names: OpenRLHF renamed every flag in 0.10.2. The
job stops at once. If the parser drops unknown names, as axolotl's does, the job runs without the setting, which is a
warning.

What to do: use the name that the finding gives; `attncheck lint` prints the complete corrected command.

Source: the program's own code (argparse, dataclasses, Hydra's and OmegaConf's configurations, pydantic models), never
run; the tables in attncheck/lint/names, read from the released wheels of each framework.
"""

from dataclasses import replace

from attncheck.core.job import NO_ARGUMENT, NO_READER, Job, UnknownSetting
from attncheck.core.lists import group_values
from attncheck.doctor.queries.launch import describe_job
from attncheck.doctor.rules import Fix, Problem, Problems, Rule, Snapshot, about_job

MAX_NAMES_SHOWN = 4  # names in a message


@about_job
def check(snapshot: Snapshot, job: Job) -> Problems:
    yield from _dropped_problems(job, [unknown for unknown in job.unknown_settings if unknown.dropped])
    unproven = [unknown for unknown in job.unknown_settings if not unknown.proof and not unknown.dropped]
    if unproven:
        yield _unproven_problem(job, unproven)
    proven = [unknown for unknown in job.unknown_settings if unknown.proof and not unknown.dropped]
    for (table, _), settings in group_values((_find_cause(unknown), unknown) for unknown in proven).items():
        if len({unknown.name for unknown in settings}) > 1:
            yield _group_problem(job, table, settings)
        else:  # at several places
            yield from (_single_problem(job, unknown) for unknown in settings)


def _find_cause(unknown: UnknownSetting) -> tuple[str, str]:
    """Return what names with one cause share: their table, or the call, the release or the parser that refuses them."""
    table, dot, _ = unknown.name.lstrip("+~").partition(".")
    if unknown.proof.endswith(NO_ARGUMENT):
        return "", NO_ARGUMENT
    if unknown.now:
        return "", unknown.since or unknown.name
    return ("", unknown.proof) if unknown.name.startswith("-") else (table if dot else "", unknown.name * (not dot))


def _dropped_problems(job: Job, settings: list[UnknownSetting]) -> Problems:
    """Yield a problem for each dropped setting that has another name, and one for all others."""
    nameless = [unknown for unknown in settings if not unknown.now and not unknown.near]
    for group in (*([unknown] for unknown in settings if unknown.now or unknown.near), nameless):
        if group:
            yield Problem(
                message=f"{job.framework} {job.version} drops {_list_names(group)} silently"
                + _describe_replacement(group[0]),
                evidence=tuple(dict.fromkeys((_describe_history(job, group[0]), group[0].dropped))),
                fixes=_fixes(group[0]),
                subject=group[0].name if len(group) == 1 else describe_job(job),
                predicted=True,
                locations=tuple(unknown.location for unknown in group),
            )


def _unproven_problem(job: Job, settings: list[UnknownSetting]) -> Problem:
    """Return one problem about all names that nothing available accepts and that are not proven to be refused."""
    is_one = len(settings) == 1
    names = f"{settings[0].name} is not an option" if is_one else f"{len(settings)} names are not options"
    listed = "" if is_one else f": {_list_names(settings)}"
    return Problem(
        message=f"{names} of {job.framework} {job.version}{listed}",
        evidence=(
            f"no source that was read defines {'it' if is_one else 'them'}, but not all of the program was read; left "
            "unchanged",
            *([", ".join(unknown.name for unknown in settings)] if len(settings) > MAX_NAMES_SHOWN else []),
        ),
        subject=describe_job(job),
        predicted=True,
        locations=tuple(unknown.location for unknown in settings),
    )


def _single_problem(job: Job, unknown: UnknownSetting) -> Problem:
    return Problem(
        message=f"{job.framework} {job.version} does not know {unknown.name}{_describe_replacement(unknown)}",
        evidence=(_describe_history(job, unknown), *([unknown.proof] if unknown.proof.find(":") > 0 else [])),
        fixes=_fixes(unknown),
        subject=unknown.name,
        locations=(unknown.location,),
    )


def _group_problem(job: Job, table: str, settings: list[UnknownSetting]) -> Problem:
    """Return one problem about all unknown names of one table, or all that one release, call or parser refuses."""
    named = {unknown.name: unknown for unknown in settings}
    near = {unknown.near.partition(".")[0] for unknown in settings if unknown.near}
    hint = f"; did you mean {next(iter(near))}.*?" if len(near) == 1 and table not in near else ""
    count, names = f"{job.framework} {job.version} does not know {len(named)} names", _list_names(settings)
    releases = dict.fromkeys(_format_release(job, unknown.since) for unknown in settings if unknown.since)
    evidence = (
        *([", ".join(named)] if table else []),
        *(f"{release} changed the names" for release in releases),
        *dict.fromkeys(unknown.proof for unknown in settings if unknown.proof.find(":") > 0),
    )
    width = max(map(len, named))
    new = {name: " ".join(unknown.now) or unknown.near * (not table) for name, unknown in named.items()}
    renames = "\n".join(f"{name:<{width}}  {text}" for name, text in new.items() if text)
    is_certain = all(unknown.now for unknown in settings)
    title = "use the names of this version" if is_certain else "use the most similar names"
    alike = group_values(
        ((fix.title, fix.text.removesuffix(name)), unknown)
        for name, unknown in named.items()
        for fix in (() if unknown.now or unknown.near else _fixes(unknown))
    )
    return Problem(
        message=f"{count} of {table}.*{hint}" if table else f"{count} in this launch: {names}",
        evidence=evidence,
        fixes=(
            *([Fix(title, "setting", renames, "safe" if is_certain else "unsafe")] if renames else []),
            *(
                replace(_fixes(group[0])[0], title=f"{title}: {_list_names(group)}")
                for (title, _), group in alike.items()
            ),
        ),
        subject=describe_job(job),
        locations=tuple(unknown.location for unknown in settings),
    )


def _list_names(settings: list[UnknownSetting]) -> str:
    names = list(dict.fromkeys(unknown.name for unknown in settings))
    return ", ".join(names[:MAX_NAMES_SHOWN]) + (", …" if len(names) > MAX_NAMES_SHOWN else "")


def _describe_replacement(unknown: UnknownSetting) -> str:
    if unknown.now:
        return f"; it is {' '.join(unknown.now)}"
    return f"; did you mean {unknown.near}?" if unknown.near else ""


def _describe_history(job: Job, unknown: UnknownSetting) -> str:
    if not unknown.since:
        is_tabled = job.trainer != "megatron"  # no table has the options of Megatron's trainers
        return f"not in any known release of {job.framework}" if is_tabled else f"not an option of {job.trainer}"
    return f"{_format_release(job, unknown.since)} changed it"


def _format_release(job: Job, since: str) -> str:
    """Return a release with its package's name, or the framework's name if `since` names no package."""
    return since if " " in since else f"{job.framework} {since}"


def _fixes(unknown: UnknownSetting) -> tuple[Fix, ...]:
    if unknown.now:
        return (Fix("use the name of this version", "setting", " ".join(unknown.now)),)
    if unknown.choice:
        return (Fix("the configuration has it under another choice", "advice", f"set {unknown.choice}"),)
    if unknown.near:
        return (Fix("use the most similar name", "setting", unknown.near, "unsafe"),)
    if "Hydra refuses" not in unknown.proof or unknown.name[:1] in "+~":
        return ()
    if unknown.reader == NO_READER:
        return (Fix("leave it out", "advice", "nothing that the program imports reads it"),)
    title = f"the program reads it ({unknown.reader})" if unknown.reader else "if the program's own code reads it"
    return (Fix(title, "advice", "write + before the name: Hydra adds the key"),)


RULE = Rule("ATN440", "error", check, needs=frozenset({"job"}))
