"""The command line: parse, call one verb, render, exit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from attncheck import __version__

if TYPE_CHECKING:
    from attncheck.config import Config
    from attncheck.findings import Report
    from attncheck.snapshot import Snapshot

app = typer.Typer(
    name="attncheck",
    help="Prove that an LLM-training environment's attention stack works before anyone pays for the job.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Python = Annotated[
    Optional[str],
    typer.Option("--python", metavar="PATH", help="Examine the environment of this interpreter (Python 3.8 or newer)."),
]
Lanes = Annotated[
    Optional[list[str]],
    typer.Option("--lane", metavar="LANE", help="static, import or device; repeat for several. Default: all three."),
]
Timeout = Annotated[
    Optional[float], typer.Option("--timeout", metavar="SECONDS", help="Deadline of one import. Default: 60.")
]
Model = Annotated[
    Optional[str],
    typer.Argument(metavar="[MODEL]", help="A model to judge for: a folder, or a Hub name in the local cache."),
]
Online = Annotated[bool, typer.Option("--online", help="Allow fetching MODEL's configuration from the Hub.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"attncheck {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Prove that an LLM-training environment's attention stack works before anyone pays for the job."""


@app.command()
def doctor(
    model: Model = None,
    python: Python = None,
    facts: Annotated[
        Optional[Path], typer.Option("--facts", metavar="FILE", help="Judge a snapshot from `attncheck probe` instead.")
    ] = None,
    lane: Lanes = None,
    profile: Annotated[
        Optional[str], typer.Option("--profile", help="What matters: auto, flash, ring, rl or all. Default: auto.")
    ] = None,
    format: Annotated[str, typer.Option("--format", help="text or json.")] = "text",
    fail_on: Annotated[
        Optional[str], typer.Option("--fail-on", help="Exit 1 from here on: error, warning or never. Default: error.")
    ] = None,
    select: Annotated[
        Optional[list[str]], typer.Option("--select", metavar="CODE", help="Only these rules: codes or prefixes.")
    ] = None,
    ignore: Annotated[
        Optional[list[str]], typer.Option("--ignore", metavar="CODE", help="Not these rules: codes or prefixes.")
    ] = None,
    timeout: Timeout = None,
    online: Online = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also list what could not be judged.")] = False,
) -> None:
    """Look at a real environment, say what is broken and how to fix it."""
    from attncheck import doctor as verb
    from attncheck import settings
    from attncheck.needs import needs
    from attncheck.renderers import renderer

    config = settings.merge(profile, fail_on, select, ignore, timeout)
    render = renderer(format)
    verb.check_codes((*config.select, *config.ignore))
    if facts is not None:
        settings.refuse_with_facts(model=model, python=python, lane=lane, online=online)
        snapshot = settings.read_facts(facts)
    else:
        snapshot = _look(python, lane, model, online, config)
    report = verb.judge(snapshot, needs(config.profile, snapshot), config.select, config.ignore)
    _finish(render(report, verbose), report, config)


@app.command()
def probe(
    model: Model = None,
    python: Python = None,
    lane: Lanes = None,
    timeout: Timeout = None,
    online: Online = False,
) -> None:
    """Print what was seen, as JSON, to be judged elsewhere by `attncheck doctor --facts`."""
    from attncheck import codec, settings

    snapshot = _look(python, lane, model, online, settings.merge(timeout=timeout))
    settings.emit(codec.dumps(snapshot) + "\n")


@app.command()
def explain(code: Annotated[str, typer.Argument(metavar="CODE", help="A rule's code or name: ATN140.")]) -> None:
    """Print a rule's page: what it checks, why it matters, what to do."""
    from attncheck import doctor as verb
    from attncheck import settings

    settings.emit(verb.page(code))


@app.command()
def rules(format: Annotated[str, typer.Option("--format", help="text or json.")] = "text") -> None:
    """List every rule."""
    from attncheck import doctor as verb
    from attncheck import listing, settings

    render = listing.as_json if settings.choice("--format", format, ("text", "json")) == "json" else listing.as_text
    settings.emit(render(verb.all_rules()[0]))


def _look(python: str | None, lane: list[str] | None, model: str | None, online: bool, config: Config) -> Snapshot:
    from attncheck import hub, settings
    from attncheck.errors import Interrupted
    from attncheck.probes.take import take
    from attncheck.progress import progress

    lanes = settings.lanes(lane)
    try:
        with progress() as say:
            documents = None
            if online and model is not None:
                say(f"fetching the configuration of {model}")
                documents = hub.fetch(model)
            return take(python, lanes, model, documents, config.timeout, say)
    except KeyboardInterrupt:
        raise Interrupted("interrupted; nothing is left running") from None


def _finish(text: str, report: Report, config: Config) -> None:
    from attncheck import settings
    from attncheck.errors import CLEAN, FOUND

    settings.emit(text)
    levels = {"error": ("error",), "warning": ("error", "warning"), "never": ()}[config.fail_on]
    sys.exit(FOUND if report.worst() in levels else CLEAN)
