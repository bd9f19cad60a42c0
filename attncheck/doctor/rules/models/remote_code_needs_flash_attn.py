"""The model's own code imports flash_attn, but flash-attn is not installed.

What it checks: the imports in the *.py files next to config.json, read without running them. An import inside `try` or
`if is_flash_attn…available()` does not count: transformers does not count it either.

Why it matters: transformers scans the same files before it loads them and raises "This modeling file requires the
following packages that were not found in your environment: flash_attn", even with attn_implementation="eager".

What to do: install flash-attn, or use the in-library class if transformers has one (trust_remote_code=False).

Source: transformers 4.57.3 and 5.23.0, dynamic_module_utils.py (`get_imports`, `check_imports`);
huggingface/transformers#28459; InternLM/InternLM#747.
"""

from attncheck.doctor.fixes.flash_attn import install_flash_attn_package
from attncheck.doctor.rules import Fix, Known, Model, Problem, Problems, Rule, Snapshot, about_model


@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    if not model.remote_code or "flash_attn" not in model.remote_imports:
        return
    if snapshot.has("flash-attn"):
        return
    in_library = isinstance(model.accepts, Known)
    use_library_class = Fix("use transformers' own class", "setting", "trust_remote_code=False")
    install_fixes = install_flash_attn_package(snapshot)
    yield Problem(
        message=f"the code of {model.source} imports flash_attn, which is not installed",
        evidence=("static lane: an unguarded import in the model's *.py files",),
        fixes=(use_library_class, *install_fixes) if in_library else install_fixes,
        subject=model.source,
        predicted=in_library,
    )


RULE = Rule("ATN304", "error", check)
