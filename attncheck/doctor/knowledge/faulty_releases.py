"""Releases that a rule reports regardless of the other packages installed; no fix may recommend one."""

from functools import cache

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from attncheck.doctor.knowledge import liger, transformers
from attncheck.doctor.knowledge.clashes import load_clashes

# Distribution -> specifier of its faulty releases, and the code of the rule that reports them.
FAULTY_RELEASES: dict[str, dict[str, str]] = {
    "transformers": {transformers.DIVIDES_GRADIENTS_TWICE: "ATN457"},
    "liger-kernel": {f"=={release}": "ATN352" for release in liger.BROKEN_RELEASES},
}


@cache
def list_faults(name: str, version: Version) -> tuple[str, ...]:
    """Return the codes of the rules that report a release of the distribution `name`."""
    of_settings = {
        f">={row.since},<{row.until}": "ATN177" for row in load_clashes() if row.alone and row.package == name
    }
    faults = {**FAULTY_RELEASES.get(name, {}), **of_settings}
    return tuple(code for specifier, code in faults.items() if SpecifierSet(specifier).contains(version, True))
