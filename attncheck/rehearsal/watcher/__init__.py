"""The watcher: records a trainer's processes from inside while a launch is rehearsed.

The folder is copied to a scratch folder and enters by PYTHONPATH, so that nothing else of ours can be imported there.
Its modules import the standard library and each other, and torch once the trainer has. For three steps it switches
off randomness in the forward pass, and changes nothing else. It reads the model's inputs and outputs, the
differentiated loss, the gradients, the optimiser and the weights, and writes files for each rank. A launch that would
start Ray is passed to a driver (`takeover.py`).

Enters: `entry.py`, copied as `sitecustomize.py`. Read next: `hooks.py`, then `recorder.py`.
"""
