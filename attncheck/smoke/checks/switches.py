"""Compares a plan's features on and off: gradient checkpointing, torch.compile, liger and each of its patches."""

from collections.abc import Iterator
from dataclasses import replace

from attncheck.smoke.checks import Change, CheckResult, Plan, SmokeCheck, deciding_reason


def make_check(
    name: str, title: str, code: str, order: int, field: str, switch: str, setting: str, failure: str
) -> SmokeCheck:
    """Return the check of a plan's `field`; `setting` turns it off, `failure` is the finding's first words."""

    def propose_changes(plan: Plan, result: CheckResult) -> Iterator[Change]:
        if getattr(plan, field):
            yield Change(f"train without {switch}", "setting", setting, replace(plan, **{field: False}))  # type: ignore[arg-type]

    return SmokeCheck(
        name=name,
        title=title,
        code=code,
        order=order,
        applies=lambda plan: "" if getattr(plan, field) else f"the plan does not use {switch}",
        worker=f"attncheck.smoke.worker.checks.{name}:run",
        message=lambda result: f"{failure}: {deciding_reason(result)}",
        changes=propose_changes,
        names_errors=True,
    )


CHECKS = (
    make_check(
        name="liger",
        title="liger computes the same as the model",
        code="ATN341",
        order=50,
        field="liger",
        switch="liger",
        setting="use_liger_kernel=False",
        failure="liger-kernel changes this model's results",
    ),
    make_check(
        name="checkpointing",
        title="gradient checkpointing changes nothing but memory",
        code="ATN343",
        order=60,
        field="gradient_checkpointing",
        switch="gradient checkpointing",
        setting="gradient_checkpointing=False",
        failure="gradient checkpointing does not do what it should",
    ),
    make_check(
        name="compiled",
        title="torch.compile changes nothing but speed",
        code="ATN344",
        order=65,
        field="compile",
        switch="torch.compile",
        setting="torch_compile=False",
        failure="torch.compile changes this model's results",
    ),
)
