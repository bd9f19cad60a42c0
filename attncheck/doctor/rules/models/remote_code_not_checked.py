"""The model has its own code, which attncheck never runs.

What it checks: whether config.json names its own code (`auto_map`) and the installed transformers has no class of that
type. It is then unknown which attention the model accepts.

Why it matters: such a model's attention is defined by its own Python files. attncheck checked what follows from
config.json, but not what the class accepts.

What to do: read the model's modeling file for `attn_implementation`, or use a transformers that has the class.

Source: transformers 5.23.0, dynamic_module_utils.py (`trust_remote_code`).
"""

from attncheck.doctor.rules import Model, Problem, Problems, Rule, Snapshot, Unreadable, about_model


@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    if not model.remote_code or not isinstance(model.accepts, Unreadable):
        return
    if "brings its own code" not in model.accepts.reason:
        return
    packages = [name for name in model.remote_imports if ":" not in name]
    yield Problem(
        message=f"{model.source} has its own code, so attncheck cannot tell which attention it accepts",
        evidence=(f"its files import {', '.join(packages)}",) if packages else (),
        subject=model.source,
    )


RULE = Rule("ATN303", "note", check)
