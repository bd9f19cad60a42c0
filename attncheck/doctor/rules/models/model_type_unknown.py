"""The installed transformers does not know the model's type.

What it checks: the answer of the installed transformers, asked in a child process, for the model_type in config.json.

Why it matters: loading stops with "The checkpoint you are trying to load has model type … but Transformers does not
recognize this architecture". The model is newer than this transformers, or its type is misspelt.

What to do: install a transformers that knows the model, within the range that the rest of the environment allows.

Source: transformers 4.57.3 and 5.23.0, models/auto/configuration_auto.py (`CONFIG_MAPPING`).
"""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.facts import Known, Unreadable
from attncheck.core.findings import Problem
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.fixes.model import upgrade_transformers
from attncheck.doctor.queries.models import requested_model
from attncheck.doctor.rules import Rule


def check(snapshot: Snapshot) -> Iterator[Problem]:
    """Yield a problem where transformers reported that it does not know the model_type."""
    model = requested_model(snapshot)
    if model is None or model.remote_code or not isinstance(model.accepts, Unreadable):
        return
    if "does not know model_type" not in model.accepts.reason:
        return
    yield Problem(
        message=f"{model.accepts.reason}, so {model.source} cannot be loaded",
        evidence=("import lane: the installed transformers was asked",),
        fixes=(upgrade_transformers(snapshot, "transformers" + _newer_specifier(snapshot)),),
        subject=model.model_type or model.source,
    )


def _newer_specifier(snapshot: Snapshot) -> str:
    version = snapshot.version("transformers")
    return f">{version.value}" if isinstance(version, Known) else ""


RULE = Rule("ATN302", "error", check)
