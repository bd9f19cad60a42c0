"""A token of the tokenizer, or an id in the configuration, has no row in the model's embedding.

What it checks: token ids against the number of rows of the input embedding (from the installed class, built without
weights, or else vocab_size). The ids are the padding, end and begin ids of config.json and generation_config.json, the
tokenizer's special tokens, those that loading it would append to its vocabulary, and its highest added token. For a
model that also reads images or sound, only the three ids of the configuration are judged, because its code may replace
other tokens before they are embedded.

Why it matters: a token was added but the embedding was not resized. The first batch with that token fails. A CPU
reports "IndexError: index out of range in self". A GPU reports "CUDA error: device-side assert triggered", usually at a
later call in attention. If it is the padding token, every padded batch fails.

It is an error if the launch is known and its framework does not resize the embedding; a custom script may do so.

What to do: resize the embedding before training, or use a token that has a row. axolotl resizes on its own,
LLaMA-Factory with `resize_vocab: true`.

Source: torch.nn.Embedding (torch 2.13); transformers 5.17.0, modeling_utils.py (`resize_token_embeddings`); axolotl
0.19.0, loaders/model.py; llamafactory 0.9.5, model/adapter.py. Run with transformers 5.17.0 on a CPU: a llama fails on
the id, and takes it after `resize_token_embeddings` (tests/doctor/test_token_ids.py).
"""

from collections.abc import Iterator

from attncheck.core.model import Model, Tokenizer
from attncheck.doctor.queries.models import requested_model
from attncheck.doctor.rules import Fix, Job, Known, Problem, Problems, Rule, Snapshot, value_or

RESIZING_FRAMEWORKS = ("axolotl",)
# These add rows to vocab_size (transformers 5.23.0, models/*/modeling_*.py).
ROWS_BESIDE_VOCABULARY = ("mllama", "mllama_text_model", "molmo2", "molmo2_text", "moshi")
# If this is the EOS token, labels have to be masked by attention_mask and not by id (ATN406).
PAD_WITH_KNOWN_TOKEN = "tokenizer.pad_token = tokenizer.unk_token or tokenizer.eos_token"
SPECIAL = ("pad_token", "eos_token", "bos_token")


def check(snapshot: Snapshot) -> Problems:
    model = requested_model(snapshot)
    rows = _count_rows(model) if model is not None else None
    if model is None or rows is None or isinstance(model.build_failure, Known):
        return  # ATN348 reports a model that cannot be built
    configured = {name: max(ids) for name, ids in model.token_ids.items() if max(ids, default=-1) >= rows}
    tokens = {} if _is_resized(snapshot) else _find_tokens(model, rows)
    if not configured and not tokens:
        return
    named = {**configured, **tokens}
    first = next((name for name in named if "pad_token" in name), next(iter(named)))
    is_used = "pad_token" in first or "eos_token" in first
    is_final = first in configured or isinstance(snapshot.job, Known)  # otherwise a script may still resize it
    yield Problem(
        message=(f"{first} is {named[first]}, but the embedding of {model.source} has {rows} rows: 0 to {rows - 1}"),
        evidence=(*(f"{name}: {number}" for name, number in named.items()), _describe_rows(model, rows)),
        fixes=tuple(_list_fixes(snapshot, configured, tokens)),
        subject=model.source,
        predicted=not (is_used and is_final and isinstance(model.embedding_rows, Known)),
    )


def _count_rows(model: Model) -> int | None:
    """Return the number of rows of the input embedding; None if unknown."""
    if isinstance(model.embedding_rows, Known):
        return model.embedding_rows.value
    has_more = model.model_type in ROWS_BESIDE_VOCABULARY or model.remote_code
    return None if has_more else value_or(model.vocab_size, 0) or None


def _describe_rows(model: Model, rows: int) -> str:
    if isinstance(model.embedding_rows, Known):
        return f"import lane: the installed class has an input embedding of {rows} rows"
    return f"static lane: vocab_size is {rows}"


def _is_resized(snapshot: Snapshot) -> bool:
    """Return whether the launch's framework resizes the embedding to the tokenizer."""
    job: Job | None = snapshot.job.value if isinstance(snapshot.job, Known) else None
    if job is None:
        return False
    resizes = {setting.name.lstrip("-"): setting.value for setting in job.settings}.get("resize_vocab", "")
    return job.framework in RESIZING_FRAMEWORKS or str(resizes).lower() == "true"


def _find_tokens(model: Model, rows: int) -> dict[str, int]:
    """Return the tokenizer's tokens that have no row, by name."""
    if not isinstance(model.tokenizer, Known):
        return {}
    tokenizer: Tokenizer = model.tokenizer.value
    numbers = {**tokenizer.token_ids, **tokenizer.appended}
    beyond = {f"the tokenizer's {name}": numbers[name] for name in SPECIAL if numbers.get(name, -1) >= rows}
    highest = value_or(tokenizer.added_token_id, -1)
    if not beyond and not model.towers and highest >= rows:
        beyond[f"the tokenizer's added token {value_or(tokenizer.added_token, '')}"] = highest
    return beyond


def _list_fixes(snapshot: Snapshot, configured: dict[str, int], tokens: dict[str, int]) -> Iterator[Fix]:
    if tokens and isinstance(snapshot.job, Known) and snapshot.job.value.framework == "llamafactory":
        yield Fix("let LLaMA-Factory resize the embedding", "setting", "resize_vocab: true", "unsafe")
    if tokens:
        resize = "model.resize_token_embeddings(len(tokenizer))  # after loading both, before the trainer is created"
        yield Fix("add rows for the tokens", "edit", resize, "unsafe")
    if "the tokenizer's pad_token" in tokens:
        yield Fix("or pad with a token that has an embedding", "edit", PAD_WITH_KNOWN_TOKEN)
    for name in configured:
        file, _, field = name.partition(": ")
        yield Fix(f"correct {field}", "edit", f'{file}: remove "{field}": {configured[name]}', follows=bool(tokens))


RULE = Rule("ATN349", "error", check)
