"""The page: well formed, small, loads nothing, runs nothing foreign; it shows what was measured, no more."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from attncheck.cli.output import ReportWriter
from attncheck.core.cases import Case
from attncheck.core.findings import Fix
from attncheck.core.launch import SourceLocation
from attncheck.core.plan import Plan
from attncheck.core.report import Report
from attncheck.core.results.bench import BenchSection
from attncheck.core.results.cluster import ClusterSection, NodeFact, NodeGroup
from attncheck.core.results.determinism import DeterminismSection
from attncheck.core.results.doctor import DoctorSection
from attncheck.core.results.lint import LintSection
from attncheck.core.results.parity import ParitySection
from attncheck.core.results.repair import RepairSection, RepairStep
from attncheck.core.results.ring import RingSection
from attncheck.core.results.smoke import CheckResult, Layer, PlanRun, SmokeSection, Step
from attncheck.core.results.timings import Timing
from attncheck.core.verdicts import BackendState, Difference, MeasuredOn, Repeats, Run, Verdict
from attncheck.report.document import load_sections
from attncheck.report.finding_lines import RULES_URL
from attncheck.report.formats import load_format
from attncheck.report.html_page import elements
from attncheck.report.outputs import Output
from attncheck.report.sections import load_view
from tests import snapshots as s
from tests.adversary import hostile_text
from tests.planted_secrets import TOKENS, make_secret
from tests.report import reports
from tests.report.html_reader import LOADING, Page, read_page
from tests.report.reports import RING

MAX_BYTES = 500_000
SCRIPT = "</script></textarea></style></title><script>alert(1)</script>\"'><img src=x onerror=alert(1)>&lt;b&gt;"


def render(report: Report, verbose: bool = True) -> str:
    return load_format("html").render(report, verbose)


def make_parity_report() -> Report:
    """Return parity's report: three backends, one right, one wrong in a case, one that refuses all."""
    states = tuple(BackendState(name, "", "flash-attn", "2.8.3") for name in ("eager", "flash", "third"))
    missing = BackendState("absent", "", "flash-attn-4", missing="flash-attn-4 is not installed")
    verdicts = (
        Verdict("parity", "eager", "heads-128", "heads", "pass", "ok", 0.25),
        Verdict("parity", "eager", "long-9", "long", "pass", "ok", 0.9),
        Verdict("parity", "flash", "heads-128", "heads", "fail", "dq has z_row 99 (budget 12)", 8.25, ("at head 3",)),
        Verdict("parity", "flash", "long-9", "long", "warn", "draws once for four", 0.0),
        Verdict("parity", "third", "heads-128", "heads", "refused", "no such head_dim"),
        Verdict("parity", "third", "long-9", "long", "lost", "time was up"),
    )
    runs = tuple(Run(v.backend, Case(v.family, (128,), (128,), name=v.case), "ok") for v in verdicts)
    device = MeasuredOn("cuda", "NVIDIA H200", "2.11.0", "standard", seconds=3.5)
    finding = reports.make_finding("ATN601", subject="flash", severity="error", message="flash is wrong")
    return Report(
        "parity", s.h200(), (finding,), sections={"parity": ParitySection(device, (*states, missing), verdicts, runs)}
    )


def make_training_report() -> Report:
    """Return smoke's report of a model that learnt, with what ran in its layers."""
    steps = tuple(Step(6.0 / number, 1.0, 1000.0, 0) for number in range(1, 12))
    layers = (Layer("model.layers.0.self_attn", "sliding", "sdpa", "eager", ("sdpa MATH",)),)
    results = (
        CheckResult("what_ran", layers=layers, notes=("as asked",)),
        CheckResult("training", steps=steps, floor=0.3, bound=2.0),
    )
    section = SmokeSection(MeasuredOn("cpu", "CPU", "2.13"), plan_runs=(PlanRun("llama", Plan(), results),))
    return Report("smoke", s.laptop(), sections={"smoke": section})


