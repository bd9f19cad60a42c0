"""The model's own code uses attributes or functions that this transformers, or another package, no longer has.

What it checks: in the *.py files that `auto_map` names, and those next to them that they import: attributes of
imported modules and classes, calls with arguments that the installed function does not accept, and imports inside
functions. Attributes such as `seen_tokens` are also checked on variables that are annotated, tested or created as a
DynamicCache. The files are read, never run.

Why it matters: the model loads, but its first step stops with AttributeError, TypeError or ImportError. The Cache
classes lost `seen_tokens`, `get_max_length` and `get_usable_length` in transformers 4.49 and 4.54.

What to do: use transformers' own class (trust_remote_code=False) if there is one, or a transformers release that the
code was written for, or update the code.

Source: the installed files; LLaMA-Factory#8048, #7597; huggingface/transformers, cache_utils.py.
"""

from attncheck.core.links import UnresolvedName
from attncheck.doctor.fixes.links import change_imports, older_transformers
from attncheck.doctor.queries import describe_link, name_with_version
from attncheck.doctor.rules import Fix, Known, Model, Problem, Problems, Rule, Snapshot, about_model, value_or

# The methods of a model that training calls: the constructor and the forward of each of its modules.
_TRAINING = ("__init__", "forward")


@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    if not model.remote_code:
        return
    links = tuple(link for link in value_or(model.links, ()) if _is_use(link))
    if links:
        yield _describe_links(snapshot, model, links)


def _is_use(link: UnresolvedName) -> bool:
    return not link.fallback_line and not link.patched_by and bool(link.function or link.kind != "import")


def _describe_links(snapshot: Snapshot, model: Model, links: tuple[UnresolvedName, ...]) -> Problem:
    first = min(links, key=lambda link: not _is_reached(link))
    version = name_with_version(snapshot, first.provider.replace("_", "-"))
    in_library = isinstance(model.accepts, Known)
    use_library = Fix("use transformers' own class", "setting", "trust_remote_code=False")
    what = f"calls {first.target} so that {first.reason}" if first.kind == "argument" else f"uses {first.target}"
    lacks = f"in {version}" if first.kind == "argument" else f"which {version} lacks"
    return Problem(
        message=f"the code of {model.source} {what}, {lacks}",
        evidence=tuple(describe_link(link) for link in links),
        fixes=(
            *((use_library,) if in_library else ()),
            *older_transformers(snapshot, [(link.source, link.name) for link in links]),
            *change_imports(links),
        ),
        subject=model.source,
        predicted=in_library or not _is_reached(first),
    )


def _is_reached(link: UnresolvedName) -> bool:
    """Return whether loading or a training step certainly reaches the link."""
    return not link.conditions and link.function.rpartition(".")[2] in ("", *_TRAINING)


RULE = Rule("ATN346", "error", check)
