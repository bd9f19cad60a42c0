#!/usr/bin/env bash
# A contributor's first hour: a custom rule and a custom backend, as plugins.
#
# The modules are the examples of docs/extending.md. EXAMPLES is the folder that contains them, one file for each group.
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

# The rule has a page, and it fires on a recording like any other rule.
attncheck explain LAB101 | grep "Source:"
code=0
attncheck doctor --facts "$FACTS" --select LAB --fail-on warning > rule.txt || code=$?
[ "$code" = 1 ] && grep "^LAB101 warning" rule.txt

# The backend is compared with float64, case by case.
attncheck parity --device cpu --suite quick --backend written_out --case 'dense*' | grep "^right *written_out"

# A plugin that cannot be loaded is one finding, and everything else still runs.
echo 'raise RuntimeError("half written")' > site/lab_rule.py
attncheck doctor --facts "$FACTS" --select ATN902 | grep "half written"
