"""Prints the problems of labels that a framework's own code makes with stock chat templates, as JSON by launch.

It runs in the framework's environment: `python stock_templates.py NAME [FOLDER …]`, with one of LABELLERS' names. The
templates are those of LLaMA-Factory's and ms-swift's registries, otherwise those in the folders: TRL's and axolotl's.
The tokenizer is one of bytes, with a template's markup as special tokens.
"""

import copy
import itertools
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
from attncheck.rehearsal.worker import conversations, turns
from attncheck.rehearsal.worker.labels import ANSWERS, IGNORED, Row, TurnFinder, assign_roles, judge_rows
from attncheck.rehearsal.worker.vocabulary import NOUNS

MARKUP = re.compile(
    r"<\|[^<>\s'\"|]{1,60}\|>|<｜[^<>\s'\"]{1,60}｜>|\[/?[A-Z_]{3,30}\]|<\|?(?:turn|channel|tool)\|?>"
    r"|\[\|[a-z_]+\|\]|</?(?:s|eos|bos|think|tool_call|tool_response|tools|start_of_turn|end_of_turn|end_of_utterance|image)>"
)
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


def iter_tokenizers(folders: list[str]) -> Iterator[tuple[str, Any]]:
    """Yield each template's name and a tokenizer whose EOS token is what the template writes after an answer."""
    for path in (path for folder in folders for path in sorted(Path(folder).glob("*.jinja"))):
        if path.stem.endswith("_training"):
            continue
        try:
            text = make_tokenizer(path.read_text(), "</s>").apply_chat_template(QUESTION, tokenize=False)
        except Exception:  # its author decides what it refuses
            continue
        end = MARKUP.search(text.rpartition("AAAA")[2])
        package = "trl" if path.parent.name == "chat_templates" else "axolotl"
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


def iter_ms_swift() -> Iterator[tuple[str, Any]]:
    """Yield the name of each template of ms-swift, and a tokenizer with it."""
    from swift.template import TEMPLATE_MAPPING  # type: ignore[import-not-found]

    for name, meta in TEMPLATE_MAPPING.items():
        parts = [part for part in (meta.prefix, meta.system_prefix, meta.prompt, meta.chat_sep, meta.suffix) if part]
        if any(isinstance(item, int) for part in parts for item in itertools.chain(*map(list, part))):
            continue  # a token of its model's vocabulary, by number
        ends = [text.strip() for text in meta.suffix if isinstance(text, str) and text.strip()]
        tokenizer = make_tokenizer(str(parts), (MARKUP.findall(ends[0]) or ends)[0] if ends else "</s>")
        tokenizer.chat_template = None
        yield name, tokenizer


def list_lacks_of_ms_swift(name: str) -> set[str]:
    """Return the parts of conversations that a template of ms-swift refuses."""
    from swift.template import TEMPLATE_MAPPING

    meta = TEMPLATE_MAPPING[name]
    supported = {"system": meta.support_system, "turns": meta.support_multi_round}
    return {part for part, is_supported in supported.items() if not is_supported}


def label_ms_swift(tokenizer: Any, rows: list[dict[str, Any]], folder: Path, name: str) -> Iterator[Labelled]:
    """Yield rows by one of ms-swift's templates, as text: its class for images needs their processor."""
    from swift.template import TEMPLATE_MAPPING, Template

    model = types.SimpleNamespace(config=types.SimpleNamespace(), task_type="causal_lm", max_model_len=8192)
    tokenizer.model_info, tokenizer.model_meta = model, types.SimpleNamespace(is_multimodal=False)
    laid = Template(tokenizer, TEMPLATE_MAPPING[name])
    laid.set_mode("train")
    for row in rows:
        encoded = laid.encode({"messages": copy.deepcopy(row["messages"])})
        yield encoded["input_ids"], encoded["labels"]


def label_trl(tokenizer: Any, rows: list[dict[str, Any]], folder: Path, name: str) -> Iterator[Labelled]:
    """Yield rows by TRL's trainer with `assistant_only_loss`."""
    return _label_trl(tokenizer, [{"messages": row["messages"]} for row in rows], folder, assistant_only_loss=True)


def label_trl_pairs(tokenizer: Any, rows: list[dict[str, Any]], folder: Path, name: str) -> Iterator[Labelled]:
    """Yield rows by TRL's trainer from prompts and completions."""
    pairs = [{"prompt": row["messages"][:-1], "completion": row["messages"][-1:]} for row in rows]
    return _label_trl(tokenizer, pairs, folder)


def _label_trl(tokenizer: Any, rows: list[dict[str, Any]], folder: Path, **settings: Any) -> Iterator[Labelled]:
    import datasets
    from transformers import Qwen2Config, Qwen2ForCausalLM
    from trl import SFTConfig, SFTTrainer

    sizes: Any = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 1, "num_key_value_heads": 1}
    config = Qwen2Config(vocab_size=len(tokenizer), num_hidden_layers=1, **sizes)
    arguments = SFTConfig(str(folder), max_length=None, use_cpu=True, report_to=[], disable_tqdm=True, **settings)
    data = datasets.Dataset.from_list(rows)
    trainer = SFTTrainer(Qwen2ForCausalLM(config), arguments, train_dataset=data, processing_class=tokenizer)
    return _read_batch(trainer.data_collator(list(trainer.train_dataset)))


def _read_batch(batch: dict[str, Any]) -> Iterator[Labelled]:
    """Yield the rows of a batch without their padding, whose labels are the collator's."""
    for tokens, mask, labels in zip(*(batch[name].tolist() for name in ("input_ids", "attention_mask", "labels"))):
        yield tokens[: sum(mask)], labels[: sum(mask)]


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
    """Yield rows by OpenRLHF's data set of single answers."""
    return _label_openrlhf(tokenizer, rows, multiturn=False)


