"""Cases for ATN442."""

from tests.objecting import cases

FIRES, SILENT, says = cases("replaces", "puts flash_attention_2 in place")
