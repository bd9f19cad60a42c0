"""Trains as a case does: `train.py --case NAME …`; the broken half if PLANTED_FAULT is "broken"."""

# mypy: ignore-errors
from __future__ import annotations

import argparse
import os

from tests.strangers.cases import find_case

parser = argparse.ArgumentParser()
parser.add_argument("--case", required=True)
parser.add_argument("--model_name_or_path", required=True)
parser.add_argument("--data_path", required=True)
parser.add_argument("--output_dir", default="out")
parser.add_argument("--max_steps", type=int, default=1000)
parser.add_argument("--per_device_train_batch_size", type=int, default=8)
parser.add_argument("--gradient_accumulation_steps", type=int, default=4)
parser.add_argument("--learning_rate", type=float, default=2e-5)
parser.add_argument("--max_length", type=int, default=2048)
options = parser.parse_args()
find_case(options.case)(options, os.environ.get("PLANTED_FAULT") == "broken").train()
