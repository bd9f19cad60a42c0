"""The model brings its own code, which attncheck never runs.

What it checks: whether config.json names its own code (`auto_map`) and the installed transformers has no class of
that type, so that nobody could be asked which attention the model accepts.

Why it matters: the attention of such a model is whatever its Python files do. What follows from config.json alone
has been checked; what its class accepts has not.

What to do: read the model's modeling file for `attn_implementation`, or use a transformers that has the class.

Source: transformers 5.23.0, dynamic_module_utils.py (`trust_remote_code`).
"""

from attncheck.doctor.queries.models import requested_model
from attncheck.doctor.rules import Problem, Problems, Rule, Snapshot, Unreadable


def check(snapshot: Snapshot) -> Problems:
    model = requested_model(snapshot)
    if model is None or not model.remote_code or not isinstance(model.accepts, Unreadable):
        return
    if "brings its own code" not in model.accepts.reason:
        return
    packages = [name for name in model.remote_imports if ":" not in name]
    yield Problem(
        message=f"{model.source} brings its own code, so attncheck cannot tell which attention it accepts",
        evidence=(f"its files import {', '.join(packages)}",) if packages else (),
        subject=model.source,
    )


RULE = Rule("ATN303", "note", check)
