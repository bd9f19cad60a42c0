"""The model that was named cannot be read.

What it checks: whether config.json of the folder or the cached Hub name could be found and parsed.

Why it matters: none of the checks that hang on the model's heads, windows and layers ran, so silence about them means
nothing. transformers would fail on the same file.

What to do: give a folder that holds config.json, or a Hub name that is in the local cache; `--online` fetches the
small configuration files of a Hub name.

Source: attncheck/doctor/probes/payload/model/files.py.
"""

from attncheck.doctor.rules import Fix, Problem, Problems, Rule, Snapshot, Unreadable


def check(snapshot: Snapshot) -> Problems:
    if not isinstance(snapshot.model, Unreadable):
        return
    fixes: tuple[Fix, ...] = ()
    if "cache" in snapshot.model.reason:
        fixes = (
            Fix("fetch the configuration into the cache", "advice", "hf download MODEL config.json"),
            Fix("or let doctor fetch it for this run", "advice", "attncheck doctor --online MODEL"),
        )
    yield Problem(
        message="the model cannot be read: " + snapshot.model.reason.rstrip("."),
        evidence=("static lane: the checks of the model did not run",),
        fixes=fixes,
        subject="model",
    )


RULE = Rule("ATN301", "error", check, general=True)
