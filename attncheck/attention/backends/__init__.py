"""The backends: frozen records, one `BACKEND` a file, or `BACKENDS` of one package that are called alike.

A file imports neither torch nor the package that it is about: it says whether that is installed, refuses the cases it
does not take, with the reason, and imports only where it runs. Backends of a plugin (an entry point in the group
"attncheck.backends", whose value is the module) need one import:

    from attncheck.attention.backends import Backend, Case, Device, Installed, Outputs, Refused
"""

import sys
from functools import cache

from attncheck.attention.backend import Backend, Device, Installed, Outputs, Refused
from attncheck.core import registry
from attncheck.core.cases import Case

__all__ = ["Backend", "Case", "Device", "Installed", "Outputs", "Refused"]


@cache
def load() -> tuple[dict[str, Backend], tuple[registry.Broken, ...]]:
    """Return the backends that attncheck itself and its plugins bring, by name, and what could not be loaded."""
    extensions, broken = registry.load(sys.modules[__name__], "attncheck.backends")
    modules = [extension.module for extension in extensions]
    records = [
        record
        for module in modules
        for record in (getattr(module, "BACKEND", None), *getattr(module, "BACKENDS", ()))
        if isinstance(record, Backend)
    ]
    return {record.name: record for record in sorted(records, key=lambda record: record.name)}, tuple(broken)
