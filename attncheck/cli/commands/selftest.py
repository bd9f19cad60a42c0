"""attncheck selftest: prove that the checks can fail."""

from __future__ import annotations

import sys
from typing import Annotated

from attncheck.cli.commands import ABOUT, Command
from attncheck.cli.completion import complete_faults
from attncheck.cli.options import EXAMINE, Device, ListFormat, Python, option
from attncheck.cli.output import write_text
from attncheck.cli.progress import with_progress
from attncheck.cli.settings import check_choice, print_selection, select_interpreter
from attncheck.core.io.errors import BadUsage
from attncheck.core.io.outgoing import clean

Inject = Annotated[
    list[str] | None,
    option(
        EXAMINE,
        "--inject",
        metavar="CODE",
        help="Inject only faults that must raise this code. Repeat for several. Default: all.",
        autocompletion=complete_faults,
    ),
]
List = Annotated[
    bool, option(EXAMINE, "--list", help="List the faults, and the codes that none covers, and run nothing.")
]
Deadline = Annotated[
    float,
    option(
        EXAMINE, "--timeout", min=1, metavar="SECONDS", help="Stop one check after this many seconds. Default: 150."
    ),
]
Pairs = Annotated[
    bool,
    option(
        EXAMINE,
        "--pairs",
        help="Plant two faults at a time, and show that neither hides the other. Default: one at a time.",
    ),
]
Sample = Annotated[
    int | None,
    option(EXAMINE, "--sample", min=1, metavar="N", help="Plant only this many pairs, chosen at random. Default: all."),
]
Seed = Annotated[
    int, option(EXAMINE, "--seed", min=0, metavar="N", help="Choose the pairs of --sample by this seed. Default: 0.")
]


def selftest(
    inject: Inject = None,
    list: List = False,
    pairs: Pairs = False,
    sample: Sample = None,
    seed: Seed = 0,
    python: Python = None,
    device: Device = "auto",
    timeout: Deadline = 150.0,
    format: ListFormat = "text",
) -> None:
    """Plant known faults and show the checks firing.

    In throwaway places; the environment stays as it is.
    """
    from attncheck.selftest import run as selftest
    from attncheck.selftest import table

    check_choice("--format", format, ("text", "json"))
    check_choice("--device", device, ("auto", "cpu", "cuda"))
    if sample is not None and not pairs:
        raise BadUsage("--sample chooses among pairs of faults; add --pairs")
    codes = tuple(code for code in inject or () if code.lower() != "all")
    if list:
        write_text(table.list_faults(selftest.select_faults(codes), selftest.uncovered_rules(), format), format)
        return
    interpreter = select_interpreter(python)
    print_selection(interpreter)
    examined = interpreter.python
    if pairs:
        from attncheck.selftest.pairs import run_pairs

        pairs_result = clean(
            with_progress(lambda report_progress: run_pairs(codes, sample, seed, examined, timeout, report_progress))
        )
        write_text(table.as_json(pairs_result) if format == "json" else table.pairs_as_text(pairs_result), format)
        sys.exit(pairs_result.exit_code)
    result = clean(
        with_progress(lambda report_progress: selftest.run(codes, examined, device, timeout, report_progress))
    )
    write_text(table.as_json(result) if format == "json" else table.as_text(result), format)
    sys.exit(result.exit_code)


COMMAND = Command(selftest, ABOUT, 17, examples=("selftest --list", "selftest --inject ATN140"))
