#!/usr/bin/env bash
# A newcomer's first hour: an environment is broken. What is wrong, why, and does the fix work?
#
# ENVIRONMENT is the interpreter of the training environment. It has ring-flash-attn 0.1.8 and transformers 5.17.0.
# tests/test_walks.py replays this file. To run it by hand, use an environment that you can throw away.
set -euo pipefail

# Exit code 1: something is broken. The text names the finding, the evidence, the fix and the rule's page. The same
# report is written as JSON for programs: the commands that fix it are in `findings[].fixes[]`.
code=0
attncheck doctor --python "$ENVIRONMENT" --lane static --select ATN140 --output json=report.json | tee report.txt || code=$?
[ "$code" = 1 ]
grep "^ATN140 error" report.txt
"$PYTHON" - <<'READ' > repair.sh
import json

report = json.load(open("report.json"))
assert report["exit_code"] == 1 and report["counts"]["error"] == 1, report["counts"]
fix = next(fix for fix in report["findings"][0]["fixes"] if fix["kind"] == "command")
print(fix["text"])
READ

# Pasted unchanged, the command fixes the environment: there are no problems now.
bash -euo pipefail repair.sh
attncheck doctor --python "$ENVIRONMENT" --lane static --select ATN140 | grep "^no problems"
