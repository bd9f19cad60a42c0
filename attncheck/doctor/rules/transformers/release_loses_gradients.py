"""An installed release silently loses gradients or precision under common settings.

What it checks: the installed releases against a table of settings that fail together. `doctor --deep` also lets the
installed DeepSpeed accumulate four micro-batches on a CPU under ZeRO-1, 2 and 3, and measures how much of each the
optimizer step takes. A measurement replaces the table. Without a launch it is not known whether the settings are
used, and the finding is a warning; `attncheck lint` judges a launch.

Why it matters: the error is silent. The logged loss is right, but the weights learn from only part of each batch, or
lose small updates to rounding.

What to do: install a release without the fault, or do not use the settings.

Source: attncheck/doctor/knowledge/clashes.toml names the file and the thread of each; the releases' source was read at
their tags on 2026-11-26, and DeepSpeed 0.15.1 to 0.19.0 were run (attncheck/doctor/experiments/worker/zero.py).
"""

from packaging.requirements import Requirement
from packaging.version import Version

from attncheck.core.experiments import AccumulationMeasurement
from attncheck.doctor.fixes.install import install_packages
from attncheck.doctor.knowledge.clashes import Clash, load_clashes
from attncheck.doctor.rules import Absent, Fix, Known, Problem, Problems, Rule, Snapshot, need


def check(snapshot: Snapshot) -> Problems:
    if isinstance(snapshot.job, Known):
        return  # lint judges it from its settings
    for measurement in snapshot.measurements.accumulations:
        if measurement.loses_gradients:
            yield _describe(snapshot, measurement)
    decisive = [clash for clash in load_clashes() if clash.alone]
    for clash in decisive:
        version = _find_faulty(clash, snapshot)
        if version and not clash.find_measured(snapshot):
            yield Problem(
                message=f"{clash.package} {version} {clash.alone}",
                evidence=(clash.source, f"in {clash.requirement}"),
                fixes=(install_packages(snapshot, f"{clash.package}>={clash.until}"),),
                subject=f"{clash.package} {version}: {clash.until}",
                predicted=True,
            )
    for clash in decisive:
        fact = snapshot.version(clash.package)
        if not isinstance(fact, Absent):
            need(fact, f"the version of {clash.package}")


def _describe(snapshot: Snapshot, measurement: AccumulationMeasurement) -> Problem:
    """Return the problem of a measured loss: fixed by a release that the table names, or by a stage measured right."""
    rows = [clash for clash in load_clashes() if clash.find_measured(snapshot) is measurement]
    known = [clash for clash in rows if _find_faulty(clash, snapshot)]
    settings = f"ZeRO-{measurement.stage}{' with the optimizer on the CPU' if measurement.offload else ''}"
    right = (item for item in snapshot.measurements.accumulations if item.weights and not item.loses_gradients)
    others = (
        Fix(f"use ZeRO-{item.stage}", "setting", f"zero_optimization.stage: {item.stage}", proven=item.evidence)
        for item in right
        if item.offload == measurement.offload
    )
    return Problem(
        message=f"under {settings}, deepspeed loses or scales the gradients of accumulated micro-batches",
        evidence=(measurement.evidence, *(clash.source for clash in known)),
        fixes=(*(install_packages(snapshot, f"deepspeed>={clash.until}") for clash in known), *list(others)[:1]),
        subject=f"deepspeed: {settings}",
    )


def _find_faulty(clash: Clash, snapshot: Snapshot) -> Version | None:
    """Return the installed release if it is one of the row's."""
    version = snapshot.version(clash.package)
    is_listed = isinstance(version, Known) and Requirement(clash.requirement).specifier.contains(version.value, True)
    return version.value if isinstance(version, Known) and is_listed else None


RULE = Rule("ATN177", "warning", check)
