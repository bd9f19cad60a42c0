"""Cases for ATN444."""

from tests.doctor.rules.launch.refused_jobs import consequence_cases

FIRES, SILENT, says = consequence_cases("wrong", "documents share recurrent state")
