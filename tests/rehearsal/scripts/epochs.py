"""A training loop over a data loader, whose epoch is as EPOCH makes it: a fault in it, or a setting that is legal."""

# mypy: ignore-errors
from __future__ import annotations

import argparse
import itertools
import json
import os
import random
from pathlib import Path

import torch
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler
from transformers import AutoModelForCausalLM, AutoTokenizer, get_scheduler

EPOCH = os.environ.get("EPOCH", "")
ROW = 128  # tokens


def join(documents):
    return [token for tokens in documents for token in tokens]


def cut_stream(stream, keeps_tail: bool):
    stop = len(stream) if keeps_tail else len(stream) // ROW * ROW
    return [stream[place : place + ROW] for place in range(0, stop, ROW)]


def pack(documents):
    row = []
    for tokens in documents:
        if len(row) + len(tokens) > 2 * ROW:
            yield row
            row = []
            if EPOCH == "packed_without_the_next":
                continue
        row = row + tokens
    if row:
        yield row


def make_rows(documents):
    """Return the rows of the data set."""
    if EPOCH == "tails_dropped":  # of each part of the data, as `map(batched=True)` gives them
        parts = [join(documents[place : place + 10]) for place in range(0, len(documents), 10)]
        return [row for part in parts for row in cut_stream(part, False)]
    if EPOCH == "stream":
        return cut_stream(join(documents), True)
    if EPOCH == "stream_without_end":
        return cut_stream(join(documents), False)
    if EPOCH in ("few_documents", "mixture"):
        return [documents[number % 8] for number in range(len(documents))]
    if EPOCH.startswith("packed"):
        return list(pack(documents))
    if EPOCH == "only_a_few":
        return documents[:12]
    if EPOCH == "split_twice":
        return documents[int(os.environ["RANK"]) :: 2]
    if EPOCH == "held_out":
        return documents[: len(documents) * 9 // 10]
    if EPOCH == "tensors":
        return [{"input_ids": torch.tensor(tokens)} for tokens in documents]
    return documents


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, kind in (("model_name_or_path", str), ("data_path", str), ("output_dir", str), ("max_length", int)):
        parser.add_argument(f"--{name}", type=kind)
    for name in ("max_steps", "per_device_train_batch_size", "gradient_accumulation_steps"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--learning_rate", type=float)
    options = parser.parse_args()
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(options.model_name_or_path)
    model = AutoModelForCausalLM.from_pretrained(options.model_name_or_path, torch_dtype=torch.float32)
    texts = [json.loads(line) for line in Path(options.data_path).read_text().splitlines()]
    documents = [
        [*tokenizer(f"{row['prompt']} {row['completion']}", add_special_tokens=False)["input_ids"],
         tokenizer.eos_token_id]
        for row in texts
    ]  # fmt: skip
    rows = make_rows(documents)

    def collate(batch):
        batch = [row["input_ids"].tolist() if isinstance(row, dict) else row for row in batch]
        if EPOCH == "collator_loses_rows":
            batch = batch[:2]
        length = max(map(len, batch))
        ids = torch.tensor([row + [tokenizer.pad_token_id] * (length - len(row)) for row in batch])
        mask = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in batch])
        return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}

    sampler = RandomSampler(rows, replacement=True) if EPOCH == "replacement" else None
    if EPOCH in ("first_half_alone", "split_by_sampler", "as_long_as_the_steps"):
        share = {"first_half_alone": 2, "split_by_sampler": 10 / 9}.get(EPOCH, len(rows) / 4 / options.max_steps)
        sampler = torch.utils.data.SubsetRandomSampler(range(int(len(rows) / share)))
    if EPOCH.startswith("orders_of_ranks"):
        rank = int(os.environ["RANK"])
        order = random.Random(rank if EPOCH.endswith("_differ") else 0)
        sampler = order.sample(range(len(rows)), len(rows))[rank::2]
    if EPOCH == "weights_of_three_sources":
        sampler = torch.utils.data.WeightedRandomSampler([1.0, 0.5, 0.2], num_samples=len(rows), replacement=True)
    if EPOCH == "split_twice":
        sampler = DistributedSampler(rows, num_replicas=2, rank=int(os.environ["RANK"]))
    if EPOCH == "first_half_twice":
        sampler = [*range(len(rows) // 2)] * 2
    loader = DataLoader(
        rows,
        batch_size=4,
        shuffle=sampler is None,
        sampler=sampler,
        collate_fn=collate,
        drop_last=EPOCH == "drop_last",
        num_workers=2 if EPOCH == "workers" else 0,
    )
    rates = {"another_rate": 1e-3, "rate_of_a_rate": 5e-3}
    rates["rate_of_the_launch"] = 2e-5  # as the script says, which is replaced only in its options
    optimizer = torch.optim.AdamW(model.parameters(), lr=rates.get(EPOCH, options.learning_rate))
    accumulation = 2 if "scheduled_for" in EPOCH and EPOCH != "scheduled_for_another" else 1
    counts = {
        "never_stepped, as after epochs": 3,
        "scheduled_for_a_number": 2800,
        "repeated_and_scheduled_for_all": len(loader) // 2 * 2,
    }
    planned = len(loader) // 2 if EPOCH.endswith("scheduled_for_steps") else counts.get(EPOCH, len(loader))
    other = torch.optim.AdamW(model.parameters(), lr=options.learning_rate)
    schedule = get_scheduler("cosine", other if EPOCH == "scheduled_for_another" else optimizer, 0, planned)
    if EPOCH == "rate_of_a_rate":
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: options.learning_rate * (1 - step / planned)
        )
    model.train()
    if EPOCH == "another_order":  # the plan that is drawn first is not the one that trains
        next(iter(loader))
        loader = DataLoader(rows, batch_size=4, shuffle=True, collate_fn=collate)
    for number, batch in zip(range(options.max_steps * accumulation), itertools.chain(loader, loader)):
        (model(**batch).loss / accumulation).backward()
        if number % accumulation == accumulation - 1:
            optimizer.step()
            optimizer.zero_grad()
        elif EPOCH.startswith("repeated"):
            continue
        if EPOCH.startswith("repeated"):  # as accelerate 1.15.0 scheduler.py, which is not installed here
            exec("for _ in range(2): schedule.step()", {"schedule": schedule, "__name__": "accelerate.scheduler"})
            continue
        if not EPOCH.startswith("never_stepped"):
            schedule.step()


if __name__ == "__main__":
    main()
