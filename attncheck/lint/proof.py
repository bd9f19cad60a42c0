"""Determines which unknown names of a launch are proven to be refused, by the program's source or a release's table.

The program that will run decides. If its source was read (attncheck.lint.programs), a name that it takes is valid in
any case, and one that it does not take is refused; if the source has gaps, this is unknown. Without a source, a
release's table is proof only under three conditions. The release is the available one, the launch starts the
framework's own program, and every unknown name was known to some release. A name that no release has suggests a
modified tree.
"""

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import pairwise

from packaging.version import InvalidVersion, Version

from attncheck.core.job import NO_ARGUMENT, NO_READER, Job, SettingProblem, UnknownSetting
from attncheck.core.launch import NOWHERE, Launch, Setting, SourceLocation
from attncheck.core.program import Program, ProgramOption
from attncheck.core.records import replace
from attncheck.lint.arguments import iter_option_values
from attncheck.lint.fields.values import NO_VALUE, UNCHECKED_KEYS
from attncheck.lint.files.python import read_settings_class
from attncheck.lint.open_ends import CHOOSING_FRAMEWORKS, COULD_NOT_BE_READ
from attncheck.lint.programs.hydra_configs import CONFIG_OPTIONS
from attncheck.lint.programs.hydra_overrides import describe_unparsed, find_refused_overrides
from attncheck.lint.programs.key_readers import find_readers
from attncheck.lint.programs.known_classes import ANY_RELEASE
from attncheck.lint.programs.paths import may_contain
from attncheck.lint.programs.places import find_own_program, find_tree, read_own_source
from attncheck.lint.programs.records import Origin
from attncheck.lint.release import ChosenRelease

CLOSE_MATCH = 0.8
BARE = re.compile(r"[A-Za-z][\w./-]*")  # of an override that has no value
NUMBER = re.compile(r"\d[\w.]*")
QUOTED_CODE = re.compile(r"(\w+) [\w.]+ ([\w/]+\.py):[^:]*: (.+)")
ASSERTION = re.compile(r"(?:if .+: )?assert ")
CALLED = re.compile(r"\b[A-Za-z_]\w*\(")
# Launchers that append the rank's number to the program's options: the option, the switch against it, and the source.
APPENDING = {
    "torch.distributed.launch": ("--local-rank", "use_env", "torch 2.13.0 distributed/launch.py:170, unless --use-env"),
    "deepspeed": ("--local_rank", "no_local_rank", "deepspeed 0.18.8 launcher/launch.py:261, unless --no_local_rank"),
}
LIBRARIES = ("trl", "transformers", "unsloth")


def keep_certain_problems(job: Job, launch: Launch, read_others: Callable[[], Iterable[Job]]) -> Job:
    """Return the job with the problems that it has with every candidate release and every trainer of the program.

    `read_others` returns the job as other releases read it, if the release is a guess.
    """
    if all(problem.universal for problem in job.problems):
        return job
    is_open = job.framework in CHOOSING_FRAMEWORKS and _may_train_otherwise(job.framework, launch)
    kept = tuple(problem for problem in job.problems if problem.universal or not is_open)
    written = {setting.location for setting in job.settings}
    others = iter(read_others())
    while not all(problem.universal for problem in kept) and (other := next(others, None)) is not None:
        seen = {_identify(problem, written) for problem in other.problems}
        kept = tuple(item for item in kept if item.universal or _identify(item, written) in seen)
    left_out = len(job.problems) - len(kept)
    reason = "trainer of its program" if is_open else f"release of {job.framework}"
    remark = f"conclusions that depend on which {reason} runs were left out: {left_out}"
    return replace(job, problems=kept, remarks=(*job.remarks, remark)) if left_out else job


def _identify(problem: SettingProblem, written: Collection[SourceLocation]) -> tuple[str, SourceLocation, str]:
    """Return what makes a problem the same one in two releases: its setting, or its message but for numbers."""
    is_of_setting = problem.location in written
    return problem.consequence, problem.location, "" if is_of_setting else NUMBER.sub("", problem.message)


