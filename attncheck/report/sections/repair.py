"""The repair of a whole report: the commands to paste below the findings, and the evidence that they work."""

from collections.abc import Iterator

from attncheck.core.lists import list_applying
from attncheck.core.results.repair import PROOF, RepairSection
from attncheck.report.finding_lines import is_joint
from attncheck.report.sections import Block, Bullets, Code, Report, SectionView


def below(report: Report, section: RepairSection) -> Iterator[Block]:
    """Yield the commands, each with a comment, and the evidence; nothing if the fix of one finding is enough."""
    if is_joint(section):
        yield Code(f"To fix everything, {summarize(section)}", "\n".join(write_script(section)), "sh")
        yield Bullets(tuple(describe_proof(section)))


def summarize(section: RepairSection) -> str:
    """Return the repair in a line: "run 2 commands in order (they fix ATN140, ATN147, ATN170)"."""
    count = len(section.steps)
    commands = f"run {count} commands in order (they fix" if count != 1 else "run 1 command (it fixes"
    return f"{commands} {', '.join(section.targets)})"


def write_script(section: RepairSection) -> Iterator[str]:
    """Yield the lines of a shell script: a numbered comment and a command for each step."""
    for number, step in enumerate(section.steps, 1):
        yield f"# {number}. {', '.join(step.codes)}: {' '.join(step.title.split())}"
        yield from step.command.splitlines()


def describe_proof(section: RepairSection) -> Iterator[str]:
    """Yield what is proven about the repair, what is not, and what it leaves open."""
    if section.proven:
        nothing_new = "" if section.remaining else ", and nothing new"
        yield f"proven: {PROOF} {', '.join(section.proven)}{nothing_new}"
    if section.unproven:
        yield f"check afterwards with `attncheck doctor`: {', '.join(section.unproven)}"
    if section.remaining:
        yield f"still reported by the rules: {', '.join(section.remaining)}"
    yield from (f"conflict: {line}" for line in section.conflicts)
    rest = {
        f"fix by hand, as written above: {', '.join(section.by_hand)}": section.by_hand,
        f"dry run: {section.resolution}": section.resolution,
        f"in a temporary folder: {section.trial}": section.trial,
    }
    yield from list_applying(rest)


VIEW = SectionView("Repair", below=below)
