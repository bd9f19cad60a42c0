"""Makes the materials of a rehearsal: a small model of the job's architecture, a tokenizer for it, documents.

The language is smoke's (`attncheck.smoke.worker.data.language`), with one word per token, so that every token of a
batch shows its document. The tokenizer knows the words of chat templates, and leaves embedding rows free for tokens
that a framework adds. With `own_model`, model and tokenizer are the user's own, and the words are some of that
tokenizer's.
"""

import csv
import json
import random
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from attncheck.core.rehearsal import ANSWER_COLUMNS, PAIRED_FORMS, PROMPT_COLUMNS, TEXT_ONLY, DataForm
from attncheck.rehearsal.worker.turns import SHAREGPT
from attncheck.rehearsal.worker.vocabulary import FIRST_WORD, MADE, Vocabulary

VOCABULARY_SIZE = 160  # rows of the embedding
MAX_VOCABULARY_SIZE = 1 << 15  # of a small model with its own vocabulary
OWN_VOCABULARY_SIZE = 1024  # at least so many with the words of the launch's own rows
OWN_MODEL = "own-model"  # the folder of the model that knows them
# A turn ends with a line break, as in released templates: OpenRLHF strips that from the end of a text, but no space.
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}{{ '<|assistant|> ' }}"
    "{% generation %}{{ message['content'] + ' ' + eos_token }}{% endgeneration %}{{ '\\n' }}"
    "{% else %}{{ '<|' + message['role'] + '|> ' + message['content'] + ' <|end|>\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|> ' }}{% endif %}"
)
# The beginning of a turn and the end of a user's, in templates whose text a script searches, by markers that it names.
HEADERS = dict.fromkeys(("<|im_start|>", "<|im_end|>"), ("<|im_start|>{}\n", "<|im_end|>")) | dict.fromkeys(
    ("<|start_header_id|>", "<|eot_id|>"), ("<|start_header_id|>{}<|end_header_id|>\n\n", "<|eot_id|>")
)
MARKUP = (
    "<|user|>", "<|assistant|>", "<|system|>", "<|end|>", "<|im_start|>", "<|im_end|>", "<|eot_id|>",
    "<|start_header_id|>", "<|end_header_id|>", "user", "assistant", "system", "Human:", "Assistant:", "User:",
    "System:", "###", "Instruction:", "Response:", "Input:", "[INST]", "[/INST]", "<think>", "</think>",
    "<|endoftext|>",
)  # fmt: skip
# Frameworks encode the letter to see which tokens are added around it (ms-swift 4.6.0 template/base.py:1425); scripts
# of judges expect a token for each verdict.
SINGLE_WORDS = ("a", "Yes", "No")
UNKNOWN, PAD, BEGIN, END = "<unk>", "<pad>", "<s>", "</s>"
# Other words are tokens by their first letters, not all one "<unk>", because some launches pad with that.
INITIALS = {f"~{letter}": rf"(?<!\S)[{letter}{letter.upper()}]\S*" for letter in "abcdefghijklmnopqrstuvwxyz"}
INITIALS |= {"~": r"(?<!\S)[^a-zA-Z~\s]\S*"}
MAX_TOKENS = 4096
MAX_PARAMETERS = 1_000_000_000
# the remark for a multimodal model
TEXT_ALONE = f"{TEXT_ONLY}: `attncheck smoke MODEL` checks images in the batch"
PICTURES = (
    "two of three rows have a small image, to suit a small tower; whether max_length truncates images of your size is "
    "not checked"
)
ADVANTAGES = (-0.75, -0.5, 0.5, 0.75, 1.0, 1.25, 1.5)
TURN_WORDS = 4  # the fewest in one of several turns
ANSWER_NAME = re.compile(r"answer|output|response|completion|solution|summary|target|highlight|reply")
# Strings in subscripts that are not fields of rows: those of tokenizer outputs, messages, splits, images and videos.
NO_COLUMN = re.compile(
    r"_ids$|token_id$|_mask$|^labels$|^(role|content|from|value|type|chosen|rejected|train|test|validation)$|image"
    r"|^(video|audio)s?$"
)
# TRL 1.16.0 data_utils.py decides by these, besides the prompt, whether and as what a row is a conversation; the others
# it passes to reward functions together with a row's fields (trainer/grpo_trainer.py: `_calculate_rewards`).
TRL_COLUMNS = ("chosen", "rejected", "completion", "messages", "label", "prompts", "completions", "completion_ids")
PICTURE_NAME = re.compile(r"(^|_)(image|img|picture|photo)(s|_|$)")
NUMBER_NAME = re.compile(r"(^|_)(id|idx|index)$")
TRUE_WORDS = ("true", "1", "1.0", "yes", "good", "desirable")
REJECTED_WORDS = 8  # words of the language for rejected answers


