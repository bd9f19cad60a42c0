"""A guard against incompatible packages is switched off.

What it checks: DISABLE_VERSION_CHECK with LLaMA-Factory, and TRANSFORMERS_DISABLE_TORCH_CHECK.

Why it matters: the first lets LLaMA-Factory run with packages outside its ranges; the second switches off value
checks inside transformers' models, so a wrong shape or position goes unnoticed.

What to do: unset it, unless it is set on purpose.

Source: LLaMA-Factory (2026-08), `src/llamafactory/extras/misc.py` (check_version); transformers 5.23.0,
`utils/import_utils.py` (torch_check).
"""

from attncheck.doctor.fixes import install
from attncheck.doctor.queries.launch import locate_variables
from attncheck.doctor.rules import Problem, Problems, Rule, Snapshot, value_or

GUARDS = {
    "DISABLE_VERSION_CHECK": ("llamafactory", "LLaMA-Factory does not check the versions of its packages"),
    "TRANSFORMERS_DISABLE_TORCH_CHECK": ("transformers", "transformers does not validate its models' configuration"),
}


def check(snapshot: Snapshot) -> Problems:
    for name, (package, effect) in GUARDS.items():
        value = value_or(snapshot.env(name), "")
        if value.lower() in ("1", "true", "y") and snapshot.has(package):
            yield Problem(
                message=f"{name}={value}: {effect}",
                subject=name,
                evidence=(f"{name}={value}",),
                fixes=(install.unset_variable(name),),
                locations=locate_variables(snapshot, name),
            )


RULE = Rule("ATN559", "note", check)
