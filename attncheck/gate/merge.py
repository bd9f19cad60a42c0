"""Several reports as one: what a gate's checks found, each finding once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from typing import Any

from attncheck.core.report import Report
from attncheck.core.results.verdicts import MeasuredOn
from attncheck.gate.apply import gravest_first

CONCATENATED = ("verdicts", "runs", "repeats", "growth", "timings", "recommendations", "ring_timings", "conclusions")
DISTINCT = ("adapted", "attempts", "settings", "launches", "allowances", "skips", "backends")
NAMES = ("suppressed", "needs")
SINGLE = ("rates", "ring_rates", "communication")  # the last that says anything


def merged(first: Report, others: Iterable[Report]) -> Report:
    """Return one report on `first.snapshot` with everything that `first` and `others` hold; `first.command` stays.

    A rule that found something in one of them has not passed; one that could not answer in one, and found nothing in
    another, has passed.
    """
    every = (first, *others)
    values: dict[str, Any] = {}
    for name in CONCATENATED:
        values[name] = tuple(item for report in every for item in getattr(report, name))
    for name in DISTINCT:
        values[name] = _distinct(item for report in every for item in getattr(report, name))
    for name in NAMES:
        values[name] = tuple(sorted({item for report in every for item in getattr(report, name)}))
    for name in SINGLE:
        blank = next(field.default for field in fields(Report) if field.name == name)
        values[name] = next((found for report in every[::-1] if (found := getattr(report, name)) != blank), blank)
    for name in ("findings", "baselined", "allowed"):
        values[name] = gravest_first(item for report in every for item in getattr(report, name))
    fired = {finding.code for name in ("findings", "baselined", "allowed") for finding in values[name]}
    passed = {code for report in every for code in report.passed} - fired
    values["passed"] = tuple(sorted(passed))
    values["skips"] = tuple(skip for skip in values["skips"] if skip.code not in passed | fired)
    values["measured_on"] = _measured_on([report.measured_on for report in every])
    return replace(first, **values)


def _distinct(items: Iterable[Any]) -> tuple[Any, ...]:
    """Return items once each; they need not be hashable."""
    found: list[Any] = []
    for item in items:
        if item not in found:
            found.append(item)
    return tuple(found)


def _measured_on(places: Sequence[MeasuredOn]) -> MeasuredOn:
    """Return the device that was measured on, with the time and the cases left out of all measurements."""
    measured = [place for place in places if place.device]
    if not measured:
        return places[0]
    return replace(
        measured[0],
        suite=next((place.suite for place in measured if place.suite), ""),
        seconds=round(sum(place.seconds for place in measured), 3),
        not_reached=sum(place.not_reached for place in measured),
        ring_size=max(place.ring_size for place in measured),
        emulated=any(place.emulated for place in measured),
        shimmed_names=tuple(dict.fromkeys(name for place in measured for name in place.shimmed_names)),
    )
