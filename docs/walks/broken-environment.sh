#!/usr/bin/env bash
# A newcomer's first hour: an environment is broken; what is it, why, and does the fix work?
#
# ENVIRONMENT is the interpreter of the training environment. Here ring-flash-attn 0.1.8 stands beside transformers
# 5.17.0. tests/test_walks.py replays this file; run it by hand on a throwaway environment of your own.
set -euo pipefail

# Exit code 1: something is broken, and each line says what, why and what to do.
code=0
attncheck doctor --python "$ENVIRONMENT" --lane static --select ATN140 | tee report.txt || code=$?
[ "$code" = 1 ]
grep "^ATN140 error" report.txt

# The whole story of one code: what is checked, why it matters, the source.
attncheck explain ATN140 | grep "Source:"

# The same for programs; the commands that mend it stand in `findings[].fixes[]`.
attncheck doctor --python "$ENVIRONMENT" --lane static --select ATN140 --format json > report.json || [ $? = 1 ]
"$PYTHON" - <<'READ' > repair.sh
import json

report = json.load(open("report.json"))
assert report["exit_code"] == 1 and report["counts"]["error"] == 1, report["counts"]
fix = next(fix for fix in report["findings"][0]["fixes"] if fix["kind"] == "command")
print(fix["text"])
READ
cat repair.sh

# Pasted as it stands, it mends the environment: nothing is found any more.
bash -euo pipefail repair.sh
attncheck doctor --python "$ENVIRONMENT" --lane static --select ATN140

# A recording can be judged elsewhere, and holds no name of user or host.
attncheck probe --python "$ENVIRONMENT" --lane static > facts.json
attncheck doctor --facts facts.json --select ATN140

# Mistakes are told in one line, with exit code 2.
code=0
attncheck doctor --python /nowhere/python 2> mistake.txt || code=$?
[ "$code" = 2 ] && [ "$(wc -l < mistake.txt)" = 1 ]
