"""A package imports a name that another installed package no longer has.

What it checks: every file of the installed packages of the stack (ring-flash-attn, liger-kernel, trl, peft,
accelerate, deepspeed, verl, openrlhf, axolotl, ms-swift, llamafactory, yunchang, …), and of every other package whose
metadata requires one of them or transformers, is read, not run. Names that it
imports from transformers, flash_attn, torch, peft, trl and others are looked up in their installed source. Guards are
followed: `try … except ImportError` to the last alternative, version checks, TYPE_CHECKING. Only unconditional
imports are reported, with the modules that they stop. The import lane then imports one of these modules. If that
works, nothing is reported. If the package restores a name itself, it is reported only if the import really failed.
Some packages are not imported, because that writes caches or changes other packages (deepspeed, unsloth, vllm), or
because nobody knows what their import does (packages that are not listed above); for these it is a warning.

Why it matters: the job stops at its first import, "cannot import name …", often after the nodes were allocated.

What to do: restore the name if it only moved, or install compatible releases of the two packages: what the package's
metadata requires, or the last release with the name. `attncheck doctor --try-packages` tests a repair.

Source: the installed files. The method: attncheck/doctor/probes/payload/links/.
"""

from attncheck.core.links import UnresolvedName
from attncheck.doctor.fixes import links as fixes
from attncheck.doctor.queries import import_outcome, is_missing_name
from attncheck.doctor.queries import links as queries
from attncheck.doctor.rules import Known, Problem, Problems, Rule, Snapshot

MAX_LINES = 8


def check(snapshot: Snapshot) -> Problems:
    links = queries.package_links(snapshot)
    breaks = tuple(link for link in links if queries.is_break(link) and queries.broken_entries(snapshot, link))
    for consumer, provider, group in queries.group_by_pair(breaks):
        if not _is_reported_elsewhere(snapshot, consumer, provider):
            yield _describe_pair(snapshot, provider, group)


def _is_reported_elsewhere(snapshot: Snapshot, consumer: str, provider: str) -> bool:
    """Return whether a specific rule reports the pair: ATN140 to ATN145 ring-flash-attn, ATN150 and ATN153 liger."""
    if consumer == "ring-flash-attn" and provider == "transformers":
        return True
    outcome = import_outcome(snapshot, "liger_kernel.transformers")
    return consumer == "liger-kernel" and outcome is not None and not is_missing_name(outcome)


def _describe_pair(snapshot: Snapshot, provider: str, links: tuple[UnresolvedName, ...]) -> Problem:
    consumer = links[0].consumer
    stopped = tuple(dict.fromkeys(name for link in links for name in queries.broken_entries(snapshot, link)))
    versions = {name: queries.name_with_version(snapshot, name) for name in (consumer, provider)}
    more = f" and {len(links) - 1} more" if len(links) > 1 else ""
    evidence = [queries.describe_link(link) for link in links[:MAX_LINES]]
    evidence += [f"import lane: import {link.breaks[0]}: {link.error}" for link in links if queries.is_confirmed(link)]
    if not any(queries.is_confirmed(link) for link in links):
        evidence.append("read in the installed files, not imported")
    return Problem(
        message=f"{versions[consumer]} imports {links[0].target}{more}, which {versions[provider]} does not have: "
        f"{', '.join(stopped[:4])} cannot be imported",
        evidence=tuple(evidence),
        fixes=(
            *fixes.fitting_provider(snapshot, links),
            *(fixes.restore_names(links) if _is_only_missing_name(snapshot, links) else ()),
            fixes.newer_consumer(snapshot, links),
        ),
        subject=versions[consumer],
        predicted=_is_open(snapshot, links),
    )


def _is_only_missing_name(snapshot: Snapshot, links: tuple[UnresolvedName, ...]) -> bool:
    """Return whether importing the consumer needs no other name that the provider lacks."""
    pair = (links[0].consumer, links[0].provider)
    missing = {
        link.target
        for link in queries.package_links(snapshot)
        if (link.consumer, link.provider) == pair and link.kind == "import" and not link.function
    }
    return len(missing) == 1


def _is_open(snapshot: Snapshot, links: tuple[UnresolvedName, ...]) -> bool:
    """Return whether only some jobs reach the import and none is known, or the import lane ran but did not try it."""
    some_jobs = not isinstance(snapshot.job, Known) and not any(queries.stops_every_job(link) for link in links)
    untried = isinstance(snapshot.imports, Known) and all(link.outcome in ("", "skipped") for link in links)
    return some_jobs or untried


RULE = Rule("ATN131", "error", check)
