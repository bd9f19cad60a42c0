"""The installed liger-kernel has no kernels for this model.

What it checks: the model's type against MODEL_TYPE_TO_APPLY_LIGER_FN of the installed liger-kernel, read by importing
it in a child process.

Why it matters: liger-kernel 0.8.2 and older raise KeyError from AutoLigerKernelForCausalLM; newer ones log one line
at INFO and patch nothing, so memory use is unchanged.

What to do: switch liger off for this model, or use a liger-kernel that supports it.

Source: liger_kernel 0.5.10 to 0.8.5, transformers/monkey_patch.py; linkedin/Liger-Kernel#313, #968.
"""

from attncheck.doctor.knowledge.liger import lacks_kernels_for
from attncheck.doctor.queries import change_settings, require_import
from attncheck.doctor.rules import Absent, Fix, Known, Model, Problem, Problems, Rule, Snapshot, about_model, need


@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    if not snapshot.has("liger-kernel"):
        return
    version = need(snapshot.package("liger-kernel"), "liger-kernel").version
    listed_types = snapshot.interfaces.value.liger_model_types if isinstance(snapshot.interfaces, Known) else Absent()
    if isinstance(listed_types, Known):
        is_missing = model.model_type not in listed_types.value
        evidence = f"import lane: it lists {len(listed_types.value)} model types"
    elif isinstance(snapshot.job, Known):  # lint imports nothing, so the table of releases decides
        is_missing = lacks_kernels_for(
            need(snapshot.version("liger-kernel"), "liger-kernel's version"), model.model_type
        )
        evidence = f"MODEL_TYPE_TO_APPLY_LIGER_FN of liger-kernel {version}"
    else:
        for package in ("torch", "transformers", "liger_kernel"):
            require_import(snapshot, package)
        need(listed_types, "liger-kernel's list of models")
        return
    if not is_missing:
        return
    yield Problem(
        message=f"liger-kernel {version} has no kernels for {model.model_type}",
        evidence=(evidence,),
        fixes=(_disable_liger(snapshot),),
        subject=model.model_type,
    )


def _disable_liger(snapshot: Snapshot) -> Fix:
    if isinstance(snapshot.job, Known):
        return change_settings("train without it", {"liger": "off"})
    return Fix("train without it", "setting", "use_liger_kernel: false")


RULE = Rule("ATN322", "warning", check, needs=frozenset({"liger"}))
