"""Exceptions. Each carries what the library knows: status, message, peer, rail, operation, sequence."""


class Error(Exception):
    """A call of the library failed.

    status     the kind in one word: "timeout", "peer_lost", "out_of_range", ...
    message    what happened, without the place
    peer       the rank it concerns, or None
    rail       the rail it concerns, or None
    operation  the call, or ""
    sequence   the operation's number, 0 where there is none
    """

    def __init__(self, status, message, peer=None, rail=None, operation="", sequence=0):
        super().__init__(status, message, peer, rail, operation, sequence)
        self.status = status
        self.message = message
        self.peer = peer
        self.rail = rail
        self.operation = operation
        self.sequence = sequence

    def __str__(self):
        place = [f"{name} {value}" for name, value in (("peer", self.peer), ("rail", self.rail)) if value is not None]
        return f"{self.status}: {self.message}" + (f" ({', '.join(place)})" if place else "")


class TimeoutError(Error, TimeoutError):  # noqa: A001 - the built-in one is its base
    """A deadline passed. Also a built-in TimeoutError."""


class PeerLostError(Error, ConnectionError):
    """The named peer is gone. Also a built-in ConnectionError."""


class OutOfRangeError(Error, IndexError):
    """A rank, offset, index or size outside what was agreed. Also a built-in IndexError."""


class ClosedError(Error, ValueError):
    """The object is closed, or belongs to the parent process. Also a built-in ValueError."""


_KINDS = {
    "timeout": TimeoutError,
    "peer_lost": PeerLostError,
    "out_of_range": OutOfRangeError,
    "closed": ClosedError,
}


def _make(status, *fields):
    status = status.replace(" ", "_")
    return _KINDS.get(status, Error)(status, *fields)
