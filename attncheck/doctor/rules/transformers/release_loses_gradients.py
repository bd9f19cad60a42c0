"""An installed release loses gradients or precision under common settings, silently.

What it checks: the installed releases against a table of settings that fail together. Without a launch it is not known
whether the settings are used, and the finding is a warning; `attncheck lint` judges a launch.

Why it matters: the error is silent. The logged loss is right, but the weights learn from only part of each batch, or
lose small updates to rounding.

What to do: install a release without the fault, or do not use the settings.

Source: attncheck/doctor/knowledge/clashes.toml names the file and the thread of each; the releases' source was read at
their tags on 2026-11-26.
"""

from packaging.requirements import Requirement

from attncheck.doctor.fixes.install import install_packages
from attncheck.doctor.knowledge.clashes import load_clashes
from attncheck.doctor.rules import Known, Problem, Problems, Rule, Snapshot


def check(snapshot: Snapshot) -> Problems:
    if isinstance(snapshot.job, Known):
        return  # lint judges it from its settings
    for clash in load_clashes():
        version = snapshot.version(clash.package) if clash.alone else None
        if isinstance(version, Known) and Requirement(clash.requirement).specifier.contains(version.value, True):
            yield Problem(
                message=f"{clash.package} {version.value} {clash.alone}",
                evidence=(clash.source, f"in {clash.requirement}"),
                fixes=(install_packages(snapshot, f"{clash.package}>={clash.until}"),),
                subject=f"{clash.package} {version.value}: {clash.until}",
                predicted=True,
            )


RULE = Rule("ATN177", "warning", check)
