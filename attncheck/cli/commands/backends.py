"""attncheck backends: list the attention backends of this environment."""

from attncheck.cli.commands import MEASURING, Command
from attncheck.cli.parts import (
    Device,
    ListFormat,
    Python,
    Timeout,
    check_choice,
    make_execution_target,
    print_selection,
    resolve_policy,
    select_interpreter,
    with_progress,
    write_text,
)
from attncheck.core.io.outgoing import clean


def backends(
    python: Python = None, device: Device = "auto", format: ListFormat = "text", timeout: Timeout = None
) -> None:
    """List the backends: which run here, and why the others do not."""
    from attncheck.measure import available

    check_choice("--format", format, ("text", "json"))
    interpreter = select_interpreter(python)
    print_selection(interpreter)
    target = make_execution_target(interpreter, device, resolve_policy(timeout=timeout))
    states = clean(with_progress(lambda report_progress: available.probe_backends(target, report_progress)))
    write_text(available.format_json(states) if format == "json" else available.format_text(states), format)


COMMAND = Command(backends, MEASURING, 12, examples=("backends", "backends --format json"))
