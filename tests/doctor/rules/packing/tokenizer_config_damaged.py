"""Cases for ATN412."""

from tests import snapshots as s

FIRES = {"not JSON": s.with_model(s.h200(), tokenizer=s.Unreadable("tokenizer_config.json is not JSON: line 1"))}
SILENT = {
    "no model was named": s.h200(),
    "there is none": s.with_model(s.h200(), tokenizer=s.Absent("there is no tokenizer_config.json")),
    "the laptop": s.laptop(),
}
