"""Makes reports with something of everything in them, for the tests of formats."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from attncheck.core.cases import Case
from attncheck.core.findings import Allowance, Finding, Fix, Skip
from attncheck.core.job import Job, LintedLaunch
from attncheck.core.launch import Edit, Setting, SourceLocation
from attncheck.core.plan import Plan
from attncheck.core.report import Report
from attncheck.core.results.gate import GateSection, Stage
from attncheck.core.results.labels import LabelledLaunch, LabelsSection, RoleCount, Span
from attncheck.core.results.lint import LintSection
from attncheck.core.results.parity import ParitySection
from attncheck.core.results.rehearsal import RehearsalSection, RehearsedLaunch
from attncheck.core.results.ring_timings import RingTiming, Stopwatch
from attncheck.core.results.smoke import CheckResult, Measure, PlanRun, SmokeSection, Step
from attncheck.core.verdicts import MeasuredOn, Run, Verdict
from attncheck.doctor import engine
from tests import snapshots as s
from tests.cluster.snapshots import gather, merge

SCRIPT = 'torchrun train.py \\\n  --attn eager \\\n  --packing_samples "{0}"\n'

RING = RingTiming(
    "zigzag_ring_flash_attn", "batch", "forward_backward", 8, 8192,
    stopwatch=Stopwatch(53.0, 52.0, 54.0, 0.004, 60, 3, 1.01),
    iterations_per_s=18.81, efficiency=0.927, achievable=0.969, reached=0.96, correct="pass",
)  # fmt: skip


def make_finding(code: str = "ATN140", **fields: Any) -> Finding:
    """Return a finding of a real rule; name and severity are the rule's if they are not given."""
    rule = next(rule for rule in engine.all_rules()[0] if rule.code == code)
    values: dict[str, Any] = {
        "name": rule.name,
        "severity": rule.severity,
        "message": f"{code} is what is wrong, by 3.25",
        "subject": "ring-flash-attn 0.1.8",
        "evidence": ("import lane: ImportError",),
        "fixes": (Fix("install it", "command", "uv pip install transformers==5.3.0", proven="20 steps"),),
    }
    return Finding(code=code, **{**values, **fields})


def make_doctor_report(**fields: Any) -> Report:
    """Return doctor's report on an H200, with these fields changed."""
    return replace(engine.run_rules(s.h200(), frozenset()), **fields)


VERDICTS = (
    Verdict("parity", "sdpa_math", "gqa-128", "gqa", "pass", "as expected"),
    Verdict("parity", "flash", "gqa-128", "gqa", "fail", "dq has z_row 40 (budget 12)", 3.4, ("at head 3",)),
    Verdict("parity", "flash", "alibi", "alibi", "refused", "no alibi"),
    Verdict("parity", "flash", "long", "long", "lost", "the process died"),
    Verdict("parity", "flash", "near", "gqa", "warn", "z_rms 2.1"),
)


def make_gate_report() -> Report:
    """Return a gate's report: findings of each level and kind, skips, stages, verdicts, a linted script."""
    run = Run("sdpa_math", Case("gqa", (128,), (128,), name="gqa-128"), "ok", call_ms=1500.0)
    launch = LintedLaunch(_make_job(), "diff", "", (Edit("run.sh", (29, 34), "sdpa"), Edit("run.sh", (1, 2), "x")))
    return make_doctor_report(
        command="gate",
        findings=(
            make_finding("ATN140", check="doctor"),
            make_finding("ATN201", subject="driver 550.54", severity="warning", fixes=(), check="doctor"),
            make_finding(
                "ATN401",
                locations=(SourceLocation("run.sh", 2, 3),),
                severity="error",
                check="lint",
                fixes=(Fix("name one that packs", "setting", "--attn sdpa", sets={"attn_implementation": "sdpa"}),),
            ),
            make_finding("ATN110", severity="note", subject="", message="nvcc is missing", check="doctor"),
        ),
        baselined=(make_finding("ATN147", subject="verl 0.9.1"),),
        allowed=(make_finding("ATN109", subject="flash-attn"),),
        allowances=(Allowance("ATN1", "not ours", "2027-01-01"), Allowance("ATN109", "SDPA is enough", "2027-02-01")),
        skips=(Skip("ATN207", "gpu-memory-in-use", "no GPU"),),
        passed=("ATN101", "ATN102"),
        suppressed=("ATN155",),
        sections={
            "gate": GateSection(
                (
                    Stage("doctor", "found", 0.5),
                    Stage("lint", "clean", 0.1),
                    Stage("parity", "unanswered", 3.0, "the rank died"),
                    Stage("bench", "left out", 0.0, "time was up"),
                )
            ),
            "lint": LintSection((launch,)),
            "parity": ParitySection(MeasuredOn("cuda", "NVIDIA H200", "2.11"), (), VERDICTS, (run,)),
        },
    )


