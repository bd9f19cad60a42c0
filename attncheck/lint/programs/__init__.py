"""Reads the program that a launch starts, and never runs it: which names its parser takes.

The trainer's own source decides, where it can be found: next to the launch, on its PYTHONPATH, or among the installed
packages. argparse calls, dataclasses of HfArgumentParser, Hydra's YAML and OmegaConf's structured configurations are
read with `ast`; what cannot be followed is a gap, and a program with gaps proves no name unknown.
"""
