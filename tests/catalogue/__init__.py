"""The catalogue of what really breaks for users: every known failure mode, presented and judged.

One module an area (`install`, `models`, `launches`, …) holds MODES, the ones that attncheck must name with a fix that
works, and MISSED, the rest with the reason. Add a mode: one record in its area. Read first: `mode.py`.
"""
