"""The package probes: installed distributions, their integrity and ownership, torch's build, build tools."""
