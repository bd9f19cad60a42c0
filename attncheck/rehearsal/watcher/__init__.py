"""The watcher: records a trainer's processes from inside while a launch is rehearsed.

The folder is copied to a scratch folder and added to PYTHONPATH, so that nothing else of ours can be imported there.
Its modules import the standard library and each other, and torch after the trainer does. For three steps it turns off
randomness in the forward pass, and changes nothing else. It reads the model's inputs and outputs, the differentiated
loss, the gradients, the optimiser and the weights, and writes files for each rank. A launch that would start Ray is
passed to a driver (`takeover.py`).

Read first: `entry.py`, which is copied as `sitecustomize.py`, then `hooks.py` and `recorder.py`.
"""
