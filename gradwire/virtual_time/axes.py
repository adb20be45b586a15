"""The options that --sweep varies."""

from collections.abc import Collection, Sequence

from gradwire.core.records.errors import UsageError


def read_axes(texts: Sequence[str], not_varied: Collection[str]) -> dict[str, list[str]]:
    """Return the values of each varied option. Raises UsageError."""
    axes: dict[str, list[str]] = {}
    for text in texts:
        name, _, values = text.partition("=")
        name = name.replace("-", "_")
        if not values or "" in values.split(","):
            raise UsageError(f"--sweep {text}: must be NAME=VALUE,VALUE,..., such as n_gpus=1,2,4")
        if name in not_varied:
            raise UsageError(f"--sweep {text}: {name} cannot be varied; vary an option of the training or the cluster")
        if name in axes:
            raise UsageError(f"--sweep {text}: {name} is given twice; give all its values at once")
        axes[name] = values.split(",")
    return axes
