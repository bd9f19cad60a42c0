"""Which launches of a source start the trainer of a known framework."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from attncheck.core.io.errors import Unanswered
from attncheck.core.launch import Launch, ReadFile, Source
from attncheck.core.snapshot import Snapshot
from attncheck.lint import frameworks, launches
from attncheck.lint.files.json import list_keys
from attncheck.lint.frameworks import Framework

MAX_LAUNCHES = 200  # per file: each is corrected, and the whole file is read again
MAX_WORDS = 10_000  # per command
MIN_FOREIGN_KEYS, MIN_FOREIGN_SHARE = 2, 0.25  # of a file's keys


class FoundLaunch(NamedTuple):
    """A launch of a source, and the framework that recognises it."""

    launch: Launch
    framework: Framework
    number: int  # the launch's number within `given`
    given: Source  # what was given to lint: it contains the launch, or runs the script that does


def find_launches(source: Source, read_file: ReadFile) -> list[Launch]:
    """Return the launches of a source, none of data, of which a folder may have thousands."""
    keys = list_keys(source) if source.kind == "json" else None
    if keys is not None and not starts_training(Launch(source, entries=tuple(keys), file=source)):
        return []
    return launches.find_launches(source, read_file, starts_training)


def find_framework_launches(
    source: Source, source_launches: Iterable[Launch], framework_name: str, known_frameworks: tuple[Framework, ...]
) -> Iterator[FoundLaunch]:
    """Yield the launches of a source that a framework recognises. Raises `Unanswered` if there are too many."""
    found_count = 0
    for number, launch in enumerate(source_launches):
        for framework in known_frameworks:
            if framework_name in ("", framework.name) and framework.trainer(launch):
                found_count += 1
                _check_size(source, launch, found_count)
                yield FoundLaunch(launch, framework, number, source)
                break


def starts_training(launch: Launch) -> bool:
    """Return whether a launch starts a known trainer."""
    return any(framework.trainer(launch) for framework in frameworks.load())


def _check_size(source: Source, launch: Launch, count: int) -> None:
    if count > MAX_LAUNCHES:
        raise Unanswered(f"{source.name}: more than {MAX_LAUNCHES} launches in one file; split it")
    if len(launch.whole) > MAX_WORDS:
        raise Unanswered(f"{source.name}: a launch of more than {MAX_WORDS} words")


def describe_foreign_keys(
    candidate: FoundLaunch, snapshot: Snapshot, is_read: Callable[[], bool] = lambda: True
) -> str:
    """Return why a file that no command names is not its framework's: it has many unknown keys; "" if it may be.

    Two are enough, or a table, if the framework's own parser refuses them. `is_read()`: whether that was read.
    """
    launch = candidate.launch
    if launch.words or launch.file is None or launch.file.kind == "python":
        return ""
    job = candidate.framework.read(launch, candidate.framework.newest, snapshot)
    unknown = [item for item in job.unknown_settings if not item.now and not item.since]
    names = {entry.name.partition(".")[0] for entry in launch.entries}
    foreign = {item.name.partition(".")[0] for item in unknown} & names
    is_foreign = len(foreign) >= MIN_FOREIGN_KEYS and len(foreign) >= MIN_FOREIGN_SHARE * len(names)
    refused = {item.name for item in unknown if not item.near and not item.dropped}
    is_many = len(refused) >= MIN_FOREIGN_KEYS or any("." in name for name in refused)
    is_foreign |= is_many and bool(candidate.framework.entries(launch)) and not is_read()
    is_foreign = is_foreign and not all(item.near for item in unknown)  # if all are misspelled, it is the framework's
    keys = f"{len(foreign)} of its {len(names)} keys are not {candidate.framework.name}'s: {', '.join(sorted(foreign))}"
    return f"{keys} (--framework {candidate.framework.name} lints it)" if is_foreign else ""
