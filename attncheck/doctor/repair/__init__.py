"""One repair for a whole report, whose commands do not contradict each other.

`choices` picks one way to fix each finding so that all of them can hold at once, `commands` writes the lines to paste,
`changes` says what the environment would be after them, and `plan` has the rules judge that environment again.
"""
