"""Cases for ATN440."""

from attncheck.core.job import NO_READER, UnknownSetting
from attncheck.core.launch import SourceLocation
from tests import snapshots as s

LOCATION = SourceLocation("run.sh", 4, 3)
PROOF = "train.py: the program's parser does not define it"
SETTINGS = {
    "renamed": (UnknownSetting("--max_len", LOCATION, ("--data.max_len",), "0.10.2", proof=PROOF),),
    "several renamed at once": (
        UnknownSetting("--max_len", LOCATION, ("--data.max_len",), "0.10.2", proof=PROOF),
        UnknownSetting("--bf16", LOCATION, ("--ds.param_dtype", "bf16"), "0.10.2", proof=PROOF),
    ),
    "misspelled": (UnknownSetting("--data.max_length", LOCATION, near="--data.max_len", proof=PROOF),),
    "gone": (UnknownSetting("--ptx_coef", LOCATION, since="0.10.2", proof=PROOF),),
    "dropped": (
        UnknownSetting("sequence_lenn", LOCATION, near="--data.max_len", dropped="axolotl 0.19.0"),
        UnknownSetting("hub_private_repos", LOCATION, dropped="axolotl 0.19.0"),
    ),
    "one table": tuple(
        UnknownSetting(f"own.{name}", LOCATION, near=f"data.{name}", proof=PROOF) for name in ("a", "b", "c")
    ),
    "one parser": (
        UnknownSetting("--tau_a", LOCATION, since="3.11", proof=PROOF),
        UnknownSetting("--tau_b", LOCATION, near="--tau_c", proof=PROOF),
    ),
    "Hydra": tuple(
        UnknownSetting(f"actor.{name}", LOCATION, proof="main.py: Hydra refuses it", reader=reader)
        for name, reader in (("a", "own.py:3"), ("b", NO_READER), ("c", ""))
    ),
    "nothing proves it": (UnknownSetting("--own_option", LOCATION), UnknownSetting("--other", LOCATION, since="0.9")),
}
FIRES = {name: s.with_job(s.h200(), unknown_settings=settings) for name, settings in SETTINGS.items()}
SILENT = {"no launch": s.h200(), "all known": s.with_job(s.h200())}


def says(findings: str) -> bool:
    """Return whether the name and what to do about it are named; nothing is taken out that nothing refuses."""
    if "own.a" in findings:
        return "does not know 3 names of own.*; did you mean data.*?" in findings and findings.count("message=") == 1
    if "--tau_a" in findings:
        return "does not know 2 names in this launch: --tau_a, --tau_b" in findings and findings.count("message=") == 1
    if "actor.a" in findings:
        titles = ("the program reads it (own.py:3): actor.a", "leave it out: actor.b", "own code reads it: actor.c")
        return all(title in findings for title in titles) and findings.count("write + before the name") == 2
    if "--own_option" in findings:
        return "2 names are not options of" in findings and "severity='error'" not in findings
    is_known = "does not know " in findings or "drops hub_private_repos silently" in findings
    return is_known and ("--data.max_len" in findings or "does not know --ptx_coef" in findings)
