"""Cases for ATN442."""

from tests.doctor.rules.launch.refused_jobs import cases

FIRES, SILENT, says = cases("replaces", "puts flash_attention_2 in place")
