"""Turns command-line words into settings, and writes the one document that goes to standard output."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attncheck.core import codec
from attncheck.core.errors import CLEAN, FOUND, UNANSWERED, BadUsage
from attncheck.core.snapshot import SCHEMA_VERSION, Snapshot
from attncheck.doctor.profile import PROFILES
from attncheck.gate.policy import FAIL_ON, Config, load

if TYPE_CHECKING:
    from attncheck.core.plan import Plan
    from attncheck.core.report import Report
    from attncheck.doctor.probes.take import Lane
    from attncheck.report.outputs import Output
    from attncheck.ring.group import Ring
    from attncheck.workers.execution import ExecutionTarget

FACTS_LIMIT = 64 << 20  # bytes


@dataclass(frozen=True)
class Documents:
    """What a report is written as: one document to standard output, and others to files."""

    form: str
    render: Callable[[Report, bool], str]
    outputs: tuple[Output, ...]
    github: bool

    def write(self, report: Report, verbose: bool) -> bool:
        """Write all of them, each in spite of the others; return whether none failed, which is said in a line each."""
        emit(self.render(report, verbose))
        return self.write_files(report, verbose, self.form)

    def write_files(self, report: Report, verbose: bool, shown: str) -> bool:
        """Write the files, and tell GitHub what standard output, which has the form `shown`, does not."""
        from attncheck.report import outputs

        failures = (*outputs.write(report, self.outputs, verbose), *outputs.automatic(report, shown, self.github))
        for failure in failures:
            print(f"attncheck: {failure}", file=sys.stderr)
        return not failures


def documents(form: str, files: tuple[str, ...], github: bool) -> Documents:
    """Return what was asked for by --format and --output. Raises `BadUsage`, before any work is done."""
    from attncheck.report.formats import renderer

    parsed: tuple[Output, ...] = ()
    if files:
        from attncheck.report import outputs

        parsed = outputs.parsed(files)
    return Documents(form, renderer(form), parsed, github)


def merge(
    profile: str | None = None,
    fail_on: str | None = None,
    select: tuple[str, ...] = (),
    ignore: tuple[str, ...] = (),
    timeout: float | None = None,
) -> Config:
    """Return the configuration file's settings with the command line's on top. Raises `BadUsage`."""
    base = load(Path.cwd())
    if timeout is not None and not 0 < timeout < 86400:
        raise BadUsage(f"--timeout {timeout:g} is not a number of seconds")
    return replace(
        base,
        profile=choice("--profile", profile, PROFILES) if profile is not None else base.profile,
        fail_on=choice("--fail-on", fail_on, FAIL_ON) if fail_on is not None else base.fail_on,
        select=split(select) if select else base.select,
        ignore=split(ignore),
        timeout=timeout if timeout is not None else base.timeout,
    )


def policy(
    checks: tuple[str, ...],
    models: tuple[str, ...],
    launch: tuple[str, ...],
    profile: str | None,
    fail_on: str | None,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    timeout: float | None,
    **options: Any,
) -> Config:
    """Return the policy file's settings with a gate's options on top. Raises `BadUsage`."""
    from attncheck.gate import policy as config

    words = [word for value in checks for word in value.split(",") if word]
    said = {name.replace("_", "-"): value for name, value in options.items()}
    return config.over(
        merge(profile, fail_on, select, ignore, timeout),
        {"checks": words, "models": list(models), "launch": list(launch), **said},
    )


def exit_code(report: Report, config: Config, whole: bool = True) -> int:
    """Return the exit code by the gravest finding; where not all documents are written, no answer is a clean one."""
    if report.fails(config.fail_on):
        return FOUND
    return CLEAN if whole else UNANSWERED


def choice(option: str, value: str, choices: tuple[Any, ...]) -> Any:
    """Return `value` where it is one of `choices`. Raises `BadUsage` naming them."""
    if value not in choices:
        raise BadUsage(f"{option} {value!r} is not one of {', '.join(choices)}")
    return value


def split(values: tuple[str, ...]) -> tuple[str, ...]:
    """Return codes given as repeated options or with commas."""
    return tuple(code.strip().upper() for value in values for code in value.split(",") if code.strip())


def lanes(values: tuple[str, ...]) -> tuple[Lane, ...]:
    """Return the lanes asked for; the static one always runs. Raises `BadUsage`."""
    from attncheck.doctor.probes.take import LANES

    if not values:
        return LANES
    named = [word for value in values for word in value.split(",") if word]
    chosen = {choice("--lane", word, LANES) for word in named}
    return tuple(lane for lane in LANES if lane in chosen or lane == "static")


def bench(python: str | None, device: str, config: Config) -> ExecutionTarget:
    """Return where cases run. Raises `BadUsage`."""
    from attncheck.workers.execution import ExecutionTarget

    choice("--device", device, ("auto", "cpu", "cuda"))
    return ExecutionTarget(python or sys.executable, device, config.timeout)


def ring(size: int | None, emulate: bool | None, rendezvous: float | None, communication: bool = True) -> Ring | None:
    """Return the ring that was asked for, None where none was. Raises `BadUsage` for its options without it."""
    from attncheck.ring.group import Ring
    from attncheck.workers.ranks import RENDEZVOUS_SECONDS

    if size is None:
        asked = {
            "--emulate": emulate is not None,
            "--rendezvous-timeout": rendezvous is not None,
            "--no-communication": not communication,
        }
        for name, given in asked.items():
            if given:
                raise BadUsage(f"{name} is for --ring-size")
        return None
    return Ring(size, emulate, rendezvous or RENDEZVOUS_SECONDS, communication)


def plan(base: Mapping[str, Any], options: Mapping[str, Any], seed: int, ring_size: int | None) -> Plan:
    """Return the plan that the configuration and, above it, options ask for; None was not said. Raises `BadUsage`."""
    from attncheck.core import plan as nouns

    said = {**base, **{name: value for name, value in options.items() if value is not None}}
    for name, known in nouns.CHOICES.items():
        if name in said:
            choice(f"--{name.replace('_', '-')}", said[name], known)
    for name, value in said.items():
        if isinstance(value, int) and not isinstance(value, bool) and value < 1:
            raise BadUsage(f"--{name.replace('_', '-')} {value} is not 1 or more")
    return nouns.Plan(**said, seed=seed, ring_size=ring_size or 1)


def for_a_ring(**options: Any) -> None:
    """Raise `BadUsage` for options that mean something over ranks only."""
    for name, value in options.items():
        if value is not None:
            raise BadUsage(f"--{name.replace('_', '-')} is for --ring-size")


def not_for_a_ring(**options: Any) -> None:
    """Raise `BadUsage` for options that the benchmark of a ring does not have: its tables fix them."""
    for name, value in options.items():
        if value is not None:
            raise BadUsage(
                f"--{name.replace('_', '-')} is not for --ring-size, which times the tables of ring-flash-attn"
            )


def not_over_ranks(option: str, ring_size: int | None) -> None:
    """Raise `BadUsage` for an option that means something on one device only."""
    if ring_size is not None:
        raise BadUsage(
            f"{option} writes a script for one device: leave --ring-size out; --case runs one case of a ring"
        )


def not_for_a_target(lanes: tuple[str, ...], ring_size: int | None) -> None:
    """Raise `BadUsage` for what only the machine itself can answer."""
    if ring_size is not None or any(word != "static" for value in lanes for word in value.split(",") if word):
        raise BadUsage("--target judges for a machine that is not here: imports, GPUs and ranks cannot be tried on it")


def check_backends(names: tuple[str, ...]) -> None:
    """Raise `BadUsage` for a backend that attncheck does not know."""
    from attncheck.measure.discovery import get_backend

    for name in names:
        get_backend(name)


def refuse_with_facts(**options: Any) -> None:
    """Raise `BadUsage` for options that ask about this machine beside --facts, which asks about another."""
    for name, value in options.items():
        if value:
            word = name if name.isupper() else f"--{name}"
            raise BadUsage(
                f"--facts judges a recorded snapshot; {word} belongs on `attncheck probe`, where it was taken"
            )


def read_facts(path: str) -> Snapshot:
    """Return the snapshot in a file written by `attncheck probe` ("-": standard input). Raises `BadUsage`."""
    try:
        if path == "-":
            data = sys.stdin.buffer.read(FACTS_LIMIT + 1)
        else:
            with open(path, "rb") as stream:
                data = stream.read(FACTS_LIMIT + 1)
    except OSError as error:
        raise BadUsage(f"cannot read {path}: {error.strerror or error}") from None
    if len(data) > FACTS_LIMIT:
        raise BadUsage(f"{path} is larger than {FACTS_LIMIT >> 20} MiB: not a snapshot")
    try:
        snapshot = codec.loads(Snapshot, data.decode("utf-8"))
    except ValueError as error:  # BadDocument and UnicodeDecodeError
        raise BadUsage(f"{path} is not a snapshot written by `attncheck probe`: {error}") from None
    if snapshot.schema_version > SCHEMA_VERSION:
        raise BadUsage(
            f"{path} was written by attncheck {snapshot.attncheck} (schema {snapshot.schema_version}); "
            f"this one reads schema {SCHEMA_VERSION}: update attncheck"
        )
    return snapshot


def emit(text: str) -> None:
    """Write `text` to standard output; a reader that went away is no error of ours."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except AttributeError:  # started with standard output closed
        return
    except (BrokenPipeError, ValueError):
        discard_the_rest()
    except OSError as error:
        discard_the_rest()
        raise BadUsage(f"cannot write to standard output: {error.strerror}") from None


def discard_the_rest() -> None:
    """Give the interpreter's own flush at exit somewhere to go."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)
