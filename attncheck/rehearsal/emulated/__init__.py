"""A package `flash_attn` for trainers on machines without a GPU: attncheck's emulated kernels under the real names.

`attncheck.rehearsal.execution` puts these files, with `attncheck/attention/emulated_flash_attn` next to them as
`emulation`, into a folder that the launch's processes find first. The trainer's and transformers' own code runs as on
a GPU, including cu_seqlens. The kernels' arithmetic is torch's, and inputs that the kernels refuse (float32) are
refused.
"""