def _make_job() -> Job:
    setting = Setting("attn", "eager", SourceLocation("run.sh", 2, 3), (22, 34), (29, 34))
    return Job("openrlhf", "0.11.2", "sft", location=SourceLocation("run.sh", 1, 1), settings=(setting,))


def make_smoke_report() -> Report:
    """Return smoke's report: a check's result that passes and one that fails."""
    results = (
        CheckResult("documents_apart", measures=(Measure("gradients", 3.0, 1.0, "worst in q_proj"),), seconds=2.5),
        CheckResult("what_ran", notes=("sdpa ran",), seconds=0.25),
    )
    section = SmokeSection(plan_runs=(PlanRun("llama", Plan(), results),))
    return make_doctor_report(command="smoke", findings=(make_finding("ATN430"),), sections={"smoke": section})


def make_rehearsal_report() -> Report:
    """Return the report of a launch whose documents mix, and of the one that fixes it."""
    mixed = (
        CheckResult("run", notes=("30 steps in 9 s",)),
        CheckResult("documents", violations=("tokens attend to earlier documents in the row",)),
        CheckResult("loss", "skipped", "not judged: a consequence of the failed documents check"),
    )
    right = (
        CheckResult("documents", measures=(Measure("hidden state of a token", 1e-6, 1e-4),)),
        CheckResult("learning", steps=(Step(5.5, 0.0, 0.0, 0), Step(2.5, 0.0, 0.0, 0)), floor=1.0, bound=4.9),
    )
    launch = RehearsedLaunch(
        "run.sh:3:1", "trl", "1.16.0", "sft", "qwen2", "the loss, as documented: the mean", "trl sft", "-a\n+b\n", mixed
    )
    corrected = replace(launch, results=right, tried="--packing_strategy bfd", steps=30)
    section = RehearsalSection(
        launches=(launch, corrected),
        corrected=("--- a/run.sh\n+++ b/run.sh\n-a\n+c\n+d\n", "trl sft --packing_strategy bfd"),
    )
    return make_doctor_report(command="smoke", findings=(make_finding("ATN432"),), sections={"rehearsal": section})


def make_labels_report() -> Report:
    """Return the report of a launch that learns a question too."""
    question, answer = (
        Span("<user>" + "Which is it? " * 9, "user", True, 30),
        Span("This one.<end>", "assistant", True, 4),
    )
    rows = ((Span("<system>Be brief.", "system", False, 5), question, answer),) * 3
    counts = (RoleCount("system", 15, 0), RoleCount("user", 90, 90), RoleCount("assistant", 12, 12))
    launch = LabelledLaunch("run.sh:3:1", "trl", "1.16.0", "sft", "the answers alone", "./job", rows, counts)
    launch = replace(launch, problems=("user turns are learned: 90 of 90 tokens",), remarks=("a remark",), total_rows=3)
    section = LabelsSection((launch, replace(launch, rows=(), counts=(), problems=(), reason="it ended with status 1")))
    return make_doctor_report(command="labels", findings=(make_finding("ATN439"),), sections={"labels": section})


def make_cluster_report() -> Report:
    """Return doctor's report on twelve nodes: two have another transformers, one its own fault, one is silent."""
    changes = {
        2: lambda snapshot: s.with_package(snapshot, "transformers", "4.57.1"),
        3: lambda snapshot: s.with_package(snapshot, "transformers", "4.57.1"),
        7: lambda snapshot: s.with_env(snapshot, CUDA_LAUNCH_BLOCKING="1"),
    }
    gathered = gather(12, changes, {5: "it connected, but did not answer within 180 s"})
    return merge(replace(gathered, launcher="Ray", names=tuple(f"{node:08x}" for node in range(12))))
