"""Cases for ATN148."""

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s


def with_frameworks(openrlhf: str, verl: str) -> Snapshot:
    """Return both frameworks with these requirements."""
    return s.with_package(
        s.with_package(s.h200(), "openrlhf", "0.11.2", requires=(openrlhf,)), "verl", "0.9.1", requires=(verl,)
    )


FIRES = {
    "a launch of one of them, and a library": s.with_job(
        s.with_package(
            s.with_package(s.h200(), "openrlhf", "0.11.2", requires=("transformers==5.15.0",)),
            "peft",
            "0.21.0",
            requires=("transformers<5.11",),
        )
    ),
    "OpenRLHF 0.11.2 and verl 0.9.1": with_frameworks("transformers==5.15.0", "transformers!=5.6.0,<5.11,>=5.5.3"),
    "ranges that do not meet": with_frameworks("transformers>=5.11", "transformers<5.11"),
}
SILENT = {
    "a launch of one of them": s.with_job(with_frameworks("transformers>=5.11", "transformers<5.11")),
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "ranges that meet in one release": with_frameworks("transformers==5.10.4", "transformers!=5.6.0,<5.11,>=5.5.3"),
    "ranges that overlap": with_frameworks("transformers>5.6", "transformers<5.11,>=5.5.3"),
    "the only common release is above an excluded one": with_frameworks(
        "transformers>=5.6.0,!=5.6.0", "transformers<5.11"
    ),
    "one restricts nothing": with_frameworks("transformers", "transformers<5.11"),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names both and a fix."""
    return "openrlhf 0.11.2 and " in finding and "venv" in finding
