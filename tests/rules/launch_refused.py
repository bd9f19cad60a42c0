"""Cases for ATN441."""

from tests.objecting import cases

FIRES, SILENT, says = cases("refuses", "packing_samples must be enabled")
