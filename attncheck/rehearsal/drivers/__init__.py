"""Represent the part of a launch that one machine cannot run: rollouts, rewards, Ray; the framework trains itself.

A driver runs in the processes of a launch, alongside the watcher (`attncheck.rehearsal.watcher`), and is copied there
with it: its modules import the standard library, each other, torch and the framework. It takes the launch's own
configuration, makes the framework's own worker, hands it batches of made-up rollouts, and calls the framework's own
update. It writes what it handed in alongside the watcher's records, for the judge.

Started by the watcher's `takeover.py`. Read next: `rollouts.py`, then a framework's (`verl.py`).
"""
