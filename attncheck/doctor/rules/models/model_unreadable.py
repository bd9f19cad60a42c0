"""The named model cannot be read.

What it checks: whether config.json of the folder or the cached Hub name could be found and parsed.

Why it matters: checks that need the model's heads, windows and layers did not run, so the absence of findings proves
nothing. transformers would fail on the same file.

What to do: name a folder that contains config.json, or a Hub name that is in the local cache. `--online` downloads
the small configuration files of a Hub name.

Source: attncheck/doctor/probes/payload/model/files.py.
"""

from attncheck.doctor.rules import Fix, Problem, Problems, Rule, Snapshot, Unreadable


def check(snapshot: Snapshot) -> Problems:
    if not isinstance(snapshot.model, Unreadable):
        return
    fixes: tuple[Fix, ...] = ()
    if "cache" in snapshot.model.reason:
        fixes = (
            Fix("download the configuration into the cache", "advice", "hf download MODEL config.json"),
            Fix("or let doctor download it for this run", "advice", "attncheck doctor --online MODEL"),
        )
    yield Problem(
        message="the model cannot be read: " + snapshot.model.reason.rstrip("."),
        evidence=("static lane: the checks of the model did not run",),
        fixes=fixes,
        subject="model",
    )


RULE = Rule("ATN301", "error", check, general=True)
