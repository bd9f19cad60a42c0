"""Prints the problems of labels that a framework's own code makes with stock chat templates, as JSON by launch.

It runs in the framework's environment: `python stock_templates.py axolotl|openrlhf|verl|llamafactory`. The templates
are those that TRL and axolotl ship, or LLaMA-Factory's. The tokenizer is one of bytes, with a template's markup as
special tokens.
"""

import copy
import importlib.util
import json
import logging
import re
import sys
import tempfile
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from attncheck.rehearsal.watcher.describe import describe_prompt
from attncheck.rehearsal.worker import conversations
from attncheck.rehearsal.worker.labels import IGNORED, Row, TurnFinder, assign_roles, judge_rows
from attncheck.rehearsal.worker.vocabulary import NOUNS

MARKUP = re.compile(
    r"<\|[^<>\s'\"|]{1,60}\|>|<｜[^<>\s'\"]{1,60}｜>|\[/?[A-Z_]{3,30}\]|<\|?(?:turn|channel|tool)\|?>"
    r"|\[\|[a-z_]+\|\]|</?(?:s|eos|bos|think|tool_call|tool_response|tools|start_of_turn|end_of_turn|end_of_utterance|image)>"
)
FOLDERS = (("trl", "chat_templates"), ("axolotl", "utils/chat_templates/templates"))
QUESTION = [{"role": "user", "content": "QQQQ"}, {"role": "assistant", "content": "AAAA"}]
Labelled = tuple[list[int], list[int]]  # tokens and labels


def make_tokenizer(template: str, end: str) -> Any:
    """Return a tokenizer of bytes with a chat template, whose EOS token is `end`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    whole = Tokenizer(models.BPE(vocab={text: number for number, text in enumerate(alphabet)}, merges=[]))
    whole.pre_tokenizer, whole.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    markup = sorted({*MARKUP.findall(template), "<s>", end, "<|pad|>"})
    whole.add_special_tokens([AddedToken(text, normalized=False) for text in markup])
    fast = PreTrainedTokenizerFast(tokenizer_object=whole, bos_token="<s>", eos_token=end, pad_token="<|pad|>")
    fast.chat_template = template
    return fast


def iter_tokenizers() -> Iterator[tuple[str, Any]]:
    """Yield each template's name and a tokenizer whose EOS token is what the template writes after an answer."""
    for package, folder in FOLDERS:
        found = importlib.util.find_spec(package)
        for path in sorted((Path(str(found.origin)).parent / folder).glob("*.jinja")) if found else ():
            if path.stem.endswith("_training"):
                continue
            try:
                text = make_tokenizer(path.read_text(), "</s>").apply_chat_template(QUESTION, tokenize=False)
            except Exception:  # its author decides what it refuses
                continue
            end = MARKUP.search(text.rpartition("AAAA")[2])
            yield f"{package} {path.stem}", make_tokenizer(path.read_text(), end[0] if end else "</s>")


def iter_llamafactory() -> Iterator[tuple[str, Any]]:
    """Yield the name of each template of LLaMA-Factory, and a tokenizer with it."""
    from llamafactory.data.mm_plugin import get_mm_plugin  # type: ignore[import-not-found]
    from llamafactory.data.template import TEMPLATES  # type: ignore[import-not-found]

    for name, template in TEMPLATES.items():
        template.mm_plugin = get_mm_plugin("base")  # the rows have no images, and there is no processor of them
        parts = ("format_prefix", "format_system", "format_user", "format_assistant")
        slots = [slot for part in parts for slot in getattr(template, part).slots]
        tokenizer = make_tokenizer(str(slots), "</s>")
        tokenizer.add_tokens([slot["token"] for slot in slots if isinstance(slot, dict)], special_tokens=True)
        tokenizer.chat_template = None
        template.fix_special_tokens(tokenizer)
        template.fix_jinja_template(tokenizer)
        yield name, tokenizer


def label_llamafactory(tokenizer: Any, rows: list[dict[str, Any]], folder: Path, name: str) -> Iterator[Labelled]:
    """Yield rows by LLaMA-Factory's processor of supervised data and one of its templates."""
    from llamafactory.data.processor.supervised import SupervisedDatasetProcessor  # type: ignore[import-not-found]
    from llamafactory.data.template import TEMPLATES

    settings = types.SimpleNamespace(cutoff_len=8192, train_on_prompt=False, mask_history=False)
    laid = SupervisedDatasetProcessor(TEMPLATES[name], tokenizer, None, settings)
    for row in rows:
        turns = copy.deepcopy(row["messages"])
        system = turns.pop(0)["content"] if turns[0]["role"] == "system" else ""
        yield laid._encode_data_example(turns[:-1], turns[-1:], system, "", [], [], [])


