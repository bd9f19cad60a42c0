"""Queries for rules about rollouts: whether a launch corrects for the ratio of trainer to rollout engine."""

from packaging.version import InvalidVersion, Version

from attncheck.core.job import Job

# Words in the names of the settings that enable the correction: verl's, OpenRLHF's, TRL's and ms-swift's.
SWITCHES = (
    *("rollout_is", "is_correction", "bypass_mode"),
    *("importance_sampling_correction", "rollout_importance_sampling_mode"),
)
OFF = ("null", "none", "false", "off", "no", "0")
ON_BY_DEFAULT = {"trl": "0.23"}  # trl 0.23.0 and 1.16.0, trainer/grpo_config.py


def weighs_by_rollout(job: Job) -> bool:
    """Return whether the launch, or its framework by default, weights samples by rollout log-probabilities."""
    written = {setting.name.lstrip("-+"): setting.value.lower() for setting in job.settings}
    switches = {name: value for name, value in written.items() if any(word in name for word in SWITCHES)}
    if switches:
        return any(value not in OFF for value in switches.values())
    since = ON_BY_DEFAULT.get(job.framework)
    return since is not None and is_between(job.version, since)


def is_between(version: str, since: str, until: str = "") -> bool:
    """Return whether `version` is a version between `since` and `until`, both included ("": no upper end)."""
    try:
        return Version(since) <= Version(version) and (not until or Version(version) <= Version(until))
    except InvalidVersion:
        return False
