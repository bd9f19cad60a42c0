"""The installed transformers does not know the model's type.

What it checks: whether the installed transformers, in a child process, knows the model_type in config.json.

Why it matters: loading stops with "The checkpoint you are trying to load has model type … but Transformers does not
recognize this architecture". The model is newer than this transformers, or its type is misspelt.

What to do: install a transformers that knows the model, within the range that the rest of the environment allows. The
finding names the first known release with it, the last one before its removal, or the type that may have been meant.

Source: transformers 4.57.3 and 5.23.0, models/auto/configuration_auto.py (`CONFIG_MAPPING`); the 17 wheels named in
attncheck/doctor/knowledge/model_types.py.
"""

from collections.abc import Iterator

from attncheck.doctor.fixes.model import change_transformers
from attncheck.doctor.knowledge import model_types
from attncheck.doctor.queries.models import is_at_least
from attncheck.doctor.rules import Fix, Model, Problem, Problems, Rule, Snapshot, Unreadable, about_model


@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    if model.remote_code or not isinstance(model.accepts, Unreadable):
        return
    if "does not know model_type" not in model.accepts.reason:
        return
    yield Problem(
        message=f"{model.accepts.reason}, so {model.source} cannot be loaded",
        evidence=("import lane: the installed transformers was queried",),
        fixes=tuple(_list_fixes(snapshot, model.model_type)),
        subject=model.model_type or model.source,
    )


def _list_fixes(snapshot: Snapshot, model_type: str) -> Iterator[Fix]:
    """Yield a release that has the type, if one was read, or else the type that it may be a misspelling of."""
    first, gone = model_types.first_release_with(model_type), model_types.GONE.get(model_type, "")
    installed = snapshot.version("transformers")
    wanted = f"<{gone}" if gone and is_at_least(installed, gone) else f">={first}" if first else ""
    if wanted and not (first and is_at_least(installed, first)):
        unfit = Fix("this release, although an installed package excludes it", "manual", f"transformers{wanted}")
        yield from change_transformers(snapshot, wanted) or (unfit,)
    elif similar := model_types.find_similar_type(model_type):
        yield Fix("if this is the right type", "edit", f'config.json: "model_type": "{similar}"')
    else:
        text = f"look for a release after {model_types.LAST_READ}, or for the model's own code (auto_map)"
        yield Fix(f"no known release has it: {text}", "advice", "")


RULE = Rule("ATN302", "error", check)
