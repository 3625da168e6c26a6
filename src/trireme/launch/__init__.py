"""Make the processes exist: start the workers of a run on this machine, watch them, end them."""
