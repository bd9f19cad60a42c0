"""The model's own code imports names that this transformers no longer has.

What it checks: the names that the *.py files beside config.json take from transformers, outside `try`, against a table
of names that were removed, and the releases without them.

Why it matters: loading with trust_remote_code=True stops with "cannot import name …". Upgrading makes it worse.

What to do: use the class of transformers itself (trust_remote_code=False) where there is one, or a transformers from
before the removal.

Source: the wheels named in attncheck/doctor/knowledge/models.py; huggingface/transformers#37428 for
`_flash_supports_window_size`.
"""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from attncheck.core.facts import Known, need
from attncheck.core.findings import Fix, Problem
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.fixes.install import install_packages
from attncheck.doctor.knowledge.models import REMOVED_FROM_TRANSFORMERS
from attncheck.doctor.queries.models import requested_model
from attncheck.doctor.rules import Rule


def check(snapshot: Snapshot) -> Iterator[Problem]:
    """Yield one problem that names every removed import."""
    model = requested_model(snapshot)
    if model is None or not model.remote_code or not snapshot.has("transformers"):
        return
    imports = [name for name in model.remote_imports if name in REMOVED_FROM_TRANSFORMERS]
    if not imports:
        return
    version = need(snapshot.version("transformers"), "the version of transformers")
    removed = [name for name in imports if _is_removed(name, version)]
    if not removed:
        return
    in_library = isinstance(model.accepts, Known)
    oldest = min((REMOVED_FROM_TRANSFORMERS[name][0] for name in removed), key=Version)
    pin = install_packages(snapshot, f"transformers<{oldest}", title="a transformers from before the removal")
    use_library_class = Fix("use the class of transformers itself", "setting", "trust_remote_code=False")
    first = removed[0].replace(":", ".")
    yield Problem(
        message=f"the code of {model.source} imports {first}, which transformers {version} lacks",
        evidence=tuple(
            f"{name.replace(':', '.')}: gone since {REMOVED_FROM_TRANSFORMERS[name][0]}" for name in removed
        ),
        fixes=(use_library_class, pin) if in_library else (pin,),
        subject=model.source,
        predicted=in_library,
    )


def _is_removed(name: str, version: Version) -> bool:
    removed_in, restored_in = REMOVED_FROM_TRANSFORMERS[name]
    return version >= Version(removed_in) and not (restored_in and version >= Version(restored_in))


RULE = Rule("ATN306", "error", check)
