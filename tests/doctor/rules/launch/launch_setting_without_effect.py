"""Cases for ATN443."""

from tests.doctor.rules.launch.refused_jobs import consequence_cases

FIRES, SILENT, says = consequence_cases("ignores", "the switch sets a global that has gone")
