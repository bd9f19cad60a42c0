"""Finds what a launch that ended before its first step lacks: fields of its rows, their number, or a model's class.

What is found is added to the materials, or a variable tells the watcher, and the launch runs once more.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import replace

from attncheck.core.rehearsal import JobCut
from attncheck.core.results.rehearsal import RehearsedLaunch
from attncheck.rehearsal import execution
from attncheck.rehearsal.columns import iter_texts, read_columns, read_optional_columns
from attncheck.rehearsal.cutting import find_data
from attncheck.rehearsal.fidelity import OWN_ROWS
from attncheck.rehearsal.missing import DATA_ERROR
from attncheck.rehearsal.staging import DOCUMENTS, Stage, reads_fields
from attncheck.rehearsal.worker.materials import VOCABULARY_SIZE

# Python's, datasets' (5.2.0 formatting/formatting.py) and transformers' (5.17.0 trainer.py: tokens) errors for a field
# that a row does not have.
MISSING_FIELD = re.compile(
    r"^(?:\[rank\d+\]: )?KeyError: (?:'([a-z]\w*)'|[\"']Column '?([a-z]\w*)'? not in the dataset)"
    r"|^(?:\[rank\d+\]: )?ValueError: No columns in the dataset match",
    re.MULTILINE,
)
MISSING_IMAGE = re.compile(r"\bimages?\b(?! processor)", re.IGNORECASE)
# The error of a script that continues without a field which it reads by `row.get("name")`.
MISSING_OPTION = re.compile(r"'NoneType' object|UnboundLocalError: ")
# Errors that an empty text causes.
EMPTY = re.compile(
    r"Error: .*(?:\bempty\b|substring not found|index out of range|not enough values to unpack|\b0 elements\b"
    r"|numel\(\) == 0|with size 0\b|\bzero-size\b)"
)
# The error of a script that takes a known number of rows: "expected 729 rows, got 900".
EXPECTED = re.compile(rf"expect\w*\D{{1,30}}(\d+)\b.*\b{DOCUMENTS}\b", re.IGNORECASE)
# The error of a launch whose model has no head: the own code of a model may have one in the class for `AutoModel`.
NO_HEAD = re.compile(r"Output\w*' object has no attribute 'loss'|did not return a loss|'return_dict_in_generate'")
HEAD = "ATTNCHECK_HEAD"
# The error of a script that takes more rows of the embedding than the small model has.
NO_TOKEN = re.compile(rf"IndexError: index \d+ is out of bounds for dimension \d+ with size {VOCABULARY_SIZE}\b")
# The error of a script that calls a stream's methods; datasets 5.2.0 iterable_dataset.py has them.
NO_STREAM = re.compile(
    r"'(?:Dataset|Rows)' object has no attribute '(?:state_dict|load_state_dict|set_epoch|take|skip)'"
)
STREAMS = "ATTNCHECK_STREAMS"
READERS = "ATTNCHECK_WITHOUT_READERS"  # of rows, which fail on the synthetic ones
MADE_UP = "not asked: made-up rows end the launch before its first batch, which its own rows reach"
MAX_DOCUMENTS = 5000
MAX_RUNS = 4  # in addition to the first


def add_lacking(stage: Stage, cut: JobCut, launch: RehearsedLaunch) -> bool:
    """Add to a stage what its launch lacked, and return whether there is something to add."""
    if launch.steps or launch.results[0].outcome == "out_of_time":
        return False
    kinds = [] if stage.has_class else execution.list_noted(stage.folder, "kind")
    if len(kinds) == 1 and not stage.kind:
        stage.kind = kinds[0]
        return True
    end = launch.results[0]
    text = "\n".join(end.violations)
    expected = EXPECTED.search(text)
    if expected is not None and stage.documents == DOCUMENTS:
        stage.documents = min(int(expected[1]), MAX_DOCUMENTS)
        return True
    if NO_TOKEN.search(text) and not stage.has_whole_vocabulary:
        stage.has_whole_vocabulary = True
        return True
    names = [name for name in list_missing_fields(stage, cut, launch) if name not in stage.added]
    stage.added = (*stage.added, *names)
    is_empty = not names and not stage.fills and reads_fields(cut) and EMPTY.search(text)
    stage.fills = stage.fills or bool(is_empty)
    return bool(names or is_empty)


def needs_own_rows(stage: Stage, cut: JobCut, launch: RehearsedLaunch) -> bool:
    """Return whether a launch ended on synthetic rows before its first step, and its own are in a file here."""
    is_of_rows = DATA_ERROR.search("\n".join(launch.results[0].violations)) is not None
    has_own = bool(cut.data) and os.path.exists(find_data(stage.read, cut))
    return is_of_rows and has_own and not (launch.steps or launch.real_data or cut.driver)


def excuse_rows(stage: Stage, launch: RehearsedLaunch) -> RehearsedLaunch:
    """Return a launch without a fault of its end if made-up rows end it before a batch that its own rows reach."""
    end, *others = launch.results
    has_read_own = any(OWN_ROWS in note for own in execution.read_answers(stage.folder, "own") for note in own["notes"])
    is_reached = launch.steps or execution.list_noted(stage.folder, "reached")
    if not has_read_own or is_reached or not end.violations:
        return launch
    reason = f"{MADE_UP}: {end.violations[0]}"
    return replace(launch, results=(replace(end, outcome="skipped", reason=reason, violations=()), *others))


def choose_variable(stage: Stage, cut: JobCut, launch: RehearsedLaunch) -> str:
    """Return the variable with which a launch may take a step, "" if it has taken one or none is known.

    It gives the small model its head, if the class of the launch's model is not known, keeps the rows a stream, or
    leaves out readers of rows.
    """
    text = "\n".join((*launch.results[0].violations, launch.results[0].reason))
    if launch.steps:
        return ""
    if not stage.has_class and HEAD not in cut.environ and NO_HEAD.search(text):
        return HEAD
    if STREAMS not in cut.environ and NO_STREAM.search(text):
        return STREAMS
    is_unread = not stage.materials.real_data and execution.list_noted(stage.folder, "unread")
    return READERS if READERS not in cut.environ and is_unread else ""


def list_missing_fields(stage: Stage, cut: JobCut, launch: RehearsedLaunch) -> Sequence[str]:
    """Return the fields without which a script ended before its first step; none if it ended otherwise.

    A script that makes its pairs itself gets all fields that it reads, because the rows of pairs have none of them.
    """
    end = launch.results[0]
    text = "\n".join((*end.violations, *end.notes))
    has_rows = reads_fields(cut)
    if launch.steps or not end.violations or "environ[" in text or not (has_rows or "ATTNCHECK_ROWS" in cut.environ):
        return ()
    missing = MISSING_FIELD.search(text)
    if missing is not None:
        name = next(filter(None, missing.groups()), "input_ids")
        return (name,) if has_rows else tuple(dict.fromkeys((name, *read_columns(stage.read))))
    if not has_rows:
        return ()
    if MISSING_IMAGE.search(text):  # `row.get("image")`
        return tuple(filter({*iter_texts(stage.read)}.__contains__, ("image", "images")))[:1]
    return read_optional_columns(stage.read) if MISSING_OPTION.search(text) else ()
