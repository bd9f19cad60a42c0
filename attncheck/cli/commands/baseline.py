"""attncheck baseline: record what the gate finds today."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Annotated

from attncheck.cli.app import GATING, Command
from attncheck.cli.options import POLICY, OutputOptions, PolicyOptions, Python, RuleOptions, Verbose, option
from attncheck.cli.output import report_writer
from attncheck.cli.progress import with_progress
from attncheck.cli.settings import execution_target, load_policy
from attncheck.core.errors import CLEAN, Unanswered

DEFAULT_FILE = "attncheck-baseline.json"
File = Annotated[
    str | None,
    option(POLICY, "--baseline", metavar="FILE", help=f"The file to write. Default: the policy's, {DEFAULT_FILE}."),
]


def baseline(
    policy: PolicyOptions,
    rules: RuleOptions,
    output: OutputOptions,
    baseline: File = None,
    python: Python = None,
    verbose: Verbose = False,
) -> None:
    """Record today's findings, so that only new ones fail."""
    from attncheck.gate import baseline as baselines
    from attncheck.gate import run as gate
    from attncheck.gate.dates import today

    config = load_policy(policy, output, rules, baseline)
    path = config.baseline or DEFAULT_FILE
    writer = report_writer(output)
    config = replace(config, baseline="", fail_on="never")
    where = execution_target(python, config.device, config)
    report = with_progress(lambda report_progress: gate.run(config, where, report_progress))
    code = gate.exit_code(report, config)
    writer.write(replace(report, exit_code=code), verbose)
    if code != CLEAN:
        raise Unanswered(f"{path} was not written: a check gave no answer, and what it would find is not known")
    written = baselines.record(report, path, today())
    print(f"{path}: {written.entries} findings, {written.new} of them new; {written.gone} are gone", file=sys.stderr)


COMMAND = Command(baseline, GATING, 11)
