"""Formats the results of selftest: one line per fault and control, and the counts; and the list of faults."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from attncheck.core import codec
from attncheck.core.io.visible import show_line_ends

if TYPE_CHECKING:
    from attncheck.selftest.faults import Fault
    from attncheck.selftest.pairs import PairsResult
    from attncheck.selftest.run import SelftestResult


def as_json(selftest: SelftestResult | PairsResult) -> str:
    """Return the result as JSON."""
    return codec.dumps(selftest) + "\n"


def as_text(selftest: SelftestResult) -> str:
    """Return one line per fault, one per control, and the counts."""
    lines = []
    for result in selftest.results:
        lines.append(f"{result.status:8}{'+'.join(result.codes):8} {result.seconds:6.1f} s  {result.planted}")
        if result.status != "caught":
            lines.append(f"{'':26}{show_line_ends(result.because)}")
    for control in selftest.controls:
        lines.append(f"{control.status:8}{'control':8} {control.seconds:6.1f} s  nothing planted: {control.checks}")
        if control.status == "alarm":
            lines.append(f"{'':26}{show_line_ends(control.because)}")
    alarms = sum(control.status == "alarm" for control in selftest.controls)
    caught, missed, skipped = (selftest.count_status(status) for status in ("caught", "missed", "skipped"))
    lines.append(
        f"{len(selftest.results)} faults: {caught} caught, {missed} missed, {skipped} skipped · "
        f"{len(selftest.controls)} controls: "
        f"{len(selftest.controls) - alarms} silent, {alarms} raised an alarm · {selftest.seconds:.0f} s"
    )
    return "\n".join(lines) + "\n"


def pairs_as_text(pairs: PairsResult) -> str:
    """Return one line per pair in which one fault is covered or hidden, and the counts."""
    lines = []
    for result in pairs.results:
        if result.status != "named":
            lines.append(f"{result.status:8}{' and '.join(result.faults)}")
            lines.append(f"{'':8}{show_line_ends(result.because)}")
    named, covered, hidden = (pairs.count_status(status) for status in ("named", "covered", "hidden"))
    chosen = "" if pairs.seed is None else f" (sampled with --seed {pairs.seed})"
    lines.append(
        f"{len(pairs.results)} pairs of faults{chosen}: both named in {named}, one covers the other in {covered}, "
        f"one hides the other in {hidden} · {pairs.incompatible} contradict each other · {pairs.seconds:.0f} s"
    )
    return "\n".join(lines) + "\n"


def list_faults(faults: Sequence[Fault], uncovered: Sequence[tuple[str, str]], form: str = "text") -> str:
    """Return all faults, and `uncovered`, the (code, name) of rules without a fault, as "text" or "json"."""
    if form == "json":
        documents = [
            {"fault": f.name, "codes": f.codes, "family": f.family.name, "planted": f.title, "imitates": f.imitates}
            | {"needs": (*f.family.needs, *f.needs)}
            for f in faults
        ]
        rules = [{"code": code, "name": name} for code, name in uncovered]
        return codec.dumps({"faults": documents, "uncovered": rules}) + "\n"
    lines = [f"{'+'.join(fault.codes):8} {fault.name:32} {fault.title}" for fault in faults]
    lines.append(f"{len(faults)} faults for {len({code for fault in faults for code in fault.codes})} codes")
    names = ", ".join(f"{code} {name}" for code, name in uncovered)
    lines += textwrap.wrap(f"{len(uncovered)} codes have no fault: {names}", 100, break_on_hyphens=False)
    return "\n".join(lines) + "\n"