def label_axolotl(tokenizer: Any, rows: list[dict[str, Any]], folder: Path, name: str) -> Iterator[Labelled]:
    """Yield rows by axolotl's prompt strategy of chat templates."""
    from axolotl.prompt_strategies.chat_template import StrategyLoader  # type: ignore[import-not-found]
    from axolotl.utils.dict import DictDefault  # type: ignore[import-not-found]

    settings = {"chat_template": "tokenizer_default", "sequence_len": 8192, "train_on_inputs": False}
    entry = {"type": "chat_template", "field_messages": "messages"}
    strategy = StrategyLoader()(tokenizer, DictDefault(settings), entry)
    for row in rows:
        encoded = strategy.tokenize_prompt(row)
        yield encoded["input_ids"], encoded["labels"]


def label_openrlhf(tokenizer: Any, rows: list[dict[str, Any]], folder: Path, name: str) -> Iterator[Labelled]:
    """Yield rows by OpenRLHF's data set of single answers; the mask of a token is that of its prediction."""
    import datasets
    from openrlhf.datasets.sft_dataset import SFTDataset

    data = types.SimpleNamespace(
        input_key="messages", output_key=None, apply_chat_template=True, tokenizer_chat_template=None
    )
    strategy = types.SimpleNamespace(args=types.SimpleNamespace(data=data))
    laid = SFTDataset(datasets.Dataset.from_list(rows), tokenizer, 8192, strategy, num_processors=None)
    for number in range(len(laid)):
        tokens, _, mask = (part.flatten().tolist() for part in laid[number])
        yield tokens, [IGNORED, *(token if is_on else IGNORED for token, is_on in zip(tokens[1:], mask[:-1]))]


def label_verl(tokenizer: Any, rows: list[dict[str, Any]], folder: Path, name: str) -> Iterator[Labelled]:
    """Yield rows by verl's data set of conversations."""
    import pandas  # type: ignore[import-untyped]

    sys.modules.setdefault("verl.models.transformers.qwen2_vl", types.SimpleNamespace(get_rope_index=None))  # type: ignore[arg-type]
    from verl.utils.dataset.multiturn_sft_dataset import MultiTurnSFTDataset

    pandas.DataFrame(rows).to_parquet(folder / "rows.parquet")
    laid = MultiTurnSFTDataset(str(folder / "rows.parquet"), tokenizer, {"max_length": 8192, "truncation": "right"})
    for number in range(len(laid)):
        encoded = laid[number]
        length = int(encoded["attention_mask"].sum())
        tokens, mask = (encoded[name][:length].tolist() for name in ("input_ids", "loss_mask"))
        yield tokens, [token if is_on else IGNORED for token, is_on in zip(tokens, mask)]


LABELLERS = {
    "axolotl": (label_axolotl, "assistant"),
    "openrlhf": (label_openrlhf, "last"),
    "verl": (label_verl, "assistant"),
    "llamafactory": (label_llamafactory, "assistant"),
}


def judge(name: str, template: str, tokenizer: Any, folder: Path) -> list[str]:
    """Return the problems of a template's rows."""
    label, targets = LABELLERS[name]
    parts = conversations.list_parts(tokenizer, "messages", name == "axolotl")
    laid = list(conversations.make_conversations(6, 0, NOUNS.split(), parts))
    (folder / conversations.FILE).write_text(json.dumps(laid))
    rows = [conversations.make_row(own, "messages", "reasoning" in parts) for own in laid]
    read = []
    for tokens, labels in label(copy.deepcopy(tokenizer), rows, folder, template):
        row = Row(tokens, labels, [tokenizer.decode([token]) for token in tokens])
        row.roles = ["unknown"] * len(tokens)
        assign_roles(row, TurnFinder(folder), tokenizer)
        read.append(row)
    if not any(row.turns for row in read):
        return ["no turn was found"]
    return judge_rows(read, tokenizer, targets, prompt=describe_prompt(tokenizer))[0]  # type: ignore[arg-type]


def main() -> None:
    """Print the problems by template, null for one that the framework refuses."""
    logging.disable(logging.WARNING)
    answers: dict[str, list[str] | None] = {}
    output, sys.stdout = sys.stdout, sys.stderr  # verl prints
    for template, tokenizer in iter_llamafactory() if sys.argv[1] == "llamafactory" else iter_tokenizers():
        with tempfile.TemporaryDirectory() as folder:
            try:
                answers[template] = judge(sys.argv[1], template, tokenizer, Path(folder))
            except Exception as error:  # which is the framework's or the template's own
                print(template, type(error).__name__, error)
                answers[template] = None
    print(json.dumps(answers), file=output)


if __name__ == "__main__":
    main()
