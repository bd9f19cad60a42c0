"""Checks that every token attends only to its own document: hidden states against each document in isolation."""

import re
from collections.abc import Iterator

import torch
from torch import Tensor

from attncheck.core.results.rehearsal import CACHE_IS_ON
from attncheck.core.results.smoke import CheckResult, Measure
from attncheck.rehearsal.worker.checks.batch import find_repeated_prompts
from attncheck.rehearsal.worker.evidence import Evidence, causal, list_positions
from attncheck.rehearsal.worker.first_module import name_first_module
from attncheck.rehearsal.worker.layouts import attention_communicates
from attncheck.rehearsal.worker.own_rows import UNTOLD
from attncheck.rehearsal.worker.records import ModelCall
from attncheck.rehearsal.worker.slice_faults import iter_slice_faults
from attncheck.rehearsal.worker.step import Piece
from attncheck.rehearsal.worker.truth import token_errors

# transformers 5.17.0 masking_utils.py (`_preprocess_mask_arguments`): packed documents are detected only without a
# cache.
SCALES = (0.5, 2.0, 2.0**-0.5, 2.0**0.5, 0.25, 4.0)  # times the softmax_scale, tried in turn
MATCH = 0.25  # a hypothesis explains a fault if it reduces the distance to less than this share
SEES = "tokens attend to"  # the beginning of a hypothesis that explains the difference
HIDDEN = torch.finfo(torch.float16).min / 2  # added to scores
ADDED = "the mask is added to the scores, as a mask of floats is"
RECURRENT = "recurrent layers carry earlier documents in the row into later ones"  # no mask has an effect on them
ONLY_ON_GPU = "patches this kind of model only if there is a GPU, so its recurrent layers were not those of the job"
MEANT = re.compile(r"lora_dropout|neftune|^the script's")  # set only by launches, for adapters or noise, or by scripts
ALONE = "not checked: documents share rows in the launch, but each had its own row in this run"
AS_STREAM = "rows are cut from one stream without boundaries, as in pretraining"
OWN_CLASS = (
    "documents depend on the rest of their batch: the job's own class computes other values for each in isolation"
)
UNJUDGED = "the hidden states of the step were not recorded"


def run(evidence: Evidence) -> CheckResult:
    """Compare every token's last hidden state with that of its document in isolation."""
    errors = evidence.hidden_errors
    if not errors:
        return CheckResult("documents", "skipped", UNJUDGED)
    if evidence.shares_rows and len({(id(piece.call), piece.row) for piece, _, _ in errors}) == len(errors):
        return CheckResult("documents", "skipped", ALONE)
    worst, error, token = max(errors, key=lambda item: item[1])
    limit = evidence.hidden_limit
    where = f"worst in token {token + 1} of {evidence.step.index.name_document(worst.segment.document)}, {worst.place}"
    measure = Measure("hidden state of a token compared with its document in isolation", error, limit, where)
    beyond = [piece for piece, value, _ in errors if not value <= limit]
    notes = [f"{len(errors)} documents compared, {len(beyond)} of them differ"]
    violations = (*_explain(evidence, beyond), *evidence.deviations[:1]) if beyond else ()
    inferred = tuple(_tell_inferred(evidence))
    if beyond and all(piece.segment.inferred for piece in beyond) and not violations[0].startswith(SEES):
        return CheckResult("documents", "skipped", UNTOLD, notes=(*notes, *inferred))
    if beyond and any(find_repeated_prompts(evidence)):
        return CheckResult("documents", "skipped", "not judged: rows have their prompt twice", notes=tuple(notes))
    patches = evidence.step.calls[0].description.get("only_on_gpu", "")
    if patches and violations and violations[0].startswith(RECURRENT):
        return CheckResult("documents", "skipped", f"{patches} {ONLY_ON_GPU}", notes=tuple(notes))
    if violations and violations[0].startswith((f"{SEES} earlier", OWN_CLASS)) and _is_stream(evidence):
        return CheckResult("documents", warnings=(f"{violations[0]}; {AS_STREAM}",), notes=tuple(notes))
    violations += inferred if beyond else ()
    notes = [*_tell_whole_rows(evidence), *(() if beyond else (*notes, *inferred))]  # a violation has the number
    expected, random = _list_random(evidence)
    notes += expected
    warnings = (*_tell_weights(evidence), *evidence.deviations[:1], *random)
    return CheckResult("documents", "ok", "", (measure,), violations, warnings, tuple(notes))


