"""Cases for ATN446."""

from tests.doctor.rules.launch.refused_jobs import consequence_cases

FIRES, SILENT, says = consequence_cases("waits", "Ray waits for a placement")
