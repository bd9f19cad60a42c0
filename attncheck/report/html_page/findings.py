"""The findings on the page: the faults, their evidence, fixes to copy; filters by severity and by code."""

from collections import Counter
from collections.abc import Iterator, Sequence

from attncheck.core.report import SEVERITIES, Finding, Fix, Report
from attncheck.core.results.repair import RepairSection
from attncheck.report.finding_lines import fix_label, list_evidence, merge_alike, name_step, page_of
from attncheck.report.html_page.elements import Markup, badge, code_block, element, flow, join
from attncheck.report.html_page.room import FINDINGS_BYTES, byte_size, clip
from attncheck.report.verdict import describe_verdict, write_sentence

MAX_PLACES = 20
MAX_EVIDENCE = 40  # maximum lines
CARD_BYTES = 40_000  # a larger card is reduced to its headline


def findings_section(report: Report) -> Markup:
    """Return the findings; those that do not fit become headlines, and then a count."""
    heading = element("h2", "Findings", id="findings")
    verdict = describe_verdict(report)
    if not report.findings:
        return element("section", heading, element("p", flow(f"{write_sentence(verdict)}.")))
    findings, repair = merge_alike(report.findings), report.section(RepairSection)
    cards, left, omitted = [], FINDINGS_BYTES, 0
    for finding in findings:
        cards_of = _iter_cards(finding, repair)
        card = next((card for card in cards_of if byte_size(card) <= min(left, CARD_BYTES)), None)
        if card is None:
            omitted += 1
            continue
        cards.append(card)
        left -= byte_size(card)
    if omitted:
        text = f"{omitted} more finding{'s' * (omitted > 1)} not shown here; the JSON report has all of them"
        cards.append(element("p", text, class_="dim"))
    filters = _make_filters(findings) if len(findings) > 1 else Markup()
    return element("section", heading, filters, *cards)


def _make_filters(findings: Sequence[Finding]) -> Markup:
    """Return the controls that hide findings; the page's script shows them, because nothing works without it."""
    boxes = [
        element(
            "label",
            element("input", type="checkbox", value=severity, checked=True, data_severity=True),
            f" {severity} ({count})",
        )
        for severity, count in Counter(finding.severity for finding in findings).items()
    ]
    codes = sorted({finding.code for finding in findings})
    options = [element("option", "all codes", value=""), *(element("option", code, value=code) for code in codes)]
    choice = element("label", "code ", element("select", *options, id="code-filter"))
    shown = element("output", f"{len(findings)} shown", id="shown", aria_live="polite")
    return element("form", *boxes, choice, shown, class_="filters", hidden=True, aria_label="Show findings")


def _iter_cards(finding: Finding, repair: RepairSection | None) -> Iterator[Markup]:
    """Yield a finding as a card: first complete, then only its headline."""
    yield _make_card(finding, list(_iter_details(finding, repair)))
    yield _make_card(finding, [element("p", "its evidence and fixes are in the JSON report", class_="dim")])


def _make_card(finding: Finding, details: list[Markup]) -> Markup:
    severity = finding.severity if finding.severity in SEVERITIES else "note"
    code = element("span", f"{finding.code} ", element("small", finding.name), class_="code-name")
    return element(
        "article",
        element("h3", badge(severity), " ", code),
        element("p", flow(clip(finding.message)), class_="message"),
        *details,
        class_=f"finding {severity}",
        data_severity=severity,
        data_code=finding.code,
    )


def _iter_details(finding: Finding, repair: RepairSection | None) -> Iterator[Markup]:
    if evidence := list_evidence(finding):
        lines = [clip(line) for line in evidence[:MAX_EVIDENCE]]
        lines += [f"… and {len(evidence) - MAX_EVIDENCE} more lines"] * (len(evidence) > MAX_EVIDENCE)
        items = (element("li", flow(line), class_="more" if line[:1] == " " else None) for line in lines)
        yield element("div", element("h4", "Because"), element("ul", *items), class_="evidence")
    if finding.locations:
        places = ", ".join(str(location) for location in finding.locations[:MAX_PLACES])
        more = f" and {len(finding.locations) - MAX_PLACES} more" * (len(finding.locations) > MAX_PLACES)
        yield element("p", f"at {places}{more}", class_="dim")
    yield from (_make_fix(fix, name_step(fix, repair)) for fix in finding.fixes)
    page = page_of(finding.code)
    link = [" · ", element("a", f"rule page of {finding.code}", href=page)] if page else []
    why = element("code", f"attncheck explain {finding.code}")
    yield element("p", join(["why: ", why, *link]), class_="dim")


def _make_fix(fix: Fix, step: str) -> Markup:
    label = fix_label(fix).capitalize()
    if step:  # its command is in the repair below the findings
        return element("div", element("h4", flow(f"{label}: {clip(fix.title)}{step}")), class_="fix")
    proven = element("p", flow(f"Proven: {clip(fix.proven)}"), class_="proven") if fix.proven else Markup()
    code = code_block(fix.text, fix.title) if fix.text else Markup()
    if fix.kind == "manual":  # nothing to paste: a driver, a machine
        code = element("p", clip(fix.text))
    return element("div", element("h4", flow(f"{label}: {clip(fix.title)}")), proven, code, class_="fix")
