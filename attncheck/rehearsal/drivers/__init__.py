"""Replaces the parts of a launch that one machine cannot run: rollouts, rewards, Ray. The framework's own code
trains.

A driver runs in the processes of a launch, alongside the watcher (`attncheck.rehearsal.watcher`), and is copied there
with it: its modules import only the standard library, each other, torch and the framework. It takes the launch's own
configuration, creates the framework's own worker, passes it batches of synthetic rollouts, and calls the framework's
own update. For the judge, it writes these rollouts next to the watcher's records.

Started by the watcher's `takeover.py`. Read next: `rollouts.py`, then a framework's (`verl.py`).
"""
