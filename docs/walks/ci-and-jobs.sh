#!/usr/bin/env bash
# A platform engineer's first hour: CI judges a launch, and a gate runs before the job.
#
# ENVIRONMENT is the interpreter of the training environment. tests/test_walks.py replays this file.
set -euo pipefail

# A launch for an older OpenRLHF, as it is in a repository.
cat > train.sh <<'LAUNCH'
deepspeed --module openrlhf.cli.train_sft \
   --pretrain Qwen/Qwen2.5-7B \
   --dataset data.jsonl \
   --max_len 4096 \
   --train_batch_size 128
LAUNCH
cp train.sh original.sh

# In CI: the launch is judged for the machine and the versions of the job, annotated for the reviewer, and recorded.
# New option names and harmless settings are written into the file. Changes to the training are left to its author.
code=0
attncheck lint train.sh --target h100x8,torch=2.9.0,openrlhf=0.11.2,flash-attn=2.8.3,einops=0.8.1 --select ATN44 --write \
    --format github --output junit=lint.xml --output sarif=lint.sarif | tee annotations.txt || code=$?
[ "$code" = 1 ]
grep "^::error file=train.sh" annotations.txt
grep "<testcase" lint.xml > /dev/null
diff original.sh train.sh && exit 1

# A policy for this environment. Known findings go into the baseline, so that only new ones fail.
attncheck init --write --python "$ENVIRONMENT"
attncheck baseline --level 1 --python "$ENVIRONMENT" > /dev/null

# Before the job: a gate of a few seconds, without a GPU. Then the job runs in the same process, with its own streams and
# exit code.
code=0
attncheck run --level 1 --python "$ENVIRONMENT" --baseline attncheck-baseline.json -- \
    "$PYTHON" -c 'print("trained"); raise SystemExit(7)' > job.txt 2> gate.txt || code=$?
[ "$code" = 7 ] && [ "$(cat job.txt)" = trained ] && grep "^attncheck: " gate.txt