def leave_out_removed_checks(job: Job, launch: Launch) -> Job:
    """Return the job without problems of code that the framework's source next to the launch does not have."""
    quotes = (QUOTED_CODE.match(" ".join(problem.evidence[:1])) for problem in job.problems)
    is_removed = [quote is not None and _lacks_code(launch, *quote.groups()) for quote in quotes]
    kept = tuple(problem for problem, removed in zip(job.problems, is_removed) if not removed)
    remark = f"left out, because the tree lacks the code: {sum(is_removed)}"
    return replace(job, problems=kept, remarks=(*job.remarks, remark)) if any(is_removed) else job


def _lacks_code(launch: Launch, package: str, path: str, quote: str) -> bool:
    """Return whether a file of the tree lacks an assertion, or a function that is called in another quoted line."""
    text = read_own_source(launch, package, path) or quote
    code = "".join("".join(written.partition("#")[0] for written in text.splitlines()).split())
    parts = "".join(quote.split()).split("…") if ASSERTION.match(quote) else CALLED.findall(quote)
    return any(part not in code for part in parts)


def _may_train_otherwise(framework: str, launch: Launch) -> bool:
    """Return whether the program has several trainers, or transformers' trainer with TRL's configuration.

    In the second case the loss is a different one.
    """
    names = (name.rpartition(".") for name in launch.trainers or ())
    trainers = {stem for owner, _, stem in names if stem.endswith("Trainer") and owner.startswith(LIBRARIES)}
    return len(trainers) > 1 or (framework == "trl" and trainers == {"Trainer"})


def settle_names(job: Job, launch: Launch, own_programs: Sequence[str], release: ChosenRelease) -> Job:
    """Return the job with each unknown setting proven, left open, or dropped because the program takes it.

    `own_programs` are the framework's commands and modules.
    """
    if not release.is_known:  # another release may behave differently
        job = replace(job, problems=tuple(_soften_guesses(job)))
    of_values = [problem for problem in job.problems if problem.refused_value]
    unproven = [
        item
        for item in of_values
        if (item.is_registered and not release.is_known)
        or release.may_be_older()
        # nothing checks a file's keys before the tree's own code compares them: `stage == "ttl"`
        or (
            UNCHECKED_KEYS in item.evidence
            and launch.program is not None
            and may_contain(find_tree(launch), f'== "{item.refused_value}"')
        )
    ]
    if launch.program is None and any(map(_is_of_no_release, job.unknown_settings)):
        refusals = [
            item for item in job.problems if "".join(item.evidence).startswith("argparse") or item.refused_value
        ]
        unproven = [item for item in refusals if NO_VALUE not in item.message]
    if unproven:
        values = ", ".join(problem.refused_value or problem.message for problem in unproven)
        remark = f"not judged, because a release or a fork that is not known may take the value: {values}"
        kept = tuple(problem for problem in job.problems if problem not in unproven)
        job = replace(job, problems=kept, remarks=(*job.remarks, remark))
    program = launch.program
    written = launch.file.name if launch.file is not None and launch.file.kind == "python" else ""
    arguments = {argument.location for argument in launch.arguments}
    in_program = [
        unknown
        for unknown in job.unknown_settings
        if unknown.location in arguments or (written and unknown.location.source == written)
    ]
    if in_program:  # arguments of the library's own class: its release decides, not a parser
        others = tuple(unknown for unknown in job.unknown_settings if unknown not in in_program)
        settled = settle_names(replace(job, unknown_settings=others), launch, own_programs, release)
        place = find_own_program(launch)
        is_copied = place is not None and place[1].find_module(job.framework) is not None  # which Python imports
        refused = () if is_copied else _settle_arguments(in_program, job, release)
        return replace(settled, unknown_settings=(*settled.unknown_settings, *refused))
    is_own = job.framework == "verl" and starts_one_of(own_programs, launch)
    if program.style == "hydra" if program is not None else is_own:
        job = replace(job, problems=(*job.problems, *_find_unparsed(launch)))
    if release.is_older:  # no table describes what it does
        job = replace(job, problems=tuple(problem for problem in job.problems if problem.universal))
    if program is None:
        job = replace(job, unknown_settings=()) if release.is_older else job
        return _settle_by_table(job, launch, own_programs, release)
    remark = f"option names were read from {program.path}" + (
        f", which has gaps: {program.gaps[0]}" if program.gaps else ""
    )
    return replace(
        job,
        unknown_settings=tuple(_settle_by_program(job, launch, program)),
        problems=(
            *_settle_problems(job, launch, program, release),
            *_find_appended(launch, program, release),
            *_find_misplaced(launch, program),
        ),
        remarks=(*job.remarks, remark),
    )


