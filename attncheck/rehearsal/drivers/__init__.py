"""Replaces the parts of a launch that one machine cannot run, which are rollouts, rewards and Ray.

The framework's own code trains. A driver runs in the processes of a launch, with the watcher
(`attncheck.rehearsal.watcher`), and is copied there with it. Its modules import only the standard library, each other,
torch and the framework. It takes the launch's own configuration, creates the framework's own worker, passes it batches
of synthetic rollouts, and calls the framework's own update. For the judge, it writes these rollouts next to the
watcher's records.

The watcher's `takeover.py` starts it. Read next: `rollouts.py`, then a framework's (`verl.py`).
"""
