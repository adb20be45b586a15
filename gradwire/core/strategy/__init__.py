"""What the algorithms are made of: the base class, a model as vectors, collectives, a server's workers."""
