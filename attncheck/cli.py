"""The command line: parse, call one verb, render, exit.

click, not typer: typer 0.29 loads pydantic to parse a flag, a quarter of the static lane's whole budget, and would
make pydantic a thing that installing attncheck can move.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from attncheck import __version__

if TYPE_CHECKING:
    from attncheck.config import Config
    from attncheck.findings import Report
    from attncheck.snapshot import Snapshot

Command = Callable[..., Any]


def looking(command: Command) -> Command:
    """Give a command the argument and options of looking at an environment."""
    for option in (
        click.option("--online", is_flag=True, help="Allow fetching MODEL's configuration from the Hub."),
        click.option("--timeout", type=float, metavar="SECONDS", help="Deadline of one import. Default: 60."),
        click.option(
            "--lane",
            "lanes",
            multiple=True,
            metavar="LANE",
            help="static, import or device; repeat for several. Default: all three.",
        ),
        click.option(
            "--python", metavar="PATH", help="Examine the environment of this interpreter (Python 3.8 or newer)."
        ),
        click.argument("model", required=False),
    ):
        command = option(command)
    return command


@click.group(context_settings={"max_content_width": 100, "help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="attncheck %(version)s")
def app() -> None:
    """Prove that an LLM-training environment's attention stack works before anyone pays for the job."""


@app.command()
@looking
@click.option("--facts", metavar="FILE", help="Judge a snapshot written by `attncheck probe` instead (-: stdin).")
@click.option("--profile", help="What matters: auto, flash, ring, rl or all. Default: auto.")
@click.option("--format", "form", default="text", help="text or json.")
@click.option("--fail-on", help="Exit 1 from here on: error, warning or never. Default: error.")
@click.option("--select", multiple=True, metavar="CODE", help="Only these rules: codes or prefixes.")
@click.option("--ignore", multiple=True, metavar="CODE", help="Not these rules: codes or prefixes.")
@click.option("--verbose", "-v", is_flag=True, help="Also list what could not be judged.")
def doctor(
    model: str | None,
    python: str | None,
    lanes: tuple[str, ...],
    timeout: float | None,
    online: bool,
    facts: str | None,
    profile: str | None,
    form: str,
    fail_on: str | None,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    verbose: bool,
) -> None:
    """Look at a real environment, say what is broken and how to fix it.

    MODEL is a model to judge for: a folder, or a Hub name in the local cache.
    """
    from attncheck import doctor as verb
    from attncheck import settings
    from attncheck.needs import needs
    from attncheck.renderers import renderer

    config = settings.merge(profile, fail_on, select, ignore, timeout)
    render = renderer(form)
    verb.check_codes((*config.select, *config.ignore))
    if facts is not None:
        settings.refuse_with_facts(MODEL=model, python=python, lane=lanes, online=online)
        snapshot = settings.read_facts(facts)
    else:
        snapshot = _look(python, lanes, model, online, config)
    report = verb.judge(snapshot, needs(config.profile, snapshot), config.select, config.ignore)
    _finish(render(report, verbose), report, config)


@app.command()
@looking
def probe(model: str | None, python: str | None, lanes: tuple[str, ...], timeout: float | None, online: bool) -> None:
    """Print what was seen, as JSON, to be judged elsewhere by `attncheck doctor --facts`."""
    from attncheck import codec, settings

    snapshot = _look(python, lanes, model, online, settings.merge(timeout=timeout))
    settings.emit(codec.dumps(snapshot) + "\n")


@app.command()
@click.argument("code")
def explain(code: str) -> None:
    """Print the page of the rule CODE (or its name): what it checks, why it matters, what to do."""
    from attncheck import doctor as verb
    from attncheck import settings

    settings.emit(verb.page(code))


@app.command()
@click.option("--format", "form", default="text", help="text or json.")
def rules(form: str) -> None:
    """List every rule."""
    from attncheck import doctor as verb
    from attncheck import listing, settings

    render = listing.as_json if settings.choice("--format", form, ("text", "json")) == "json" else listing.as_text
    settings.emit(render(verb.all_rules()[0]))


def _look(python: str | None, lanes: tuple[str, ...], model: str | None, online: bool, config: Config) -> Snapshot:
    from attncheck import settings
    from attncheck.errors import Interrupted
    from attncheck.probes.take import take
    from attncheck.progress import progress

    chosen = settings.lanes(lanes)
    try:
        with progress() as say:
            documents = None
            if online and model is not None:
                from attncheck import hub

                say(f"fetching the configuration of {model}")
                documents = hub.fetch(model)
            return take(python, chosen, model, documents, config.timeout, say)
    except KeyboardInterrupt:
        raise Interrupted("interrupted; nothing is left running") from None


def _finish(text: str, report: Report, config: Config) -> None:
    from attncheck import settings
    from attncheck.errors import CLEAN, FOUND

    settings.emit(text)
    levels = {"error": ("error",), "warning": ("error", "warning"), "never": ()}[config.fail_on]
    sys.exit(FOUND if report.worst() in levels else CLEAN)
