"""Starts the driver of slime's loss as a rehearsal does, in a rank that exists already; the tree is in SLIME_TREE."""

# mypy: ignore-errors
import importlib
import os
import pickle
import sys

import attncheck.rehearsal.drivers
import attncheck.rehearsal.watcher

sys.modules["attncheck_drivers"] = attncheck.rehearsal.drivers
sys.modules["attncheck_watcher"] = attncheck.rehearsal.watcher
sys.path.insert(0, os.environ["SLIME_TREE"])
driver = importlib.import_module("attncheck_drivers.slime")
path = os.path.join(os.environ["ATTNCHECK_WATCH"], f"options-{os.environ['RANK']}.pickle")
with open(path, "wb") as stream:
    pickle.dump(driver.parse_options(), stream)
driver.main(path)
