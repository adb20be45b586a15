"""A small run in every order of its messages: what may happen next, the search, and what must hold in each order."""
