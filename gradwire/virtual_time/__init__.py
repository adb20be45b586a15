"""A cluster in virtual time: its transport, network and launcher, and runs that are only timed."""
