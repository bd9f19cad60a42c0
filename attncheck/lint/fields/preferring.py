"""Shared by scaled-down launches that train on preference pairs: the loss of a pair, from a job's settings."""

import re
from dataclasses import replace

from attncheck.core.job import Job
from attncheck.core.preferences import FREE_LOSSES, PREFERENCE_LOSSES, Preference
from attncheck.core.rehearsal import Objective
from attncheck.lint.fields.rehearsing import LEARNING_RATE, get_setting, is_number

# These drive a sum of log-probabilities to a target number; with larger steps it jumps back and forth across it.
TARGETED_LOSSES = ("ipo_of_sums", "sppo_hard")
TARGETED_LEARNING_RATE = "0.0001"
Numbers = tuple[str | None, float]  # a setting's text, and the value if it is not written


def read_preference(
    loss: str, beta: Numbers, label_smoothing: Numbers = (None, 0.0), chosen_weight: Numbers = (None, 0.0)
) -> Preference | str:
    """Return a pair's loss, or the reason it is not rehearsed. Several losses may be in a list."""
    names = [name for name in re.split(r"[\s,\[\]'\"]+", loss) if name]
    if len(names) != 1 or names[0] not in PREFERENCE_LOSSES:
        known = ", ".join(PREFERENCE_LOSSES)
        return f"the loss {' + '.join(names) or loss} is not rehearsed: only a single loss can be, one of {known}"
    texts = (beta[0], label_smoothing[0], chosen_weight[0])
    try:
        numbers = [float(text) if text else default for text, default in (beta, label_smoothing, chosen_weight)]
    except ValueError:
        return f"beta, label smoothing and the weight of the chosen answers' loss must be numbers: {texts}"
    name = next(known for known in PREFERENCE_LOSSES if known == names[0])
    preference = Preference(name, numbers[0], numbers[1], chosen_weight=numbers[2])
    if not numbers[0] or not any((preference.slopes.chosen, preference.slopes.rejected)):
        return f"the loss {name} with beta {numbers[0]:g} and label smoothing {numbers[1]:g} has no gradient"
    return preference


def drop_reference(preference: Preference | str, gamma: str = "") -> Preference | str:
    """Return a pair's loss without a reference, or the reason it is not rehearsed."""
    if isinstance(preference, str) or preference.loss not in FREE_LOSSES:
        return preference if isinstance(preference, str) else f"{preference.loss} is not known without a reference"
    if not is_number(gamma or "0"):
        return f"the margin {gamma} must be a number"
    return replace(preference, has_reference=False, gamma=float(gamma or 0) if preference.loss == "simpo" else 0.0)


def make_objective(preference: Preference, source: str) -> Objective:
    """Return the objective of a job that learns answers from pairs."""
    return Objective("assistant", source=source, preference=preference)


def choose_learning_rate(objective: Objective) -> str:
    """Return a learning rate at which the small model learns an objective in tens of steps."""
    preference = objective.preference
    is_targeted = preference is not None and preference.loss in TARGETED_LOSSES
    return TARGETED_LEARNING_RATE if is_targeted else LEARNING_RATE


def list_other_references(job: Job, name: str) -> tuple[str, ...]:
    """Return the remark that the reference differs from the trained model, while the rehearsal uses one for both."""
    reference = get_setting(job, name) or ""
    if not reference or reference == job.model:
        return ()
    return (
        f"the reference {reference} ({name}) is not {job.model or 'the model'}: the rehearsal uses the same small "
        f"model",
    )