def label_openrlhf_turns(tokenizer: Any, rows: list[dict[str, Any]], folder: Path, name: str) -> Iterator[Labelled]:
    """Yield rows by OpenRLHF's data set of conversations (`--data.multiturn`)."""
    return _label_openrlhf(tokenizer, rows, multiturn=True)


def _label_openrlhf(tokenizer: Any, rows: list[dict[str, Any]], multiturn: bool) -> Iterator[Labelled]:
    """Yield the rows of a batch with their padding; the mask of a token is that of its prediction."""
    import datasets
    from openrlhf.datasets.sft_dataset import SFTDataset

    data = types.SimpleNamespace(
        input_key="messages", output_key=None, apply_chat_template=True, tokenizer_chat_template=None
    )
    strategy = types.SimpleNamespace(args=types.SimpleNamespace(data=data))
    laid = SFTDataset(
        datasets.Dataset.from_list(rows), tokenizer, 8192, strategy, num_processors=None, multiturn=multiturn
    )
    for tokens, _, mask in zip(*(part.flatten(1).tolist() for part in laid.collate_fn(list(laid)))):
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
    "openrlhf-turns": (label_openrlhf_turns, "assistant"),
    "trl": (label_trl, "assistant"),
    "trl-pairs": (label_trl_pairs, "last"),
    "ms_swift": (label_ms_swift, "assistant"),
    "verl": (label_verl, "assistant"),
    "llamafactory": (label_llamafactory, "assistant"),
}

HAVE_FIELDS = ("axolotl", "trl", "trl-pairs")
LACKS = {"ms_swift": list_lacks_of_ms_swift}
REGISTRIES = {"llamafactory": iter_llamafactory, "ms_swift": iter_ms_swift}


def judge(name: str, template: str, tokenizer: Any, folder: Path) -> tuple[list[str], list[str]]:
    """Return the problems of a template's rows, and what their text alone says."""
    parts = conversations.list_parts(tokenizer, "messages", name in HAVE_FIELDS)
    parts -= LACKS[name](template) if name in LACKS else set()
    laid = list(conversations.make_conversations(6, 0, NOUNS.split(), parts))
    (folder / turns.FILE).write_text(json.dumps(laid))
    rows = [conversations.make_row(own, "messages", "reasoning" in parts) for own in laid]
    try:
        read = read_rows(name, template, tokenizer, rows, folder)
    except Unread:  # templates of images loop over the parts of a content
        for row in rows:
            for message in row["messages"]:
                message["content"] = [{"type": "text", "text": message["content"]}]
        read = read_rows(name, template, tokenizer, rows, folder)
    targets = LABELLERS[name][1]
    problems, _ = judge_rows(read, tokenizer, targets, prompt=describe_prompt(tokenizer))  # type: ignore[arg-type]
    facts = {fact for row in read if row.turns for fact in witness(row, laid[row.turns[0][0]], targets)}
    return problems, sorted(facts)


class Unread(Exception):
    """No turn was found in the rows."""


def read_rows(name: str, template: str, tokenizer: Any, rows: list[dict[str, Any]], folder: Path) -> list[Row]:
    """Return the rows that a framework makes, with the roles of their tokens."""
    read = []
    for tokens, labels in LABELLERS[name][0](copy.deepcopy(tokenizer), rows, folder, template):
        row = Row(tokens, labels, [tokenizer.decode([token]) for token in tokens])
        row.roles = ["unknown"] * len(tokens)
        assign_roles(row, TurnFinder(folder), tokenizer)
        read.append(row)
    if not any(row.turns for row in read):
        raise Unread("no turn was found")
    return read


def witness(row: Row, conversation: turns.Conversation, targets: str) -> Iterator[str]:
    """Yield what a row's text says of its labels, without their roles.

    A turn that should not be learned is in the text of the other tokens, one that should be is in that of the learned.
    """
    pad = "<|pad|>"
    text = "".join(row.texts).partition(pad)[0]
    learned, others = (
        "".join(
            part if (label != IGNORED) == is_learned else "\0"
            for part, label in zip(row.texts, row.labels, strict=True)
        )
        for is_learned in (True, False)
    )
    if pad in learned:
        yield "padding"
    for number, (role, said) in enumerate(conversation):
        is_answer = role in ANSWERS and (targets == "assistant" or number > last_given(conversation))
        if said not in text:
            if role in ("user", "assistant"):
                yield "dropped"
        elif said not in (learned if is_answer else others):
            yield "unlearned" if is_answer else "given"
    end = learned[learned.rfind(said) + len(said) :] if said in learned else "end"
    if not end.replace(pad, "").strip("\0 \n"):
        yield "no end"


def last_given(conversation: turns.Conversation) -> int:
    """Return the number of the last turn that is not the assistant's."""
    return max(number for number, (role, _) in enumerate(conversation) if role not in ANSWERS)


def main() -> None:
    """Print the problems by template, null for one that the framework refuses."""
    logging.disable(logging.WARNING)
    answers: dict[str, tuple[list[str], list[str]] | None] = {}
    output, sys.stdout = sys.stdout, sys.stderr  # verl prints
    name, *folders = sys.argv[1:]
    for template, tokenizer in REGISTRIES[name]() if name in REGISTRIES else iter_tokenizers(folders):
        with tempfile.TemporaryDirectory() as folder:
            try:
                answers[template] = judge(name, template, tokenizer, Path(folder))
            except Exception as error:  # which is the framework's or the template's own
                print("refused", template, type(error).__name__, str(error)[:200])
                answers[template] = None
    print(json.dumps(answers), file=output)


if __name__ == "__main__":
    main()