def prepare(message: dict[str, Any], send: Callable[[dict[str, Any]], None]) -> None:
    """Handle a job of one item: fill `message["stage"]` with model/, documents.json and data/train.jsonl.

    With `message["full_model"]` the model is the one named in `message["model"]`, and its words are written too. With
    `message["real_data"]` the rows are the first ones of the named data, and their tokens are written.
    """
    import torch

    import attncheck.rehearsal.worker.libraries  # noqa: F401  (first, if the process was not forked)
    from attncheck.rehearsal.worker import multimodal
    from attncheck.smoke.worker.models import build

    torch.set_num_threads(int(message.get("threads", 1)))
    (item,) = message["items"]
    send({"started": item})
    folder = Path(message["stage"])
    real_data = message["real_data"]
    small = make_small_model_of_own_words if real_data else make_small_model
    make_model = prepare_own_model if message["full_model"] else small
    try:
        parameters, vocabulary, remarks = make_model(message, folder)
        if message.get("own_files") and not remarks:
            with suppress(build.Unbuildable):  # what its rows hold is not asked then
                make_model_of_words(message, folder)
        if real_data:
            remark, known_turns = lay_own_data(message, folder)
            remarks = [*remarks, remark]
    except build.Unbuildable as error:
        send({"unanswered": str(error)})
        return
    kind, reason = find_kind(message)
    answer = {
        "parameters": parameters,
        "remarks": remarks,
        "made_up": [],
        "model": _choose_architecture(message).name if message.get("stand_in_for") else message["model"],
        "is_known": bool(kind),
        "reason": reason,
    }
    if real_data:
        send({"item": item, "answer": {**answer, **known_turns}})
        return
    is_read = bool(message.get("columns"))  # a script may read the prompt
    form: DataForm = message["form"].removeprefix("implicit_" if is_read else "")
    documents, rows = make_data(message["documents"], message["seed"], form, vocabulary, message.get("turns", ()))
    rows, columns = fit_rows(rows, message)
    answer["made_up"] = [
        name
        for name in columns
        if (name == "label" and name not in message.get("values", {}))
        or (ANSWER_NAME.search(name) and rows[0].get(name) == "")
    ]
    has_pictures = (folder / multimodal.FOLDER).exists()
    if has_pictures:
        multimodal.lay_pictures(documents, folder)
    (folder / "documents.json").write_text(json.dumps(documents))
    if has_pictures:
        rows = multimodal.add_pictures(rows, documents, folder, message["pictures"])
    elif message.get("pictures") == "tagged":  # the framework knows the column
        rows = [{**row, "images": []} for row in rows]
    if vocabulary is MADE and len(rows) == len(documents):
        tokens = tokenize(documents)
        (folder / "array").mkdir(exist_ok=True)
        (folder / "array" / "tokens.json").write_text(json.dumps(tokens))
        if {*tokens[0]} & {*message.get("added", ())}:
            rows = [row | own for row, own in zip(rows, tokens)]
    save_rows(rows, folder, not has_pictures)
    send({"item": item, "answer": answer})


def tokenize(documents: Sequence[Mapping[str, Any]]) -> list[dict[str, list[int]]]:
    """Return documents as tokens with their end, of which the answers' are labelled: a word's number is its token."""
    end, rows = make_word_tokenizer().token_to_id(END), []
    for document in documents:
        tokens = [(role, word) for role, words in document["turns"] for word in words] + [("assistant", end)]
        labels = [word if role == "assistant" else -100 for role, word in tokens]
        words = [word for _, word in tokens]
        rows.append({"input_ids": words, "labels": labels, "attention_mask": [1] * len(words)})
    return rows


def save_rows(rows: list[dict[str, Any]], folder: Path, as_parquet: bool = True) -> None:
    """Save the rows of a data set in every format that launches read."""
    (folder / "array").mkdir(exist_ok=True)
    for path in (folder / "data" / "train.jsonl", folder / "array" / "train.json"):
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    data = json.dumps({"json_path": str(folder / "data" / "train.jsonl"), "sampling_strategy": "all"})
    (folder / "array" / "train.yaml").write_text(f"datasets:\n  - {data}\n")
    with (folder / "array" / "train.csv").open("w", newline="") as stream:
        table = csv.DictWriter(stream, list(rows[0]) if rows else [])
        table.writeheader()
        for row in rows:
            table.writerow({key: value if isinstance(value, str) else json.dumps(value) for key, value in row.items()})
    if as_parquet:
        write_parquet(rows, folder / "data" / "train.parquet")


