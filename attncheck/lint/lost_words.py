"""Reports the settings that a launch loses through a broken line continuation: they do nothing, or end the script."""

from dataclasses import replace

from attncheck.core.job import Job, SettingProblem
from attncheck.core.launch import Launch

MAX_SHOWN = 6
EVIDENCE = "bash(1), QUOTING: only a backslash right before the end of the line continues it"


def add_lost_words(job: Job, launch: Launch) -> Job:
    """Return the job with the problem that the words after a broken continuation form another command."""
    if not launch.lost:
        return job
    program = launch.words[:1]  # also lost, if a launcher has none
    names = [word.text for word in launch.lost if word.text[:1] in "-+~" or "=" in word.text or word in program]
    shown = ", ".join(names[:MAX_SHOWN]) + (f" and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else "")
    location = launch.lost[0].location
    line = max((word.location.line for word in launch.whole if word.location.line < location.line), default=0)
    text = f"the command ends at line {line}, so the following words are not passed to it: {shown}"
    advice = f"end line {line} with a backslash and nothing after it, and keep comments out of the command"
    problem = SettingProblem("ignores", text, (EVIDENCE,), location, advice=advice, universal=True)
    return replace(job, problems=(*job.problems, problem))
