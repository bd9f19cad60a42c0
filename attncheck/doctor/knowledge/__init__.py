"""Tables about versions, wheels and GPUs, each with its source and the date it was checked."""
