"""attncheck gate: run the policy's checks in order."""

from __future__ import annotations

import sys
from dataclasses import replace

from attncheck.cli.app import GATING, Command
from attncheck.cli.options import Baseline, OutputOptions, PolicyOptions, Python, RuleOptions, Verbose
from attncheck.cli.output import report_writer
from attncheck.cli.progress import with_progress
from attncheck.cli.settings import execution_target, load_policy
from attncheck.core.errors import CLEAN, UNANSWERED


def gate(
    policy: PolicyOptions,
    rules: RuleOptions,
    output: OutputOptions,
    baseline: Baseline = None,
    python: Python = None,
    verbose: Verbose = False,
) -> None:
    """Run the policy's checks: one report, one exit code.

    They run in order and within its budget.

    The policy is attncheck.toml or [tool.attncheck] in pyproject.toml; options win over it.
    """
    from attncheck.gate import run as gate

    config = load_policy(policy, output, rules, baseline)
    writer = report_writer(output)
    where = execution_target(python, config.device, config)
    report = with_progress(lambda report_progress: gate.run(config, where, report_progress))
    code = gate.exit_code(report, config)
    complete = writer.write(replace(report, exit_code=code), verbose)
    sys.exit(UNANSWERED if code == CLEAN and not complete else code)


COMMAND = Command(gate, GATING, 9)
