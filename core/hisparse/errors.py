"""What can go wrong, by what has to happen next.

    HiSparseError
    ├── SpecError       the user edits the object; never retried
    │   └── SpecErrors  several of them, found in one pass
    ├── UnitError       a text is not a quantity, duration or count; whoever knows the field makes it a SpecError
    └── Transient       the same call may succeed later; retried after `retry_seconds`

Everything else that is raised is a bug and crashes.
"""

from collections.abc import Iterable


class HiSparseError(Exception):
    """The root: nothing raises it directly."""


class SpecError(HiSparseError):
    """One field of an object cannot be used as it is; the message says why and what to set instead."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message

    @property
    def errors(self) -> "tuple[SpecError, ...]":
        """The single faults, so that one `except SpecError` serves one fault and many."""
        return (self,)


class SpecErrors(SpecError):
    """Several faults of one object, in the order of its fields; `field` and `message` are those of the first."""

    def __init__(self, errors: Iterable[SpecError]) -> None:
        found = tuple(single for error in errors for single in error.errors)
        if not found:
            raise ValueError("SpecErrors needs at least one SpecError")
        super().__init__(found[0].field, found[0].message)
        self._errors = found

    @property
    def errors(self) -> tuple[SpecError, ...]:
        """The single faults, in the order of the fields."""
        return self._errors

    def __str__(self) -> str:
        return "\n".join(str(error) for error in self._errors)


class UnitError(HiSparseError, ValueError):
    """A text is not the number that it should be; the message holds the text, the accepted form and an example."""


class Transient(HiSparseError):
    """Nothing is wrong with the object; try again after `retry_seconds`."""

    def __init__(self, message: str, *, retry_seconds: float = 15) -> None:
        super().__init__(message)
        self.retry_seconds = retry_seconds
