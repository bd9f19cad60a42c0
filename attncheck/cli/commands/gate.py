"""attncheck gate: run the policy's checks in order."""

import os
import sys
from dataclasses import replace

from attncheck.cli.commands import GATING, Command
from attncheck.cli.parts import (
    Baseline,
    OutputOptions,
    PolicyOptions,
    Python,
    RuleOptions,
    Verbose,
    make_execution_target,
    make_report_writer,
    print_message,
    resolve_gate_policy,
    select_interpreter,
    with_progress,
)


def gate(
    options: PolicyOptions,
    rules: RuleOptions,
    output: OutputOptions,
    baseline: Baseline = None,
    python: Python = None,
    verbose: Verbose = False,
) -> None:
    """Run the policy's checks: one report, one exit code.

    The checks run in order and within the policy's budget.

    The policy is attncheck.toml or [tool.attncheck] in pyproject.toml. Options take precedence.
    """
    from attncheck.gate import run as gate

    policy = resolve_gate_policy(options, output, rules, baseline)
    writer = make_report_writer(output)
    policy_file = os.path.relpath(policy.path) if policy.path else "not found, using default settings"
    if output.format == "text":
        print_message(f"attncheck: policy file {policy_file}")
    target = make_execution_target(select_interpreter(python), policy.device, policy)
    report = with_progress(lambda report_progress: gate.run(policy, target, report_progress))
    code = gate.exit_code(report, policy)
    writer.write(replace(report, exit_code=code), verbose)
    sys.exit(code)


COMMAND = Command(
    gate,
    GATING,
    13,
    examples=("gate", "gate --level 1 --launch train.sh", "gate --output html=gate.html"),
    most_used=("--level", "--launch", "--model", "--budget", "--fail-on"),
)
