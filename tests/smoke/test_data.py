"""A user's own data as documents: what every usual file gives, and one clear line for every other."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from attncheck.smoke.worker.data import documents as data  # noqa: E402
from attncheck.smoke.worker.data import readers  # noqa: E402
from attncheck.smoke.worker.data.documents import BadData, load_documents, renumber_tokens  # noqa: E402

WORDS = "the,cat,sat,on,mat,dog,ran,far,user,assistant,hi,you,yes,no,1,2,:,<turn>".split(",")  # noqa: SIM905
TEMPLATE = "{% for m in messages %}<turn> {{ m['role'] }} {{ m['content'] }} {% endfor %}"
PARQUET = importlib.util.find_spec("pyarrow") is not None
needs_pyarrow = pytest.mark.skipif(not PARQUET, reason="pyarrow is not installed")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a folder with a real tokenizer: one token for each known word, a token before each text."""
    return make_tokenizer(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a folder with the same tokenizer and a chat template."""
    return make_tokenizer(tmp_path_factory.mktemp("chatty"), TEMPLATE)


def make_tokenizer(folder: Path, template: str = "") -> str:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: index for index, word in enumerate(["<s>", "<unk>", *WORDS])}
    fast_backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    fast_backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast_backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    fast = PreTrainedTokenizerFast(tokenizer_object=fast_backend, bos_token="<s>", unk_token="<unk>")
    if template:
        fast.chat_template = template
    fast.save_pretrained(str(folder))
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return str(folder)


def token_ids(*words: str, start: bool = True) -> list[int]:
    return [0] * start + [(["<s>", "<unk>", *WORDS]).index(word) for word in words]


def read_tokens(path: Path, model: str, limit: int = 1000, **options: Any) -> list[list[int]]:
    return [document.tolist() for document in load_documents(str(path), model, limit, **options)]


def write_lines(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_paragraphs_of_a_text_are_documents(tmp_path: Path, model: str) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfthe cat\nsat\r\n\r\n \t\n\nthe dog\n\n\n")
    assert read_tokens(path, model) == [token_ids("the", "cat", "sat"), token_ids("the", "dog")]
    assert load_documents(str(path), model, 9)[0].dtype == torch.int64


@pytest.mark.parametrize(
    ("row", "expected_text"),
    [
        ({"id": 7, "text": "the cat"}, "the cat"),
        ({"content": "the dog"}, "the dog"),
        ({"prompt": "the cat", "completion": "ran far"}, "the cat ran far"),
        ({"prompt": "the cat", "response": "sat"}, "the cat sat"),
        ({"instruction": "the cat", "input": "", "output": "sat"}, "the cat sat"),
        ({"instruction": "the cat", "input": "on", "output": "mat"}, "the cat on mat"),
        ({"question": "hi", "answer": "you"}, "hi you"),
        ({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "you"}]}, ""),
        ({"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "you"}]}, ""),
        ({"prompt": [{"role": "user", "content": "hi"}], "completion": [{"role": "assistant", "content": "you"}]}, ""),
        ({"text": None, "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "you"}]}, ""),
    ],
)
def test_usual_fields(row: dict[str, Any], expected_text: str, tmp_path: Path, chat_model: str) -> None:
    path = write_lines(tmp_path / "a.jsonl", row, {"text": ""})
    expected = (
        token_ids(*expected_text.split())
        if expected_text
        else token_ids("<turn>", "user", "hi", "<turn>", "assistant", "you", start=False)
    )
    assert read_tokens(path, chat_model) == [expected]


def test_messages_without_a_template_are_written_plainly(tmp_path: Path, model: str) -> None:
    parts = [{"type": "text", "text": "hi"}, {"type": "image"}]
    path = write_lines(tmp_path / "a.jsonl", {"messages": [{"role": "user", "content": parts}]})
    texts = [text for _, text in readers.read_texts(str(path), None, print)]
    assert data._render_conversation(data.load_tokenizer(model), texts[0], "") == "user: hi"  # type: ignore[arg-type]


def test_a_field_can_be_named(tmp_path: Path, model: str) -> None:
    path = write_lines(tmp_path / "a.jsonl", {"story": "the cat", "text": "the dog"})
    assert read_tokens(path, model, field="story") == [token_ids("the", "cat")]
    with pytest.raises(BadData, match=r"line 1 of a.jsonl has no field 'tale'; its fields are story, text"):
        read_tokens(path, model, field="tale")


def test_no_more_is_read_than_is_wanted(tmp_path: Path, model: str) -> None:
    path = write_lines(tmp_path / "a.jsonl", {"text": "the cat"}, {"text": "the dog ran far"})
    path.write_bytes(path.read_bytes() + b"broken\n\xff\0")
    assert read_tokens(path, model, 6) == [token_ids("the", "cat"), token_ids("the", "dog")]
    with pytest.raises(BadData, match=r"line 3 of a.jsonl is not JSON"):
        read_tokens(path, model, 60)
    huge = tmp_path / "huge.txt"
    with huge.open("wb") as stream:  # sparse: reading it whole would take a terabyte
        stream.write(b"the cat sat on mat\n\n" * 200)
        stream.truncate(1 << 40)
    assert sum(map(len, read_tokens(huge, model, 100))) == 100


def test_one_giant_line_is_cut_and_that_is_said(tmp_path: Path, model: str) -> None:
    notes: list[str] = []
    path = tmp_path / "a.txt"
    path.write_text("the cat sat on mat " * 20_000)
    documents = read_tokens(path, model, 1500, max_length=64, report_progress=notes.append)
    assert sum(map(len, documents)) == 1500 and max(map(len, documents)) == 64
    assert notes[0] == "line 1 of a.txt has more than 65536 characters: it was cut there"
    assert notes[1].startswith("1 of the first 1 texts") and "more than 64 tokens: each was cut" in notes[1]
    notes.clear()
    read_tokens(path, model, 10**6, max_length=64, report_progress=notes.append)
    assert any(note.endswith("tokens, 1000000 were asked for") for note in notes)


def test_half_a_surrogate_pair_is_text(tmp_path: Path, model: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "the \\ud800 cat"}\n')
    assert read_tokens(path, model) == [token_ids("the", "<unk>", "cat")]


def file_with(content: bytes, name: str = "a.jsonl") -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return make


def folder_with(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / "set.txt").mkdir()
        (folder / "set.txt" / name).write_text("the cat")
        return folder / "set.txt"

    return make


ERRORS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "missing": (lambda folder: folder / "a.txt", "there is no file .*a.txt"),
    "odd name": (lambda folder: folder / "a\0.txt", "cannot be the name of a file"),
    "long name": (lambda folder: folder / ("a" * 5000 + ".txt"), "cannot be read: File name too long"),
    "folder": (folder_with("x.txt"), "is not a file but a folder with x.txt in it; name a .jsonl"),
    "device": (lambda folder: link_to(folder / "a.txt", "/dev/zero"), "is not a file; name"),
    "empty": (file_with(b""), "a.jsonl is empty; name a file with text"),
    "blank": (file_with(b"\n \n\t\n", "a.txt"), "there is no text in .*a.txt"),
    "blank lines": (file_with(b"\n\n"), "there is no text in .*a.jsonl"),
    "zero byte": (file_with(b"the cat\nsat \0 on", "a.txt"), "is binary: there is a zero byte in line 2"),
    "zero byte in jsonl": (file_with(b'{"text": "a"}\n\0\0'), "is binary: there is a zero byte in line 2"),
    "latin": (file_with("the café".encode("latin-1"), "a.txt"), "is not UTF-8 text; convert it with iconv"),
    "latin jsonl": (file_with('{"text": "café"}'.encode("latin-1")), "is not UTF-8 text"),
    "utf-16": (file_with("the cat".encode("utf-16"), "a.txt"), "is UTF-16: convert it"),
    "gzip": (file_with(gzip.compress(b"x")), "is gzip-compressed: unpack it with gunzip"),
    "parquet as jsonl": (file_with(b"PAR1...."), "is a Parquet file: give it the ending .parquet"),
    "json": (
        file_with(b"[]", "a.json"),
        r"ends in .json; make one object a line of it: jq -c '.\[\]' a.json > a.jsonl",
    ),
    "csv": (file_with(b"a,b", "a.csv"), "ends in .csv; smoke reads .jsonl, .parquet and .txt"),
    "no suffix": (file_with(b"the", "data"), "has no ending that tells what it holds"),
    "broken": (file_with(b'{"text": "the"}\n{"text": "cat\n'), "line 2 of a.jsonl is not JSON: Unterminated string"),
    "array": (file_with(b'[{"text": "the"}]'), "line 1 of a.jsonl begins an array; .* each line holds one object"),
    "indented": (
        file_with(b'{\n  "text": "the"\n}\n'),
        "line 1 of a.jsonl is not a whole object; put each on one line",
    ),
    "number": (file_with(b"17\n"), "line 1 of a.jsonl holds a number; in .jsonl"),
    "nested": (file_with(b'{"a":' * 100_000), "line 1 of a.jsonl is nested too deeply"),
    "no field": (
        file_with(b'{"id": 1, "label": "x"}'),
        "no field that smoke knows .* fields are id, label: name one with",
    ),
    "no fields": (file_with(b"{}"), "no field that smoke knows for text; it has none"),
    "number as text": (file_with(b'{"text": 5}'), "the field 'text' in line 1 of a.jsonl holds a number, not text"),
    "list as text": (file_with(b'{"text": ["a"]}'), "the field 'text' in line 1 of a.jsonl holds a list, not text"),
    "nulls": (file_with(b'{"text": null}\n{"text": ""}'), "makes no token of the 2 texts"),
    "one token": (
        file_with(b'{"messages": [{"role": "", "content": "hi"}]}\n'),
        "every document of .* is one token long",
    ),
}


def link_to(path: Path, target: str) -> Path:
    path.symlink_to(target)
    return path


@pytest.mark.parametrize("name", ERRORS)
def test_each_error_is_one_clear_line(name: str, tmp_path: Path, model: str) -> None:
    make, message = ERRORS[name]
    with pytest.raises(BadData, match=message) as caught:
        read_tokens(make(tmp_path), model)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400 + len(str(tmp_path)) + 5000 * (name[0] == "l")


def test_a_line_too_long_is_refused(tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "MAX_LINE_BYTES", 1000)
    path = write_lines(tmp_path / "a.jsonl", {"text": "the cat"}, {"text": "x" * 1000})
    with pytest.raises(BadData, match=r"line 2 of a.jsonl is longer than"):
        read_tokens(path, model)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_permission(tmp_path: Path, model: str) -> None:
    path = write_lines(tmp_path / "a.jsonl", {"text": "the cat"})
    path.chmod(0)
    with pytest.raises(BadData, match="cannot be read: Permission denied"):
        read_tokens(path, model)


def test_a_template_that_refuses(tmp_path: Path) -> None:
    source = make_tokenizer(tmp_path, "{{ raise_exception('roles must alternate') }}")
    path = write_lines(tmp_path / "a.jsonl", {"messages": [{"role": "user", "content": "hi"}]})
    with pytest.raises(
        BadData, match=r"refuses the messages in line 1 of a.jsonl: TemplateError: roles must alternate"
    ):
        read_tokens(path, source)


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "gemma3", "gpt_oss"])
def test_a_model_without_a_tokenizer(model_type: str, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", {"text": "the cat"})
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare/config.json").write_text(json.dumps({"model_type": model_type}))
    with pytest.raises(BadData, match="bare holds no tokenizer files; name a model whose folder holds"):
        read_tokens(path, str(tmp_path / "bare"))


def test_a_tokenizer_that_is_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_lines(tmp_path / "a.jsonl", {"text": "the cat"})
    for source in ("nobody/nothing", str(tmp_path / "gone"), "llama", ""):
        with pytest.raises(BadData, match="neither in a folder here nor in the Hub's local cache"):
            read_tokens(path, source)


def test_compact_numbers_what_occurs() -> None:
    sparse = [torch.tensor([900, 5, 900]), torch.tensor([70_000]), torch.tensor([5, 6])]
    renumbered, count = renumber_tokens(sparse)
    assert [document.tolist() for document in renumbered] == [[2, 0, 2], [3], [0, 1]] and count == 4
    assert renumber_tokens([]) == ([], 0)


@needs_pyarrow
def test_parquet(tmp_path: Path, chat_model: str) -> None:
    path = write_parquet(tmp_path / "a.parquet", [{"id": n, "text": "the cat"} for n in range(100)])
    assert read_tokens(path, chat_model, 10) == [token_ids("the", "cat")] * 3 + [[0]]
    chat = [{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "you"}]}]
    assert read_tokens(write_parquet(path, chat), chat_model) == [
        token_ids("<turn>", "user", "hi", "<turn>", "assistant", "you", start=False)
    ]
    assert read_tokens(write_parquet(path, [{"a b": "the", "id": 1}]), chat_model, field="a b") == [token_ids("the")]
    with pytest.raises(BadData, match=r"row 1 of a.parquet has no field .* fields are id, label: name one"):
        read_tokens(write_parquet(path, [{"id": 1, "label": 2}]), chat_model)
    with pytest.raises(BadData, match=r"row 1 of a.parquet has no field 'tale'; its fields are id, label"):
        read_tokens(path, chat_model, field="tale")
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(BadData, match=r"a.parquet is damaged or not Parquet: .*; make it anew"):
        read_tokens(path, chat_model)


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    import importlib

    arrow, writer = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    writer.write_table(arrow.Table.from_pylist(rows), str(path))
    return path


def test_parquet_without_pyarrow(tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1")
    with pytest.raises(BadData, match=r"needs pyarrow, .*: pip install pyarrow, or name a .jsonl file"):
        read_tokens(path, model)


def damage(content: bytes, rng: random.Random) -> bytes:
    """Return `content` with a few bytes cut, doubled, flipped, or put in."""
    changed = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        position = rng.randrange(len(changed) + 1)
        kind = rng.randrange(5)
        if kind == 0:
            del changed[position : position + rng.randint(1, 40)]
        elif kind == 1:
            changed[position:position] = changed[position : position + 40]
        elif kind == 2:
            changed[position:position] = rng.choice(
                [b"\0", b"\xff", b"\n\n", b'"', b"{", b"[", b"null", b"\\ud800", b"9" * 5000]
            )
        elif kind == 3 and position < len(changed):
            changed[position] ^= 1 << rng.randrange(8)
        else:
            del changed[position:]
    return bytes(changed)


SOUND = {
    "a.txt": "the cat sat\n\non the mat é\n\n".encode() * 5,
    "a.jsonl": b'{"text": "the cat"}\n{"messages": [{"role": "user", "content": "hi"}]}\n{"prompt": "a"}\n',
}


def loads_documents(path: Path, source: str, message: str) -> bool:
    """Say whether the file gives documents; where not, check that the error is the one line of `BadData`."""
    try:
        loaded = load_documents(str(path), source, 200)
    except BadData as error:
        message = str(error)
    else:
        assert loaded and all(len(document) and document.dtype == torch.int64 for document in loaded), message
        return True
    assert message and "\n" not in message and len(message) < 900, message
    return False


@pytest.mark.parametrize("name", SOUND)
def test_damaged_files_are_documents_or_one_line(name: str, tmp_path: Path, chat_model: str) -> None:
    rng, answers = random.Random(5), []
    for turn in range(250):
        path = tmp_path / name
        path.write_bytes(damage(SOUND[name], rng))
        answers.append(loads_documents(path, chat_model, f"turn {turn}"))
    assert set(answers) == {True, False}


@needs_pyarrow
def test_damaged_parquet_is_documents_or_one_line(tmp_path: Path, chat_model: str) -> None:
    rng, path = random.Random(6), tmp_path / "a.parquet"
    sound = write_parquet(path, [{"text": "the cat", "id": n} for n in range(50)]).read_bytes()
    answers = []
    for turn in range(150):
        path.write_bytes(damage(sound, rng))
        answers.append(loads_documents(path, chat_model, f"turn {turn}"))
    assert set(answers) == {True, False}


def test_damaged_tokenizers_are_tokenizers_or_one_line(tmp_path: Path, chat_model: str) -> None:
    rng, data = random.Random(7), write_lines(tmp_path / "a.jsonl", {"text": "the cat"}, {"text": "sat on"})
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        sound = Path(chat_model, name).read_bytes()
        for turn in range(25):
            broken = tmp_path / f"{name}-{turn}"
            broken.mkdir()
            for other in Path(chat_model).iterdir():
                (broken / other.name).write_bytes(other.read_bytes())
            (broken / name).write_bytes(damage(sound, rng))
            loads_documents(data, str(broken), f"{name}, turn {turn}")
