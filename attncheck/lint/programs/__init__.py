"""Reads the program that a launch starts, without running it, to find the names that its parser takes.

The trainer's own source decides, if it can be found: next to the launch, on its PYTHONPATH, or among the installed
packages. argparse calls, dataclasses of HfArgumentParser, Hydra's YAML and OmegaConf's structured configurations are
read with `ast`. Code that cannot be followed is a gap, and a program with gaps proves no name unknown.
"""
