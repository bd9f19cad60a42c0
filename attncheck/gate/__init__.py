"""What a gate and `attncheck run` are made of: asking the verbs, merging their reports, the policy, kept answers."""
