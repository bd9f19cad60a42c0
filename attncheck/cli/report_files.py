"""Reads reports that attncheck wrote as JSON, and merges those about one environment."""

from collections.abc import Mapping, Sequence

from attncheck.core.io.errors import BadUsage
from attncheck.core.io.files import read_named
from attncheck.core.report import MERGED_COMMAND, Report, merge_reports
from attncheck.core.snapshot import Known, Snapshot
from attncheck.report import document

MAX_BYTES = 256 << 20  # a full suite's parity on every backend is about 50 MB
# the properties by which two environments are compared
PLACES = ("Python", "torch", "driver", "GPUs", "model", "packages")


def read_reports(paths: Sequence[str]) -> Report:
    """Return the report in a file ("-": standard input), or several reports as one. Raises `BadUsage`."""
    reports = [read_report(path) for path in paths]
    for path, report in zip(paths[1:], reports[1:]):
        place = _find_difference(reports[0].snapshot, report.snapshot)
        if place:
            raise BadUsage(
                f"{paths[0]} and {path} describe different environments ({place}): write one report for each"
            )
    if len(reports) == 1:
        return reports[0]
    return merge_reports(MERGED_COMMAND, max((report.snapshot for report in reports), key=_count_known), reports)


def read_report(path: str) -> Report:
    """Return the report in a file ("-": standard input). Raises `BadUsage` if it is not a report."""
    data = read_named(path, MAX_BYTES)
    try:
        return document.loads(data.decode("utf-8"))
    except ValueError as error:  # BadDocument and UnicodeDecodeError
        raise BadUsage(f"{path} is not a report written by attncheck (--output json=FILE): {error}") from None


def _find_difference(first: Snapshot, second: Snapshot) -> str:
    """Return how two snapshots differ in facts that both know; "" if they may describe the same environment."""
    ours, others = _describe_snapshot(first), _describe_snapshot(second)
    for place in PLACES:
        if place in ours and place in others and ours[place] != others[place]:
            return f"{place}: {ours[place]}; {others[place]}" if place != "packages" else "other packages"
    return ""


def _describe_snapshot(snapshot: Snapshot) -> Mapping[str, str]:
    """Return the properties of a snapshot that affect measurements."""
    host = snapshot.host
    known = {"Python": f"{host.python_version} at {host.executable}"}
    if isinstance(snapshot.torch, Known):
        known["torch"] = snapshot.torch.value.version
    if isinstance(snapshot.driver, Known):
        known["driver"] = snapshot.driver.value.version
    if isinstance(snapshot.devices, Known):
        known["GPUs"] = ", ".join(device.name for device in snapshot.devices.value)
    if isinstance(snapshot.model, Known):
        known["model"] = snapshot.model.value.source
    if snapshot.distributions:
        known["packages"] = " ".join(sorted(f"{package.name}=={package.version}" for package in snapshot.distributions))
    return known


def _count_known(snapshot: Snapshot) -> int:
    """Return the number of facts that a snapshot knows, because it lacks the results of lanes that were not run."""
    return sum(isinstance(fact, Known) for fact in vars(snapshot).values())
