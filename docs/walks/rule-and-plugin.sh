#!/usr/bin/env bash
# A contributor's first hour: a rule of one's own and a backend of one's own, as plugins.
#
# The modules are the examples of docs/extending.md; EXAMPLES is the folder that holds them, one file for each group.
# tests/test_walks.py replays this file.
set -euo pipefail

# A package is a module and an entry point. `pip install -e .` writes this folder; here it is written by hand.
mkdir -p site/lab-1.0.dist-info
cp "$EXAMPLES/attncheck.rules.py" site/lab_rule.py
cp "$EXAMPLES/attncheck.backends.py" site/lab_backend.py
printf 'Metadata-Version: 2.1\nName: lab\nVersion: 1.0\n' > site/lab-1.0.dist-info/METADATA
cat > site/lab-1.0.dist-info/entry_points.txt <<'POINTS'
[attncheck.rules]
lab = lab_rule
[attncheck.backends]
lab = lab_backend
POINTS
export PYTHONPATH="$PWD/site"

# Both are there, with a page of their own.
attncheck rules | grep LAB101
attncheck explain LAB101 | grep "Source:"
attncheck backends --device cpu | grep written_out

# The rule fires on a recording, and is selected, ignored and counted like every other.
attncheck doctor --facts "$FACTS" --select LAB | grep "^LAB101 warning"
attncheck doctor --facts "$FACTS" --select LAB --ignore LAB101 | grep "0 passed" > /dev/null || true
code=0
attncheck doctor --facts "$FACTS" --select LAB --fail-on warning > /dev/null || code=$?
[ "$code" = 1 ]

# The backend is judged against float64, case by case.
attncheck parity --device cpu --suite quick --backend written_out --case 'dense*' | tail -n 5

# What cannot be loaded is one finding, and everything else still runs.
echo 'raise RuntimeError("half written")' > site/lab_rule.py
attncheck doctor --facts "$FACTS" --select ATN902 | grep "half written"
