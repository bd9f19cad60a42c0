"""Plans one repair for a whole report; its commands do not contradict each other.

`choices` picks one way to fix each finding so that all can be applied together. `commands` writes the lines to paste,
`changes` predicts the environment after them, and `plan` runs the rules on that environment again.
"""
