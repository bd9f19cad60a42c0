"""attncheck probe: collect a snapshot and print it."""

from __future__ import annotations

from attncheck.cli.commands import EXAMINING, Command
from attncheck.cli.measuring import collect_lanes
from attncheck.cli.options import Lanes, Model, Online, Python, Timeout
from attncheck.cli.output import write_stdout
from attncheck.cli.settings import resolve_policy, select_interpreter


def probe(
    model: Model = None, python: Python = None, lane: Lanes = None, timeout: Timeout = None, online: Online = False
) -> None:
    """Print what was seen as JSON, to be judged elsewhere.

    `attncheck doctor --facts` judges it.
    """
    from attncheck.core import codec
    from attncheck.core.outgoing import mask

    snapshot = collect_lanes(select_interpreter(python), lane or (), model, online, resolve_policy(timeout=timeout))
    write_stdout(codec.dumps(mask(snapshot)) + "\n", "json")


COMMAND = Command(probe, EXAMINING, 2)
