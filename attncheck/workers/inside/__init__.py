"""Code that runs in a child process: a worker of the pool, and a rank's side of the folder shared with its parent."""
