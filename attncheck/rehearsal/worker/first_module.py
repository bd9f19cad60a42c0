"""Finds the first module of the job's model with a wrong output, and the code that computes it."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from attncheck.rehearsal.worker.evidence import Evidence
from attncheck.rehearsal.worker.records import RankRecord
from attncheck.rehearsal.worker.step import Piece
from attncheck.rehearsal.worker.truth import token_errors

WRAPPERS = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.")  # in the names of modules
MULTIPLE = 3.0  # times the limit of hidden states
NAMED = 3  # the most replaced functions in a message
# modules whose outputs may be shifted by a constant over all positions, which has no effect
POSITIONS = "rotary_emb"


def name_first_module(evidence: Evidence, piece: Piece) -> Iterator[str]:
    """Yield the first wrong module in a piece of the step's first call, and the model's replaced functions."""
    record = next((own for own in evidence.step.ranks if own.calls and own.calls[0] is piece.call), None)
    if record is None or piece.call.places is not None:
        return
    text = _find_first(evidence, record, piece) if record.modules else ""
    if text:
        yield text
    if record.patches:
        more = " and others" if len(record.patches) > NAMED else ""
        yield f"replaced by code outside the installed packages: {'; '.join(record.patches[:NAMED])}{more}"


def _find_first(evidence: Evidence, record: RankRecord, piece: Piece) -> str:
    right = evidence.truth.run_modules(piece.tokens)
    modules = {_strip(module["name"]): module for module in record.modules}
    limit = MULTIPLE * evidence.hidden_limit
    for name, module in modules.items():
        if name not in right:
            continue
        given, returned = right[name]
        pairs = list(zip(module["outputs"], returned))
        if name.endswith(POSITIONS):
            if _turns_differently(pairs, piece, limit):
                return f"the first module whose output differs is {_describe(name, module)}"
            continue
        if not any(_differs(own, true, piece, limit) for own, true in pairs):
            continue
        if not _differs(module["input"], given, piece, limit):
            return f"the first module whose output differs is {_describe(name, module)}"
        parent = name.rpartition(".")[0]
        if parent in modules:
            return (
                f"the first module that differs is {_describe(parent, modules[parent])}: the input that "
                f"it passes to {name.rpartition('.')[2]} is already wrong, but the outputs of its earlier "
                "modules are right"
            )
        return f"the input of {_describe(name, module)} is the first that differs"
    return ""


def _strip(name: str) -> str:
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def _describe(name: str, module: Mapping[str, Any]) -> str:
    hooks = f", with the hook {', '.join(module['hooks'])}" if module["hooks"] else ""
    return f"{name} ({module['class']}: {module['place']}{hooks})"


def _turns_differently(pairs: list[tuple[Tensor, Tensor]], piece: Piece, limit: float) -> bool:
    """Return whether cosines and sines turn a piece's neighbouring tokens by different angles."""
    if len(pairs) != 2 or any(own.dim() != 3 or true.dim() != 3 for own, true in pairs):
        return False
    span = slice(piece.segment.start, piece.segment.stop)
    row = piece.row if pairs[0][0].shape[0] == piece.call.input_ids.shape[0] else 0
    own, right = (torch.stack(values) for values in zip(*((own[row, span], true[0]) for own, true in pairs)))
    if own.shape != right.shape:
        return False
    turns, expected = ((angles[:, 1:] * angles[:, :-1]).sum(0) for angles in (own, right))
    return bool(torch.any(token_errors(turns, expected) > limit))


def _differs(own: Tensor | None, true: Tensor | None, piece: Piece, limit: float) -> bool:
    """Return whether a tensor of the whole batch differs in a piece's tokens from that of the piece in isolation."""
    if own is None or true is None:
        return False
    rows, length = piece.call.input_ids.shape
    if own.shape[0] == rows * length and rows * length > 1 and own.dim() == true.dim() == 2:
        own, true = own.view(rows, length, -1), true[None]
    if own.dim() < 3 or own.shape[1] != length or true.shape[1] != len(piece.tokens) or own.shape[2:] != true.shape[2:]:
        return False
    row = own[piece.row if own.shape[0] == rows else 0, piece.segment.start : piece.segment.stop]
    errors = token_errors(row.flatten(1), true[0].flatten(1))
    return bool(torch.any(errors > limit))
