"""Runs the checks of a gate one by one: one snapshot, then a request for each check and model."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from attncheck.agree import run as agreement
from attncheck.core.io.errors import Unanswered
from attncheck.core.job import Job
from attncheck.core.launch import COMMAND, Source
from attncheck.core.plan import Plan
from attncheck.core.report import Finding, Report
from attncheck.core.results.gate import Check
from attncheck.core.results.lint import launches_of
from attncheck.core.snapshot import Absent, Known, Snapshot
from attncheck.doctor import engine
from attncheck.doctor.probes.collect import Lane, collect_snapshot
from attncheck.doctor.profile import needs_of_profile
from attncheck.doctor.target import apply_target, parse_target
from attncheck.gate.inputs import Inputs
from attncheck.gate.launch_code import CodeReader, digest_sources
from attncheck.gate.levels import get_level
from attncheck.gate.policy import Policy
from attncheck.gate.trust import find_doubt
from attncheck.measure import bench, bench_shapes, determinism, parity
from attncheck.rehearsal import reading
from attncheck.rehearsal import run as rehearsal
from attncheck.rehearsal.cutting import NothingToRehearse
from attncheck.ring import bench as ring_bench
from attncheck.ring import determinism as ring_determinism
from attncheck.ring import parity as ring_parity
from attncheck.ring.communication_check import check_communication, list_exchanges
from attncheck.ring.group import Ring
from attncheck.smoke import run as smoke
from attncheck.workers.execution import ExecutionTarget

# The launch's settings that apply to smoke's plan; the sizes remain smoke's own, which are small.
PLAN_FIELDS_FROM_LAUNCH = (
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


class NothingLinted(Exception):
    """No source of a gate's lint starts a known trainer; they may be any programs, so no question is open."""