def _is_of_no_release(unknown: UnknownSetting) -> bool:
    """Return whether no release has an option and none is similar, so that a fork defines it."""
    return unknown.name.startswith("-") and not (unknown.now or unknown.since or unknown.near or unknown.proof)


def leave_out_unproven(
    job: Job,
    release: ChosenRelease,
    stated: Collection[str],
    knows_transformers: bool,
    starts_own: bool,
    program: Program | None,
) -> Job:
    """Return the job without the names that are unknown only by a guess; a remark lists them.

    A name that no release ever had belongs to the script or to a modified tree. A similar name is a misspelling only of
    a program's or a release's names that are known; a part of Hydra's configuration that was not found may have any.
    A parser drops a name if the release and the program are known: the program was read, or is the framework's own. A
    name that a release removed is kept if its package's version is known and not only `stated` by the tree: trees often
    state other versions than those that run. A name that holds a variable, as `--${key}`, is known only at run time.
    """
    is_readable = release.is_known if program is None else program.is_complete or program.style != "hydra"

    def is_kept(unknown: UnknownSetting) -> bool:
        if unknown.dropped:
            return release.is_known and (starts_own or program is not None)
        if unknown.proof or (unknown.near and is_readable):
            return True
        changed = unknown.since.rpartition(" ")[0] or job.framework
        is_sure = release.is_known and changed not in stated and (knows_transformers or changed != "transformers")
        return is_sure and is_readable and bool(unknown.now or unknown.since)

    kept = tuple(unknown for unknown in job.unknown_settings if "$" not in unknown.name and is_kept(unknown))
    names = ", ".join(unknown.name for unknown in job.unknown_settings if unknown not in kept)
    remark = f"not judged, because the script or another release may define them: {names}"
    return replace(job, unknown_settings=kept, remarks=(*job.remarks, remark)) if names else job


def leave_out_set_names(job: Job, launch: Launch) -> Job:
    """Return the job without suggestions of names that the launch sets itself: an unknown name means another one."""
    texts = (*(setting.name for setting in job.settings), *(word.text.partition("=")[0] for word in launch.words))
    written = {text.lstrip("-+") for text in texts}
    unknown_settings = (
        replace(unknown, near="") if unknown.near.lstrip("-+") in written else unknown
        for unknown in job.unknown_settings
    )
    return replace(job, unknown_settings=tuple(unknown_settings))


def _soften_guesses(job: Job) -> Iterator[SettingProblem]:
    """Yield the problems, as warnings if they depend on a guessed release.

    Whether an option is a switch differs between releases (`bf16: bool | None`), so a guess proves nothing about it.
    """
    settings = (setting for setting in job.settings if setting.name.startswith("--") and not setting.value)
    switches = {setting.location for setting in settings if setting.value_span == NOWHERE}
    for problem in job.problems:
        if problem.universal:
            yield problem
        elif problem.consequence != "refuses" or problem.location not in switches:
            yield replace(problem, mild=True)


def _settle_arguments(unknowns: Sequence[UnknownSetting], job: Job, release: ChosenRelease) -> Iterator[UnknownSetting]:
    """Yield the arguments of a library's class that its release refuses and another release or class has."""
    for unknown in unknowns:
        is_dated = bool(unknown.now or unknown.since) and not _changed_meanwhile(unknown, job.version)
        if release.is_known and is_dated:
            yield replace(unknown, proof=f"{job.framework} {job.version}: {NO_ARGUMENT}")


