"""The backends: frozen records, one `BACKEND` per file, or `BACKENDS` of one package with the same kind of call.

A file imports neither torch nor its package at the top. It reports whether the package is installed, refuses
unsupported cases with a reason, and imports only when it runs. A plugin's backends (an entry point in the group
"attncheck.backends" whose value is the module) need one import:

from attncheck.attention.backends import Backend, Case, Device, Installed, Outputs, Refused
"""

import sys
from functools import cache

from attncheck.attention.backend import Backend, Device, Installed, Outputs, Refused, SinksArgument, defer
from attncheck.core import registry
from attncheck.core.cases import Case

__all__ = ["Backend", "Case", "Device", "Installed", "Outputs", "Refused", "SinksArgument", "defer"]


@cache
def load() -> tuple[dict[str, Backend], tuple[registry.Broken, ...]]:
    """Return the backends of attncheck and its plugins by name, and those that could not be loaded."""
    extensions, broken = registry.load(sys.modules[__name__], "attncheck.backends")
    records = registry.list_records(extensions, "BACKEND", Backend)
    return {record.name: record for record in sorted(records, key=lambda record: record.name)}, tuple(broken)
