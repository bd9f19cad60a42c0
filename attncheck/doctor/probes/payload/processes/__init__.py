"""Child processes with deadlines: forked jobs and external programs; none outlives its parent."""
