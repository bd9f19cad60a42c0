"""A report in any format.

Answers: how does a person, a CI or a program read it? A `Report` (`attncheck.core.report`) holds findings and one
section for each thing that was done. A section is shown as neutral blocks (`blocks.py`: paragraph, items, table, code,
fold, curve, marks), which text, Markdown and the page write once each. `verdict.py` is the first and the last line.

To add a format: a module in `formats/` named as `--format` names it, with its record `FORMAT`. To show a section: a
module in `sections/` of the section's name, with its `VIEW`.

Read first: `blocks.py`, `sections/determinism.py`, then `formats/markdown.py`. `document.py` is the JSON, both ways,
`schema.py` its schema; `outputs.py` writes files, `fingerprints.py` identifies a finding across runs, `locations.py`
finds its line in a project.

`html_page/` is the page of `--format html`, `bug_report.py` the text of an issue.

Imports: `core`, and of the other rooms what renders a rule's page; it examines and measures nothing. No torch.
"""
