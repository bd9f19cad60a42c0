"""Settings that work separately but fail together: the rows of clashes.toml, read in the releases' source.

A row states the package and releases it applies to, the condition `when`, the consequence, and the source. Each name in
`when` is a fact from `attncheck/lint/clashes.py` or the framework's own name of a setting. Its value is a pattern that
must match the launch's whole value, or ">N". A setting that the launch leaves out has the value "".
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

    framework: str  # a pattern, such as "trl|transformers"
    since: str  # a release of the package
    when: Mapping[str, str]
    consequence: Consequence
    message: str
    source: str
    package: str = ""  # "": the framework's own package
    until: str = ""
    alone: str = ""  # for a package: doctor's message about an environment with that release
    needs: Sequence[str] = ()  # further requirements that must hold: "liger-kernel>=0.6.3"
    sets: Mapping[str, str] = field(default_factory=dict)
    advice: str = ""
    mild: bool = False

    @property
    def requirement(self) -> str:
        """The package's faulty releases, such as "deepspeed>=0.17.6,<0.18.3"."""
        return f"{self.package}>={self.since},<{self.until}"

    def find_measured(self, snapshot: Snapshot) -> AccumulationMeasurement | None:
        """Return `doctor --deep`'s measurement of this row's settings (of accumulation); None if there is none."""
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
