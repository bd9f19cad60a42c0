"""Orders the different facts by how likely each explains the findings that only one side has."""

import re
from collections.abc import Iterable, Iterator

from attncheck.core.findings import SEVERITIES, Finding
from attncheck.core.results.diff import Relation, StackDifference
from attncheck.doctor.probes.payload.packages.watched import is_watched
from attncheck.stacks.diff.sides import StackSide

KINDS = (
    "package", "wheel", "content", "files", "shadow", "built for", "torch", "driver", "gpu", "links", "library",
    "python", "platform", "variable", "model", "plan", "job", "hub", "tool", "host",
)  # fmt: skip
PACKAGE_KINDS = ("package", "wheel", "content", "files", "shadow")
STACK_KINDS = ("torch", "built for", "driver", "gpu")
# named by a subject, then named elsewhere in a finding
TIERS: tuple[Relation, ...] = ("named", "named", "stack", "other")


def rank_differences(a: StackSide, b: StackSide, findings: tuple[Finding, ...]) -> tuple[StackDifference, ...]:
    """Return the facts that differ and that both sides know, the likeliest explanation first."""
    subjects = [_normalise(finding.subject) for finding in findings]
    texts = [_normalise("\n".join(_list_texts(finding))) for finding in findings]
    ranked = []
    for difference, aliases in _list_differences(a, b):
        words = tuple(map(_normalise, (difference.subject, *aliases)))
        by_subject = [f for f, text in zip(findings, subjects) if _names(text, words)]
        anywhere = [f for f, text in zip(findings, texts) if _names(text, words)]
        tier = 0 if by_subject else 1 if anywhere else 2 if is_of_stack(difference.kind, difference.subject) else 3
        naming = list({id(finding): finding for finding in (*by_subject, *anywhere)}.values())
        worst = min((SEVERITIES.index(finding.severity) for finding in naming), default=len(SEVERITIES))
        is_alias = not any(_names(text, words[:1]) for text in (*subjects, *texts))
        key = (tier, worst, -len(naming), is_alias, KINDS.index(difference.kind), difference.subject)
        codes = tuple(dict.fromkeys(finding.code for finding in naming))
        ranked.append((key, difference, TIERS[tier], codes))
    ranked.sort(key=lambda row: row[0])
    return tuple(StackDifference(d.kind, d.subject, d.a, d.b, relation, codes) for _, d, relation, codes in ranked)


def _list_differences(a: StackSide, b: StackSide) -> Iterator[tuple[StackDifference, tuple[str, ...]]]:
    """Yield each different fact with the words that name it; for a package with another version, only that."""
    moved: set[str] = set()
    for kind, subject in sorted(a.facts.keys() | b.facts.keys(), key=lambda key: (KINDS.index(key[0]), key[1])):
        text_a, text_b = a.read(kind, subject), b.read(kind, subject)
        if text_a is None or text_b is None or text_a == text_b:
            continue
        if kind in ("wheel", "content") and subject in moved:
            continue
        if kind in ("package", "wheel"):
            moved.add(subject)
        aliases = [
            alias for side in (a, b) if (kind, subject) in side.facts for alias in side.facts[kind, subject].aliases
        ]
        yield StackDifference(kind, subject, text_a, text_b), tuple(dict.fromkeys(aliases))


def _list_texts(finding: Finding) -> Iterator[str]:
    """Yield a finding's texts besides its subject; from commands only what they install, not their paths."""
    yield from (finding.message, *finding.evidence)
    for fix in finding.fixes:
        yield from (fix.title, *fix.installs, *fix.sets)
        if fix.kind in ("env", "setting"):
            yield fix.text


def _normalise(text: str) -> str:
    return text.lower().replace("_", "-")


def _names(text: str, words: Iterable[str]) -> bool:
    """Return whether a text names one of these words, rather than a longer name that contains it."""
    return any(word in text and re.search(rf"(?<![\w-]){re.escape(word)}(?!-?\w)", text) for word in words if word)


def is_of_stack(kind: str, subject: str) -> bool:
    """Return whether a fact is about a part of the stack that attention depends on."""
    if kind in PACKAGE_KINDS:
        return is_watched(subject.replace("_", "-"))
    return kind in STACK_KINDS
