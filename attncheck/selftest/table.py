"""Formats selftest's results, one line per fault and control and the counts, and the list of faults."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attncheck.core import codec
from attncheck.core.io.visible import show_line_ends

if TYPE_CHECKING:
    from attncheck.selftest.faults import Fault
    from attncheck.selftest.run import SelftestResult


def as_json(selftest: "SelftestResult") -> str:
    """Return the result as JSON."""
    return codec.dumps(selftest) + "\n"


def as_text(selftest: "SelftestResult") -> str:
    """Return the counts, one line per fault, one per control, and the counts again."""
    lines = []
    for result in selftest.results:
        lines.append(f"{result.status:8}{'+'.join(result.codes):8} {result.seconds:6.1f} s  {result.planted}")
        if result.status != "caught":
            lines.append(f"{'':26}{show_line_ends(result.because)}")
    for control in selftest.controls:
        lines.append(f"{control.status:8}{'control':8} {control.seconds:6.1f} s  nothing injected: {control.checks}")
        if control.status == "alarm":
            lines.append(f"{'':26}{show_line_ends(control.because)}")
    alarms = sum(control.status == "alarm" for control in selftest.controls)
    caught, missed, skipped = (selftest.count_status(status) for status in ("caught", "missed", "skipped"))
    counts = (
        f"{len(selftest.results)} fault{'s' * (len(selftest.results) != 1)}: "
        f"{caught} caught, {missed} missed, {skipped} skipped · "
        f"{len(selftest.controls)} control{'s' * (len(selftest.controls) != 1)}: "
        f"{len(selftest.controls) - alarms} silent, {alarms} raised an alarm · {selftest.seconds:.0f} s"
    )
    return "\n".join((counts, *lines, counts)) + "\n"


def list_faults(faults: "Sequence[Fault]", form: str = "text") -> str:
    """Return all faults as "text" or "json"."""
    if form == "json":
        documents = [
            {"fault": f.name, "codes": f.codes, "family": f.family.name, "planted": f.title, "imitates": f.imitates}
            | {"needs": (*f.family.needs, *f.needs)}
            for f in faults
        ]
        return codec.dumps({"faults": documents}) + "\n"
    lines = [f"{'+'.join(fault.codes):8} {fault.name:32} {fault.title}" for fault in faults]
    lines.append(f"{len(faults)} faults for {len({code for fault in faults for code in fault.codes})} codes")
    return "\n".join(lines) + "\n"
