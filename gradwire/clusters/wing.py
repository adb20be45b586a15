"""What clusters add to a run: under mpirun, the failure of a process ends all."""

import sys

from gradwire.core.training.wing import Wing


class Clusters(Wing):
    """Ranks that others have started."""

    def fail(self, code: int) -> None:
        """End all ranks of MPI, if this is one: mpirun would wait for the others."""
        if "mpi4py.MPI" in sys.modules:
            from gradwire.clusters.mpirun import end_all

            end_all(code)


WING = Clusters()
