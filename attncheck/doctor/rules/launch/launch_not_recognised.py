"""A file that was given to lint starts no training that attncheck knows.

What it checks: the commands of each script and the keys of each configuration file against the frameworks that
attncheck reads: OpenRLHF, verl, TRL, transformers' Trainer, LLaMA-Factory, axolotl and ms-swift.

Why it matters: it was not judged; a clean answer about the others does not cover it.

What to do: name the framework (`--framework`), give the command itself after `--`, or leave the file out
(`--skip-unknown` says nothing of such files, as a hook over many files wants).

Source: the files in attncheck/frameworks.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN454", "note", lambda snapshot: (), by_engine=True)
