"""The repair of a whole report: the commands to paste under the findings, and what shows that they mend them."""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.report import Report
from attncheck.core.results.repair import RepairSection
from attncheck.report.finding_lines import INDENT
from attncheck.report.lines import Line
from attncheck.report.markdown_text import escape_line, format_code_block
from attncheck.report.sections import SectionView


def below(report: Report, section: RepairSection) -> Iterator[Line]:
    """Yield the commands with a comment above each, and what was shown; nothing where one finding's fix is all."""
    if not is_joint(section):
        return
    yield Line()
    yield Line((("repair: ", "bold"),), summarize(section))
    for line in write_script(section, INDENT):  # a line of a path's, in quotes, must not look like one of ours
        yield Line(((line, "dim" if line.startswith("#") else "bold"),), no_wrap=True)
    for text in describe_proof(section):
        yield Line((("        ", ""),), text)


def markdown(report: Report, section: RepairSection) -> Iterator[str]:
    """Yield the commands as one block, and what was shown."""
    if is_joint(section):
        yield from ("## Repair", "", f"{escape_line(summarize(section))}.", "")
        yield from (*format_code_block("\n".join(write_script(section)), "sh"), "")
        yield from (f"- {escape_line(text)}" for text in describe_proof(section))
        yield ""


def is_joint(section: RepairSection) -> bool:
    """Return whether the repair is more than the fix of one finding."""
    tried = section.resolution or section.trial
    return bool(section.steps) and bool(len(section.steps) > 1 or len(section.mends) > 1 or section.conflicts or tried)


def summarize(section: RepairSection) -> str:
    """Return the repair in a line: "2 commands mend 3 findings (ATN140, ATN147, ATN170)"."""
    commands = f"{len(section.steps)} command{'s mend' if len(section.steps) != 1 else ' mends'}"
    findings = f"{len(section.mends)} finding{'s' * (len(section.mends) != 1)}"
    return f"{commands} {findings} ({', '.join(section.mends)})"


def write_script(section: RepairSection, indent: int = 0) -> Iterator[str]:
    """Yield the lines of a shell script: a comment and a command for each step, its further lines indented."""
    for step in section.steps:
        yield f"# {', '.join(step.codes)}: {' '.join(step.title.split())}"
        first, *others = step.command.splitlines() or [""]
        yield from (first, *(" " * indent + line for line in others))


def describe_proof(section: RepairSection) -> Iterator[str]:
    """Yield what was shown of the repair, what was not, and what it leaves."""
    if section.proven:
        text = "the rules, run again on the environment as it would be, no longer find"
        nothing_new = "" if section.remaining else ", and nothing new"
        yield f"proven: {text} {', '.join(section.proven)}{nothing_new}"
    if section.unproven:
        yield f"to be seen by `attncheck doctor` afterwards: {', '.join(section.unproven)}"
    if section.remaining:
        yield f"still found by the rules: {', '.join(section.remaining)}"
    yield from (f"conflict: {line}" for line in section.conflicts)
    if section.by_hand:
        yield f"by hand, as written above: {', '.join(section.by_hand)}"
    if section.resolution:
        yield f"dry run: {section.resolution}"
    if section.trial:
        yield f"in a temporary folder: {section.trial}"


VIEW = SectionView(below=below, markdown=markdown)
