"""The binary probes: ELF files, fat binaries, and the extensions of the attention stack."""
