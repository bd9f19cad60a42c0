"""The float64 reference of a case, its rounding noise, the scores of outputs against it, and structured probes."""