def make_determinism_report() -> Report:
    """Return determinism's report: dq varies, and the switch fixes it."""
    case = Case("x", (128,), (128,), name="x-128")
    same, varied = Difference("dq", 1, 0, 0.0, 0, 9), Difference("dq", 29, 2, 0.1, 3, 9)
    repeats = (
        Repeats("flash", case, "default", "ok", repeats=32, differences=(varied,), call_ms=1.0),
        Repeats("flash", case, "deterministic", "ok", repeats=32, differences=(same,), call_ms=2.0),
        Repeats("other", case, "default", "refused", "no such head_dim"),
    )
    section = DeterminismSection(MeasuredOn("cuda", "NVIDIA H200", "2.11.0"), (), (), repeats)
    return Report("determinism", s.h200(), sections={"determinism": section})


def make_repair_report() -> Report:
    steps = (RepairStep("uv pip install 'a==1'", "install a", ("ATN140",)), RepairStep("b", "then b", ("ATN147",)))
    section = RepairSection(steps, ("ATN140", "ATN147"), proven=("ATN140",))
    return reports.make_doctor_report(sections={"doctor": DoctorSection(("flash",)), "repair": section})


REPORTS: dict[str, Callable[[], Report]] = {
    "gate": reports.make_gate_report,
    "doctor": lambda: hostile_text.make_reports()[0],
    "smoke": reports.make_smoke_report,
    "rehearsal": reports.make_rehearsal_report,
    "labels": reports.make_labels_report,
    "bench": lambda: hostile_text.make_reports()[3],
    "ring": lambda: hostile_text.make_reports()[4],
    "lost": lambda: hostile_text.make_reports()[5],
    "parity": make_parity_report,
    "training": make_training_report,
    "determinism": make_determinism_report,
    "repair": make_repair_report,
    "cluster": reports.make_cluster_report,
    "empty": lambda: Report("doctor", s.laptop()),
}
EACH = pytest.mark.parametrize("name", REPORTS)


@EACH
def test_the_page_is_well_formed_and_reachable_without_a_mouse_or_eyes(name: str) -> None:
    page = read_page(render(REPORTS[name]()))
    assert page.named("html")[0].attributes["lang"] == "en"
    assert [element.name for element in page.elements][:3] == ["html", "head", "meta"]
    ids = [element.attributes["id"] for element in page.elements if "id" in element.attributes]
    assert len(ids) == len(set(ids))
    links = [element.attributes["href"] for element in page.named("a")]
    assert {link[1:] for link in links if link.startswith("#")} <= set(ids)
    assert len(page.named("h1")) == len(page.named("main")) == len(page.named("title")) == 1
    tables = page.named("table")
    assert len(tables) == len(page.named("caption")) == len(page.named("thead")) == len(page.named("tbody"))
    assert all(caption.text for caption in page.named("caption"))
    assert all(element.attributes.get("scope") in ("col", "row") for element in page.named("th"))
    for element in page.named("button"):
        assert element.text and element.attributes["type"] == "button"
        assert element.attributes.get("aria-label", element.text).startswith(element.text)
    for element in page.named("svg"):
        assert element.attributes.get("aria-hidden") == "true" or element.attributes["aria-label"]
    for element in page.named("input") + page.named("select"):
        assert "label" in element.around
    assert any(element.attributes.get("aria-live") == "polite" for element in page.elements)
    scrolling = page.with_class("scroll")
    assert all(e.attributes["tabindex"] == "0" and e.attributes["aria-label"] for e in scrolling)


