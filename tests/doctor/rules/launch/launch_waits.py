"""Cases for ATN446."""

from tests.doctor.rules.launch.refused_jobs import cases

FIRES, SILENT, says = cases("waits", "Ray waits for a placement")
