"""The commands around a policy: gate, baseline, init, run; and selftest, which proves that they can fail."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from attncheck.cli.options import Launching, baselined, gating
from attncheck.cli.progress import guarded

if TYPE_CHECKING:
    from attncheck.core.report import Report


@click.command()
@gating
@baselined
def gate(python: str | None, form: str, outputs: tuple[str, ...], github: bool, verbose: bool, **options: Any) -> None:
    """Run the checks of the policy in order, within its budget; one report, one exit code.

    The policy is attncheck.toml or [tool.attncheck] in pyproject.toml; options win over it.
    """
    from attncheck.cli import arguments as settings
    from attncheck.core.errors import CLEAN, UNANSWERED
    from attncheck.gate import run as verb

    asked = settings.policy(**options)
    documents = settings.documents(form, outputs, github)
    bench = settings.bench(python, asked.device, asked)
    report = guarded(lambda say: verb.run(asked, bench, say))
    whole = documents.write(report, verbose)
    code = verb.exit_code(report, asked)
    sys.exit(UNANSWERED if code == CLEAN and not whole else code)


@click.command()
@gating
@click.option("--baseline", metavar="FILE", help="The file to write. Default: the policy's, attncheck-baseline.json.")
def baseline(
    python: str | None, form: str, outputs: tuple[str, ...], github: bool, verbose: bool, **options: Any
) -> None:
    """Record what `attncheck gate` finds today, so that it fails on new findings only."""
    from dataclasses import replace

    from attncheck.cli import arguments as settings
    from attncheck.core.errors import CLEAN, Unanswered
    from attncheck.gate import baseline as verb
    from attncheck.gate import run as gating_verb
    from attncheck.gate.dates import today

    asked = settings.policy(**options)
    path = asked.baseline or "attncheck-baseline.json"
    documents = settings.documents(form, outputs, github)
    asked = replace(asked, baseline="", fail_on="never")
    bench = settings.bench(python, asked.device, asked)
    report = guarded(lambda say: gating_verb.run(asked, bench, say))
    documents.write(report, verbose)
    if gating_verb.exit_code(report, asked) != CLEAN:
        raise Unanswered(f"{path} was not written: a check gave no answer, and what it would find is not known")
    done = verb.record(report, path, today())
    print(f"{path}: {done.entries} findings, {done.new} of them new; {done.gone} are gone", file=sys.stderr)


@click.command()
@click.option("--write", is_flag=True, help="Write attncheck.toml instead of printing it; never over an existing one.")
@click.option("--python", metavar="PATH", help="The environment it is for. Default: this one.")
def init(write: bool, python: str | None) -> None:
    """Print a commented policy for what is found here: packages, GPUs, launch scripts, models."""
    from pathlib import Path

    from attncheck.cli import arguments as settings
    from attncheck.doctor.probes.take import take
    from attncheck.gate import init as verb

    snapshot = guarded(lambda say: take(python, ("static", "device"), None, None, 60.0, say))
    document = verb.text(verb.look(Path.cwd(), snapshot))
    if write:
        print(f"wrote {verb.write(Path.cwd(), document).name}", file=sys.stderr)
    else:
        settings.emit(document)


@click.command(cls=Launching)
@gating
@baselined
@click.option("--cache/--no-cache", default=True, help="Take the answer of an earlier start where nothing changed.")
def run(
    python: str | None,
    form: str,
    outputs: tuple[str, ...],
    github: bool,
    verbose: bool,
    cache: bool,
    **options: Any,
) -> None:
    """Run the gate, then become the command after --, or refuse: attncheck run -- torchrun … train.py

    Same process, arguments, environment, streams and signals; a refusal's report goes to standard error.
    """
    from attncheck.cli import arguments as settings
    from attncheck.core import interrupts
    from attncheck.core.errors import BadUsage
    from attncheck.gate import guard

    words = click.get_current_context().meta.get("command", ())
    if not words:
        raise BadUsage("give the command after --: attncheck run -- torchrun … train.py")
    asked = settings.policy(**options)
    documents = settings.documents(form, outputs, github)
    bench = settings.bench(python, asked.device, asked)

    def show(report: Report, refused: bool) -> None:
        if refused and sys.stderr is not None:
            sys.stderr.write(documents.render(report, verbose))
        documents.write_files(report, verbose, form if refused else "")

    code = guard.run(asked, bench, words, guarded, show, cache, bool(documents.outputs), interrupts.ignored())
    sys.exit(code)


@click.command()
@click.option(
    "--inject", "codes", multiple=True, metavar="CODE", help="Only faults that must raise CODE. Default: all."
)
@click.option("--list", "listed", is_flag=True, help="List the faults, and the codes that none covers.")
@click.option("--python", metavar="PATH", help="Prove the checks on this interpreter's environment.")
@click.option("--device", default="auto", help="auto, cpu or cuda. Default: auto.")
@click.option("--timeout", type=click.FloatRange(1), default=150.0, help="Deadline of one check. Default: 150.")
@click.option("--format", "form", default="text", help="text or json.")
def selftest(codes: tuple[str, ...], listed: bool, python: str | None, device: str, timeout: float, form: str) -> None:
    """Plant every fault that the checks claim to catch, in throwaway places, and show them firing."""
    from attncheck.cli import arguments as settings
    from attncheck.selftest import run as verb
    from attncheck.selftest import table as shown

    settings.choice("--format", form, ("text", "json"))
    settings.choice("--device", device, ("auto", "cpu", "cuda"))
    wanted = tuple(code for code in codes if code.lower() != "all")
    if listed:
        settings.emit(shown.listing(verb.chosen(wanted), verb.uncovered(), form))
        return
    found = guarded(lambda say: verb.run(wanted, python, device, timeout, say))
    settings.emit(shown.as_json(found) if form == "json" else shown.as_text(found))
    sys.exit(found.exit_code)


COMMANDS = (gate, baseline, init, run, selftest)