@EACH
def test_the_page_loads_nothing_and_runs_its_own_script_alone(name: str) -> None:
    page = read_page(render(REPORTS[name]()))
    for element in page.elements:
        for attribute, value in element.attributes.items():
            assert attribute != "style" and not attribute.startswith("on"), element
            if attribute in LOADING:
                is_page_of_rule = element.name == "a" and value.startswith(RULES_URL)
                assert value.startswith("#") or value == "data:," or is_page_of_rule, element
    assert not {"iframe", "object", "embed", "img", "base", "video", "audio"} & {e.name for e in page.elements}
    policy = next(e for e in page.named("meta") if e.attributes.get("http-equiv"))
    directives = dict(part.strip().split(" ", 1) for part in policy.attributes["content"].split(";"))
    (script,), (style,) = page.named("script"), page.named("style")
    digests = {
        key: "'sha256-" + base64.b64encode(hashlib.sha256(element.text.encode()).digest()).decode() + "'"
        for key, element in (("script-src", script), ("style-src", style))
    }
    others = {"default-src": "'none'", "img-src": "data:", "base-uri": "'none'", "form-action": "'none'"}
    assert directives == {**others, **digests}
    assert "url(" not in style.text and "@import" not in style.text and "http" not in style.text + script.text
    assert "innerHTML" not in script.text and "eval" not in script.text


@EACH
def test_markup_in_any_text_stays_text(name: str) -> None:
    plain = read_page(render(plant(REPORTS[name](), "p" * len(elements.escape(SCRIPT)))))  # as large on the page
    page = read_page(render(plant(REPORTS[name](), SCRIPT)))
    assert outline(page) == outline(plain)
    assert any(SCRIPT in element.text for element in page.elements)
    assert page.named("script")[0].text == plain.named("script")[0].text


def test_markup_that_is_not_escaped_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = read_page(render(plant(make_parity_report(), "planted")))
    monkeypatch.setattr(elements, "escape", lambda text: elements.Markup(text))
    with pytest.raises(AssertionError):
        assert outline(read_page(render(plant(make_parity_report(), SCRIPT)))) == outline(plain)


def test_markup_in_names_of_packages_models_and_files_stays_text() -> None:
    snapshot = s.with_model(s.with_package(s.h200(), "flash-attn", SCRIPT), source=SCRIPT, model_type=SCRIPT)
    finding = reports.make_finding(subject=SCRIPT, fixes=(Fix(SCRIPT, "command", SCRIPT, proven=SCRIPT),))
    report = reports.make_doctor_report(snapshot=snapshot, findings=(finding,), sections={"doctor": DoctorSection()})
    page = read_page(render(replace(report, skips=())))
    assert len(page.named("script")) == 1 and not page.named("img") and not page.named("b")
    assert page.named("code")[0].text.lstrip("\n") == SCRIPT, "what is copied is what was written"


def plant(report: Report, text: str) -> Report:
    return hostile_text.plant(report, lambda own: text if own else own)


def outline(page: Page) -> list[tuple[str, ...]]:
    """Return the elements of a page and the names of their attributes, without what only says where lines break."""
    kept = (e for e in page.elements if e.name != "wbr" and e.attributes.get("class") != "whole")
    return [(e.name, *sorted(set(e.attributes) - ({"class"} if e.name in ("th", "td") else set()))) for e in kept]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_no_encoding_changes_the_page(encoding: str) -> None:
    from attncheck.core.io.streams import fit_text

    record = load_format("html")
    text = record.render(make_parity_report(), False)
    fitted = fit_text(text, encoding, record.syntax)
    fitted.encode(encoding)
    assert [e.text for e in read_page(fitted).elements] == [e.text for e in read_page(text).elements]


