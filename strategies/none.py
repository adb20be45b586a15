"""No communication: every worker trains a model of its own on its part of each batch, and nobody learns of it.

Not an algorithm but a limit: a strategy in which as many workers compute and update, and then also exchange something,
takes longer for its steps. What that speed is worth is its accuracy, which is that of one worker's model: in every
epoch it sees one sample in N (not the same ones in the next), in batches of one N-th of the size.
"""

from strategies.single import Single


class NoCommunication(Single):
    """N times `Single`, side by side. `model()` is each rank's own; the one that is evaluated is rank 0's."""

    max_ranks = None
    replicas_agree = False

    @classmethod
    def remark(cls, n_gpus: int) -> str:
        """Say whose accuracy will be shown."""
        return f"none: {n_gpus} models trained apart; the accuracy is that of rank 0's, on its part of the samples."
