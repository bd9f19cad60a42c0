"""Cases for ATN442."""

from tests.doctor.rules.launch.refused_jobs import consequence_cases

FIRES, SILENT, says = consequence_cases("replaces", "puts flash_attention_2 in place")
