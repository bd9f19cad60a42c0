"""Reads one model's configuration files: a folder, a config.json, or a Hub name in the local cache."""

from dataclasses import dataclass

from attncheck.core import codec
from attncheck.core.facts import Fact, Unreadable
from attncheck.core.model import Model


@dataclass(frozen=True)
class _Answer:
    model: Fact[Model]


def read_model(source: str, documents: dict[str, str] | None = None) -> Fact[Model]:
    """Return the model that `source` names or that `documents` (file name -> text) describe; its code is not run."""
    from attncheck.doctor.probes.payload.model import config
    from attncheck.doctor.probes.payload.privacy import scrub

    try:
        return codec.read(_Answer, scrub({"model": config.collect_model(source, documents)})).model
    except codec.BadDocument as error:
        return Unreadable(f"reading the model failed: {error}")
