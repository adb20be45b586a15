"""A learner's fragments of x, which take turns: those that it has sent, and those that it waits for."""


class Turns:
    """The turns of P fragments. It counts what this learner does between them."""

    def __init__(self, P: int) -> None:
        self._P = P
        self.begin(0)

    def begin(self, steps: int) -> None:
        """Start with nothing sent, after `steps` steps of the learner."""
        self.p = 0  # the fragment whose turn it is
        self.steps = steps
        self.steps_since = self.samples_since = 0  # the last was sent
        self.owed = [0] * self._P  # how many X_p are to come
        self._sent_at = [steps] * self._P

    def count(self, n_samples: int) -> None:
        """The learner has taken a step."""
        self.steps, self.steps_since = self.steps + 1, self.steps_since + 1
        self.samples_since += n_samples

    def end(self, comes_back: bool) -> None:
        """The fragment has been sent, and X_p comes back or not; the next has its turn."""
        self.owed[self.p] += comes_back
        self._sent_at[self.p] = self.steps
        self.p = (self.p + 1) % self._P
        self.steps_since = self.samples_since = 0

    @property
    def is_unsent(self) -> bool:
        """Whether the learner has taken steps since it sent the fragment whose turn it is."""
        return self._sent_at[self.p] < self.steps