def make_large_reports() -> dict[str, Report]:
    """Return reports of a size that nobody reads to the end."""
    text = "<&\"'" * 600
    fixes = (Fix(text, "command", text * 2),) * 4
    finding = reports.make_finding(evidence=(text,) * 60, fixes=fixes)
    findings = tuple(replace(finding, message=f"{number} {text}") for number in range(80))
    names = [f"backend_{number}" for number in range(40)]
    verdicts = tuple(
        Verdict("parity", name, f"{text[:60]}{case}", f"family{case % 60}", "fail", text, 4.0 + case, (text,) * 3)
        for name in names
        for case in range(100)
    )
    states = tuple(BackendState(name, "", text) for name in names)
    case = Case("x", (128,), (128,), name="x")
    timing = Timing("flash", case, "forward", "default", "died", reason=text)
    timings = tuple(replace(timing, backend=f"{text[:50]}{number}") for number in range(300))
    steps = tuple(Step(1.0 / (1 + number), 1.0, 1.0, 1) for number in range(2000))
    smoke = tuple(PlanRun(text, Plan(), (CheckResult("training", steps=steps, notes=(text,) * 99),)) for _ in range(9))
    snapshot = replace(s.h200(), distributions=s.h200().distributions * 9, environ={f"A{n}": text for n in range(99)})
    return {
        "findings": Report("doctor", snapshot, findings, sections={"doctor": DoctorSection((), (text,) * 500)}),
        "sections": Report(
            "gate",
            snapshot,
            findings,
            sections={
                "parity": ParitySection(MeasuredOn("cuda", text, "2"), states, verdicts),
                "bench": BenchSection(timings=timings),
                "ring": RingSection(
                    timings=tuple(replace(reports.RING, backend=f"b{n}", reason=text) for n in range(300))
                ),
                "smoke": SmokeSection(plan_runs=smoke),
            },
        ),
    }


def make_scattered_cluster(size: int) -> Report:
    """Return the report on nodes of which no two are alike, in more facts than there is room for."""
    groups = tuple(NodeGroup(f"value {node} of many", 1, str(node)) for node in range(size))
    facts = tuple(NodeFact("package", f"package-{number}", "stack", groups) for number in range(40))
    section = ClusterSection("Slurm", size, 0, (), (), 0, 8, facts)
    return Report("doctor", s.h200(), sections={"doctor": DoctorSection(), "cluster": section})


def test_a_cluster_shows_nodes_alike_in_one_row_of_a_matrix() -> None:
    page = read_page(render(reports.make_cluster_report()))
    matrix = next(table for table in page.named("table") if "Nodes by facts" in table.text)
    assert "0-1, 4, 6, 8-11 (8)" in matrix.text and "2-3 (2)" in matrix.text
    assert [cell.text for cell in page.named("td") if cell.attributes.get("class") == "warn"] == ["4.57.1", "1"]
    assert any("node 5: it connected, but did not answer within 180 s" in item.text for item in page.named("td"))


def test_thousands_of_nodes_that_all_differ_stay_a_small_page() -> None:
    text = render(make_scattered_cluster(4096))
    assert len(text.encode()) < MAX_BYTES and "not shown here" in text
    assert "Nodes by facts that differ" in text and 40 < len(read_page(text).named("tr")) < 2000


@pytest.mark.parametrize("name", ["findings", "sections"])
def test_the_page_stays_small_and_says_what_it_leaves_out(name: str) -> None:
    text = render(make_large_reports()[name])
    assert len(text.encode()) < MAX_BYTES
    page = read_page(text)
    assert "not shown here" in text and "the JSON report" in text
    assert "80 errors" in page.named("h1")[0].text, "the verdict counts what is left out too"


def test_parity_shows_the_worst_error_by_family_and_a_mark_for_every_case() -> None:
    page = read_page(render(make_parity_report()))
    cells = [(element.text, element.attributes["class"].split()[1]) for element in page.with_class("heat")]
    assert cells == [
        ("0.25", "pass-1"),
        ("0.90", "pass-3"),
        ("8.25", "bad"),
        ("noted", "warn"),
        ("-", "none"),
        ("lost", "bad"),
    ]
    strips = page.with_class("strip")
    assert [strip.attributes["aria-label"] for strip in strips] == [
        "eager: 2 pass",
        "flash: 1 warn, 1 fail",
        "third: 1 lost, 1 refused",
    ]
    paths = [element.attributes for element in page.named("path")]
    assert [path["class"] for path in paths] == ["fill-pass-1", "fill-pass-3", "fill-bad", "fill-warn", "fill-none"]
    assert [path["d"].split()[0] for path in paths] == ["M0", "M3", "M0", "M3", "M3"], "cases are below one another"
    text = page.named("main")[0].text
    assert "dq has z_row 99 (budget 12)" in text and "flash-attn-4" in text
    verdict = "2 of 5 cases right, 1 over budget, 1 wrong, 1 lost, 3 backends · 1 error (ATN601)"
    assert page.named("h1")[0].text == f"✕ {verdict}"