def _settle_problems(job: Job, launch: Launch, program: Program, release: ChosenRelease) -> Iterator[SettingProblem]:
    """Yield the problems; the program's own parser decides which values an option takes and whether it needs one.

    The release's table describes an installed program; another source may treat settings differently.
    """
    is_installed = isinstance(program.origin, Origin) and program.origin.is_installed and release.is_known
    is_trusted = is_installed and not _is_between_releases(job.version) and not _has_unread_file(launch)
    decided = set()
    taken = {}  # values that the program's parser accepts, by position
    for setting in job.settings:
        option = program.options.get(setting.name.lstrip("-"))
        is_own = option is not None and option.kind == "str" and ".py" in option.place
        is_open = is_own and not is_trusted  # what reads the text may refuse it
        if option is not None and setting.value in (option.choices or (setting.value if is_open else "",)):
            taken[setting.location] = repr(setting.value)
        if (
            option is None
            or not setting.name.startswith("--")
            or setting.value
            or setting.value_span != NOWHERE
            or not setting.known
        ):
            continue
        decided.add(setting.location)
        if not release.is_known and option.place.startswith(f"{job.framework} {job.version} "):
            continue  # the class belongs to a guessed release
        if option.kind == "bool?" or option.nargs in (1, "+"):
            evidence = (option.place or program.path,)
            text = f"{setting.name} {NO_VALUE}: "
            text += "its default is None, so it is not a switch" if option.kind == "bool?" else "it needs a value"
            sets = {setting.name.lstrip("-"): "true"} if option.kind == "bool?" else {}
            yield SettingProblem("refuses", text, evidence, setting.location, sets, universal=True)
    for problem in job.problems:
        is_refused = problem.consequence == "refuses"
        is_about_value = problem.location in decided and NO_VALUE in problem.message
        if is_refused and (is_about_value or taken.get(problem.location, "\0") in problem.message):
            continue
        yield problem if is_trusted else _soften_problem(problem)


def _find_misplaced(launch: Launch, program: Program) -> Iterator[SettingProblem]:
    """Yield the problem of a --config-path that is relative to the current folder: Hydra's is not."""
    for name, value in iter_option_values(launch.words[1:]) if program.style == "hydra" else ():
        if CONFIG_OPTIONS.get(name) != "path" or not value.known or value.shell or os.path.isabs(value.text):
            continue  # the shell expands it: "$(pwd)/config" is absolute
        expected = os.path.join(os.path.dirname(program.path), value.text)
        if os.path.isdir(os.path.join(launch.folder, value.text)) and not os.path.isdir(expected):
            yield SettingProblem(
                "refuses",
                f"{name} {value.text}: Hydra takes it relative to {program.path}, and {expected} does not exist",
                ("hydra-core 1.3.2 _internal/utils.py, compute_search_path_dir: Primary config directory not found",),
                value.location,
                advice=f'give an absolute path: {name} "$PWD/{value.text}"',
                universal=True,
            )


def _find_appended(launch: Launch, program: Program, release: ChosenRelease) -> Iterator[SettingProblem]:
    """Yield the problem of a launcher that appends an option to the program's, which refuses it."""
    is_proven = program.style == "argparse" or (program.style == "dataclasses" and release.is_known)
    if not (is_proven and program.is_complete) or takes_name(program, "--local_rank"):
        return
    written = {word.text.replace("-", "_") for word in launch.launcher_words}
    for word in launch.launcher_words:
        option, switch, evidence = APPENDING.get(word.text.rpartition("/")[2], ("", "", ""))
        if option and not takes_name(program, option) and written.isdisjoint((f"__{switch}", "__launcher")):
            text = f"{program.path} does not define {option}, which this launcher appends"
            advice = f"add --{switch}, or start it with torchrun"
            yield SettingProblem("refuses", text, (evidence,), word.location, advice=advice, universal=True)


def _find_unparsed(launch: Launch) -> Iterator[SettingProblem]:
    """Yield the problem of the first override that Hydra cannot parse; Ray passes a job's words to another shell."""
    words = launch.words if "ray" not in launch.launchers else ()
    for before, word in pairwise(words):
        advice, rule = "quote the value for Hydra too", "OverrideLexer.g4, UNQUOTED_CHAR"
        part = describe_unparsed(word)
        if word.known and before.known and before.text[:1] != "-" and BARE.fullmatch(word.text):
            part, rule = "a word without '='", "OverrideParser.g4, override: key EQUAL value"
            advice = "write key=value; if a variable has two words, quote it"
        elif "~" in part:
            advice = "write $HOME: bash does not expand ~ here"
        if part:
            text = f"{word.text.partition('=')[0]}: Hydra cannot parse {part}: OverrideParseException"
            evidence = (f"hydra-core 1.3.8 grammar/{rule}",)
            yield SettingProblem("refuses", text, evidence, word.location, advice=advice, universal=True)
            return


