"""The watcher: what looks on from inside a trainer's processes while a launch is rehearsed.

The folder is copied to a scratch folder and enters by PYTHONPATH, so that nothing else of ours can be imported there:
its modules import the standard library and each other, and torch once the trainer has. For three steps it switches off
what is random in the forward pass, and changes nothing else. It reads what goes into the model, what comes out, which
loss is differentiated, the gradients, the optimiser and the weights, and writes files for each rank. A launch that
would start Ray is handed to a driver (`takeover.py`).

Enters: `entry.py`, copied as `sitecustomize.py`. Read next: `hooks.py`, then `recorder.py`.
"""
