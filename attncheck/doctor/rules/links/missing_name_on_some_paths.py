"""A package uses names that another no longer has, in code that only some jobs run.

What it checks: as ATN131, but in functions, in modules that no trainer imports, and under conditions that are known
only at run time. It also covers attributes of imported modules and classes, and calls with arguments that the
installed function does not accept. There is one note for all.

Why it matters: a job that runs this code stops with ImportError, AttributeError or TypeError; other jobs are not
affected.

What to do: check whether your job's model or option is among the named functions. If so, install compatible releases
of the two packages, or restore the name.

Source: the installed files. The method: attncheck/doctor/probes/payload/links/.
"""

from collections.abc import Iterator

from attncheck.core.links import UnresolvedName
from attncheck.doctor.fixes import links as fixes
from attncheck.doctor.queries import links as queries
from attncheck.doctor.queries import may_import
from attncheck.doctor.rules import Problem, Problems, Rule, Snapshot

MAX_LINES = 3  # per pair of packages


def check(snapshot: Snapshot) -> Problems:
    links = tuple(
        link
        for link in queries.package_links(snapshot)
        if may_import(snapshot, link.consumer)
        and not link.fallback_line
        and not link.patched_by
        and not (link.consumer == "ring-flash-attn" and link.provider == "transformers")  # ATN140 to ATN145
        and not (queries.is_break(link) and queries.broken_entries(snapshot, link))
    )
    if not links:
        return
    pairs = list(queries.group_by_pair(links))
    count = len({link.target for link in links})
    consumers = ", ".join(dict.fromkeys(consumer for consumer, _, _ in pairs))
    yield Problem(
        message=f"{count} name{'s' if count > 1 else ''} imported by {consumers} no longer exist"
        f"{'s' if count == 1 else ''}; only some code paths reach {'it' if count == 1 else 'them'}",
        evidence=tuple(line for pair in pairs for line in _describe_pair(snapshot, *pair)),
        fixes=tuple(fix for _, _, group in pairs for fix in fixes.fitting_provider(snapshot, group)),
        subject=consumers,
    )


def _describe_pair(
    snapshot: Snapshot, consumer: str, provider: str, links: tuple[UnresolvedName, ...]
) -> Iterator[str]:
    yield f"{queries.name_with_version(snapshot, consumer)}, of {queries.name_with_version(snapshot, provider)}:"
    yield from (queries.describe_link(link) for link in links[:MAX_LINES])
    if len(links) > MAX_LINES:
        yield f"and {len(links) - MAX_LINES} more"


RULE = Rule("ATN132", "note", check)