def test_smoke_shows_what_really_ran_and_the_curve_of_the_loss() -> None:
    page = read_page(render(make_training_report()))
    row = next(e for e in page.named("tr") if "model.layers.0.self_attn" in e.text)
    assert row.text == "model.layers.0.self_attn" + "sliding" + "sdpa" + "eager" + "sdpa MATH"
    (curve,) = page.named("polyline")
    assert len(curve.attributes["points"].split()) == 11
    heights = [float(point.split(",")[1]) for point in curve.attributes["points"].split()]
    assert heights == sorted(heights), "a loss that falls goes down the page"
    assert len([e for e in page.named("tr") if e.text.endswith("1.0001,000")]) == 11


def test_determinism_and_bench_draw_what_their_tables_hold() -> None:
    page = read_page(render(make_determinism_report()))
    rects = [element.attributes for element in page.named("rect")]
    assert [rect["width"] for rect in rects] == ["50", "100"]
    assert [e.text for e in page.named("td") if e.attributes.get("class") == "number warn" and e.text == "29"] == ["29"]
    case = Case("bench", (128,), (128,), name="b")
    right = Timing("flash", case, "forward", "default", "ok", answer="pass", median_ms=1.0, matmul_share=0.8, repeats=2)
    wrong = replace(right, backend="bad", answer="fail", median_ms=4.0, matmul_share=0.2)
    section = BenchSection(MeasuredOn("cuda", "H200", "2"), timings=(right, wrong))
    page = read_page(render(Report("bench", s.h200(), sections={"bench": section})))
    bars = [(e.attributes["width"], e.attributes["class"]) for e in page.named("rect")]
    assert bars == [("25", "fill-ok"), ("80", "fill-ok"), ("100", "fill-bad"), ("20", "fill-bad")]


def test_a_ring_is_drawn_beside_what_is_achievable() -> None:
    wrong = replace(RING, backend="stripe_flash_attn", efficiency=0.872, achievable=0.0, correct="fail")
    report = Report("bench", s.laptop(), sections={"ring": RingSection(timings=(RING, wrong))})
    shapes = [e.attributes for e in read_page(render(report)).named("rect")]
    of_flash = [(shape.get("x"), shape["width"], shape["class"]) for shape in shapes]
    assert (None, "92.7", "fill-plain") in of_flash and ("96.9", "1", "fill-mark") in of_flash
    assert (None, "87.2", "fill-bad") in of_flash


def test_what_doctor_did_not_judge_is_not_called_ok() -> None:
    """Parity runs no rule of doctor's: that none found anything about a package says nothing of it."""
    judged = read_page(render(hostile_text.make_reports()[0]))
    unjudged = read_page(render(make_parity_report()))

    def marks(page: Page) -> list[str]:
        return [e.text for e in page.with_class("badge") if e.text == "ok"]

    assert marks(judged) and not marks(unjudged)
    assert "was not judged" in unjudged.named("main")[0].text


def test_the_verdict_is_not_clean_where_nothing_was_measured_or_something_is_open() -> None:
    run = Run("eager", Case("x", (8,), (8,), name="x"), "refused", "no luck")
    verdict = Verdict("parity", "eager", "x", "x", "refused", "no luck")
    nothing = Report(
        "parity", s.laptop(), sections={"parity": ParitySection(MeasuredOn("cpu"), (), (verdict,), (run,))}
    )
    lost = reports.make_doctor_report(findings=(), sections={"doctor": DoctorSection((), ("the import lane died",))})
    clean = Report("lint", s.laptop(), sections={"lint": LintSection()})
    headings = [read_page(render(report)).named("header")[0] for report in (nothing, lost, clean)]
    assert ["Nothing was measured · unanswered: parity" in h.text for h in headings] == [True, False, False]
    assert ["No problems in the rest (" in h.text for h in headings] == [False, True, False]
    assert [h.attributes["class"] for h in headings] == ["verdict open", "verdict open", "verdict ok"]


