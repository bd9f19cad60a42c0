"""A report in any format.

It makes a report readable for a person, a CI or a program. A `Report` (`attncheck.core.report`) has findings and one
section for each command that ran. A section is shown as neutral blocks (`blocks.py`: paragraph, items, table, code,
fold, curve, marks), which text, Markdown and the page each write in their own way. `verdict.py` is the first and the
last line.

To add a format, add a module to `formats/`, named like the value of `--format`, with its record `FORMAT`. To show a
section, add a module to `sections/` with the section's name and its `VIEW`.

Read first: `blocks.py`, `sections/determinism.py`, then `formats/markdown.py`. `document.py` reads and writes the JSON,
`schema.py` has its schema, `outputs.py` writes files, `fingerprints.py` identifies a finding across runs,
`locations.py` finds its line in a project.

`html_page/` is the page of `--format html`, `bug_report.py` the text of an issue.

Imports: `core`, and from other rooms only what renders a rule's page; it examines and measures nothing. No torch.
"""