def _is_stream(evidence: Evidence) -> bool:
    """Return whether a script cuts its rows from one stream of documents, and nothing in the batch separates them."""
    if evidence.step.objective.is_documented and not evidence.makes_rows:
        return False
    pieces = [piece for piece in evidence.judged_pieces if piece.segment.start == 0]
    begun = sum(piece.segment.offset > 0 for piece in pieces)
    tensors = [call.tensors for call in evidence.step.calls]
    is_plain = all({"position_ids", "cu_seq_lens_q", "token_type_ids"}.isdisjoint(own) for own in tensors)
    masks = [own["attention_mask"] for own in tensors if "attention_mask" in own]
    return is_plain and all(bool((mask == 1).all()) for mask in masks) and begun > len(pieces) / 2


def _tell_inferred(evidence: Evidence) -> Iterator[str]:
    """Yield evidence that documents are joined without a boundary: several rows of the user's data in one."""
    inferred = [piece for piece in evidence.judged_pieces if piece.segment.inferred]
    if inferred:
        piece = inferred[0]
        name = evidence.step.index.name_document(piece.segment.document)
        yield (
            f"{len(inferred)} documents begin without a boundary in position_ids, cu_seqlens or a mask: the text of "
            f"{name} follows another data row's text, {piece.place}"
        )


def _tell_whole_rows(evidence: Evidence) -> Iterator[str]:
    """Yield a line if there is nothing to isolate, because rows of the user's data may be too long to share one."""
    rows = {(id(piece.call), piece.row) for piece in evidence.judged_pieces}
    if evidence.step.index.is_own and len(rows) == len(evidence.judged_pieces):
        yield "isolation not judged: no row of the batch contains two documents"


def _tell_weights(evidence: Evidence) -> Iterator[str]:
    """Yield a line if training starts from weights other than the checkpoint's, which the reference then uses."""
    if evidence.changed_weights:
        count = len(evidence.step.ranks[0].weights)
        yield (
            f"{len(evidence.changed_weights)} of {count} parameters differ from the checkpoint when training starts, "
            f"first {evidence.changed_weights[0]}: training starts from other weights"
        )


def _list_random(evidence: Evidence) -> tuple[list[str], list[str]]:
    """Return what randomness was turned off in the forward pass: intended by the launch, and possibly unintended."""
    rates = evidence.step.calls[0].description["random"]
    unmeant = {name: rate for name, rate in rates.items() if not MEANT.search(name) and not evidence.truth.rate(name)}
    texts = []
    for own in ({name: rate for name, rate in rates.items() if name not in unmeant}, unmeant):
        name, rate = next(iter(own.items()), ("", 0.0))
        more = " and others" if len(own) > 1 else ""
        text = f"random in training: {name} {rate:g}{more}; turned off in the compared steps"
        texts.append([text] if own else [])
    return texts[0], texts[1]


def _explain(evidence: Evidence, beyond: list[Piece]) -> Iterator[str]:
    """Yield explanations of the wrong pieces: which other tokens would have to be visible for these values."""
    piece = max(beyond, key=lambda piece: piece.segment.start)
    actual = piece.hidden
    assert actual is not None
    before = float((actual - evidence.describe(piece).hidden).norm())
    cached = max(call.description.get("cached", 0) for call in evidence.step.calls)
    if cached:
        yield f"tokens attend to {cached} tokens of an earlier call: the model gets its cache (past_key_values)"
    candidates = [
        (float((actual - hidden[piece.segment.start : piece.segment.stop]).norm()) / max(before, 1e-12), text)
        for text, hidden in _iter_computable(_hypotheses(evidence, piece), _kernel_hypotheses(evidence, piece))
    ]
    distance, text = min(candidates, key=lambda item: round(item[0], 3), default=(1.0, ""))  # the first of equal ones
    if distance < MATCH:
        yield f"{text}; computing it that way explains {1 - distance:.0%} of the difference"
    if evidence.truth.memory is not None:
        yield OWN_CLASS
    shown = next((own for own in beyond if own.call is evidence.step.ranks[0].calls[0]), piece)
    yield from name_first_module(evidence, shown)
    if piece.call.places is not None and not attention_communicates(evidence.step.ranks):
        yield (
            "no attention layer communicates with the ranks that share its rows, so tokens do not attend to the "
            "row's parts on other ranks"
        )
    count = len(evidence.judged_pieces)
    name = evidence.step.index.name_document(piece.segment.document)
    is_given = distance < MATCH or "attention_mask" in piece.call.tensors
    positions = _tell_positions(piece, name) if is_given else ""
    yield f"{len(beyond)} of {count} documents differ from the same documents in isolation{positions}"


