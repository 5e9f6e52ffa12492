"""The headers of one HTTP request: by lower-case name, and as a list in the order they were sent. Plain values."""


class Headers(dict[bytes, bytes]):
    """Header values by lower-case name. Of equal names the first counts, as in Triton (observed). `sent` lists all
    headers with their names as sent. Requests with the same head share this object, so it is never changed after
    parsing."""

    __slots__ = ("sent",)

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[bytes, bytes]] = []

    def add(self, name: bytes, value: bytes) -> None:
        self.setdefault(name.lower(), value)
        self.sent.append((name, value))
