"""A file that was given to lint starts no training that attncheck knows.

What it checks: the commands of each script and the keys of each configuration file against the frameworks that
attncheck reads: OpenRLHF, verl, TRL, transformers' Trainer, LLaMA-Factory, axolotl and ms-swift.

Why it matters: it was not linted; a clean answer about the others does not cover it. It is a note, and neither lint nor
a gate fails on it: a script may start anything.

What to do: where it does start a training, give the command itself after `--`, or the file that the trainer reads; else
leave the file out (`--skip-unknown` says nothing of such files, as a hook over many files wants).

Source: the files in attncheck/lint/frameworks.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN454", "note", lambda snapshot: (), by_engine=True)
