"""Child processes with deadlines: forked jobs and external programs, none of which outlives its parent."""