def _iter_computable(*hypotheses: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Yield the hypotheses that the model supports: not every class accepts positions, or a custom mask."""
    for family in hypotheses:
        try:
            yield from family
        except Exception:  # the difference is already measured, and remains without this explanation
            continue


def _hypotheses(evidence: Evidence, piece: Piece) -> Iterator[tuple[str, Tensor]]:
    """Yield possible faults, with the hidden states that the whole row would then have."""
    call = piece.call
    row = call.input_ids[piece.row].tolist()
    length = len(row)
    own = torch.zeros(length, dtype=torch.long) - 1
    running, reset = list(range(length)), list(range(length))
    others = (other for other in evidence.step.pieces if (id(other.call), other.row) == (id(call), piece.row))
    for number, other in enumerate(others):
        own[other.segment.start : other.segment.stop] = number
        reset[other.segment.start : other.segment.stop] = list(range(len(other.tokens)))
    same = own[:, None] == own[None, :]
    given = _row_positions(call, piece.row, length) or _count_slices(call, running)
    everything = causal(length)
    inside = (own >= 0)[None, :] | torch.eye(length, dtype=torch.bool)
    hidden = evidence.truth.hidden_of_row
    follows_others = bool((own[: piece.segment.start] >= 0).any())
    if follows_others and evidence.truth.has_recurrence:
        yield RECURRENT, hidden(row, reset, everything & same)
        begins = [0, *(own.diff().nonzero().flatten() + 1).tolist()]
        yield f"{RECURRENT}, but their convolutions do not", hidden(row, reset, everything & same, convolved=begins)
    if follows_others:
        yield "tokens attend to earlier documents in the row", hidden(row, given, everything & inside)
    if follows_others and reset != given:
        yield (
            "tokens attend to earlier documents in the row (positions restart in each)",
            hidden(row, reset, everything & inside),
        )
    if bool((own < 0).any()):
        yield "tokens attend to padding", hidden(row, given, everything)
    yield from _list_pictures(evidence, piece)
    yield "tokens attend to later tokens: attention is not causal", hidden(row, reset, same)
    yield (
        "tokens attend to the whole row, later tokens included: attention is not causal",
        hidden(row, given, torch.ones(length, length, dtype=torch.bool)),
    )
    if given != reset:
        begun = call.places is not None and all(given[place] == 0 for place in call.places[:, 0].tolist())
        text = "positions restart on each rank; nothing else is wrong"
        yield text if begun else "its positions are wrong; nothing else is", hidden(row, given, everything & same)
        blocks = torch.tensor(given).eq(0).cumsum(0)
        parts = same & (blocks[:, None] == blocks[None, :])
        yield (
            "positions restart inside documents, whose parts do not see one another",
            hidden(row, given, everything & parts),
        )
    if call.places is not None:
        for text, visible in iter_slice_faults(call.places, own, evidence.step.layout.order):
            yield text, hidden(row, given, visible & inside)
            if given != reset:
                yield f"{text} (its positions are wrong too)", hidden(row, reset, visible & inside)
    mask = _read_mask(call, piece.row, length)
    shown = mask if mask is None or mask.dtype == torch.bool else mask > HIDDEN
    if mask is not None and shown is not mask and bool((mask[shown] != 0).any()):
        least, most = mask.aminmax()
        yield f"{ADDED}: its numbers, {least:g} to {most:g}, hide no token", hidden(row, given, mask)
    if shown is not None:
        wanted, rows = everything & same, own == own[piece.segment.start]
        hides = bool((wanted & ~shown)[rows].any())
        text = "the mask hides tokens of the same document" if hides else "the mask shows tokens of other documents"
        text += " (it is an earlier batch's mask)" if _is_reused(evidence, call) else ""
        yield text, hidden(row, given, shown | torch.eye(length, dtype=torch.bool))


def _read_mask(call: ModelCall, row: int, length: int) -> Tensor | None:
    """Return a row's part of a mask of (rows, 1, tokens, tokens): booleans, or float32; None without one."""
    mask = call.tensors.get("attention_mask")
    if mask is None or mask.dim() != 4 or mask.shape[-2:] != (length, length):
        return None
    own = mask[row if mask.shape[0] > row else 0, 0]
    return own if own.dtype == torch.bool else own.float()


def _is_reused(evidence: Evidence, call: ModelCall) -> bool:
    """Return whether a call's mask is that of an earlier call with other tokens."""
    earlier = [own for record in (*evidence.taken, *evidence.step.ranks) for own in record.calls]
    masks = [own.tensors.get("attention_mask") for own in earlier if not torch.equal(own.input_ids, call.input_ids)]
    return any(mask is not None and torch.equal(mask, call.tensors["attention_mask"]) for mask in masks)


def _list_pictures(evidence: Evidence, piece: Piece) -> Iterator[tuple[str, Tensor]]:
    """Yield the hidden states that a document would have with another document's image of its batch."""
    book = evidence.truth.pictures
    if book is None or not book.find_documents(piece.tokens):
        return
    for other in evidence.judged_pieces:
        if other.call is piece.call and other is not piece and book.find_documents(other.tokens):
            hidden = evidence.truth.hidden_with_pictures(piece.tokens, [other.segment.document])
            yield "its image belongs to another document in the batch", _place(piece, hidden)


def _place(piece: Piece, hidden: Tensor) -> Tensor:
    """Return the hidden states of a row that are zero outside of a piece."""
    row = hidden.new_zeros(len(piece.call.input_ids[piece.row]), hidden.shape[-1])
    row[piece.segment.start : piece.segment.stop] = hidden
    return row


def _count_slices(call: ModelCall, running: list[int]) -> list[int]:
    """Return the positions that a model computes if it gets none: each slice starts at 0."""
    if call.places is None:
        return running
    positions = torch.zeros(len(running), dtype=torch.long)
    positions[call.places] = torch.arange(call.places.shape[1]).expand_as(call.places)
    return [int(position) for position in positions]


def _kernel_hypotheses(evidence: Evidence, piece: Piece) -> Iterator[tuple[str, Tensor]]:
    """Yield possible faults of a kernel within a document: another scale of the scores, a window."""
    length = len(piece.tokens)

    def compute(visible: Tensor, scale: float = 1, without_softcap: bool = False) -> Tensor:
        tokens, positions = list(piece.tokens), list(range(length))
        return _place(piece, evidence.truth.hidden_of_row(tokens, positions, visible, scale, without_softcap))

    own = evidence.truth.scaling
    kinds = {1.0 / own: "not scaled", own: "scaled twice"} if own != 1.0 else {}
    for scale in (*kinds, *SCALES):
        text = f"{scale:.3g} times what they should be: attention uses a different softmax_scale"
        yield f"its scores are {kinds.get(scale, text)}", compute(causal(length), scale)
    if evidence.truth.has_softcap:
        uncapped = compute(causal(length), without_softcap=True)
        yield "its scores are not capped: attention ignores the model's softcap", uncapped
    actual = piece.hidden
    assert actual is not None
    wrong = token_errors(actual, evidence.describe(piece).hidden) > evidence.hidden_limit
    window = int(wrong.nonzero()[0]) if bool(wrong.any()) else 0
    if window:
        text = f"tokens attend only to the last {window} tokens: a window that the model does not have"
        yield text, compute(causal(length) & ~causal(length).tril(-window))


def _row_positions(call: ModelCall, row: int, length: int) -> list[int] | None:
    positions = call.tensors.get("position_ids")
    if positions is None:
        return None
    while positions.dim() > 2:
        positions = positions[-1]
    values = positions[row if positions.shape[0] > row else 0]
    return [int(value) for value in values] if len(values) == length else None


def _tell_positions(piece: Piece, name: str) -> str:
    positions = list_positions(piece)
    if positions is None:
        return "; the model got no position_ids"
    mask = piece.call.tensors.get("attention_mask")
    text = f"; the positions of {name} are {positions[0]} … {positions[-1]}"
    text += f", alongside a mask of shape {tuple(mask.shape)}" if mask is not None else ", without a mask"
    caches = piece.call.options.get("use_cache", piece.call.description.get("use_cache", False))
    return text + (f"; {CACHE_IS_ON}: use_cache=False" if caches and mask is None and piece.segment.start else "")