def make_small_model(message: Mapping[str, Any], folder: Path) -> tuple[int, Vocabulary, list[str]]:
    """Make the small model and its tokenizer; return its number of parameters. Raises `build.Unbuildable`.

    A multimodal model keeps the job's class if its processor can also be made.
    """
    from attncheck.rehearsal.worker import multimodal
    from attncheck.smoke.worker.models import build, towers

    architecture, size = _choose_architecture(message), VOCABULARY_SIZE
    if message.get("has_whole_vocabulary"):
        own = MAX_VOCABULARY_SIZE if message.get("stand_in_for") else architecture.vocabulary_size
        size = max(size, min(own, MAX_VOCABULARY_SIZE))
    architecture = replace(architecture, vocabulary_size=size, cuts_heads=True)
    remarks = []
    if towers.is_multimodal(architecture):
        try:
            parameters, reason = save_multimodal_model(architecture, message, folder / "model")
            text_alone = f"{TEXT_ALONE} ({reason})" if reason else TEXT_ALONE
            return parameters, MADE, [PICTURES if (folder / multimodal.FOLDER).exists() else text_alone]
        except build.Unbuildable as error:  # questions that depend on the class stay open if it gets another
            remarks = [f"{TEXT_ALONE} (the model is built without a processor: {error})"]
            shutil.rmtree(folder / "model", ignore_errors=True)
    tokenizer = make_tokenizer(message["has_padding_token"])
    tokenizer.chat_template = (
        multimodal.write_chat_template(write_template(message.get("marker", "")))
        if message.get("columns")  # a script may write its turns as parts
        else write_template(message.get("marker", ""))
    )
    parameters = save_model(architecture, tokenizer, message["dtype"], message["seed"], folder / "model")
    check_tokenizer(folder / "model")
    return parameters, MADE, remarks


def make_model_of_words(message: Mapping[str, Any], folder: Path) -> None:
    """Make a small model whose tokenizer also knows the words of the launch's own rows. Raises `build.Unbuildable`."""
    from attncheck.rehearsal.worker import own_data

    words = own_data.count_words(message["own_files"])
    tokenizer = make_tokenizer(message["has_padding_token"], words=words)
    tokenizer.chat_template = write_template(message.get("marker", ""))
    size = max(OWN_VOCABULARY_SIZE, len(tokenizer) + VOCABULARY_SIZE)
    architecture = replace(_choose_architecture(message), vocabulary_size=size, cuts_heads=True)
    save_model(architecture, tokenizer, message["dtype"], message["seed"], folder / OWN_MODEL)


def find_kind(message: Mapping[str, Any]) -> tuple[str, str]:
    """Return the type of a missing model, "" if nothing decides it; and the file whose name for the model does.

    The launch's own file comes first; names of several types decide nothing.
    """
    from attncheck.smoke.worker.models import towers

    kind = towers.find_type(message.get("stand_in_for", ""), message.get("classes", ()))
    groups = (
        {own: f"{file} names {word} for it" for word, file in words if (own := towers.find_type(word))}
        for words in message.get("named", ())
    )
    named = {} if kind else next(filter(None, groups), {})
    return next(iter(named.items())) if len(named) == 1 else (kind, "")


def _choose_architecture(message: Mapping[str, Any]) -> Any:
    """Return the architecture to build: for a missing model, the type that its name or the script's class decides."""
    from attncheck.smoke.worker.models import build, towers

    if not message.get("stand_in_for"):
        return build.load_architecture(message["model"])
    kind, _ = find_kind(message)
    return towers.change_base(towers.load_type(kind) if kind else build.load_architecture(message["model"]))


def save_multimodal_model(architecture: Any, message: Mapping[str, Any], folder: Path) -> tuple[int, str]:
    """Save a small model of the job's multimodal class, its processor and tokenizer.

    Return its number of parameters, and why the processor does not accept images. Raises `build.Unbuildable` if the
    class or its processor cannot be made here.
    """
    import torch

    from attncheck.rehearsal.worker import multimodal
    from attncheck.smoke.worker.models import build, shrink, towers
    from attncheck.smoke.worker.models.fitting import describe_error

    try:
        model = towers.build_multimodal_model(architecture, "eager", MAX_TOKENS, message["seed"])
    except (OSError, MemoryError):
        raise
    except Exception as error:  # the model's class may raise anything for sizes that do not fit
        raise build.Unbuildable(describe_error(error)) from error
    markers = multimodal.name_markers(model.config, make_tokenizer(message["has_padding_token"]))
    tokenizer = make_tokenizer(message["has_padding_token"], markers)
    reason = multimodal.save_processor(model, tokenizer, CHAT_TEMPLATE, folder)
    check_tokenizer(folder)
    for config in (model.config, shrink.decoder_config(model.config), model.generation_config):
        set_special_tokens(config, tokenizer)
    model.to(getattr(torch, message["dtype"])).save_pretrained(folder)
    # Qwen2-VL's configuration in transformers 4.52 to 4.57 writes its class into its parts
    document = json.loads((folder / "config.json").read_text()) | {"architectures": [type(model).__name__]}
    (folder / "config.json").write_text(json.dumps(keep_head_sizes(document, model.config)))
    if towers.has_text_class(architecture):
        towers.check_text_class(folder)
    if not reason and message.get("pictures"):
        (folder.parent / multimodal.FOLDER).mkdir()
    return sum(parameter.numel() for parameter in model.parameters()), reason


