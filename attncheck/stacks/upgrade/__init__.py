"""What would break here with other versions of packages, before anything is installed.

`requests.py` reads what was named, `wheels.py` the wheels that are available. `predict.py` makes the environment as it
would be (`planned.py`) and has doctor's rules judge both sides alike; `requirements.py` and `wheel_fit.py` add what
metadata tells. With --try, `moves.py` has pip say what else would move, and `trial.py` runs the probes, parity and
smoke with the new versions from a temporary folder. `run.py` makes the report.
"""
