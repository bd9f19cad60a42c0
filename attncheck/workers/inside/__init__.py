"""What runs in a child process: a worker of the pool, and a rank's side of the folder it shares with its parent."""
