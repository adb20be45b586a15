"""No server: each rank has a model of its own."""
