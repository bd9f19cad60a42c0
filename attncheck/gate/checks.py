"""Puts a policy's questions to the verbs: one snapshot, then a request for each check, model by model."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from attncheck.core.errors import Unanswered
from attncheck.core.facts import Absent, Known
from attncheck.core.findings import Finding
from attncheck.core.job import Job
from attncheck.core.launch import COMMAND, Source
from attncheck.core.plan import Plan
from attncheck.core.report import Report
from attncheck.core.results.gate import Check
from attncheck.core.results.lint import launches_of
from attncheck.core.snapshot import Snapshot
from attncheck.doctor import engine, target
from attncheck.doctor.probes.collect import LANES, Lane, collect_snapshot
from attncheck.doctor.profile import needs_of_profile
from attncheck.gate.inputs import Inputs
from attncheck.gate.policy import Config
from attncheck.measure import bench as timing
from attncheck.measure import bench_shapes, determinism, parity
from attncheck.ring import bench as ring_bench
from attncheck.ring import determinism as ring_determinism
from attncheck.ring import parity as ring_parity
from attncheck.ring.communication_check import check_communication, exchanges
from attncheck.ring.group import Ring
from attncheck.smoke import run
from attncheck.workers.execution import ExecutionTarget

REPEATS = {True: 32, False: 6}  # with a GPU, without: a CPU takes seconds for a call, and seldom reorders a sum
# What a launch decides of the plan that smoke trains; its sizes stay smoke's own, which are small.
FROM_LAUNCH = (
    "attn_implementation",
    "packing",
    "positions",
    "padding_side",
    "precision",
    "gradient_checkpointing",
    "liger",
    "cross_entropy",
    "deterministic",
    "compile",
    "scheme",
    "heads_k_stride",
)


class Asking:
    """The questions of one gate, and what was seen and read for them."""

    def __init__(
        self,
        asked: Config,
        bench: ExecutionTarget,
        say: Callable[[str], None],
        sources: Sequence[Source],
        inputs: Inputs,
    ) -> None:
        self.asked, self.bench, self.say, self.inputs = asked, bench, say, inputs
        self.commands = tuple(source for source in sources if source.name == COMMAND)
        self.files = tuple(source for source in sources if source.name != COMMAND)
        self.looked = False  # with every lane
        self._snapshot: Snapshot | None = None
        self._models: dict[str, Snapshot] = {}
        self._job: Job | None = None
        self._silent = ""  # why ranks cannot talk
        self._talked = False

    def reports(self, check: Check, rest: float) -> Iterator[Report]:
        """Yield the reports of one check, each as soon as it is there; `rest` is what is left of the budget."""
        asks: dict[Check, Callable[[float], Iterator[Report]]] = {
            "doctor": lambda rest: self._doctor(),
            "lint": lambda rest: self._lint(),
            "parity": self._parity,
            "determinism": lambda rest: self._determinism(),
            "smoke": lambda rest: self._smoke(),
            "bench": lambda rest: self._bench(),
        }
        yield from asks[check](rest)

    def snapshot(self) -> Snapshot:
        """Return what was seen of the machine; its files alone, where no check has looked further."""
        if self._snapshot is None:
            self._snapshot = self._take(("static",), self._named()[0])
        return self._snapshot

    def seen(self) -> Snapshot:
        """Return the snapshot that the report is about, with the launch that was read."""
        job = Absent("no launch was given") if self._job is None else Known(self._job)
        return replace(self._aimed(self.snapshot()), job=job)

    def plan(self) -> Plan:
        """Return how smoke trains: what the policy says, else what the launch does, else the usual."""
        read: dict[str, Any] = {}
        if self._job is not None:
            read = {name: getattr(self._job.plan, name) for name in FROM_LAUNCH}
        return Plan(**{**read, **self.asked.plan}, ring_size=self.asked.ring_size or 1)

    def _named(self) -> tuple[str | None, ...]:
        """Return the models to ask about: those of the policy, else the launch's where it can be read here."""
        if self.asked.models:
            return self.asked.models
        if self._job is not None and self._job.model and isinstance(self.inputs.read_model(self._job.model), Known):
            return (self._job.model,)
        return (None,)

    def _take(self, lanes: tuple[Lane, ...], model: str | None) -> Snapshot:
        if model is not None:
            self.inputs.read_model(model)  # remembered: an answer holds as long as the model is the same
        python = None if self.bench.python == sys.executable else self.bench.python
        return collect_snapshot(python, lanes, model, None, self.asked.timeout, self.say)

    def _aimed(self, snapshot: Snapshot) -> Snapshot:
        return target.apply_target(snapshot, target.parse_target(self.asked.target)) if self.asked.target else snapshot

    def _with_model(self, model: str | None) -> Snapshot:
        """Return the snapshot with a model as far as files tell; asked of transformers where doctor was."""
        here = self.snapshot()
        if model is None:
            return replace(here, model=Absent("no model was named"))
        if model not in self._models:
            self._models[model] = replace(here, model=self.inputs.read_model(model))
        return self._models[model]

    def _doctor(self) -> Iterator[Report]:
        for model in self._named():
            if self._snapshot is None or not self.looked:
                lanes: tuple[Lane, ...] = ("static",) if self.asked.target else LANES
                self._snapshot, self.looked = self._take(lanes, model), True
                aimed = self._snapshot
            else:
                lanes = ("static",) if self.asked.target else ("static", "import")
                aimed = replace(self._snapshot, model=self._take(lanes, model).model)
            if model is not None:
                self._models[model] = aimed
            aimed = self._aimed(aimed)
            yield engine.run_rules(
                aimed, needs_of_profile(self.asked.profile, aimed), self.asked.select, self.asked.ignore
            )
        ring = self._ring()
        if ring is not None and not self.asked.target:
            self._talked = True
            yield self._talk(ring)

    def _talk(self, ring: Ring) -> Report:
        report = check_communication("doctor", self.snapshot(), ring, self.bench, self.say)
        self._hear(report.findings)
        return report

    def _hear(self, findings: tuple[Finding, ...]) -> None:
        """Take note of ranks that cannot talk: whatever they compute together would mean nothing."""
        mute = next((finding for finding in findings if finding.code in ("ATN520", "ATN521")), None)
        if mute is not None:
            self._silent = f"{mute.code}: {mute.message}"

    def _lint(self) -> Iterator[Report]:
        from attncheck.lint import run as lint

        self.say("reading the launch")
        here = replace(self._aimed(self.snapshot()), model=Absent("the launch names its own"))
        model = self.asked.models[0] if len(self.asked.models) == 1 else ""
        version = self.asked.framework_version
        wanted = lint.Request((), version=version, model=model, select=self.asked.select, ignore=self.asked.ignore)
        # The command may be any program; a file that the policy names is meant to start a training.
        for sources, any_program in ((self.files, False), (self.commands, True)):
            if sources:
                request = replace(wanted, sources=sources, skip_unknown=any_program)
                report = lint.run(here, request, self.inputs.read_model, self.inputs.read_file)
                launches = launches_of(report)
                self._job = launches[0].job if launches else self._job
                yield report
        if self.commands and self._job is None:
            raise Unanswered("the command starts no training that attncheck knows")

    def _ring(self) -> Ring | None:
        if not self.asked.ring_size:
            return None
        return Ring(self.asked.ring_size, communication=not self._talked)

    def _rings(self) -> Iterator[Ring]:
        """Yield the ring to measure on, where one is asked for. Raises `Unanswered` where its ranks cannot talk."""
        ring = self._ring()
        if ring is not None:
            if self._silent:
                raise Unanswered(f"nothing was computed over ranks: {self._silent}")
            yield ring

    def _parity(self, rest: float) -> Iterator[Report]:
        budget = None if rest == float("inf") else rest
        request = parity.Request(suite=self.asked.suite, budget=budget)
        for model in self._named():
            yield parity.run(self._with_model(model), request, self.bench, self.say)
        for ring in self._rings():
            yield self._over_ranks(
                ring_parity.run(self._with_model(self._named()[0]), request, ring, self.bench, self.say)
            )

    def _over_ranks(self, report: Report) -> Report:
        """Return a report over ranks, having taken note of how they talked."""
        self._talked = self._talked or bool(exchanges(report))
        self._hear(report.findings)
        return report

    def _determinism(self) -> Iterator[Report]:
        request = determinism.Request(repeats=REPEATS[self.bench.uses_gpu])
        for model in self._named():
            yield determinism.run(self._with_model(model), request, self.bench, self.say)
        for ring in self._rings():
            yield self._over_ranks(
                ring_determinism.run(self._with_model(self._named()[0]), request, ring, self.bench, self.say)
            )

    def _smoke(self) -> Iterator[Report]:
        models = tuple(name for name in self._named() if name is not None)
        request = run.Request(plan=self.plan(), models=models or run.DEFAULTS, ring=self._ring())
        run.check(request)
        yield run.run(self.snapshot(), request, self.bench, self.say)

    def _bench(self) -> Iterator[Report]:
        for model in self._named():
            yield timing.run(self._with_model(model), bench_shapes.Request(), self.bench, self.say)
        for ring in self._rings():
            here = self._with_model(self._named()[0])
            wanted = ring_bench.Wanted(min_efficiency=self.asked.min_efficiency)
            asked = ring_bench.request(here, self.bench.uses_gpu, wanted)
            yield self._over_ranks(ring_bench.run(here, asked, ring, self.bench, self.say))
