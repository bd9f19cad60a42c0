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
from attncheck.cli import gate
from attncheck.cli.options import Launching, judging, looking, measuring, over_ranks, planned, reporting, shaped
from attncheck.cli.progress import guarded

if TYPE_CHECKING:
    from attncheck.cli.arguments import Documents
    from attncheck.core.report import Report
    from attncheck.core.snapshot import Snapshot
    from attncheck.gate.policy import Config
    from attncheck.ring.group import Ring


@click.group(context_settings={"max_content_width": 100, "help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="attncheck %(version)s")
def app() -> None:
    """Prove that an LLM-training environment's attention stack works before anyone pays for the job."""


@app.command()
@looking
@click.option("--facts", metavar="FILE", help="Judge a snapshot written by `attncheck probe` instead (-: stdin).")
@click.option("--profile", help="What matters: auto, flash, ring, rl or all. Default: auto.")
@reporting
@judging
@click.option(
    "--ring-size", type=click.IntRange(2, 1024), metavar="N", help="Also let N ranks talk to each other; judge that."
)
@click.option(
    "--rendezvous-timeout", type=click.FloatRange(1), metavar="SECONDS", help="For ranks to meet. Default: 120."
)
@click.option(
    "--target", metavar="MACHINE", help="Judge for this machine: h100x8, or sm_90,gpus=8,driver=580,torch=2.9."
)
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
    outputs: tuple[str, ...],
    github: bool,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    verbose: bool,
    ring_size: int | None,
    rendezvous_timeout: float | None,
    target: str | None,
) -> None:
    """Look at a real environment, say what is broken and how to fix it.

    MODEL is a model to judge for: a folder, or a Hub name in the local cache.
    """
    from attncheck.cli import arguments as settings
    from attncheck.doctor import engine as verb
    from attncheck.doctor import target as targets
    from attncheck.doctor.profile import needs

    config = settings.merge(profile, fail_on, select, ignore, timeout)
    documents = settings.documents(form, outputs, github)
    verb.check_codes((*config.select, *config.ignore))
    if facts is not None:
        settings.refuse_with_facts(
            MODEL=model, python=python, lane=lanes, online=online, **{"ring-size": ring_size is not None}
        )
        snapshot = settings.read_facts(facts)
    else:
        snapshot = _look(python, lanes or (("static",) if target else ()), model, online, config)
    if target is not None:
        settings.not_for_a_target(lanes, ring_size)
        snapshot = targets.aimed(snapshot, targets.target(target))
    report = verb.judge(snapshot, needs(config.profile, snapshot), config.select, config.ignore)
    ring = settings.ring(ring_size, None, rendezvous_timeout)
    if ring is not None:
        report = _talk(report, ring, python, config)
    _finish(documents, report, verbose, config)


def _talk(report: Report, ring: Ring, python: str | None, config: Config) -> Report:
    """Add to a report what ranks find when they talk to each other."""
    from attncheck.cli import arguments as settings

    bench = settings.bench(python, "auto", config)
    from attncheck.ring.communication_check import add_communication

    return guarded(lambda say: add_communication(report, ring, bench, config.select, config.ignore, say))


@app.command()
@looking
def probe(model: str | None, python: str | None, lanes: tuple[str, ...], timeout: float | None, online: bool) -> None:
    """Print what was seen, as JSON, to be judged elsewhere by `attncheck doctor --facts`."""
    from attncheck.cli import arguments as settings
    from attncheck.core import codec

    snapshot = _look(python, lanes, model, online, settings.merge(timeout=timeout))
    settings.emit(codec.dumps(snapshot) + "\n")


@app.command()
@measuring
@over_ranks
@click.option("--suite", help="quick, standard or full. Default: standard; with MODEL, cases made from it.")
@click.option("--case", "cases", multiple=True, metavar="PATTERN", help="Only cases of this name, pattern or family.")
@click.option("--dtype", "dtypes", multiple=True, help="Only bf16, fp16 or fp32; repeat for several.")
@click.option("--repeat", type=click.IntRange(1, 1000), default=1, help="Run with this many seeds.")
@click.option(
    "--budget", type=click.FloatRange(1), metavar="SECONDS", help="Stop after this long; say what was left out."
)
@click.option("--max-length", type=click.IntRange(1), help="Longest sequence of MODEL's cases.")
@click.option("--explain-case", metavar="CASE", help="Print a script that reproduces one case of one --backend alone.")
def parity(
    model: str | None,
    suite: str | None,
    backends: tuple[str, ...],
    cases: tuple[str, ...],
    dtypes: tuple[str, ...],
    seed: int,
    repeat: int,
    budget: float | None,
    max_length: int | None,
    explain_case: str | None,
    ring_size: int | None,
    emulate: bool | None,
    rendezvous_timeout: float | None,
    communication: bool,
    device: str,
    python: str | None,
    timeout: float | None,
    form: str,
    fail_on: str | None,
    outputs: tuple[str, ...],
    github: bool,
    verbose: bool,
) -> None:
    """Run every attention backend forward and backward, and say whether it is right.

    MODEL is a model whose own heads, sizes, windows, dtype and lengths to test: a folder, or a Hub name in the cache.
    """
    from attncheck.cli import arguments as settings
    from attncheck.measure import parity as verb
    from attncheck.measure.suites import SUITES

    config = settings.merge(fail_on=fail_on, timeout=timeout)
    documents = settings.documents(form, outputs, github)
    request = verb.Request(
        suite=settings.choice("--suite", suite or "standard", SUITES),
        backends=backends,
        cases=cases,
        dtypes=verb.dtypes(dtypes),
        seed=seed,
        repeat=repeat,
        budget=budget,
        longest=max_length,
    )
    settings.check_backends(backends)
    bench = settings.bench(python, device, config)
    ring = settings.ring(ring_size, emulate, rendezvous_timeout, communication)
    if explain_case is not None:
        from attncheck.measure import reproduce

        settings.not_over_ranks("--explain-case", ring_size)
        settings.emit(reproduce.script(_static(python, model, config), request, explain_case, bench))
        return

    def run(snapshot: Snapshot, say: Callable[[str], None]) -> Report:
        if ring is None:
            return verb.run(snapshot, request, bench, say)
        from attncheck.ring import hf_adapter
        from attncheck.ring import parity as context_parallel

        report = context_parallel.run(snapshot, request, ring, bench, say)
        named = backends or cases or dtypes
        return report if named or not report.runs else hf_adapter.proved(report, ring, bench, say)

    _measure(run, documents, python, model, verbose, config)


@app.command()
@measuring
@over_ranks
@click.option("--repeat", type=click.IntRange(2, 10000), default=32, help="Calls of each case. Default: 32.")
def determinism(
    model: str | None,
    backends: tuple[str, ...],
    seed: int,
    repeat: int,
    ring_size: int | None,
    emulate: bool | None,
    rendezvous_timeout: float | None,
    communication: bool,
    device: str,
    python: str | None,
    timeout: float | None,
    form: str,
    fail_on: str | None,
    outputs: tuple[str, ...],
    github: bool,
    verbose: bool,
) -> None:
    """Repeat every attention backend and compare bit by bit: is it reproducible, what makes it so, at what cost.

    MODEL is a model whose heads and sizes to use: a folder, or a Hub name in the cache.
    """
    from attncheck.cli import arguments as settings
    from attncheck.measure import determinism as verb

    config = settings.merge(fail_on=fail_on, timeout=timeout)
    documents = settings.documents(form, outputs, github)
    settings.check_backends(backends)
    bench = settings.bench(python, device, config)
    request = verb.Request(backends=backends, seed=seed, repeats=repeat)
    ring = settings.ring(ring_size, emulate, rendezvous_timeout, communication)

    def run(snapshot: Snapshot, say: Callable[[str], None]) -> Report:
        if ring is None:
            return verb.run(snapshot, request, bench, say)
        from attncheck.ring import determinism

        return determinism.run(snapshot, request, ring, bench, say)

    _measure(run, documents, python, model, verbose, config)


@app.command()
@measuring
@over_ranks
@click.option("--sweep", metavar="WHAT", help="With --ring-size: heads-k-stride or seqlen.")
@click.option(
    "--min-efficiency",
    type=click.FloatRange(0, 1, min_open=True),
    help="With --ring-size: exit 1 where no correct scheme reaches this share of flash-attn / N.",
)
@shaped
@click.option("--picture", "pictures", multiple=True, metavar="FILE", help="Draw the table too: FILE.png or FILE.svg.")
def bench(
    model: str | None,
    backends: tuple[str, ...],
    seed: int,
    seqlen: int | None,
    batch: int | None,
    heads: int | None,
    kv_heads: int | None,
    head_dim: int | None,
    dtype: str | None,
    causal: bool | None,
    window: int | None,
    packed: str | None,
    passes: str,
    pictures: tuple[str, ...],
    sweep: str | None,
    min_efficiency: float | None,
    ring_size: int | None,
    emulate: bool | None,
    rendezvous_timeout: float | None,
    communication: bool,
    device: str,
    python: str | None,
    timeout: float | None,
    form: str,
    fail_on: str | None,
    outputs: tuple[str, ...],
    github: bool,
    verbose: bool,
) -> None:
    """Time every attention backend that accepts the shape, and recommend the fastest that is right.

    With --ring-size N the schemes of context parallelism on N ranks, beside what they could reach.

    MODEL is a model whose heads, sizes, windows and dtype to use: a folder, or a Hub name in the cache.
    """
    from attncheck.cli import arguments as settings
    from attncheck.measure import bench as verb
    from attncheck.measure import bench_shapes
    from attncheck.measure.parity import dtypes
    from attncheck.report import picture

    config = settings.merge(fail_on=fail_on, timeout=timeout)
    documents = settings.documents(form, outputs, github)
    settings.check_backends(backends)
    picture.check(pictures)
    place = settings.bench(python, device, config)
    ring = settings.ring(ring_size, emulate, rendezvous_timeout, communication)
    sweep = sweep and settings.choice("--sweep", sweep, ("heads-k-stride", "seqlen"))
    short = dtypes([dtype])[0] if dtype is not None else None
    if ring is None:
        settings.for_a_ring(sweep=sweep, min_efficiency=min_efficiency)
    else:
        settings.not_for_a_ring(batch=batch, causal=causal, window=window, packed=packed)
    request = bench_shapes.Request(
        backends=backends,
        passes=bench_shapes.passes(passes),
        seqlen=seqlen,
        batch=batch,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        dtype=short,
        causal=causal,
        window=window,
        packed=bench_shapes.lengths(packed, seqlen, batch),
        seed=seed,
    )

    def run(snapshot: Snapshot, say: Callable[[str], None]) -> Report:
        if ring is None:
            return verb.run(snapshot, request, place, say)
        from attncheck.ring import bench as ring_bench

        shape = ring_bench.Wanted(
            seqlen, heads, kv_heads, head_dim, short, sweep or "", min_efficiency or 0.0, backends
        )
        return ring_bench.run(snapshot, ring_bench.request(snapshot, place.gpu, shape), ring, place, say)

    _measure(run, documents, python, model, verbose, config, pictures)


@app.command()
@click.argument("model", required=False)
@planned
@click.option("--data", metavar="FILE", help="Train on the documents of FILE (.jsonl, .parquet, .txt).")
@click.option("--data-field", metavar="NAME", help="The field of --data that holds the text. Default: the usual ones.")
@click.option("--full", is_flag=True, help="Train the real weights of MODEL instead of a small model of its shape.")
@click.option("--only", "questions", multiple=True, metavar="QUESTION", help="Ask only this; repeat for several.")
@click.option("--fix/--no-fix", default=True, help="Try changes that mend what is found. Default: yes.")
@click.option("--try-packages", is_flag=True, help="Also try other versions of packages, in a temporary folder.")
@over_ranks
@click.option("--seed", type=click.IntRange(0), default=0, help="Of weights and documents. Default: 0.")
@click.option("--device", default="auto", help="auto, cpu or cuda. Default: auto.")
@click.option("--python", metavar="PATH", help="Train in this interpreter's environment (Python 3.10 or newer).")
@click.option("--timeout", type=float, metavar="SECONDS", help="A third of what one question may take. Default: 60.")
@reporting
@click.option("--verbose", "-v", is_flag=True, help="Also show every measure, layer and step.")
def smoke(
    model: str | None,
    data: str | None,
    data_field: str | None,
    full: bool,
    questions: tuple[str, ...],
    fix: bool,
    try_packages: bool,
    ring_size: int | None,
    emulate: bool | None,
    rendezvous_timeout: float | None,
    communication: bool,
    seed: int,
    device: str,
    python: str | None,
    timeout: float | None,
    form: str,
    fail_on: str | None,
    outputs: tuple[str, ...],
    github: bool,
    verbose: bool,
    **plan: Any,
) -> None:
    """Train a small model for real the way the job will; mend what goes wrong and prove the mended plan.

    MODEL is a model whose architecture to train, cut small: a folder, or a Hub name in the cache. Default: a Llama-
    and a Qwen2-shaped one.
    """
    from attncheck.cli import arguments as settings
    from attncheck.smoke import run as verb

    config = settings.merge(fail_on=fail_on, timeout=timeout)
    documents = settings.documents(form, outputs, github)
    request = verb.Request(
        plan=settings.plan(config.plan, plan, seed, ring_size),
        models=(model,) if model is not None else verb.DEFAULTS,
        questions=verb.questions(questions),
        full=full,
        data=data or "",
        data_field=data_field,
        fix=fix,
        try_packages=try_packages,
        ring=settings.ring(ring_size, emulate, rendezvous_timeout, communication),
    )
    verb.check(request)
    bench = settings.bench(python, device, config)
    _measure(lambda snapshot, say: verb.run(snapshot, request, bench, say), documents, python, None, verbose, config)


@app.command(cls=Launching)
@click.argument("files", nargs=-1)
@click.option(
    "--model",
    metavar="MODEL",
    help="Judge for this model: a folder, or a Hub name in the cache. Default: the launch's.",
)
@click.option("--framework", metavar="NAME", help="Read it as a launch of this framework. Default: recognised.")
@click.option(
    "--framework-version", metavar="VERSION", help="In the names of this release. Default: the installed one."
)
@click.option(
    "--target", metavar="MACHINE", help="The machine it will run on: h100x8, or sm_90,gpus=8,transformers=5.15."
)
@click.option(
    "--write", is_flag=True, help="Write new names and harmless settings into the files, keeping their layout."
)
@click.option("--skip-unknown", is_flag=True, help="Say nothing of files that start no training.")
@click.option("--online", is_flag=True, help="Allow fetching the model's configuration from the Hub.")
@click.option(
    "--python", metavar="PATH", help="The environment it will run in (Python 3.8 or newer). Default: this one."
)
@reporting
@judging
@click.pass_context
def lint(
    context: click.Context,
    files: tuple[str, ...],
    model: str | None,
    framework: str | None,
    framework_version: str | None,
    target: str | None,
    write: bool,
    skip_unknown: bool,
    online: bool,
    python: str | None,
    form: str,
    fail_on: str | None,
    outputs: tuple[str, ...],
    github: bool,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    verbose: bool,
) -> None:
    """Read a launch command, script or configuration; say what it will really do, and print the corrected one.

    FILES are launch scripts and YAML, TOML or JSON files ("-": standard input); a command stands after --. Nothing of
    it is run.
    """
    from attncheck.cli import arguments as settings
    from attncheck.doctor import engine as doctoring
    from attncheck.lint import inputs
    from attncheck.lint import run as verb

    config = settings.merge(None, fail_on, select, ignore, None)
    documents = settings.documents(form, outputs, github)
    doctoring.check_codes((*config.select, *config.ignore))
    request = verb.Request(
        sources=inputs.sources(files, context.meta.get("command")),
        framework=framework or "",
        version=inputs.version(framework_version),
        model=model or "",
        skip_unknown=skip_unknown,
        select=config.select,
        ignore=config.ignore,
    )
    snapshot = guarded(lambda say: inputs.look(python, target, config.timeout, say))
    read = inputs.files(request.sources)
    report = verb.run(snapshot, request, inputs.models(online), read)
    if write:
        for name in verb.write(report, read):
            print(f"wrote {name}: new names, and settings that leave the job what it is", file=sys.stderr)
    _finish(documents, report, verbose, config)


@app.command()
@click.option("--python", metavar="PATH", help="Of this interpreter's environment (Python 3.10 or newer).")
@click.option("--device", default="auto", help="auto, cpu or cuda. Default: auto.")
@click.option("--format", "form", default="text", help="text or json.")
@click.option("--timeout", type=float, metavar="SECONDS", help="Deadline of one backend. Default: 60.")
def backends(python: str | None, device: str, form: str, timeout: float | None) -> None:
    """List the attention backends: which run here, and why the others do not."""
    from attncheck.cli import arguments as settings
    from attncheck.measure import available

    config = settings.merge(timeout=timeout)
    settings.choice("--format", form, ("text", "json"))
    bench = settings.bench(python, device, config)
    found = guarded(lambda say: available.look(bench, say))
    settings.emit(available.as_json(found) if form == "json" else available.as_text(found))


def _static(python: str | None, model: str | None, config: Config) -> Snapshot:
    """Return what the files say of the environment, and of the model."""
    from attncheck.doctor.probes.take import take

    return take(python, ("static",), model, None, config.timeout)


def _measure(
    run: Callable[[Snapshot, Callable[[str], None]], Report],
    documents: Documents,
    python: str | None,
    model: str | None,
    verbose: bool,
    config: Config,
    pictures: tuple[str, ...] = (),
) -> None:
    report = guarded(lambda say: run(_static(python, model, config), say))
    _finish(documents, report, verbose, config, pictures)


@app.command()
@click.argument("code")
def explain(code: str) -> None:
    """Print the page of the rule CODE (or its name): what it checks, why it matters, what to do."""
    from attncheck.cli import arguments as settings
    from attncheck.doctor import engine as verb

    settings.emit(verb.page(code))


@app.command()
@click.option("--format", "form", default="text", help="text or json.")
def rules(form: str) -> None:
    """List every rule."""
    from attncheck.cli import arguments as settings
    from attncheck.doctor import engine as verb
    from attncheck.doctor import rule_list

    render = rule_list.as_json if settings.choice("--format", form, ("text", "json")) == "json" else rule_list.as_text
    settings.emit(render(verb.all_rules()[0]))


def _look(python: str | None, lanes: tuple[str, ...], model: str | None, online: bool, config: Config) -> Snapshot:
    from attncheck.cli import arguments as settings
    from attncheck.doctor.probes.take import take

    chosen = settings.lanes(lanes)

    def work(say: Callable[[str], None]) -> Snapshot:
        documents = None
        if online and model is not None:
            from attncheck.doctor.probes import hub_download

            say(f"fetching the configuration of {model}")
            documents = hub_download.fetch(model)
        return take(python, chosen, model, documents, config.timeout, say)

    found: Snapshot = guarded(work)
    return found


def _finish(
    documents: Documents, report: Report, verbose: bool, config: Config, pictures: tuple[str, ...] = ()
) -> None:
    from attncheck.cli import arguments as settings
    from attncheck.gate import apply, dates

    report = apply.applied(report, config, dates.today())
    whole = documents.write(report, verbose)
    if pictures:  # last, so that what was measured is told whatever drawing does
        from attncheck.report import picture

        picture.draw(report, pictures)
    sys.exit(settings.exit_code(report, config, whole))


for command in gate.COMMANDS:
    app.add_command(command)
