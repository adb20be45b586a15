"""No server and no lock: all ranks write into shared memory."""
