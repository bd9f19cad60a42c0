"""Some of liger-kernel's patches for this model replace names that transformers no longer has.

What it checks: every name that the installed liger-kernel would replace in the modelling files of the installed
transformers, for the named model.

Why it matters: a patch is an assignment, and assigning to a name that no longer exists raises nothing. The log says
that liger was applied, while memory and speed are unchanged.

What to do: let liger patch the forward pass (`fused_linear_cross_entropy=True`) in place of the loss class, or
install the transformers release that your liger-kernel was made for.

Source: the installed `liger_kernel/transformers/monkey_patch.py` and modelling files, read by the import lane; with
liger_kernel 0.8.5 and transformers 5.17.0 mistral, mixtral, qwen2_vl, llama4 and others are affected.
"""

from attncheck.doctor.queries.covering import require_import
from attncheck.doctor.rules import Fix, Known, Problem, Problems, Rule, Snapshot, need, only_if


@only_if(Snapshot.has, "liger-kernel")
def check(snapshot: Snapshot) -> Problems:
    for package in ("torch", "transformers", "liger_kernel"):
        require_import(snapshot, package)
    targets = need(
        need(snapshot.interfaces, "the contents of the imported packages").liger_missing_targets, "liger's targets"
    )
    if not targets:
        return
    model = need(snapshot.model, "the model")
    missing_targets = sorted(target for target in targets if f".models.{model.model_type}." in target)
    if not missing_targets:
        return
    liger = need(snapshot.package("liger-kernel"), "liger-kernel").version
    names = ", ".join(target.partition(":")[2] for target in missing_targets)
    lacks_loss = any(target.endswith(":CrossEntropyLoss") for target in missing_targets)
    yield Problem(
        message=(
            f"liger-kernel {liger} would patch {names} of {model.model_type} without effect: this "
            "transformers does not have it"
        ),
        subject=model.model_type,
        evidence=(f"transformers {_transformers_version(snapshot)}", *missing_targets),
        fixes=(_USE_FUSED_LOSS,) if lacks_loss else (),
    )


def _transformers_version(snapshot: Snapshot) -> str:
    package = snapshot.package("transformers")
    return package.value.version if isinstance(package, Known) else "?"


_USE_FUSED_LOSS = Fix(
    "patch the forward pass instead of the loss class",
    "setting",
    "fused_linear_cross_entropy=True, cross_entropy=False",
)
RULE = Rule("ATN151", "warning", check, needs=frozenset({"liger"}))
