"""The errors that every room may raise, and how a caught exception is put into one."""


class UsageError(ValueError):
    """Bad input from the user; the message is one line that names the option and the cure."""


class RunFailed(RuntimeError):
    """The run cannot go on; `str()` is a message for the user, `exit_code` what the script ends with."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def one_line(error: BaseException) -> str:
    """Give an exception as `Type: message` on a single line."""
    return " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
