"""Cases for ATN440."""

from attncheck.core.job import UnknownSetting
from attncheck.core.launch import SourceLocation
from tests import snapshots as s

LOCATION = SourceLocation("run.sh", 4, 3)
FIRES = {
    "renamed": s.with_job(
        s.h200(), unknown_settings=(UnknownSetting("--max_len", LOCATION, ("--data.max_len",), "0.10.2"),)
    ),
    "several renamed at once": s.with_job(
        s.h200(),
        unknown_settings=(
            UnknownSetting("--max_len", LOCATION, ("--data.max_len",), "0.10.2"),
            UnknownSetting("--bf16", LOCATION, ("--ds.param_dtype", "bf16"), "0.10.2"),
        ),
    ),
    "misspelled": s.with_job(
        s.h200(), unknown_settings=(UnknownSetting("--data.max_length", LOCATION, near="--data.max_len"),)
    ),
    "gone": s.with_job(s.h200(), unknown_settings=(UnknownSetting("--ptx_coef", LOCATION, since="0.10.2"),)),
}
FIRES["dropped"] = s.with_job(
    s.h200(),
    unknown_settings=(
        UnknownSetting("sequence_lenn", LOCATION, near="--data.max_len", dropped="axolotl 0.19.0"),
        UnknownSetting("hub_private_repos", LOCATION, dropped="axolotl 0.19.0"),
    ),
)
SILENT = {"no launch": s.h200(), "all known": s.with_job(s.h200())}


def says(findings: str) -> bool:
    """Return whether the name and what to do about it are named."""
    is_known = "does not know " in findings or "drops hub_private_repos without a word" in findings
    return is_known and ("--data.max_len" in findings or "without --ptx_coef" in findings)
