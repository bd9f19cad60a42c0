"""Cases for ATN443."""

from tests.doctor.rules.launch.refused_jobs import cases

FIRES, SILENT, says = cases("ignores", "the switch sets a global that has gone")
