#!/usr/bin/env bash
# A platform engineer's first hour: a launch is judged in CI, and a gate stands in front of the job.
#
# ENVIRONMENT is the interpreter of the training environment. tests/test_walks.py replays this file.
set -euo pipefail

# A launch for an older OpenRLHF, as it lies in a repository.
cat > train.sh <<'LAUNCH'
deepspeed --module openrlhf.cli.train_sft \
   --pretrain Qwen/Qwen2.5-7B \
   --dataset data.jsonl \
   --max_len 4096 \
   --train_batch_size 128
LAUNCH
cp train.sh original.sh

# In CI: judged for the machine and the versions of the job, annotated for the reviewer, kept for the history.
code=0
attncheck lint train.sh --target h100x8,torch=2.9.0,openrlhf=0.11.2,flash-attn=2.8.3,einops=0.8.1 --select ATN44 \
    --format github --output junit=lint.xml --output sarif=lint.sarif | tee annotations.txt || code=$?
[ "$code" = 1 ]
grep "^::error file=train.sh" annotations.txt
grep "<testcase" lint.xml > /dev/null

# New names and harmless settings are written into the file; what trains otherwise is left to its author.
attncheck lint train.sh --target h100x8,torch=2.9.0,openrlhf=0.11.2,flash-attn=2.8.3,einops=0.8.1 --select ATN44 --write \
    > /dev/null || [ $? = 1 ]
diff original.sh train.sh && exit 1
attncheck lint train.sh --target h100x8,torch=2.9.0,openrlhf=0.11.2,flash-attn=2.8.3,einops=0.8.1 --select ATN440

# A policy for what is found here, and a gate of level 1: seconds, without a GPU.
attncheck init --write --python "$ENVIRONMENT"
attncheck gate --level 1 --python "$ENVIRONMENT" --format json > gate.json || [ $? = 1 ]
"$PYTHON" -c 'import json; report = json.load(open("gate.json")); assert report["command"] == "gate", report["command"]'

# Today's findings are recorded, so that only new ones fail.
attncheck baseline --level 1 --python "$ENVIRONMENT" > /dev/null
attncheck gate --level 1 --python "$ENVIRONMENT" --baseline attncheck-baseline.json > /dev/null

# In front of the job: the same process, arguments, streams and exit code; its output stays its own.
code=0
attncheck run --level 1 --python "$ENVIRONMENT" --baseline attncheck-baseline.json -- \
    "$PYTHON" -c 'print("trained"); raise SystemExit(7)' > job.txt 2> gate.txt || code=$?
[ "$code" = 7 ] && [ "$(cat job.txt)" = trained ] && grep "^attncheck: " gate.txt

# An error that is not in the baseline: the job is not started.
code=0
attncheck run --level 1 --python "$ENVIRONMENT" --no-cache -- touch started 2> refused.txt > /dev/null || code=$?
[ "$code" = 1 ] && [ ! -e started ] && grep "refused: " refused.txt