def _settle_by_table(job: Job, launch: Launch, own_programs: Sequence[str], release: ChosenRelease) -> Job:
    """Return the job with the names that a release's table proves unknown, if the program itself was not found."""
    is_own_release = release.is_known and starts_one_of(own_programs, launch)
    was_always_known = all(unknown.now or unknown.since or unknown.proof for unknown in job.unknown_settings)
    is_proven = is_own_release and was_always_known
    proof = f"the options of {job.framework} {job.version}" if is_proven else ""
    unknown_settings = tuple(
        replace(unknown, proof=_prove(unknown, job.version, proof) if release.is_known else "")
        for unknown in job.unknown_settings
    )
    is_trusted = is_proven and not _is_between_releases(job.version) and not _has_unread_file(launch)
    problems = job.problems if is_trusted else tuple(_soften_problem(problem) for problem in job.problems)
    return replace(job, unknown_settings=unknown_settings, problems=problems)


def starts_one_of(own_programs: Sequence[str], launch: Launch) -> bool:
    """Return whether a launch starts the framework's own command or module, not a user's script or module."""
    name = launch.words[0].text.rsplit("/", 1)[-1] if launch.words else ""
    name = read_settings_class(launch.file) or name  # its arguments are the framework's own
    return any(name.startswith(program) if program.endswith(".") else name == program for program in own_programs)


def _is_between_releases(version: str) -> bool:
    """Return whether a version was not released under its number alone, such as "0.5.5.post2"."""
    return "post" in version or "+" in version


def _prove(unknown: UnknownSetting, version: str, proof: str) -> str:
    """Return the proof that a name is refused, its own first; "" if it changed at about the time of the tree."""
    return unknown.proof or ("" if _changed_meanwhile(unknown, version) else proof)


def _changed_meanwhile(unknown: UnknownSetting, version: str) -> bool:
    """Return whether a name may have changed around the time when the tree of a development version was cut.

    The tree of 3.7.0.dev0 is cut from the 3.6 line and becomes 3.7.0; that of 0.4.1.dev0 is between 0.4.0 and 0.4.1.
    """
    try:
        parsed, since = Version(version), Version(unknown.since.rpartition(" ")[2])
    except InvalidVersion:
        return False
    first_minor = parsed.minor if parsed.micro else parsed.minor - 1
    return parsed.is_prerelease and since.major == parsed.major and since.minor >= first_minor


def _has_unread_file(launch: Launch) -> bool:
    return any(COULD_NOT_BE_READ in note for note in launch.notes)


def _settle_by_program(job: Job, launch: Launch, program: Program) -> Iterator[UnknownSetting]:
    if program.style == "hydra":
        yield from _settle_overrides(job, launch, program)
        return
    written = {setting.location: setting for setting in job.settings}
    settled = set()
    proof = f"{program.path}: the program's parser does not define it" if program.is_complete else ""
    for unknown in job.unknown_settings:
        settled.add((unknown.name, unknown.location))
        is_of_file = program.style == "argparse" and not unknown.name.startswith("-")  # only its own code reads it
        if is_of_file or takes_name(program, unknown.name):
            continue
        now = tuple(name for name in unknown.now if takes_name(program, name.split("=")[0].split(" ")[0]))
        yield replace(unknown, now=now, near="" if now else find_near_name(program, unknown.name), proof=proof)
    if not program.is_complete:
        return
    for setting in written.values():
        if (setting.name, setting.location) in settled or not _is_checked(program, launch, setting):
            continue
        if not takes_name(program, setting.name):
            near = find_near_name(program, setting.name)
            yield UnknownSetting(setting.name, setting.location, near=near, proof=proof)