def test_every_section_of_a_report_has_a_panel() -> None:
    names = load_sections()
    assert len(names) >= 9
    assert all(load_view(name).title for name in names)


def test_a_diff_is_coloured_and_the_curve_has_numbers_on_its_axes() -> None:
    page = read_page(render(reports.make_rehearsal_report()))
    assert {element.text for element in page.with_class("added")} >= {"+c", "+d"}
    assert "-a" in {element.text for element in page.with_class("removed")}
    axis = [element.text for element in read_page(render(make_training_report())).with_class("axis")]
    assert axis == ["6", "0.3", "step 1", "11"]


def test_the_repair_stands_under_the_findings_and_the_banner_names_what_was_examined() -> None:
    steps = (RepairStep("pip install a", "a", ("ATN140",)), RepairStep("pip install b", "b", ("ATN170",)))
    sections = {"doctor": DoctorSection(), "lint": LintSection(), "repair": RepairSection(steps, ("ATN140", "ATN170"))}
    page = read_page(render(reports.make_doctor_report(sections=sections)))
    assert [element.text for element in page.named("h2")][:3] == ["Findings", "Repair", "Launches"]
    assert "torch 2.11.0+cu130 · 1 × NVIDIA H200" in page.named("header")[0].text


def test_a_finding_of_a_launch_marks_no_row_of_the_environment() -> None:
    place = (SourceLocation("run.sh", 2, 3),)
    for locations, marks in (((), ["error"]), (place, [])):
        finding = reports.make_finding("ATN140", subject="transformers", locations=locations)
        report = reports.make_doctor_report(findings=(finding,), sections={"doctor": DoctorSection()})
        rows = [row.text for row in read_page(render(report)).named("tr") if row.text.startswith("transformers")]
        assert ["error" for row in rows if "error" in row] == marks


def test_filters_offer_the_severities_and_codes_that_there_are() -> None:
    page = read_page(render(reports.make_gate_report()))
    boxes = {element.attributes["value"] for element in page.named("input")}
    codes = [element.attributes["value"] for element in page.named("option")]
    cards = Counter(element.attributes["data-severity"] for element in page.with_class("finding"))
    assert boxes == set(cards) == {"error", "warning", "note"}
    assert codes == ["", *sorted({element.attributes["data-code"] for element in page.with_class("finding")})]
    one = read_page(render(make_parity_report()))
    assert not one.named("input"), "one finding needs no filter"


def test_no_secret_reaches_the_page(tmp_path: Path) -> None:
    secrets = [make_secret(shape, 1) for shape in TOKENS]
    findings = tuple(
        reports.make_finding(
            message=f"m {secret}",
            evidence=(f"e {secret}",),
            fixes=(Fix(f"set {secret}", "command", f"run --token {secret}", proven=secret),),
        )
        for secret in secrets
    )
    environment = {f"NOTE_{number}": secret for number, secret in enumerate(secrets)}
    report = reports.make_doctor_report(findings=findings, snapshot=s.with_env(s.h200(), **environment))
    shown, path = render(report), tmp_path / "page.html"
    assert all(secret in shown for secret in secrets), "what is not cleaned would show them"
    writer = ReportWriter("html", render, (Output("html", str(path)),), False, "xml")
    writer.write_files(report, True, "html")
    written = path.read_text(encoding="utf-8")
    assert (
        not [secret for secret in secrets if secret in written] and len(read_page(written).with_class("finding")) > 20
    )
