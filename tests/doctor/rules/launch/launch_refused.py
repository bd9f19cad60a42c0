"""Cases for ATN441."""

from tests.doctor.rules.launch.refused_jobs import consequence_cases

FIRES, SILENT, says = consequence_cases("refuses", "packing_samples must be enabled")
