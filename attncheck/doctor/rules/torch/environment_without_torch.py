"""The examined environment has no torch, so it has no attention to check.

What it checks: whether torch is in the examined environment, if neither the profile nor an installed package requires
it. (If one does, that is ATN101.) A target (`--target`) and a launch (`attncheck lint`) are not judged by this rule.

Why it matters: it is usually the wrong environment. attncheck from pipx or `uv tool install` has its own environment
without torch, and "no problems" there says nothing about the one that trains.

What to do: name the interpreter of the training environment with `--python PATH`, or activate it. VIRTUAL_ENV and
CONDA_PREFIX are followed if attncheck's own environment has no package of the training stack. If this is the
environment that should train, install torch. To check only devices, on a node without Python packages, use `--select
ATN2`.

Source: `attncheck.doctor.probes.interpreter`; the layout of pipx and uv tools,
https://pipx.pypa.io/stable/how-pipx-works/ and https://docs.astral.sh/uv/concepts/tools/."""

from collections.abc import Iterator

from attncheck.doctor.fixes.torch import install_torch
from attncheck.doctor.queries.packages import can_import
from attncheck.doctor.rules import Absent, Fix, Problem, Problems, Rule, Snapshot
from attncheck.doctor.rules.torch.torch_missing import RULE as TORCH_MISSING


def check(snapshot: Snapshot) -> Problems:
    is_target = bool(snapshot.gaps.reason)
    if is_target or not isinstance(snapshot.torch, Absent) or snapshot.has("torch") or can_import(snapshot, "torch"):
        return
    selection = snapshot.host.selection
    reason = f", {selection.reason}" if selection.reason else ""
    yield Problem(
        message=f"torch is not installed in the examined environment: {snapshot.host.executable}{reason}",
        subject="torch",
        evidence=(f"static lane: {snapshot.torch.reason or 'no torch'}", *selection.passed_over),
        fixes=tuple(_iter_fixes(snapshot)),
    )


def _iter_fixes(snapshot: Snapshot) -> Iterator[Fix]:
    yield Fix("name the interpreter of the training environment", "advice", "attncheck doctor --python PATH")
    # attncheck's own virtual environment, not activated, is made by pipx or `uv tool`
    if not (snapshot.host.selection.selected_by == "own" and snapshot.host.virtual_environment):
        yield install_torch(snapshot)


RULE = Rule("ATN100", "error", check, unless=frozenset({*TORCH_MISSING.needs, "job"}))
