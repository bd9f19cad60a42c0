"""attncheck schema: print the JSON schema of reports, or of the policy."""

import json
from typing import Annotated

import typer

from attncheck.cli.commands import ABOUT, Command
from attncheck.cli.completion import complete_from
from attncheck.cli.output import write_stdout
from attncheck.core.io.errors import BadUsage

DOCUMENTS = ("report", "policy")
Document = Annotated[
    str,
    typer.Argument(
        metavar="DOCUMENT",
        show_default=False,
        help="Print the schema of this document: report (`--format json`) or policy (attncheck.toml). Default: report.",
        autocompletion=complete_from(DOCUMENTS),
    ),
]


def schema(document: Document = "report") -> None:
    """Print the JSON schema of `--format json`, or of the policy.

    The report's is draft 2020-12, the policy's draft-07, which editors read.
    """
    if document not in DOCUMENTS:
        raise BadUsage(f"there is no schema of {document!r}; choose {' or '.join(DOCUMENTS)}")
    if document == "policy":
        from attncheck.gate.policy_schema import make_policy_schema as make_schema
    else:
        from attncheck.report.schema import make_report_schema as make_schema
    write_stdout(json.dumps(make_schema(), indent=2) + "\n", "json")


COMMAND = Command(schema, ABOUT, 22, examples=("schema", "schema policy"))
