"""Whether a launch that died in its rehearsal dies by its own doing: by settings of its own, not by a replacement."""

import json
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attncheck.core.io.files import CannotRead, read_bounded
from attncheck.core.job import DROP
from attncheck.core.rehearsal import JobCut
from attncheck.lint.fields.rehearsing import find_switches, get_option, get_setting
from attncheck.lint.rewriting import ReadLaunch
from attncheck.rehearsal.ending import CONSEQUENCE

MAX_BYTES = 64 << 10
MAX_NAMED = 4  # settings in the finding
# Settings that describe the machine, which is another one in a rehearsal.
OF_A_MACHINE = re.compile(
    r"cuda|gpu|cpu|device|rank|world_size|process|node|bf16|fp16|tf32|dtype|precision|deepspeed|fsdp|vllm|flash|compile"
    r"|attn|liger|ddp|tensor_parallel|data_parallel|pipeline|sequence_parallel|context_parallel"
)


@dataclass(frozen=True)
class LastError:
    """The exception that ended a process: its text, the place that raised it, and the settings that decided it."""

    text: str
    place: str
    reads: tuple[tuple[str, str, str], ...]  # name, value, "written" in the script, "default", or ""
    unknown: tuple[str, ...]  # what else may have decided it
    reads_rows: bool = False

    @property
    def line(self) -> str:
        """The text's first line."""
        return self.text.partition("\n")[0]


def read_first_error(folder: str) -> LastError | None:
    """Return the first exception that ended a process of the launch, but not because another had ended."""
    records: list[dict[str, Any]] = []
    for path in (Path(folder) / "watch").glob("last-error-*"):
        with suppress(CannotRead, OSError, ValueError):
            records.append(json.loads(read_bounded(path, MAX_BYTES)))
    try:
        records.sort(key=lambda record: (bool(CONSEQUENCE.search(record["text"])), record["time"]))
        errors = [
            LastError(
                str(record["text"]),
                str(record["place"]),
                tuple((str(name), str(value), str(origin)) for name, value, origin in record["reads"]),
                tuple(map(str, record["unknown"])),
                bool(record.get("reads_rows")),
            )
            for record in records[:1]
        ]
    except (KeyError, TypeError, ValueError):  # the launch can write there too
        return None
    return errors[0] if errors else None


def is_decided(error: LastError, read: ReadLaunch, cut: JobCut, real_data: bool) -> bool:
    """Return whether the launch's own settings decide an error, of which the rehearsal may have changed some."""
    cut_names = list_cut_names(read, cut)
    return (
        not error.unknown
        and (real_data or not error.reads_rows)
        and all(
            not OF_A_MACHINE.search(name) and (name in cut_names or _is_own(read, name, value, origin))
            for name, value, origin in error.reads
        )
    )


def list_cut_names(read: ReadLaunch, cut: JobCut) -> frozenset[str]:
    """Return the settings with other values than in the launch."""
    given = {**cut.sets, **{name.lstrip("-"): value for name, value in cut.options.items()}, **_read_settings(cut)}
    names = {name.replace("-", "_"): value for name, value in given.items()}
    return frozenset(
        name for name, value in names.items() if value not in (DROP, None) or _find_stated(read, name) is not None
    )


def restore(cut: JobCut, names: Collection[str]) -> JobCut:
    """Return the cut without these settings, which then have the launch's own values."""

    def keep(given: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in given.items() if name.lstrip("-").replace("-", "_") not in names}

    environ = dict(cut.environ)
    if "ATTNCHECK_SETTINGS" in environ:
        environ["ATTNCHECK_SETTINGS"] = json.dumps(keep(_read_settings(cut)))
    return replace(cut, sets=keep(cut.sets), options=keep(cut.options), environ=environ)


def describe_cause(error: LastError) -> str:
    """Return the settings that decide an error, for the finding's evidence."""
    origins = {"written": "written in the script", "default": "the default"}
    named = [f"{name}={value[:60]} ({origins.get(origin, 'in the launch')})" for name, value, origin in error.reads]
    cause = f"it depends only on {', '.join(named[:MAX_NAMED])}" if named else "it depends on no setting"
    return f"raised in {error.place}: {cause}"


def _read_settings(cut: JobCut) -> dict[str, Any]:
    return dict(json.loads(cut.environ.get("ATTNCHECK_SETTINGS", "{}")))


def _is_own(read: ReadLaunch, name: str, value: str, origin: str) -> bool:
    """Return whether a setting has the launch's value, or one that its script or its class gives it."""
    stated = _find_stated(read, name)
    return bool(origin) if stated is None else _normalise(stated) == _normalise(value)


def _find_stated(read: ReadLaunch, name: str) -> str | None:
    """Return the value of a setting in the launch, None if it does not state one."""
    launch = read.recognised.launch
    value = get_setting(read.job, name)
    if value is None and find_switches(launch, (name,)):
        return "true"
    return value if value is not None else get_option(launch, name) or None


def _normalise(value: str) -> str:
    text = value.strip("'\"").lower()
    with suppress(ValueError):
        return repr(float(text))
    return {"yes": "true", "no": "false", "": "none", "null": "none"}.get(text, text)
