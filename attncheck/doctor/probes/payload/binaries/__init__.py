"""The binary probes: ELF files, fat binaries, the extensions of the attention stack."""
