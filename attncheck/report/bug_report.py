"""The text of an issue, in Markdown: the facts that maintainers need, and the measurements.

For one package it has only the findings about that package. If parity measured the failure, it adds the command that
writes a script which reproduces it without attncheck.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from attncheck.core.cases import Case
from attncheck.core.io.errors import BadUsage
from attncheck.core.report import Finding, Report, Run
from attncheck.core.snapshot import Known, normalise_name
from attncheck.report.finding_lines import merge_alike
from attncheck.report.markdown_findings import format_finding
from attncheck.report.markdown_text import escape_line, escape_markdown, format_code_block
from attncheck.report.sections import doctor
from attncheck.report.sections.bench import describe_shape

# Packages whose versions affect how attention runs, in addition to the package of the report.
NAMED_PACKAGES = (
    "torch",
    "triton",
    "flash-attn",
    "flash-attn-3",
    "flash-attn-4",
    "ring-flash-attn",
    "xformers",
    "liger-kernel",
    "kernels",
    "transformers",
    "accelerate",
    "deepspeed",
)


def write_bug_report(report: Report, package: str = "", max_findings: int | None = None) -> str:
    """Return the issue's text, for `package` only if one is given. Raises `BadUsage` if there is nothing to report."""
    findings = merge_alike(findings_about(report, package) if package else report.findings)
    text = "\n".join(_format_lines(report, findings[:max_findings], package)).rstrip() + "\n"
    omitted = len(findings) - len(findings[:max_findings])
    return text + f"\n{omitted} more findings are not in this text.\n" * (omitted > 0)


def findings_about(report: Report, package: str) -> tuple[Finding, ...]:
    """Return the findings about a package or its backends. Raises `BadUsage` that lists what has findings."""
    wanted = normalise_name(package)
    names = {
        normalise_name(state.name)
        for section in report.sections.values()
        for state in getattr(section, "backends", ())
        if normalise_name(state.package) == wanted
    }
    matching = tuple(finding for finding in report.findings if _subject_name(finding) in {wanted, *names})
    if not matching:
        subjects = dict.fromkeys(_subject_name(finding) for finding in report.findings if finding.subject)
        known = f"its findings are about {', '.join(subjects)}" if subjects else "it has none about a package"
        raise BadUsage(f"the report has no finding about {package}: {known}")
    return matching


def _subject_name(finding: Finding) -> str:
    return normalise_name((finding.subject.split() or [""])[0])


def _format_lines(report: Report, findings: Sequence[Finding], package: str) -> Iterator[str]:
    title = f"{package}: {findings[0].message}" if package and findings else f"attncheck {report.command}"
    yield from (f"# {escape_markdown(title)}", "", "## Versions", "")
    yield from (f"- {escape_line(line)}" for line in _describe_environment(report, package))
    yield from ("", "## What was measured", "")
    device = report.device
    if device.device:
        yield from (escape_line(f"On {device.name or device.device}, torch {device.torch}, seed {device.seed}."), "")
    if not findings:
        yield "No finding."
    for finding in findings:
        repairs = tuple(fix for fix in finding.fixes if fix.kind != "advice")
        yield from format_finding(replace(finding, fixes=repairs if package else finding.fixes))
    yield from _format_reproduction(report, findings)
    yield escape_line(f"Written by attncheck {report.snapshot.attncheck} ({report.command}).")


def _describe_environment(report: Report, package: str) -> Iterator[str]:
    snapshot, host = report.snapshot, report.snapshot.host
    system = " ".join(filter(None, (host.platform, host.machine, host.kernel)))
    glibc = f", glibc {host.glibc.value}" if isinstance(host.glibc, Known) else ""
    yield f"Python {host.python_version} ({host.python_abi}), {system}{glibc}"
    overview = {item.title: item.text for item in doctor.make_overview(report)}
    for name in dict.fromkeys((normalise_name(package), *NAMED_PACKAGES) if package else NAMED_PACKAGES):
        distribution = snapshot.package(name)
        if name in overview and name != "python":
            yield f"{name} {overview[name]}"
        elif isinstance(distribution, Known):
            yield f"{name} {distribution.value.version or 'of unknown version'}"
    gpus = [f"{title}: {text}" for title, text in overview.items() if title.startswith("cuda:")]
    if gpus:
        yield from gpus
    else:
        yield f"GPU: {report.device.name or 'not recorded'}" if report.device.device != "cpu" else "GPU: none was used"
    yield (
        f"driver {overview['driver']}" if "driver" in overview else "driver: not recorded (attncheck doctor reads it)"
    )


def _format_reproduction(report: Report, findings: Sequence[Finding]) -> Iterator[str]:
    """Yield the command that writes a script for the worst case of the first backend that failed parity."""
    commands = [(finding, fix.text) for finding in findings for fix in finding.fixes if "--explain-case" in fix.text]
    if not commands:
        return
    finding, command = commands[0]
    yield from ("## Reproduction", "")
    yield "This writes a script that compares the worst case with float64, using only torch and the backend:"
    yield from ("", *format_code_block(command, "sh"), "")
    case = _find_case(report, finding.subject.split(", "), command)
    if case is not None:
        yield from (escape_line(f"{case.name}: {describe_shape(case)}"), "")


def _find_case(report: Report, backends: Sequence[str], command: str) -> Case | None:
    """Return the case that a finding's command reproduces."""
    runs: Iterable[Run] = (run for section in report.sections.values() for run in getattr(section, "runs", ()))
    names = command.split()
    return next((run.case for run in runs if run.backend in backends and run.case.name in names), None)
