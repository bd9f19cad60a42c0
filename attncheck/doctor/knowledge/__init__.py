"""What is known about versions, wheels and GPUs: tables, each with its source and the date it was checked."""
