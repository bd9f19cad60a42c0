"""Cases for ATN443."""

from tests.objecting import cases

FIRES, SILENT, says = cases("ignores", "the switch sets a global that has gone")
