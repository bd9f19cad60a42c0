"""Cases for ATN440."""

from attncheck.core.job import UnknownSetting
from attncheck.core.launch import SourceLocation
from tests import snapshots as s

WHERE = SourceLocation("run.sh", 4, 3)
FIRES = {
    "renamed": s.job(s.h200(), unknown=(UnknownSetting("--max_len", WHERE, ("--data.max_len",), "0.10.2"),)),
    "several renamed at once": s.job(
        s.h200(),
        unknown=(
            UnknownSetting("--max_len", WHERE, ("--data.max_len",), "0.10.2"),
            UnknownSetting("--bf16", WHERE, ("--ds.param_dtype", "bf16"), "0.10.2"),
        ),
    ),
    "misspelled": s.job(s.h200(), unknown=(UnknownSetting("--data.max_length", WHERE, near="--data.max_len"),)),
    "gone": s.job(s.h200(), unknown=(UnknownSetting("--ptx_coef", WHERE, since="0.10.2"),)),
}
SILENT = {"no launch": s.h200(), "all known": s.job(s.h200())}


def says(findings: str) -> bool:
    """Say whether the name and what is to be done about it are told."""
    return "does not know " in findings and ("--data.max_len" in findings or "without --ptx_coef" in findings)
