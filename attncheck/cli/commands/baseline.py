"""attncheck baseline: record what the gate finds today."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from attncheck.cli.commands import GATING, Command
from attncheck.cli.options import POLICY, OutputOptions, PolicyOptions, Python, RuleOptions, Verbose, option
from attncheck.cli.output import make_report_writer
from attncheck.cli.progress import with_progress
from attncheck.cli.settings import make_execution_target, resolve_gate_policy
from attncheck.core.errors import CLEAN, Unanswered
from attncheck.core.streams import print_message

DEFAULT_FILE = "attncheck-baseline.json"
File = Annotated[
    str | None,
    option(POLICY, "--baseline", metavar="FILE", help=f"The file to write. Default: the policy's, {DEFAULT_FILE}."),
]


def baseline(
    options: PolicyOptions,
    rules: RuleOptions,
    output: OutputOptions,
    baseline: File = None,
    python: Python = None,
    verbose: Verbose = False,
) -> None:
    """Record today's findings, so that only new ones fail."""
    from attncheck.gate import run as gate
    from attncheck.gate.baseline import record_baseline
    from attncheck.gate.dates import today

    policy = resolve_gate_policy(options, output, rules, baseline)
    path = policy.baseline or DEFAULT_FILE
    writer = make_report_writer(output)
    policy = replace(policy, baseline="", fail_on="never")
    target = make_execution_target(python, policy.device, policy)
    report = with_progress(lambda report_progress: gate.run(policy, target, report_progress))
    code = gate.exit_code(report, policy)
    writer.write(replace(report, exit_code=code), verbose)
    if code != CLEAN:
        raise Unanswered(f"{path} was not written: a check gave no answer, and what it would find is not known")
    change = record_baseline(report, path, today())
    print_message(f"{path}: {change.entries} findings, {change.new} of them new; {change.gone} are gone")


COMMAND = Command(baseline, GATING, 11)
