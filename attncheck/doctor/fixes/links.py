"""Fixes for names that no longer exist: restore moved names, or install releases that still have them."""

from collections.abc import Iterable, Iterator

from packaging.version import Version

from attncheck.core.findings import Fix
from attncheck.core.links import UnresolvedName
from attncheck.core.snapshot import Known, Snapshot
from attncheck.doctor.fixes.install import install_packages, meet_requirements
from attncheck.doctor.knowledge import liger
from attncheck.doctor.knowledge.removed_names import CACHE_ATTRIBUTES, SUCCESSORS, find_removal
from attncheck.doctor.queries import provider_distribution, requirements

UNTRIED = "not tried here"


def restore_names(links: tuple[UnresolvedName, ...]) -> Iterator[Fix]:
    """Yield the lines that restore the missing names before the import, if the provider has all of them elsewhere."""
    names = [link for link in links if link.kind == "import" and link.name]
    if not names or len(names) < len(links) or not all(link.moved_to for link in names):
        return
    lines = []
    for link in dict.fromkeys((link.source, link.name, link.moved_to[0]) for link in names):
        source, name, place = link
        lines += [f"import {source} as module", f"from {place} import {name}", f"module.{name} = {name}"]
    first = names[0].module.partition(".")[0]
    lines[-1] += f"  # before `import {first}`"
    yield Fix(f"restore the name before the import ({UNTRIED})", "edit", "\n".join(lines))


def change_imports(links: tuple[UnresolvedName, ...]) -> Iterator[Fix]:
    """Yield the import statements to write in the user's own code, if the names have moved."""
    moved = [link for link in links if link.kind == "import" and link.name and link.moved_to]
    if moved:
        lines = dict.fromkeys(f"from {link.moved_to[0]} import {link.name}  # {link.place}" for link in moved)
        yield Fix(f"import the names from their new module ({UNTRIED})", "edit", "\n".join(lines))
    replaced = {link.place: _name_successor(link) for link in links if _name_successor(link)}
    if replaced:
        lines = dict.fromkeys(f"{successor}  # {place}" for place, successor in replaced.items())
        yield Fix(f"use the replacement ({UNTRIED})", "edit", "\n".join(lines))


def older_transformers(snapshot: Snapshot, names: Iterable[tuple[str, str]]) -> Iterator[Fix]:
    """Yield the installation of a transformers that still has every (module, name), if the tables know them."""
    bound = _releases_with_names(names)
    title = "install a transformers from before the removal"
    if needed := requirements.resolve_transformers(snapshot, bound) if bound else ():
        yield install_packages(snapshot, *needed, title=title)
    elif bound:
        yield Fix(f"{title} (but an installed package excludes it)", "manual", f"transformers{bound}")


def _name_successor(link: UnresolvedName) -> str:
    """Return the import to write instead, or "" if no source names one."""
    owner, _, attribute = link.name.rpartition(".")
    if link.kind == "attribute" and owner.endswith("Cache") and attribute in CACHE_ATTRIBUTES:
        instead = CACHE_ATTRIBUTES[attribute][1]
        return f"use cache.{instead} instead of .{attribute}" if instead else ""
    key = f"{link.source}:{link.name}" + (f"({link.argument})" if link.argument else "")
    successor = SUCCESSORS.get(key, "")
    if link.kind == "argument":
        successor = successor or link.reason.partition(", but ")[2]
        return f"{link.name}({successor}=…)" if successor else ""
    module, _, name = successor.partition(":")
    return f"from {module} import {name}" if name else ""


def fitting_provider(snapshot: Snapshot, links: tuple[UnresolvedName, ...]) -> Iterator[Fix]:
    """Yield the installation of a provider that still has the names, from the consumer's metadata and the tables."""
    provider = provider_distribution(links[0])
    allowed = _releases_with_names((link.source, link.name) for link in links) if provider == "transformers" else ""
    consumer = snapshot.package(links[0].consumer)
    required = ""
    if isinstance(consumer, Known):
        specifiers = [r.specifier for r in requirements.applicable_requirements(snapshot, consumer.value, provider)]
        required = str(specifiers[0]) if specifiers else ""
    specifier = ",".join(part for part in (allowed, required) if part)
    if provider == "transformers" and specifier:
        chosen = requirements.resolve_transformers(snapshot, specifier)
        if chosen and allowed:
            yield install_packages(snapshot, *chosen, allows=(f"transformers{specifier}",))
            return
    installed = snapshot.version(provider)
    if required and isinstance(installed, Known) and not requirements.is_version_allowed(required, installed.value):
        yield from meet_requirements(snapshot, links[0].consumer, (f"{provider}{required}",))


def newer_consumer(snapshot: Snapshot, links: tuple[UnresolvedName, ...]) -> Fix:
    """Return the fix that installs a release of the consumer that no longer imports the names.

    The release is known for liger-kernel; for others the user has to try newer ones.
    """
    name, transformers = links[0].consumer, snapshot.version("transformers")
    if name == "liger-kernel" and isinstance(transformers, Known):
        return install_packages(snapshot, f"{name}=={liger.choose_release(transformers.value)}", options=("--no-deps",))
    fix = install_packages(snapshot, name, options=("--upgrade",), title=f"a newer {name}, if available ({UNTRIED})")
    return Fix(fix.title, "advice", fix.text)


def _releases_with_names(names: Iterable[tuple[str, str]]) -> str:
    """Return the releases of transformers that have every (module, name), or "" if the tables do not know."""
    removals = [find_removal(source, name) for source, name in names]
    return f"<{min(removals, key=Version)}" if removals and all(removals) else ""
