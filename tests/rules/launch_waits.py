"""Cases for ATN446."""

from tests.objecting import cases

FIRES, SILENT, says = cases("waits", "Ray waits for a placement")
