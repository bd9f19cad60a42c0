"""Faults in a user's training script, which `attncheck smoke -- COMMAND` rehearses: collator, labels, loss."""

from attncheck.selftest.faults import Family, Fault, Sandbox, SandboxAction

SCRIPT = """
import argparse, json
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

parser = argparse.ArgumentParser()
for name in ("model_name_or_path", "data_path", "output_dir"):
    parser.add_argument(f"--{name}")
for name in ("max_steps", "per_device_train_batch_size", "gradient_accumulation_steps"):
    parser.add_argument(f"--{name}", type=int, default=1)
parser.add_argument("--learning_rate", type=float, default=1e-4)
options = parser.parse_args()
tokenizer = AutoTokenizer.from_pretrained(options.model_name_or_path)
model = AutoModelForCausalLM.from_pretrained(options.model_name_or_path, attn_implementation="sdpa").train()
optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate)
documents = iter([json.loads(line)["messages"] for line in open(options.data_path)])

def make_batch():
    rows = [tokenizer.apply_chat_template(next(documents))["input_ids"] for _ in range(2)]
    input_ids = torch.tensor([sum(rows, [])])
    labels = input_ids.clone()
    labels[0, len(rows[0])] = -100
    position_ids = torch.tensor([[place for row in rows for place in range(len(row))]])
    return {"input_ids": input_ids, "labels": labels, "use_cache": False, "position_ids": position_ids}

for step in range(options.max_steps):
    batches = [make_batch() for _ in range(options.gradient_accumulation_steps)]
    targets = torch.tensor(sum(int((batch["labels"][:, 1:] != -100).sum()) for batch in batches))
    for batch in batches:
        loss = model(**batch, num_items_in_batch=targets).loss
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
POSITIONS = '"position_ids": position_ids}'
LABELS = "    labels[0, len(rows[0])] = -100\n"
LOSS = "model(**batch, num_items_in_batch=targets).loss"


def setup_rehearsal(sandbox: Sandbox) -> None:
    """Rehearse a correct script that packs two documents into a row."""
    script = sandbox.write_file("train.py", SCRIPT)
    command = [sandbox.python, str(script), "--model_name_or_path", "llama", "--data_path", "data.jsonl"]
    command += ["--output_dir", "out", "--max_steps", "1000", "--gradient_accumulation_steps", "4"]
    command += ["--per_device_train_batch_size", "1", "--learning_rate", "1e-5"]
    options = ["--python", sandbox.python, "--device", sandbox.device, "--format", "json"]
    sandbox.arguments += ["smoke", "--no-fix", *options, "--", *command]


def change_script(before: str, after: str) -> SandboxAction:
    """Return the action that changes a line of the script."""

    def inject(sandbox: Sandbox) -> None:
        if before not in SCRIPT:
            raise ValueError(f"the script has no {before!r}")
        sandbox.write_file("train.py", SCRIPT.replace(before, after))

    return inject


REHEARSAL = Family(
    "rehearsal",
    "smoke of a correct user script",
    setup_rehearsal,
    ("torch", "transformers"),
    heavy=True,
    measures=True,
)


def make_fault(name: str, code: str, title: str, imitates: str, inject: SandboxAction, *mentions: str) -> Fault:
    """Return a fault in a script."""
    return Fault(name, REHEARSAL, (code,), title, imitates, inject, mentions)


FAULTS = (
    make_fault("script-shifts-labels", "ATN431", "a collator that shifts labels, which the model shifts again",
               "labels prepared for a custom loss", change_script(LABELS, LABELS + "    labels = labels.roll(-1)\n"),
               "shifted"),
    make_fault("script-positions-missing", "ATN432", "a collator that packs without position_ids",
               "packing in TRL before 0.23", change_script(POSITIONS, "}"), "earlier documents"),
    make_fault("script-averages-batches", "ATN433", "the mean of each batch's loss, averaged over accumulation",
               "transformers before 4.46", change_script(LOSS, "model(**batch).loss / len(batches)"), "batches"),
    make_fault("script-loses-a-gradient", "ATN434", "a layer whose gradient is halved",
               "a leftover hook of another job",
               change_script("optimizer = ", "model.model.layers[0].mlp.up_proj.weight.register_hook("
                             "lambda gradient: gradient / 2)\noptimizer = "), "up_proj"),
)  # fmt: skip
