"""attncheck probe: collect and print a snapshot, or write the program that does."""

from typing import Annotated

from attncheck.cli.commands import EXAMINING, Command
from attncheck.cli.parts import (
    OUTPUT,
    BadUsage,
    Lanes,
    Model,
    Online,
    Python,
    Timeout,
    Unanswered,
    collect_lanes,
    fetch_documents,
    option,
    parse_lanes,
    resolve_policy,
    select_interpreter,
    write_stdout,
)

Standalone = Annotated[
    str | None,
    option(
        OUTPUT,
        "--standalone",
        metavar="FILE",
        help=(
            "Write the probe as one Python file instead (-: to standard output), for a machine on which nothing can be "
            "installed: `python FILE > facts.json` there. Default: probe here."
        ),
    ),
]


def probe(
    model: Model = None,
    python: Python = None,
    lane: Lanes = None,
    timeout: Timeout = None,
    online: Online = False,
    standalone: Standalone = None,
) -> None:
    """Print the facts about this environment as JSON.

    `attncheck doctor --facts` judges them, here or elsewhere.
    """
    from attncheck.core import codec
    from attncheck.core.io.outgoing import mask

    policy = resolve_policy(timeout=timeout)
    if standalone is not None:
        if python is not None:
            raise BadUsage("--standalone examines the Python that runs FILE; remove --python")
        _write_standalone(standalone, lane or [], model, online, policy.timeout)
        return
    snapshot = collect_lanes(select_interpreter(python), lane or (), model, online, policy)
    write_stdout(codec.dumps(mask(snapshot)) + "\n", "json")


def _write_standalone(file: str, lanes: list[str], model: str | None, online: bool, seconds: float) -> None:
    from attncheck.core.io.files import replace_file
    from attncheck.doctor.probes.standalone import render_probe

    text = render_probe(parse_lanes(lanes), model, fetch_documents(model) if online else None, seconds)
    if file == "-":
        write_stdout(text)
        return
    try:
        replace_file(file, text.encode("utf-8"), 0o755)
    except OSError as error:
        raise Unanswered(f"cannot write {file}: {error.strerror}") from None


COMMAND = Command(probe, EXAMINING, 2, examples=("probe > facts.json", "probe --standalone probe.py"))
