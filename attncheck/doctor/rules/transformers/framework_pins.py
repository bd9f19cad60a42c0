"""The installed packages do not meet a requirement of an installed framework.

What it checks: the unconditional Requires-Dist of every installed framework and attention package against the
installed versions, with markers evaluated for this interpreter. `pip check` covers requirements of packages that have
nothing to do with attention. ATN148 covers contradictory pins, ATN156 vllm's torch, and ATN123 the torch of
torchvision, torchaudio and xformers.

Why it matters: pip ignores a broken requirement with only a line of red text, and frameworks patch private code of
exactly the version that they pin.

What to do: install the version that the finding names, or use a framework release that accepts yours.

Source: the METADATA of the installed distributions; for instance openrlhf 0.11.2 (`transformers==5.15.0`,
`flash-attn==2.8.3`) and verl 0.9.1 (`transformers!=5.6.0,<5.11,>=5.5.3`).
"""

from collections.abc import Iterator

from packaging.requirements import Requirement

from attncheck.doctor.fixes import install
from attncheck.doctor.knowledge.frameworks import RELEVANT_DISTRIBUTIONS, WATCHED_DISTRIBUTIONS
from attncheck.doctor.queries import may_import, requirements
from attncheck.doctor.rules import Distribution, Known, MissingFact, Problem, Problems, Rule, Snapshot, Unreadable

TORCH_REPORTED_ELSEWHERE = ("vllm", "torchvision", "torchaudio", "xformers")


def check(snapshot: Snapshot) -> Problems:
    unknown: list[str] = []
    problems = list(_find_problems(snapshot, unknown))
    if not problems and not all(requirements.has_common_version(snapshot, name) for name in RELEVANT_DISTRIBUTIONS):
        raise MissingFact("no release satisfies all packages that require it", ("ATN148",))
    if not problems and unknown:
        raise MissingFact(f"the versions of {', '.join(dict.fromkeys(unknown))} are unknown")
    yield from problems


def _find_problems(snapshot: Snapshot, unknown: list[str]) -> Problems:
    """Yield the problems of each distribution; names of required packages without a known version go to `unknown`."""
    for distribution in snapshot.distributions:
        if distribution.name not in WATCHED_DISTRIBUTIONS or distribution.problem:
            continue
        if not distribution.requires or not may_import(snapshot, distribution.name):
            continue
        if _fails_at_import(snapshot, distribution):
            continue
        unmet = list(_unmet_requirements(snapshot, distribution, unknown))
        if not unmet:
            continue
        listed = ", ".join(f"{requirement} (here: {version})" for requirement, version in unmet)
        yield Problem(
            message=f"{distribution.name} {distribution.version} requires {listed}",
            subject=f"{distribution.name} {distribution.version}",
            evidence=(f"Requires-Dist of {distribution.name} {distribution.version}",),
            fixes=install.meet_requirements(
                snapshot, distribution.name, (str(requirement) for requirement, _ in unmet), _install_options(unmet)
            ),
        )


def _fails_at_import(snapshot: Snapshot, distribution: Distribution) -> bool:
    """Return whether `distribution` is transformers and failed its own check of requirements at import: ATN154."""
    outcome = snapshot.imported("transformers")
    return distribution.name == "transformers" and isinstance(outcome, Known) and outcome.value.outcome == "raised"


def _install_options(unmet: list[tuple[Requirement, str]]) -> tuple[str, ...]:
    """Return options for pip, because flash-attn's build needs the installed torch."""
    return ("--no-build-isolation",) if any(requirement.name.startswith("flash") for requirement, _ in unmet) else ()


def _unmet_requirements(
    snapshot: Snapshot, distribution: Distribution, unknown: list[str]
) -> Iterator[tuple[Requirement, str]]:
    for requirement in requirements.applicable_requirements(snapshot, distribution, *RELEVANT_DISTRIBUTIONS):
        name = requirements.canonical_name(requirement.name)
        installed = snapshot.version(name)
        unknown += [name] if isinstance(installed, Unreadable) else []
        if (name == "torch" and distribution.name in TORCH_REPORTED_ELSEWHERE) or not isinstance(installed, Known):
            continue
        is_met = requirements.is_version_allowed(requirement.specifier, installed.value)
        if not is_met and requirements.has_common_version(snapshot, name):
            requirement.marker = None
            yield requirement, str(installed.value)


RULE = Rule("ATN147", "warning", check)
