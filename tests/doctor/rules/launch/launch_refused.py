"""Cases for ATN441."""

from tests.doctor.rules.launch.refused_jobs import cases

FIRES, SILENT, says = cases("refuses", "packing_samples must be enabled")
