"""A rehearsed launch: one table of answers, as written and corrected, and the launch that trains right."""

from collections.abc import Iterator, Sequence

from attncheck.core.lists import group_values
from attncheck.core.results.rehearsal import CLASS, RehearsalSection, RehearsedLaunch
from attncheck.core.results.smoke import deciding_reason, judge_result
from attncheck.report.sections import Block, Bullets, Code, Fold, Paragraph, Report, SectionView, TestCase
from attncheck.report.sections.lint import adds_one_line
from attncheck.report.sections.smoke import (
    AS_WRITTEN,
    compare_results,
    judge_run,
    list_layers,
    result_testcases,
    show_results,
)

MAX_PATHS = 5  # maximum files named in a line
DECISIVE = {"loss", "gradients"}  # without them nothing is known of what is learned
MAX_TITLE = 40  # maximum characters of a column title


def blocks(report: Report, section: RehearsalSection) -> Iterator[Block]:
    """Yield how each launch was run and its answers, then the details of each run."""
    for launches in group_launches(section):
        first = launches[0]
        yield Paragraph(describe_launch(first))
        remarks = (text for launch in launches for text in (*launch.remarks, *describe_isolation(launch)))
        yield Bullets(tuple(dict.fromkeys(remarks)))
        yield from compare_results(report, [(_name_run(launch), launch.results) for launch in launches])
        for launch in launches:
            details = (
                Bullets((launch.objective, *_summarize_layers(launch))),
                *show_results(launch.results),
                Fold("How it was scaled down", (Code("How it was scaled down", launch.diff.rstrip(), "diff"),)),
            )
            yield Fold(f"{_name_run(launch)}: {launch.steps} steps, {launch.seconds:.0f} s", details)


def group_launches(section: RehearsalSection) -> list[list[RehearsedLaunch]]:
    """Return the runs of each launch, as written first."""
    return list(group_values((launch.location, launch) for launch in section.launches).values())


def _name_run(launch: RehearsedLaunch) -> str:
    tried = " ".join(launch.tried.split())
    return f"with {tried[:MAX_TITLE]}{'…' * (len(tried) > MAX_TITLE)}" if tried else AS_WRITTEN


def describe_launch(launch: RehearsedLaunch) -> str:
    """Return a launch and how it was run, in one line."""
    parts = [
        f"{launch.location}: {' '.join(filter(None, (launch.framework, launch.version, launch.trainer)))}",
        f"the whole {launch.model}" if launch.full_model else f"a small {launch.model}",
        *(["its own data"] * launch.real_data),
        f"{launch.ranks} {'rank' if launch.ranks == 1 else 'ranks'}",
        f"{launch.steps} steps",
        f"{launch.seconds:.0f} s",
    ]
    return " · ".join(parts)


def describe_isolation(launch: RehearsedLaunch) -> Iterator[str]:
    """Yield how the launch was isolated, and what it wrote or tried to write outside its folder."""
    isolation = launch.isolation
    if launch.command and isolation.text:  # it was run
        yield isolation.text
    for what, paths in (
        ("written outside its folder, in a copy of your files", isolation.written),
        ("removed outside its folder, from a copy of your files", isolation.removed),
        ("denied writes", isolation.denied),
    ):
        if paths:
            more = f" and {len(paths) - MAX_PATHS} more" if len(paths) > MAX_PATHS else ""
            yield f"{what}: {', '.join(paths[:MAX_PATHS])}{more}"


def _summarize_layers(launch: RehearsedLaunch) -> Iterator[str]:
    """Yield the attention requested, configured and used; layers with the same values share a line."""
    counts: dict[str, int] = {}
    for result in launch.results:
        for _, kind, *words in list_layers(result):
            name = f"{kind}, " * (kind != "-") + " → ".join(words)
            counts[name] = counts.get(name, 0) + 1
    for name, count in counts.items():
        yield f"attention, requested → configured → used: {name} in {count} {'layer' if count == 1 else 'layers'}"


def below(report: Report, section: RehearsalSection) -> Iterator[Block]:
    """Yield the launch that trains right, to paste."""
    title = "Corrected launch, rehearsed the same way"
    shown = [text for text in section.corrected if not adds_one_line(section.corrected[0]) or text[:4] == "--- "]
    for text in shown:
        yield Code(title if text == section.corrected[0] else "", text.rstrip(), "diff" if text[:4] == "--- " else "sh")


def verdict(report: Report, section: RehearsalSection) -> str:
    """Return which launches train right: "a.sh trains wrongly; --packing true trains right (both run, 30 steps)"."""
    return "; ".join(_judge_launch(report, launches) for launches in group_launches(section))


def _judge_launch(report: Report, launches: Sequence[RehearsedLaunch]) -> str:
    first, *others = launches
    name = first.location.split(":")[0]
    if not first.steps:
        return f"{name} was not judged: no step was taken{_explain_end(report, first)}"
    skipped = [result.check for result in first.results if judge_result(result) in ("skipped", "refused")]
    if judge_run(first.results) == "right" and (replaced := [d for d in first.differences if d.dimension == CLASS]):
        what = f"{replaced[0].ran.removeprefix('that of ')} (name a folder with its config.json, or hf download it)"
        return f"{name} was asked of {what}; not judged: {', '.join(skipped)}"
    if judge_run(first.results) == "right":
        judged = [result.check for result in first.results if result.check not in skipped]
        what = f"passes {', '.join(judged)}" if DECISIVE & {*skipped} else "trains right"
        open_ends = {"judged": skipped, "asked": first.unasked}
        partly = "".join(f"; not {word}: {', '.join(names)}" for word, names in open_ends.items() if names)
        return f"{name} {what} (run, {first.steps} steps){partly}"
    if all(judge_result(result) != "fail" for result in first.results):
        return f"{name} was not judged completely (run, {first.steps} steps)"
    for launch in others:
        if judge_run(launch.results) == "right":
            tried = " ".join(launch.tried.split())
            steps = " and ".join(map(str, dict.fromkeys((first.steps, launch.steps))))
            return f"{name} trains wrongly; {tried} trains right (both run, {steps} steps)"
    return f"{name} trains wrongly (run, {first.steps} steps)"


def _explain_end(report: Report, launch: RehearsedLaunch) -> str:
    """Return why a launch took no step, and what it needs, for the end of a sentence."""
    reason = next(map(deciding_reason, launch.results), "").partition(" (ended with")[0]
    named = (finding for finding in report.findings if reason and reason in finding.message)
    fixes = (fix.text or fix.title for finding in named for fix in finding.fixes)
    needs = next(fixes, "" if reason else "-v shows how it was scaled down")
    return "".join(f"; {text}" for text in (reason, needs) if text)


def testcases(report: Report, section: RehearsalSection) -> Iterator[TestCase]:
    """Yield a test case for each check of each launch."""
    for launch in section.launches:
        name = f"rehearsal: {launch.location}{f' with {launch.tried}' if launch.tried else ''}"
        yield from result_testcases(report, name, launch.results)


VIEW = SectionView("Rehearsal", blocks, below, verdict, testcases)