def keep_head_sizes(document: dict[str, Any], config: Any) -> dict[str, Any]:
    """Return a saved configuration with the sizes of heads in its parts: others may be derived without them.

    transformers 4.49.0 configuration_utils.py (`to_diff_dict`) leaves out a part's value that is its class's default.
    """
    sizes = {name: getattr(getattr(config, name, None), "head_dim", None) for name in document}
    parts = {name: size for name, size in sizes.items() if size and isinstance(document[name], dict)}
    return document | {name: {**document[name], "head_dim": size} for name, size in parts.items()}


def set_special_tokens(config: Any, tokenizer: Any) -> None:
    """Set a configuration's BOS, EOS and padding tokens to the tokenizer's."""
    config.eos_token_id, config.bos_token_id = tokenizer.eos_token_id, tokenizer.bos_token_id
    config.pad_token_id = tokenizer.pad_token_id


def make_small_model_of_own_words(message: Mapping[str, Any], folder: Path) -> tuple[int, Vocabulary, list[str]]:
    """Make a small model for the user's own tokenizer, which is written next to it. Raises `build.Unbuildable`."""
    from attncheck.rehearsal.worker import own_model
    from attncheck.smoke.worker.models import build

    name = message["model"]
    own_model.lay_tokenizer(name, folder / "model", message.get("keeps_code", False))
    tokenizer = own_model.load_tokenizer(name, folder / "model")
    architecture = build.load_architecture(name, full=True)
    size = max(len(tokenizer), architecture.vocabulary_size)
    architecture = replace(architecture, weights="", vocabulary_size=size, cuts_heads=True)
    return save_model(architecture, tokenizer, message["dtype"], message["seed"], folder / "model", False), MADE, []


def lay_own_data(message: Mapping[str, Any], folder: Path) -> tuple[str, dict[str, bool]]:
    """Write the first rows of the user's data and their tokens; return the remark, and what is known of their turns.

    Raises `build.Unbuildable`.
    """
    from attncheck.rehearsal.worker import own_data, own_model, own_turns

    tokenizer = own_model.load_tokenizer("the model", folder / "model")
    length, roles = message.get("row_length", 0), message.get("roles", {})
    rows, remark, known = own_turns.lay_rows(message["real_data"], folder, tokenizer, length, roles)
    own_data.save_rows(rows, tokenizer, folder)
    return remark, known


def prepare_own_model(message: Mapping[str, Any], folder: Path) -> tuple[int, Vocabulary, list[str]]:
    """Copy the user's own model and find words in its tokenizer; return its size, the words, and remarks on the copy.

    Raises `build.Unbuildable`.
    """
    from attncheck.rehearsal.worker import own_model

    name = message["model"]
    own_model.lay_model(name, folder / "model", message.get("keeps_code", False))
    config, rates = own_model.read_configuration(name, folder / "model")
    parameters = own_model.check_memory(name, config, message["is_float32"])
    if message["real_data"]:
        return parameters, MADE, rates
    vocabulary, remarks = own_model.read_vocabulary(name, folder / "model")
    vocabulary.save(folder)
    return parameters, vocabulary, [*rates, *remarks]


