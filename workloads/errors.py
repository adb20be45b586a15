"""The error a user can cure, and how a caught exception is put into it."""


class UsageError(ValueError):
    """Bad input from the user; the message is one line that names the option and the cure."""


def one_line(error: BaseException) -> str:
    """Give an exception as `Type: message` on a single line."""
    return " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