class CheckRunner:
    """Runs the checks of one gate, and keeps what it collected and read for them."""

    def __init__(
        self,
        policy: Policy,
        target: ExecutionTarget,
        report_progress: Callable[[str], None],
        sources: Sequence[Source],
        inputs: Inputs,
    ) -> None:
        self.policy, self.target, self.report_progress, self.inputs = policy, target, report_progress, inputs
        self.level = get_level(policy)
        self.command_sources = tuple(source for source in sources if source.name == COMMAND)
        self.file_sources = tuple(source for source in sources if source.name != COMMAND)
        self.has_full_snapshot = False  # with every lane that doctor uses
        self._snapshot: Snapshot | None = None
        self._models: dict[str, Snapshot] = {}
        self._job: Job | None = None
        self._communication_failure = ""  # why ranks cannot communicate
        self._has_checked_communication = False

    def run(self, check: Check, seconds_left: float) -> Iterator[Report]:
        """Yield the reports of one check, each as soon as it is ready; `seconds_left` is the rest of the budget."""
        runs: dict[Check, Callable[[float], Iterator[Report]]] = {
            "doctor": lambda seconds_left: self._run_doctor(),
            "lint": lambda seconds_left: self._run_lint(),
            "parity": self._run_parity,
            "determinism": lambda seconds_left: self._run_determinism(),
            "smoke": lambda seconds_left: self._run_smoke(),
            "rehearsal": lambda seconds_left: self._run_rehearsal(),
            "agree": lambda seconds_left: self._run_agree(),
            "bench": lambda seconds_left: self._run_bench(),
        }
        yield from runs[check](seconds_left)

    def snapshot(self) -> Snapshot:
        """Return the snapshot of the machine; of its files only, if no check has collected more."""
        if self._snapshot is None:
            self._snapshot = self._collect(("static",), self._model_names()[0])
        return self._snapshot

    def _look_for_gpus(self) -> None:
        """Collect the files and the GPUs, if no check has collected more."""
        if not self.has_full_snapshot:
            self._snapshot = self._collect(("static", "device"), self._model_names()[0])

    def report_snapshot(self) -> Snapshot:
        """Return the snapshot that the report is about, with the launch that was read."""
        job = Absent("no launch was given") if self._job is None else Known(self._job)
        return replace(self._apply_target(self.snapshot()), job=job)

    def plan(self) -> Plan:
        """Return the plan that smoke trains: the policy's fields, or those of the launch, or the defaults."""
        launch_fields: dict[str, Any] = {}
        if self._job is not None:
            launch_fields = {name: getattr(self._job.plan, name) for name in PLAN_FIELDS_FROM_LAUNCH}
        return Plan(**{**launch_fields, **self.policy.plan}, ring_size=self.policy.ring_size or 1)

    def _model_names(self) -> tuple[str | None, ...]:
        """Return the models to check: the policy's, or the launch's if it can be read here, or (None,)."""
        if self.policy.models:
            return self.policy.models
        if self._job is not None and self._job.model and isinstance(self.inputs.read_model(self._job.model), Known):
            return (self._job.model,)
        return (None,)

    def _collect(self, lanes: tuple[Lane, ...], model: str | None) -> Snapshot:
        if model is not None:
            self.inputs.read_model(model)  # so that its digest is kept with the answer
        python = None if self.target.python == sys.executable else self.target.python
        return collect_snapshot(
            python, lanes, model, None, self.policy.timeout, self.report_progress, self.target.selection
        )

    def _apply_target(self, snapshot: Snapshot) -> Snapshot:
        return apply_target(snapshot, parse_target(self.policy.target)) if self.policy.target else snapshot

    def _snapshot_with_model(self, model: str | None) -> Snapshot:
        """Return the snapshot with a model, as doctor collected it, or from its files only."""
        snapshot = self.snapshot()
        if model is None:
            return replace(snapshot, model=Absent("no model was named"))
        if model not in self._models:
            self._models[model] = replace(snapshot, model=self.inputs.read_model(model))
        return self._models[model]

    def _run_doctor(self) -> Iterator[Report]:
        lanes: tuple[Lane, ...] = ("static",) if self.policy.target else self.level.lanes
        for model in self._model_names():
            if self._snapshot is None or not self.has_full_snapshot:
                self._snapshot, self.has_full_snapshot = self._collect(lanes, model), True
                snapshot = self._snapshot
            else:
                model_lanes = tuple(lane for lane in lanes if lane != "device")
                snapshot = replace(self._snapshot, model=self._collect(model_lanes, model).model)
            if model is not None:
                self._models[model] = snapshot
            snapshot = self._apply_target(snapshot)
            yield engine.run_rules(
                snapshot, needs_of_profile(self.policy.profile, snapshot), self.policy.select, self.policy.ignore
            )
        ring = self._make_ring()
        if ring is not None and "device" in lanes:
            self._has_checked_communication = True
            yield self._check_communication(ring)

    def _check_communication(self, ring: Ring) -> Report:
        report = check_communication("doctor", self.snapshot(), ring, self.target, self.report_progress)
        self._note_communication_failure(report.findings)
        return report

    def _note_communication_failure(self, findings: tuple[Finding, ...]) -> None:
        """Remember if ranks cannot communicate, because their joint results would mean nothing."""
        failure = next((finding for finding in findings if finding.code in ("ATN520", "ATN521")), None)
        if failure is not None:
            self._communication_failure = f"{failure.code}: {failure.message}"

    def _run_lint(self) -> Iterator[Report]:
        from attncheck.lint import run as lint
        from attncheck.lint.context import Request

        self.report_progress("reading the launch")
        if "device" in self.level.lanes and not self.policy.target:  # the launch is judged by this machine's GPUs
            self._look_for_gpus()
        snapshot = replace(self._apply_target(self.snapshot()), model=Absent("the launch names its own model"))
        model = self.policy.models[0] if len(self.policy.models) == 1 else ""
        version = self.policy.framework_version
        base_request = Request((), version=version, model=model, select=self.policy.select, ignore=self.policy.ignore)
        # The command may be any program; a file that the policy names is expected to start a training.
        for sources, any_program in ((self.file_sources, False), (self.command_sources, True)):
            if sources:
                request = replace(base_request, sources=sources, skip_unknown=any_program)
                report = lint.run(snapshot, request, self.inputs.read_model, self.inputs.read_file)
                launches = launches_of(report)
                self._job = launches[0].job if launches else self._job
                yield report
        if self._job is None:
            raise NothingLinted

    def _make_ring(self) -> Ring | None:
        if not self.policy.ring_size:
            return None
        return Ring(self.policy.ring_size, checks_communication=not self._has_checked_communication)

    def _iter_rings(self) -> Iterator[Ring]:
        """Yield the ring to measure on, if any. Raises `Unanswered` if its ranks cannot communicate."""
        ring = self._make_ring()
        if ring is not None:
            if self._communication_failure:
                raise Unanswered(f"nothing was computed across ranks: {self._communication_failure}")
            yield ring

    def _run_parity(self, seconds_left: float) -> Iterator[Report]:
        budget = None if seconds_left == float("inf") else seconds_left
        request = parity.Request(suite=self.policy.suite or self.level.suite, budget=budget)
        for model in self._model_names():
            yield parity.run(self._snapshot_with_model(model), request, self.target, self.report_progress)
        for ring in self._iter_rings():
            yield self._note_communication(
                ring_parity.run(
                    self._snapshot_with_model(self._model_names()[0]), request, ring, self.target, self.report_progress
                )
            )

    def _note_communication(self, report: Report) -> Report:
        """Return a report across ranks, after remembering whether they could communicate."""
        self._has_checked_communication = self._has_checked_communication or bool(list_exchanges(report))
        self._note_communication_failure(report.findings)
        return report

    def _run_determinism(self) -> Iterator[Report]:
        repeats = self.level.gpu_repeats if self.target.uses_gpu else self.level.cpu_repeats
        request = determinism.Request(repeats=repeats)
        for model in self._model_names():
            yield determinism.run(self._snapshot_with_model(model), request, self.target, self.report_progress)
        for ring in self._iter_rings():
            yield self._note_communication(
                ring_determinism.run(
                    self._snapshot_with_model(self._model_names()[0]), request, ring, self.target, self.report_progress
                )
            )

    def _run_smoke(self) -> Iterator[Report]:
        models = tuple(name for name in self._model_names() if name is not None)
        if not models and self._job is not None and (shape := smoke.find_shape(self._job.model)):
            models = (shape,)  # instead of the launch's model, which is not cached
        request = smoke.Request(plan=self.plan(), models=models or smoke.DEFAULT_MODELS, ring=self._make_ring())
        smoke.validate_request(request)
        if "/" in request.plan.attn_implementation and not self._plans_the_command():
            self._require_trust("smoke", digest_sources(self.file_sources))  # a Hub kernel is code
        yield smoke.run(self.snapshot(), request, self.target, self.report_progress)

    def _run_rehearsal(self) -> Iterator[Report]:
        request = self._make_launch_request("rehearsal")
        try:
            yield rehearsal.run(self.snapshot(), request, self.target, self.report_progress)
        except NothingToRehearse as error:
            if "rehearsal" in self.policy.checks:
                raise Unanswered(str(error)) from None
            raise NothingLinted from None

    def _run_agree(self) -> Iterator[Report]:
        launches = self._make_launch_request("agree")
        requests = [agreement.AgreeRequest(model=name) for name in self._model_names() if name is not None]
        if launches.sources:
            requests = [agreement.AgreeRequest("", launches.sources, launches.read_model, launches.make_reader)]
        if not requests:
            raise Unanswered("agree compares what a launch or a model computes: the policy names neither")
        for request in requests:
            yield agreement.run(self.snapshot(), request, self.target, self.report_progress)

    def _make_launch_request(self, check: Check) -> reading.Request:
        """Return the request to run the launches, after digesting their files. Raises `Unanswered` without trust."""
        if self.target.uses_gpu:  # one rank is started for each GPU
            self._look_for_gpus()
        sources = (*self.file_sources, *self.command_sources)
        is_named = check in self.policy.checks  # otherwise no unknown program is started
        reader = CodeReader(self.inputs)
        code = reader.read_code(self.snapshot(), self.file_sources, is_named)
        if code.commands:
            self._require_trust(check, code.files)
        request = reader.make_request(sources, is_named)
        for source in sources:
            for path in reading.list_scripts(self.snapshot(), request, source):
                self.inputs.read_file(path)  # so that its digest is kept with the answer
        return request

    def _plans_the_command(self) -> bool:
        """Return whether the command after `run --` decides the plan's attention, and not the policy."""
        is_command = self._job is not None and self._job.location.source == COMMAND
        return is_command and "attn_implementation" not in self.policy.plan

    def _require_trust(self, check: Check, files: Mapping[str, str]) -> None:
        """Raise `Unanswered` for a check that runs code from the policy, unless it is trusted or the check is named."""
        doubt = find_doubt(self.policy, files) if check not in self.policy.named_checks else ""
        if doubt:
            raise Unanswered(f"not run: {doubt}")

    def _run_bench(self) -> Iterator[Report]:
        # a training step runs both passes; this takes half of the time
        request = bench_shapes.Request(passes=("forward_backward",))
        for model in self._model_names():
            yield bench.run(self._snapshot_with_model(model), request, self.target, self.report_progress)
        for ring in self._iter_rings():
            snapshot = self._snapshot_with_model(self._model_names()[0])
            options = ring_bench.Request(min_efficiency=self.policy.min_efficiency)
            workload = ring_bench.choose_workload(snapshot, self.target.uses_gpu, options)
            yield self._note_communication(ring_bench.run(snapshot, workload, ring, self.target, self.report_progress))
