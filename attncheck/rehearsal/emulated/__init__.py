"""A package `flash_attn` for trainers on machines without a GPU: attncheck's emulated kernels with flash-attn's names.

`attncheck.rehearsal.execution` puts these files, with `attncheck/attention/emulated_flash_attn` next to them as
`emulation`, into a folder from which the launch's processes import first. The trainer's and transformers' own code runs
as on a GPU, including cu_seqlens. torch computes the attention, and inputs that the kernels refuse (float32) are
refused.
"""
