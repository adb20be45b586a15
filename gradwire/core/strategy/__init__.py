"""The building blocks of the algorithms: the base class, a model as vectors, collectives, a server's workers."""
