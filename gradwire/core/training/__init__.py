"""How a run goes: its options, the command line, the loop of one rank, the report."""
