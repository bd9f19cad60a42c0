"""The model's own code imports names that this transformers, or another package, no longer has.

What it checks: the *.py files that `auto_map` in config.json names, and those next to them that they import, are
read, never run. Names that they import from transformers, flash_attn and others are looked up in the installed
source, and guards are followed (`try … except ImportError`, version checks). A --target has no files to read, so
names imported outside `try` are compared with a table of removed names.

Why it matters: loading with trust_remote_code=True stops with "cannot import name …". Upgrading does not help.

What to do: use transformers' own class (trust_remote_code=False) if there is one. Otherwise install a transformers
from before the removal, or import the name from its new place.

Source: the installed files; for a target the wheels named in attncheck/doctor/knowledge/removed_names.py;
huggingface/transformers#37428 for `_flash_supports_window_size`.
"""

from collections.abc import Iterator

from attncheck.core.links import UnresolvedName
from attncheck.doctor.fixes.links import change_imports, older_transformers
from attncheck.doctor.knowledge.removed_names import REMOVED_FROM_TRANSFORMERS, find_removal
from attncheck.doctor.queries import describe_link, name_with_version
from attncheck.doctor.rules import Fix, Known, Model, Problem, Problems, Rule, Snapshot, Version, about_model, need


@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    if not model.remote_code:
        return
    if isinstance(model.links, Known):
        links = tuple(link for link in model.links.value if _stops_loading(link))
        if links:
            yield _describe_links(snapshot, model, links)
    elif snapshot.has("transformers"):
        yield from _check_table(snapshot, model)


def _stops_loading(link: UnresolvedName) -> bool:
    return link.kind == "import" and not link.function and not link.fallback_line and not link.patched_by


def _describe_links(snapshot: Snapshot, model: Model, links: tuple[UnresolvedName, ...]) -> Problem:
    version = name_with_version(snapshot, links[0].provider.replace("_", "-"))
    open_conditions = all(link.conditions for link in links)
    return Problem(
        message=f"the code of {model.source} imports {links[0].target}, which {version} lacks",
        evidence=tuple(_describe(link) for link in links),
        fixes=(
            *_library_fix(model),
            *older_transformers(snapshot, [(link.source, link.name) for link in links]),
            *change_imports(links),
        ),
        subject=model.source,
        predicted=isinstance(model.accepts, Known) or open_conditions,
    )


def _describe(link: UnresolvedName) -> str:
    removal = find_removal(link.source, link.name)
    return describe_link(link) + (f"; removed in {removal}" if removal else "")


def _check_table(snapshot: Snapshot, model: Model) -> Problems:
    imports = [name for name in model.remote_imports if name in REMOVED_FROM_TRANSFORMERS]
    if not imports:
        return
    version = need(snapshot.version("transformers"), "the version of transformers")
    removed = [name for name in imports if _is_removed(name, version)]
    if not removed:
        return
    provider = f"transformers {version}"
    yield Problem(
        message=f"the code of {model.source} imports {removed[0].replace(':', '.')}, which {provider} lacks",
        evidence=tuple(
            f"{name.replace(':', '.')}: removed in {REMOVED_FROM_TRANSFORMERS[name][0]}" for name in removed
        ),
        fixes=(
            *_library_fix(model),
            *older_transformers(snapshot, [(name.partition(":")[0], name.partition(":")[2]) for name in removed]),
        ),
        subject=model.source,
        predicted=isinstance(model.accepts, Known),
    )


def _library_fix(model: Model) -> Iterator[Fix]:
    if isinstance(model.accepts, Known):
        yield Fix("use transformers' own class", "setting", "trust_remote_code=False")


def _is_removed(name: str, version: Version) -> bool:
    removed_in, restored_in = REMOVED_FROM_TRANSFORMERS[name]
    return version >= Version(removed_in) and not (restored_in and version >= Version(restored_in))


RULE = Rule("ATN306", "error", check)
