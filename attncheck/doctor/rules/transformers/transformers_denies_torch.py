"""transformers behaves as if torch were not installed.

What it checks: whether transformers' `is_torch_available()` is False although torch can be imported. Without the
import lane, whether USE_TORCH or USE_TF switches torch off in a transformers that reads them (4.x).

Why it matters: transformers prints "None of PyTorch, TensorFlow >= 2.0, or Flax have been found. Models won't be
available", and every model class becomes a placeholder that raises.

What to do: unset the variable.

Source: transformers 4.57.6 `utils/import_utils.py` (USE_TORCH must be one of 1, ON, YES, TRUE, AUTO and USE_TF none of
the first four); transformers 5.17.0 does not read them. A torch that is too old is ATN155.
"""

from attncheck.doctor.fixes import install
from attncheck.doctor.knowledge.transformers import TRUE_VALUES
from attncheck.doctor.queries import can_import, need_torch
from attncheck.doctor.rules import Known, Problem, Problems, Rule, Snapshot, Version, need, only_if
from attncheck.doctor.rules.transformers import transformers_needs_newer_torch


@only_if(Snapshot.has, "transformers")
def check(snapshot: Snapshot) -> Problems:
    need_torch(snapshot)
    version = need(snapshot.version("transformers"), "transformers' version")
    switches = _disabling_variables(snapshot) if version < Version("5.0") else []
    answers = snapshot.interfaces.value.availability if isinstance(snapshot.interfaces, Known) else {}
    torch_available = answers.get("is_torch_available")
    denied = torch_available is False and can_import(snapshot, "torch")
    if not denied and (torch_available is True or not switches):
        return
    if denied and not switches and any(transformers_needs_newer_torch.check(snapshot)):
        return
    evidence = (
        "import lane: is_torch_available() says False"
        if denied
        else "static lane: this transformers reads the variable"
    )
    yield Problem(
        message=f"transformers {version} behaves as if torch were not installed"
        + (f": {' and '.join(switches)}" if switches else ""),
        subject=f"transformers {version}",
        evidence=(evidence, *(f"environment: {switch}" for switch in switches)),
        fixes=tuple(install.unset_variable(switch.partition("=")[0]) for switch in switches),
    )


def _disabling_variables(snapshot: Snapshot) -> list[str]:
    """Return the variables, as "NAME=value", that switch torch off."""
    environ = snapshot.environ
    off = []
    if environ.get("USE_TORCH", "AUTO").upper() not in (*TRUE_VALUES, "AUTO"):
        off.append(f"USE_TORCH={environ['USE_TORCH']}")
    if environ.get("USE_TF", "AUTO").upper() in TRUE_VALUES:
        off.append(f"USE_TF={environ['USE_TF']}")
    return off


RULE = Rule("ATN165", "error", check)
