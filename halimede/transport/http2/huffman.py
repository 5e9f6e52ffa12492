"""Decodes the Huffman code of header strings (RFC 7541, section 5.2 and appendix B), a byte at a time. Pure.

The library's decoder goes through half a byte at a time and takes 8 ms for a block of 37 KB, which a client may send
many times per second. This one makes one step for each byte, from a table of 65,536 steps.
"""

from functools import cache

from halimede.transport.http2.hpack_library import REQUEST_CODES, REQUEST_CODES_LENGTH, HPACKDecodingError

_ROOT = 0
_FAILED = -1
"""The node after the code of EOS, which must not occur."""
_EOS = 256
_MAX_PADDING_BITS = 7

Step = tuple[int, bytes]
"""The node that some bits lead to, and the text that they complete."""


def decode(data: bytes) -> bytes:
    """Returns the text. Raises HPACKDecodingError if `data` contains EOS, or does not end with at most seven ones."""
    steps, may_end = _table()
    node = _ROOT
    parts: list[bytes] = []
    for byte in data:
        node, text = steps[node][byte]
        if node == _FAILED:
            raise HPACKDecodingError("EOS in a Huffman string")
        parts.append(text)
    if node not in may_end:
        raise HPACKDecodingError("the end of a Huffman string is missing")
    return b"".join(parts)


def prepare() -> None:
    """Makes the table, which takes some milliseconds, before the first call needs it."""
    _table()


@cache
def _table() -> tuple[list[list[Step]], frozenset[int]]:
    """Returns the steps from each inner node of the code's tree by the value of the next byte, and the nodes at which a
    string may end: the root, and those that are reached by padding."""
    children = _tree()
    # The steps for n bits are made of those for n - 1 bits: first bit 0, then first bit 1.
    steps: list[list[Step]] = [[(node, b"")] for node in range(len(children))]
    for _ in range(8):
        steps = [[step for child in pair for step in _after(child, steps)] for pair in children]
    padding, node = [_ROOT], _ROOT
    for _ in range(_MAX_PADDING_BITS):
        node = children[node][1]
        padding.append(node)
    return steps, frozenset(padding)


def _after(child: int, steps: list[list[Step]]) -> list[Step]:
    """Returns the steps that follow a bit which leads to a node, or to the end of a code (a negative number)."""
    if child >= 0:
        return steps[child]
    symbol = ~child
    if symbol == _EOS:
        return [(_FAILED, b"")] * len(steps[_ROOT])
    text = bytes((symbol,))
    return [(node, text + more) for node, more in steps[_ROOT]]


def _tree() -> list[tuple[int, int]]:
    """Returns the tree of the code: the two children of each inner node. A leaf is the complement of its symbol."""
    children = [[_ROOT, _ROOT]]
    for symbol, (code, length) in enumerate(zip(REQUEST_CODES, REQUEST_CODES_LENGTH, strict=True)):
        node = _ROOT
        for at in range(length - 1, 0, -1):
            bit = code >> at & 1
            # No code leads back to the root, so this child does not exist yet.
            if children[node][bit] == _ROOT:
                children.append([_ROOT, _ROOT])
                children[node][bit] = len(children) - 1
            node = children[node][bit]
        children[node][code & 1] = ~symbol
    return [(zero, one) for zero, one in children]
