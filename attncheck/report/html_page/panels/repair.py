"""The repair of a whole report: commands to copy at once, and what shows that they mend it."""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.report import Report
from attncheck.core.results.repair import RepairSection
from attncheck.report.html_page.elements import Markup, bullet_list, code_block, element
from attncheck.report.html_page.panels import Panel
from attncheck.report.html_page.room import clip
from attncheck.report.sections.repair import describe_proof, is_joint, summarize, write_script


def show(report: Report, section: RepairSection) -> Iterator[Markup]:
    """Yield the commands as one block, and what was shown; nothing where one finding's fix is all."""
    if is_joint(section):
        yield element("p", f"{summarize(section)}.", class_="message")
        yield code_block("\n".join(write_script(section)), "the whole repair")
        yield bullet_list(clip(line) for line in describe_proof(section))


PANEL = Panel("Repair", show)
