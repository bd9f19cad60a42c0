"""What other versions of packages would break here, before anything is installed.

`requests.py` reads the named packages, `wheels.py` the available wheels. `predict.py` makes the planned environment
(`planned.py`) and has doctor's rules judge both sides. `requirements.py` and `wheel_fit.py` add findings from metadata.
With --try, `moves.py` asks pip what else would change, and `trial.py` runs the probes, parity and smoke with the new
versions from a temporary folder. `run.py` makes the report.
"""
