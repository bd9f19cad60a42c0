"""attncheck baseline: record the gate's current findings."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from attncheck.cli.commands import GATING, Command
from attncheck.cli.parts import (
    CLEAN,
    POLICY,
    Interrupted,
    OutputOptions,
    PolicyOptions,
    Python,
    RuleOptions,
    Unanswered,
    Verbose,
    make_execution_target,
    make_report_writer,
    option,
    print_message,
    resolve_gate_policy,
    select_interpreter,
    with_progress,
)
from attncheck.gate.policy import POLICY_FILE, load_policy

if TYPE_CHECKING:
    from attncheck.gate.policy import Policy

DEFAULT_FILE = "attncheck-baseline.json"
File = Annotated[
    str | None,
    option(
        POLICY,
        "--baseline",
        metavar="FILE",
        help=f"Write the findings to this file. Default: the policy's `baseline`, otherwise {DEFAULT_FILE}.",
    ),
]


def baseline(
    options: PolicyOptions,
    rules: RuleOptions,
    output: OutputOptions,
    baseline: File = None,
    python: Python = None,
    verbose: Verbose = False,
) -> None:
    """Record the current findings, so that only new ones fail."""
    from attncheck.gate import run as gate
    from attncheck.gate.baseline import record_baseline
    from attncheck.gate.dates import today

    policy = resolve_gate_policy(options, output, rules, baseline)
    path = policy.baseline or DEFAULT_FILE
    writer = make_report_writer(output)
    policy = replace(policy, baseline="", fail_on="never")
    target = make_execution_target(select_interpreter(python), policy.device, policy)
    report = with_progress(lambda report_progress: gate.run(policy, target, report_progress))
    code = gate.exit_code(report, policy)
    writer.write(replace(report, exit_code=code), verbose)
    if code == Interrupted.exit_code:
        raise Interrupted(f"interrupted; {path} was not written")
    if code != CLEAN:
        raise Unanswered(f"{path} was not written: a check gave no result, so its findings are unknown")
    change = record_baseline(report, path, today())
    count = f"{change.entries} finding{'s' * (change.entries != 1)}"
    print_message(f"{path}: {count}, {change.new} of them new; {change.gone} removed")
    print_message(f"attncheck gate reads it: {describe_reading(path, load_policy(Path.cwd()))}")


def describe_reading(path: str, policy: "Policy") -> str:
    """Return how a gate finds the baseline in `path`: the policy already names it, or a line must be added."""
    if policy.baseline and os.path.realpath(policy.baseline) == os.path.realpath(path):
        return f"{policy.file} names it"
    file = policy.file or POLICY_FILE
    if policy.file and not os.path.exists(policy.file.split()[0]):  # the policy is in a folder above this one
        path = os.path.abspath(path)
    return f"with this line in {file}, or by --baseline: baseline = {json.dumps(path, ensure_ascii=False)}"


COMMAND = Command(baseline, GATING, 16, examples=("baseline", "baseline --level 1"))
