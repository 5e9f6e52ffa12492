"""The headers of one HTTP request: looked up by lower-case name, and listed as they were sent. Plain values."""


class Headers(dict[bytes, bytes]):
    """By lower-case name, of equal ones the first, as in the real server (observed). `sent` are all of them with their
    names as sent. Shared between requests whose heads are the same bytes: not changed once made."""

    __slots__ = ("sent",)

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[bytes, bytes]] = []

    def add(self, name: bytes, value: bytes) -> None:
        self.setdefault(name.lower(), value)
        self.sent.append((name, value))
