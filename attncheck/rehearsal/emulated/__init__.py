"""A package `flash_attn` for trainers on machines without a GPU: attncheck's emulated kernels under the real names.

`attncheck.rehearsal.execution` lays these files, with `attncheck/attention/emulated_flash_attn` next to them as
`emulation`, into a folder that the launch's processes find first. The trainer's own code and transformers' run as on a
GPU, cu_seqlens and all; the kernels' arithmetic is torch's, and what the kernels refuse (float32) is refused.
"""
