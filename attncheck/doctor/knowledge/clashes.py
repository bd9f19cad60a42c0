"""Settings that are fine alone and fail together: the rows of clashes.toml, read in the releases' source.

A row says in which releases of which package it holds, `when` it does, what then happens, and where that was read. Each
name in `when` is a fact of `attncheck/lint/clashes.py` or the framework's own name of a setting; its value is a pattern
that must match all of what the launch has there, or ">N". What the launch does not set is "".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from attncheck.core.experiments import AccumulationMeasurement
from attncheck.core.io.toml import parse_toml
from attncheck.core.job import Consequence
from attncheck.core.snapshot import Snapshot


@dataclass(frozen=True)
class Clash:
    """One row of the table."""

    framework: str  # a pattern: "trl|transformers"
    since: str  # of the package
    when: Mapping[str, str]
    consequence: Consequence
    message: str
    source: str
    package: str = ""  # "": the framework's own
    until: str = ""
    alone: str = ""  # of a package: what doctor says of an environment with that release
    needs: Sequence[str] = ()  # requirements that must hold as well: "liger-kernel>=0.6.3"
    sets: Mapping[str, str] = field(default_factory=dict)
    advice: str = ""
    mild: bool = False

    @property
    def requirement(self) -> str:
        """The package's faulty releases: "deepspeed>=0.17.6,<0.18.3"."""
        return f"{self.package}>={self.since},<{self.until}"

    def find_measured(self, snapshot: Snapshot) -> AccumulationMeasurement | None:
        """Return what `doctor --deep` measured of this row's settings, None if it did not: DeepSpeed's accumulation."""
        if self.package != "deepspeed" or "accumulation" not in self.when:
            return None
        settings = (self.when["zero"], self.when["offload"])
        answers = (item for item in snapshot.measurements.accumulations if item.weights)
        return next((item for item in answers if (str(item.stage), item.offload) == settings), None)


@cache
def load_clashes() -> tuple[Clash, ...]:
    """Return the rows of the table."""
    text = files(__package__).joinpath("clashes.toml").read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = parse_toml(text, "clashes.toml")["clash"]
    return tuple(Clash(**row) for row in rows)