def make_tokenizer(
    has_padding_token: bool, markers: Mapping[str, tuple[str, int]] | None = None, words: Sequence[str] = ()
) -> Any:
    """Return a tokenizer of words, of transformers' fast class.

    For a model of text it returns no token types, as decoders' tokenizers do: gpt2 adds an embedding for each of them.
    """
    from transformers import PreTrainedTokenizerFast

    inputs = {} if markers else {"model_input_names": ["input_ids", "attention_mask"]}
    padding = {"pad_token": PAD} if has_padding_token else {}
    fast = PreTrainedTokenizerFast(
        tokenizer_object=make_word_tokenizer(markers, words),
        unk_token=UNKNOWN,
        eos_token=END,
        bos_token=BEGIN,
        **inputs,
        **padding,
        **({"extra_special_tokens": {name: text for name, (text, _) in markers.items()}} if markers else {}),
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.model_max_length = MAX_TOKENS
    return fast


def make_word_tokenizer(markers: Mapping[str, tuple[str, int]] | None = None, words: Sequence[str] = ()) -> Any:
    """Return a tokenizer with a token for each word of the language, and for others.

    `markers` have the text and the number of each token that a processor reads from an attribute.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

    texts = (UNKNOWN, BEGIN, END, *MADE.texts, *MARKUP, *SINGLE_WORDS, PAD, *INITIALS)
    vocabulary = {text: number for number, text in enumerate(texts)} | dict((markers or {}).values())
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    rules = [normalizers.Replace(Regex(pattern), text) for text, pattern in INITIALS.items()]
    tokenizer.normalizer = normalizers.Sequence(rules)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    # Added tokens are matched before all others, for any class that transformers uses instead of this one: since 5.0 it
    # uses the class of the model's type, with its own way to split.
    added = (UNKNOWN, *MADE.texts, *MARKUP)
    tokenizer.add_tokens([AddedToken(text, lstrip=True, rstrip=True, normalized=False) for text in added])
    options = {"single_word": True, "lstrip": True, "rstrip": True, "normalized": False}
    tokenizer.add_tokens([AddedToken(text, **options) for text in (*SINGLE_WORDS, *words)])
    tokenizer.add_special_tokens([AddedToken(text, lstrip=True, rstrip=True) for text in (END, BEGIN, PAD)])
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text, _ in (markers or {}).values()])
    return tokenizer


def write_template(marker: str) -> str:
    """Return the chat template whose turns begin with a marker, if it is known."""
    if marker not in HEADERS:
        return CHAT_TEMPLATE
    header, end = (text.replace("\n", "\\n") for text in HEADERS[marker])
    any_turn = f"'{header}'".replace("{}", "' + message['role'] + '")
    template = CHAT_TEMPLATE.replace("'<|' + message['role'] + '|> '", any_turn)
    return template.replace("<|assistant|> ", header.format("assistant")).replace("<|end|>", end)


def write_turns(rows: list[dict[str, Any]], marker: str) -> list[dict[str, Any]]:
    """Return rows whose text is their conversation as this template writes it, for a script that searches its text."""
    if marker not in HEADERS or "messages" not in rows[0]:
        return rows
    header, end = HEADERS[marker]
    return [
        {
            **row,
            "text": "".join(
                f"{header.format(turn['role'])}{turn['content']} {END if turn['role'] == 'assistant' else end}\n"
                for turn in row["messages"]
            ),
        }
        for row in rows
    ]


def check_tokenizer(folder: Path) -> None:
    """Raise `build.Unbuildable` if the tokenizer loaded from the folder encodes the words differently."""
    from transformers import AutoTokenizer

    from attncheck.smoke.worker.models import build

    words = [3, 9, 34, 17]
    text = " ".join(f"w{word}" for word in words)
    tokens = AutoTokenizer.from_pretrained(folder, local_files_only=True)(text, add_special_tokens=False)["input_ids"]
    if tokens != words:
        raise build.Unbuildable(
            f"the tokenizer that this transformers loads for the model encodes {text!r} as {tokens}"
        )


def save_model(
    architecture: Any, tokenizer: Any, dtype: str, seed: int, folder: Path, saves_tokenizer: bool = True
) -> int:
    """Save the small model and its tokenizer; return its number of parameters. Raises `build.Unbuildable`."""
    from attncheck.smoke.worker.models import build

    try:
        return _save_model(architecture, tokenizer, dtype, seed, folder, saves_tokenizer)
    except (build.Unbuildable, OSError, MemoryError):
        raise
    except Exception as error:  # the model's class may raise anything for sizes that do not fit
        raise build.Unbuildable(build.explain_failure(architecture, error)) from error


def _save_model(architecture: Any, tokenizer: Any, dtype: str, seed: int, folder: Path, saves_tokenizer: bool) -> int:
    import torch

    from attncheck.smoke.worker.models import build

    model: Any = build.build_model(architecture, "eager", torch.float32, "cpu", MAX_TOKENS, seed, sharp_weights=True)
    parameters: int = sum(parameter.numel() for parameter in model.parameters())
    if parameters > MAX_PARAMETERS:
        raise build.Unbuildable(
            f"{architecture.name} is still large when scaled down: {parameters / 1000000000.0:.1f} billion parameters"
        )
    build.check_cut(architecture, model)
    for config in (model.config, getattr(model, "generation_config", None)):
        if config is not None:
            set_special_tokens(config, tokenizer)
    model.config._attn_implementation_internal = None  # the job chooses
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    build.find_readable_config(architecture, model).save_pretrained(folder)
    if saves_tokenizer:
        tokenizer.save_pretrained(folder)
    return parameters


def make_data(
    count: int, seed: int, form: DataForm, vocabulary: Vocabulary = MADE, turns: Sequence[Sequence[str]] = ()
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the documents, and the rows of a data set with them in a form; `turns` are the speakers in each kind."""
    if form in PAIRED_FORMS:
        documents = make_pairs(count, seed)
        rows = [make_pair_row(*pair, form, vocabulary) for pair in zip(documents[::2], documents[1::2])]
        if form == "answers":
            names = ("chosen", "rejected")
            keys = [(row, name) for row in rows for name in names]
            rows = [{"prompt": r["prompt"], "completion": r[name], "label": name == "chosen"} for r, name in keys]
        return documents, rows
    documents = make_documents(count, seed, turns)
    return documents, [make_row(document, form, vocabulary) for document in documents]


def fit_rows(rows: list[dict[str, Any]], message: Mapping[str, Any]) -> tuple[list[dict[str, Any]], Sequence[str]]:
    """Return rows with the fields that a script reads, in the shapes that it needs, and the names of these fields."""
    from attncheck.rehearsal.worker import shapes

    columns, added, values = (message.get(name, ()) for name in ("columns", "added", "values"))
    if message["form"] == "prompt_texts":
        columns = [name for name in columns if name not in TRL_COLUMNS or name in added]
        rows = [{name: value for name, value in row.items() if name not in TRL_COLUMNS} for row in rows]
        if "messages" in added:
            rows = [{**row, "messages": _write_turns(row["prompt"], row["answer"])} for row in rows]
    if message["form"] == "preference_text":
        rows = [dict.fromkeys(PROMPT_COLUMNS, row["prompt"]) | row for row in rows] if columns else rows
    elif message["form"].endswith("preference"):
        rows = add_pair_columns(rows, columns) if columns else rows
    else:
        rows = add_columns(rows, [name for name in columns if name not in values])  # a label is no text
    missing = {name: "" for name in added if rows and name in columns and name not in rows[0]}  # in spite of its name
    rows = [missing | row for row in rows]
    for name, part in message.get("parts", {}).items():  # whose names only the launch's settings have
        rows = [{name: row[part], **row} if part in row else row for row in rows]
    words = dict.fromkeys(message.get("optional", ()), SINGLE_WORDS[0])  # an empty text counts as none
    rows = [row | {name: word for name, word in words.items() if row.get(name) == ""} for row in rows]
    needed = message.get("shapes", {})
    for name in filter(PICTURE_NAME.search, added):  # the watcher opens any image for a script
        is_list = isinstance(needed.get(name), list)
        rows = [{**row, name: [f"{number}.png"] if is_list else f"{number}.png"} for number, row in enumerate(rows)]
    turns = shapes.list_turns(needed) if message["form"] != "prompt_texts" else []
    rows = shapes.fit_rows(add_message_columns(rows, turns), needed)
    if not {"messages", "conversations", *turns} & {*columns}:
        rows = write_turns(rows, message.get("marker", ""))
    if message["form"] == "every" and message.get("makes_text"):
        left_out = {"prompt", "completion", "messages", "conversations"}.difference(columns)
        rows = [{name: value for name, value in row.items() if name not in left_out} for row in rows]
    for name, own in dict(values).items():
        if all(not isinstance(row.get(name, ""), str) or not row.get(name) for row in rows):  # no part of a document
            rows = [{**row, name: _choose_value(row.get(name), own, number)} for number, row in enumerate(rows)]
    own = {*message.get("own_columns", ())}
    if message["form"] == "every" and rows and own >= {*columns} & rows[0].keys() > set():  # none that they lack
        rows = [{name: value for name, value in row.items() if name in own} for row in rows]
    for name, prefix in message.get("prefixes", {}).items():
        rows = [_repeat_prefix(row, name, prefix) for row in rows]
    return rows, columns


def _choose_value(value: Any, values: Sequence[Any], number: int) -> Any:
    """Return a row's value as the launch's own data write it: the next one, or one that means the same."""
    alike = [own for own in values if isinstance(value, bool) and (str(own).lower() in TRUE_WORDS) == value]
    return alike[0] if alike else values[number % len(values)]


def _repeat_prefix(row: dict[str, Any], name: str, prefix: str) -> dict[str, Any]:
    """Return a row whose field begins with another one, as in the launch's own data: an answer with its prompt."""
    match row.get(name), row.get(prefix):
        case str(value), str(own) if own and not value.startswith(own):
            return row | {name: f"{own.rstrip()} {value}"}
        case list(value), list(own) if value[: len(own)] != own:
            return row | {name: [*own, *value]}
    return row


def add_columns(rows: list[dict[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return rows with the fields that a script reads; fields besides the question and the answer stay empty.

    Otherwise the first such field has the question's text, and the first that is named like an answer has the answer. A
    single field has both.
    Classes and identifiers are numbers.
    """
    if "input" in names and "instruction" not in names:  # the question itself, not what follows an instruction
        rows = [{**row, "input": row["prompt"]} for row in rows]
    own = [name for name in names if rows and name not in rows[0] and not NO_COLUMN.search(name)]
    numbers = [name for name in own if name == "label" or NUMBER_NAME.search(name)]
    own = [name for name in own if name not in numbers]
    for number, row in enumerate(rows if numbers else ()):
        row.update({name: number % 2 if name == "label" else number for name in numbers})
    read = set(names)
    asks, tells = read & set(PROMPT_COLUMNS), read & {*ANSWER_COLUMNS, "output"}
    answers = [name for name in own if ANSWER_NAME.search(name)]
    answers = answers or own[0 if asks else 1 :][-1:]  # the last text, in any language
    texts: dict[str, str] = {}
    if not read & {"messages", "conversations"} and not ("text" in read and not asks):  # a script may make its text
        texts = {name: "prompt" for name in own[:2] if name not in answers[:1] and not (asks or tells)}
        answer = next((name for name in ("completion", *ANSWER_COLUMNS) if name in rows[0]), "")
        texts = dict(list(texts.items())[:1]) | dict.fromkeys(answers[:1] if answer and not tells else (), answer)
        if len(own) == len(texts) == 1 and not answers and "text" in rows[0]:  # all that the script reads
            texts = dict.fromkeys(own, "text")
    return [{**{name: row[texts[name]] if name in texts else "" for name in own}, **row} for row in rows]


def add_pair_columns(rows: list[dict[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return pairs of messages with the fields of which a script makes its own: a question, and two answers.

    The first field that is named like an answer has the chosen one, the second the rejected one.
    """
    answers = [name for name in names if ANSWER_NAME.search(name)][:2]
    texts = [
        dict.fromkeys(
            PROMPT_COLUMNS, row["chosen"][0]["content"] if "prompt" not in row else row["prompt"][0]["content"]
        )
        | {name: row[part][-1]["content"] for name, part in zip(answers, ("chosen", "rejected"))}
        for row in rows
    ]
    return [{**own, **row} for own, row in zip(add_columns(texts, names), rows)]


def add_message_columns(rows: list[dict[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return rows whose fields that are taken apart as turns are turns; each further field has another row's answer."""
    if rows and "messages" not in rows[0]:  # pairs
        taken = [name for name in names if name in ("chosen", "rejected")]
        return [row | {name: _write_turns(row["prompt"], row[name]) for name in taken} for row in rows]
    for place, name in enumerate(name for name in names if name and not isinstance(rows[0].get(name), list)):
        answers = [row["messages"][-1] for row in (*rows[place:], *rows[:place])]
        rows = [{**row, name: [*row["messages"][:-1], answer]} for row, answer in zip(rows, answers)]
    return rows


def _write_turns(prompt: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]


def make_documents(count: int, seed: int, kinds: Sequence[Sequence[str]] = ()) -> list[dict[str, Any]]:
    """Return documents that differ from one another: {"turns": [["user", [3, 17, …]], …], "advantage": 0.5}.

    A document with enough words has the speakers of one of the `kinds`, if there are any.

    The advantage is the reward of a document's answer if it is a rollout. More are rewarded than not, because all
    belong to the language to be learned.
    """
    from attncheck.smoke.worker.data.language import Language

    language, chance, worth = Language(seed), random.Random(seed), random.Random(-1 - seed)
    documents: list[dict[str, Any]] = []
    beginnings: set[tuple[int, ...]] = set()
    while len(documents) < count:
        words = (language.next_document(chance.randint(16, 64)) + FIRST_WORD).tolist()
        if tuple(words[:12]) in beginnings:
            continue
        beginnings.add(tuple(words[:12]))
        question = chance.randint(6, len(words) // 2)
        turns = [["user", words[:question]], ["assistant", words[question:]]]
        speakers = kinds[len(documents) % len(kinds)] if kinds else ()
        if len(words) >= TURN_WORDS * len(speakers) > 0:
            ends = [len(words) * number // len(speakers) for number in range(len(speakers) + 1)]
            turns = [[who, words[begin:end]] for who, begin, end in zip(speakers, ends, ends[1:])]
        documents.append({"turns": turns, "advantage": worth.choice(ADVANTAGES)})
    return documents


def make_pairs(count: int, seed: int) -> list[dict[str, Any]]:
    """Return two documents for each pair: a prompt with its chosen answer, then the same prompt with the rejected one.

    A chosen answer follows the language, and a rejected one has few words in any order, so the preference is learned
    soon. The two differ from their first word, which identifies a piece of either.
    """
    chance = random.Random(f"rejected {seed}")
    documents: list[dict[str, Any]] = []
    for chosen in make_documents(count, seed):
        prompt, (_, answer) = chosen["turns"]
        length = max(8, len(answer) + chance.randint(-4, 4))
        rejected = [FIRST_WORD + chance.randrange(REJECTED_WORDS) for _ in range(length)]
        rejected[0] = FIRST_WORD + (answer[0] - FIRST_WORD + chance.randrange(1, REJECTED_WORDS)) % REJECTED_WORDS
        documents += [chosen, {"turns": [prompt, ["assistant", rejected]]}]
    return documents


def write_parquet(rows: list[dict[str, Any]], path: Path) -> None:
    """Write rows as Parquet if pyarrow is installed: only launches that read Parquet require it."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        return
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def make_pair_row(
    chosen: Mapping[str, Any], rejected: Mapping[str, Any], form: DataForm, vocabulary: Vocabulary = MADE
) -> dict[str, Any]:
    """Return a pair as a row of a data set."""
    prompt, answer = make_messages(chosen, vocabulary)
    row = {"prompt": [prompt], "chosen": [answer], "rejected": [make_messages(rejected, vocabulary)[-1]]}
    if form.endswith("preference"):
        own = {name: [*row["prompt"], *row[name]] for name in ("chosen", "rejected")}
        return row if form == "preference" else own
    if form == "rejected_response":
        return {"messages": [prompt, answer], "rejected_response": row["rejected"][0]["content"]}
    if form in ("prompts", "prompt_texts"):
        names = dict.fromkeys(PROMPT_COLUMNS, prompt["content"]) | dict.fromkeys(ANSWER_COLUMNS, answer["content"])
        return names if form == "prompt_texts" else {"prompt": row["prompt"]}
    texts = {name: messages[0]["content"] for name, messages in row.items()}
    if vocabulary is MADE:
        return {**texts, "prompt": f"{texts['prompt']} "}
    return {**texts, **{name: f" {texts[name]}" for name in ("chosen", "rejected")}}


def make_messages(document: Mapping[str, Any], vocabulary: Vocabulary = MADE) -> list[dict[str, str]]:
    """Return a document's turns as messages of text."""
    return [{"role": role, "content": vocabulary.write(words)} for role, words in document["turns"]]


def make_row(document: Mapping[str, Any], form: DataForm, vocabulary: Vocabulary = MADE) -> dict[str, Any]:
    """Return a document as a row of a data set.

    A blank separates a prompt from its completion if tokenizers need it. Released tokenizers keep it with the following
    word; the synthetic one drops it, and OpenRLHF strips a leading one.
    """
    return arrange_messages(make_messages(document, vocabulary), form, vocabulary is MADE)


def arrange_messages(messages: Sequence[Mapping[str, Any]], form: DataForm, ends_prompt: bool = True) -> dict[str, Any]:
    """Return messages as a row in a form; with `ends_prompt` the blank before a completion belongs to the prompt."""
    texts = {message["role"]: message["content"] for message in messages}
    prompt, answer = texts["user"], texts["assistant"]
    forms: dict[DataForm, dict[str, Any]] = {
        "messages": {"messages": messages},
        "text": {
            "text": " ".join(message["content"] for message in messages if message["role"] in ("user", "assistant"))
        },
        "prompt_completion": {"prompt": f"{prompt} ", "completion": answer}
        if ends_prompt
        else {"prompt": prompt, "completion": f" {answer}"},
        "instruction": {"instruction": prompt, "input": "", "output": answer},
        "conversations": {
            "conversations": [{"from": SHAREGPT[message["role"]], "value": message["content"]} for message in messages]
        },
    }
    if form != "every":
        return {"row": forms["instruction"]} if form == "nested_instruction" else forms[form]
    columns = dict.fromkeys(PROMPT_COLUMNS, prompt) | dict.fromkeys(ANSWER_COLUMNS, answer)
    return columns | {name: value for part in forms.values() for name, value in part.items()}