def _settle_overrides(job: Job, launch: Launch, program: Program) -> Iterator[UnknownSetting]:
    """Yield the overrides that Hydra refuses for the configuration that was read, with their new names if any."""
    tabled = {unknown.location: unknown for unknown in job.unknown_settings}
    proof = f"{program.path}: Hydra refuses it for the configuration of this program" if program.is_complete else ""
    overrides = {word.location for word in launch.words[1:]}
    yield from (unknown for unknown in job.unknown_settings if unknown.location not in overrides)
    all_refused = list(find_refused_overrides(program, launch.words[1:]))
    written = {item.name.rpartition(".")[2]: item for item in all_refused if item.name[:1] not in "+~"}
    misplaced = {  # "actor.engine=megatron" for "engine=megatron"
        written[name].word.location: choice
        for choice in set(program.choices.values())
        if (name := choice.partition("=")[0]) in written and written[name].word.text.endswith(f".{choice}")
    }
    readers = find_readers(launch, [item.name for item in all_refused if item.name[:1] not in "+~"]) if proof else {}
    for refused in all_refused:
        unknown = tabled.get(refused.word.location, UnknownSetting(refused.name, refused.word.location))
        if refused.word.location not in tabled and not program.is_complete:
            continue
        choice = program.choices.get(refused.name, "")
        if choice in misplaced.values():
            continue  # which the choice's own place makes known
        given = refused.now or misplaced.get(refused.word.location, "")
        names = (given,) if given else unknown.now
        now = tuple(name for name in names if name[:1] == "+" or takes_name(program, name.partition("=")[0]))
        near = "" if now or choice else find_near_name(program, refused.name)
        reader = readers.get(refused.name, "")
        near = near if reader in ("", NO_READER) else ""  # a name that the program reads is no misspelling
        yield replace(unknown, name=refused.name, now=now, near=near, proof=proof, reader=reader, choice=choice)


def _is_checked(program: Program, launch: Launch, setting: Setting) -> bool:
    """Return whether this program's parser reads a setting: an option or an override, not a key of a file."""
    if program.style in ("argparse", "dataclasses"):
        return setting.name.startswith("--")
    is_entry = any(entry.location == setting.location for entry in launch.entries)
    return not is_entry and not setting.name.startswith("-")


def takes_name(program: Program, written: str) -> bool:
    """Return whether a program's parser takes a name as written: "--max-len", "data.path"."""
    if program.style == "argparse":
        name = written.lstrip("-")
        return name in program.options or sum(option.startswith(name) for option in program.options) == 1
    if program.style == "dataclasses":
        return _takes_field(program.options, written)
    key = written.partition("=")[0]
    if key in program.options or key in program.groups or key.partition("@")[0] in program.groups:
        return True
    if any(name.startswith(f"{key}.") for name in program.options):
        return True
    return program.style == "omegaconf" and _is_in_open_table(program.options, key)


def _is_in_open_table(options: Mapping[str, ProgramOption], key: str) -> bool:
    """Return whether a dotted key is inside a field that is not a scalar; OmegaConf accepts any key in such a field."""
    parts = key.split(".")
    parents = (".".join(parts[:count]) for count in range(1, len(parts)))
    return any(parent in options and not options[parent].kind for parent in parents)


def _takes_field(options: Mapping[str, ProgramOption], text: str) -> bool:
    name = text.lstrip("-").split(".")[0].split("[")[0].replace("-", "_")
    if name in options or not text.startswith("-"):
        return name in options  # a file's key is used unchanged: transformers 5.23.0 hf_argparser.py `parse_dict`
    if name.removeprefix("no_") in options:
        return True
    fitting = [option.place for field, option in options.items() if len(name) > 1 and field.startswith(name)]
    return len(fitting) == 1 or any(place.startswith(ANY_RELEASE) for place in fitting)  # one may have only one of them


def find_near_name(program: Program, written: str) -> str:
    """Return the name of the program with the closest spelling; "" if none is close."""
    dashes = "--" if written.startswith("--") else ""
    matches = get_close_matches(written.lstrip("-+~"), list(program.options), 1, CLOSE_MATCH)
    return dashes + matches[0] if matches else ""


def _soften_problem(problem: SettingProblem) -> SettingProblem:
    """Return a problem from a release's source as a warning, because another source was found to run."""
    is_open = problem.consequence in ("refuses", "waits", "no_step") and not problem.universal
    return replace(problem, mild=True) if is_open else problem
