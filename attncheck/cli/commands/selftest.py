"""attncheck selftest: prove that the checks detect faults."""

import sys
from typing import Annotated

from attncheck.cli.commands import ABOUT, Command
from attncheck.cli.parts import (
    EXAMINE,
    Device,
    ListFormat,
    Python,
    check_choice,
    complete_faults,
    option,
    print_selection,
    select_interpreter,
    with_progress,
    write_text,
)
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
List = Annotated[bool, option(EXAMINE, "--list", help="List the faults, and run nothing.")]
Deadline = Annotated[
    float,
    option(
        EXAMINE, "--timeout", min=1, metavar="SECONDS", help="Stop one check after this many seconds. Default: 150."
    ),
]


def selftest(
    inject: Inject = None,
    list: List = False,
    python: Python = None,
    device: Device = "auto",
    timeout: Deadline = 150.0,
    format: ListFormat = "text",
) -> None:
    """Inject known faults, and show that the checks catch them.

    Runs in throwaway folders; the environment is not changed.
    """
    from attncheck.selftest import run as selftest
    from attncheck.selftest import table

    check_choice("--format", format, ("text", "json"))
    check_choice("--device", device, ("auto", "cpu", "cuda"))
    codes = tuple(code for code in inject or () if code.lower() != "all")
    if list:
        write_text(table.list_faults(selftest.select_faults(codes), format), format)
        return
    interpreter = select_interpreter(python)
    print_selection(interpreter)
    examined = interpreter.python
    result = clean(
        with_progress(lambda report_progress: selftest.run(codes, examined, device, timeout, report_progress))
    )
    write_text(table.as_json(result) if format == "json" else table.as_text(result), format)
    sys.exit(result.exit_code)


COMMAND = Command(selftest, ABOUT, 19, examples=("selftest --list", "selftest --inject ATN102"))
