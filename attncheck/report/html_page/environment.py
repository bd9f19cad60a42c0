"""The page's section on the environment: doctor's overview, the machine, every installed package."""

from collections.abc import Iterator

from attncheck.core.facts import Known
from attncheck.core.report import Report
from attncheck.core.results.doctor import DoctorSection
from attncheck.report.html_page.elements import Markup, badge, bullet_list, element, fold
from attncheck.report.html_page.room import ENVIRONMENT_BYTES, clip, take_blocks
from attncheck.report.html_page.tables import cell, make_table, row_head, text_table
from attncheck.report.sections.doctor import make_overview


def environment_section(report: Report) -> Markup:
    """Return the section on what was examined."""
    needs = _list_needs(report.section(DoctorSection))
    blocks = [_make_overview(report), *needs, *_list_machine(report), *_list_packages(report)]
    heading = element("h2", "Environment", id="environment")
    return element("section", heading, take_blocks(blocks, ENVIRONMENT_BYTES))


def _make_overview(report: Report) -> Markup:
    """Return doctor's overview; its marks are judgements, so it exists only if doctor judged."""
    is_judged = report.section(DoctorSection) is not None
    rows = (
        [row_head(item.title), *([cell(badge(item.mark))] * is_judged), cell(item.text, "text")]
        for item in make_overview(report)
    )
    head = ("part", *(("state",) * is_judged), "details")
    remark = (
        Markup() if is_judged else element("p", "The environment was not judged: run attncheck doctor.", class_="dim")
    )
    return element("div", make_table("The training stack", head, rows, class_="items"), remark)


def _list_needs(section: DoctorSection | None) -> Iterator[Markup]:
    """Yield the needs that rules judged by, and what could not be examined."""
    if section is not None and section.needs:
        yield element("p", f"Rules for these needs were used: {', '.join(section.needs)}.", class_="dim")
    if section is not None and section.lost:
        lines = bullet_list(clip(line) for line in section.lost)
        yield element("div", element("p", "Could not be examined:"), lines)


def _list_machine(report: Report) -> Iterator[Markup]:
    host, device = report.snapshot.host, report.device
    rows = [
        ("machine", f"{host.platform} {host.machine}, kernel {host.kernel}"),
        ("processors", str(host.cpu_count)),
    ]
    if isinstance(host.glibc, Known):
        rows.append(("glibc", host.glibc.value))
    if isinstance(host.memory_total_bytes, Known):
        rows.append(("memory", f"{host.memory_total_bytes.value / (1 << 30):.0f} GiB"))
    if device.device:
        rows.append(("measured on", f"{device.name or device.device}, torch {device.torch}, seed {device.seed}"))
    rows += [(name, value) for name, value in report.snapshot.environ.items()]
    yield fold("Machine and environment variables", text_table("Machine", ("what", "value"), rows))


def _list_packages(report: Report) -> Iterator[Markup]:
    packages = [(package.name, package.version or "?") for package in report.snapshot.distributions]
    if packages:
        table = text_table("Installed packages", ("package", "version"), sorted(packages))
        yield fold(f"{len(packages)} installed packages", table)
