"""Cases for ATN445."""

from tests.doctor.rules.launch.refused_jobs import consequence_cases

FIRES, SILENT, says = consequence_cases("no_step", "a rollout holds less than a step needs")
