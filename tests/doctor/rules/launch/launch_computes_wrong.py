"""Cases for ATN444."""

from tests.doctor.rules.launch.refused_jobs import cases

FIRES, SILENT, says = cases("wrong", "documents share recurrent state")
