"""A script of the launch uses a name that an installed package no longer has.

What it checks: the script that the launch starts, and the files next to it that it imports. They are read, not run.
Names that they use from transformers, trl, peft, flash_attn and similar packages are looked up in the installed
source: imports with their guards, attributes of modules and classes, and arguments of calls
(`TrainingArguments(evaluation_strategy=…)`).

Why it matters: the job stops with ImportError, AttributeError or TypeError: at once if the script imports the name,
or after the model was loaded if a function does.

What to do: use the installed release's name, or install a release that the script was written for.

Source: the script and the installed files. The method: attncheck/doctor/probes/payload/links/.
"""

from attncheck.core.links import UnresolvedName
from attncheck.doctor.fixes import links as fixes
from attncheck.doctor.queries.links import describe_link, group_by_pair, launch_links, name_with_version
from attncheck.doctor.rules import Problem, Problems, Rule, Snapshot

_ENTRIES = ("", "main", "train", "run", "__init__")


def check(snapshot: Snapshot) -> Problems:
    links = tuple(link for link in launch_links(snapshot) if not link.fallback_line and not link.patched_by)
    for _, provider, group in group_by_pair(links):
        version = name_with_version(snapshot, provider)
        first = min(group, key=lambda link: not _is_reached(link))
        reason = f"{first.target}(…), but {first.reason}" if first.kind == "argument" else first.target
        yield Problem(
            message=f"{first.path} takes {reason} in {version}"
            if first.kind == "argument"
            else f"{first.path} uses {reason}, which {version} does not have",
            evidence=tuple(describe_link(link) for link in group[:8]),
            fixes=(*fixes.fitting_provider(snapshot, group), *fixes.change_imports(group)),
            subject=first.path,
            predicted=not _is_reached(first),
        )


def _is_reached(link: UnresolvedName) -> bool:
    """Return whether the job certainly reaches the link: at import, or in code called by a script's last lines."""
    return not link.conditions and link.function in _ENTRIES


RULE = Rule("ATN135", "error", check, needs=frozenset({"job"}))
