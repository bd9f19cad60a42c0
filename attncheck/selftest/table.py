"""Shows what selftest found: one line a fault, one a control, and the counts; and what can be planted at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attncheck.core import codec

if TYPE_CHECKING:
    from attncheck.selftest.faults import Fault
    from attncheck.selftest.run import Outcome


def as_json(outcome: Outcome) -> str:
    """Return the outcome as JSON."""
    return codec.dumps(outcome) + "\n"


def as_text(outcome: Outcome) -> str:
    """Return one line a fault, one a control, and the counts."""
    lines = []
    for result in outcome.results:
        lines.append(f"{result.status:8}{'+'.join(result.codes):8} {result.seconds:6.1f} s  {result.planted}")
        if result.status != "caught":
            lines.append(f"{'':26}{result.because}")
    for control in outcome.controls:
        lines.append(f"{control.status:8}{'control':8} {control.seconds:6.1f} s  nothing planted: {control.checks}")
        if control.status == "alarm":
            lines.append(f"{'':26}{control.because}")
    alarms = sum(control.status == "alarm" for control in outcome.controls)
    lines.append(
        f"{len(outcome.results)} faults: {outcome.count('caught')} caught, {outcome.count('missed')} missed, "
        f"{outcome.count('skipped')} skipped · {len(outcome.controls)} controls: "
        f"{len(outcome.controls) - alarms} silent, {alarms} raised an alarm · {outcome.seconds:.0f} s"
    )
    return "\n".join(lines) + "\n"


def listing(every: Sequence[Fault], rest: Sequence[tuple[str, str]], form: str = "text") -> str:
    """Return what can be planted, and `rest`, the (code, name) that no fault covers, as "text" or "json"."""
    if form == "json":
        known = [
            {"fault": f.name, "codes": f.codes, "family": f.family.name, "planted": f.title, "imitates": f.imitates}
            | {"needs": (*f.family.needs, *f.needs)}
            for f in every
        ]
        return codec.dumps({"faults": known, "uncovered": [{"code": code, "name": name} for code, name in rest]}) + "\n"
    lines = [f"{'+'.join(fault.codes):8} {fault.name:32} {fault.title}" for fault in every]
    lines.append(f"{len(every)} faults for {len({code for fault in every for code in fault.codes})} codes")
    lines.append(f"{len(rest)} codes have no fault: {', '.join(f'{code} {name}' for code, name in rest)}")
    return "\n".join(lines) + "\n"
