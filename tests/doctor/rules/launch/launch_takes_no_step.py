"""Cases for ATN445."""

from tests.doctor.rules.launch.refused_jobs import cases

FIRES, SILENT, says = cases("no_step", "a rollout holds less than a step needs")
