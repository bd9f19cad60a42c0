"""Cases for ATN444."""

from tests.objecting import cases

FIRES, SILENT, says = cases("wrong", "documents share recurrent state")
