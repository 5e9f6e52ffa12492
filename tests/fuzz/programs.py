"""Inputs of the fuzzer that are programs: each byte says what comes next in a grammar.

Random bytes are rarely frames or messages, because their lengths are wrong. Here a mutation of the input changes one
choice. The lengths stay right, or are made wrong on purpose. Pure.
"""

import struct
from collections.abc import Sequence

from tests.transport.http2_wire import PREFACE, frame, message

BLOCKS = (
    # Indexed and literal fields of a call, in the forms in which clients of gRPC send them.
    bytes.fromhex("838605") + b"\x07/t/Echo" + b"\x41\x01x" + b"\x40\x02te\x08trailers" + b"\x5f\x10application/grpc",
    bytes.fromhex("838604") + b"\x07/t/Chat" + b"\x41\x01x" + b"\x40\x02te\x08trailers" + b"\x5f\x10application/grpc",
    bytes.fromhex("838604") + b"\x07/t/Wait" + b"\x41\x01x" + b"\x5f\x10application/grpc",
    bytes.fromhex("838604")
    + b"\x07/t/Keep"
    + b"\x01\x01x"
    + b"\x5f\x10application/grpc"
    + b"\x00\x0dgrpc-encoding\x04gzip",
    b"\x83\x86\xc3\xc2\xc1\xc0\xbf\xbe",
    b"\x3f\xe1\x1f\x82",
    b"\x00\x0cgrpc-timeout\x0299",
    b"",
)
SIZES = (0, 1, 4, 5, 8, 9, 63, 64, 127, 255, 256, 4096, 16_383, 16_384, 65_535)


class Program:
    """Reads choices from the input. At its end every choice is 0."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def byte(self) -> int:
        if self._at >= len(self._data):
            return 0
        self._at += 1
        return self._data[self._at - 1]

    def bytes(self, most: int) -> bytes:
        """Literal bytes: their number, then they themselves."""
        count = min(self.byte(), most)
        taken = self._data[self._at : self._at + count]
        self._at += count
        return taken

    def size(self) -> int:
        return SIZES[self.byte() % len(SIZES)]


def call_block(path: str) -> bytes:
    """The header block of a call, whose path is a literal."""
    fields = b"\x40\x02te\x08trailers" + b"\x5f\x10application/grpc"
    return b"\x83\x86\x04" + varint7(len(path)) + path.encode() + b"\x41\x01x" + fields


def varint7(value: int) -> bytes:
    """An integer of HPACK with a prefix of seven bits."""
    return bytes((value,)) if value < 127 else b"\x7f" + varint(value - 127)


def http2_frames(data: bytes, blocks: Sequence[bytes] = BLOCKS, bodies: Sequence[bytes] = ()) -> bytes:
    """What a client of HTTP/2 sends, from the preface on. `bodies` are messages that it may send."""
    program, out = Program(data), [PREFACE, frame(4)]
    for _ in range(60):
        if not program.left:
            break
        kind, stream = program.byte(), program.byte() % 32
        if kind < 64:
            block = blocks[program.byte() % len(blocks)] + program.bytes(60)
            out.append(frame(1, program.byte() & 0x2D, stream, block))
        elif kind < 128:
            if kind & 1:
                content = program.bytes(60)
            elif kind & 2 and bodies:
                content = bodies[program.byte() % len(bodies)]
            else:
                content = protobuf_message(program.bytes(255))
            body = message(content, compressed=program.byte() & 1) if kind & 4 else program.bytes(200)
            out.append(frame(0, program.byte() & 0x9, stream, body))
        elif kind < 160:
            out.append(frame(9, program.byte() & 0x4, stream, program.bytes(60)))
        elif kind < 184:
            pairs = [(program.byte() % 9, program.size() << program.byte() % 17) for _ in range(program.byte() % 4)]
            out.append(
                frame(4, 0, 0, b"".join(struct.pack(">HI", number, value & 0xFFFFFFFF) for number, value in pairs))
            )
        elif kind < 208:
            out.append(frame(8, 0, stream, struct.pack(">I", program.size() << program.byte() % 17 & 0xFFFFFFFF)))
        elif kind < 224:
            out.append(frame(3, 0, stream, struct.pack(">I", program.byte() % 14)))
        elif kind < 240:
            out.append(frame(program.byte() % 16, program.byte(), stream, program.bytes(40)))
        else:
            out.append(program.bytes(255))
    return b"".join(out)


def protobuf_message(data: bytes, depth: int = 0) -> bytes:
    """A message whose fields have numbers below 16, with messages within it."""
    program, out = Program(data), list[bytes]()
    for _ in range(200):
        if not program.left:
            break
        choice = program.byte()
        tag = program.byte() & 0x7F
        if choice < 80 and depth < 4:
            inner = protobuf_message(program.bytes(255), depth + 1)
            out += (bytes((tag & 0x78 | 2,)), varint(len(inner)), inner)
        elif choice < 160:
            text = program.bytes(60)
            out += (bytes((tag & 0x78 | 2,)), varint(len(text)), text)
        elif choice < 200:
            out += (bytes((tag & 0x78,)), varint(program.size() << program.byte() % 60))
        elif choice < 220:
            wire_type, size = ((1, 8), (5, 4))[choice & 1]
            out += (bytes((tag & 0x78 | wire_type,)), program.bytes(size).ljust(size, b"\0"))
        elif choice < 235:
            out.append((b"\x2a\x06INPUT0", b"\x0a\x05int32", b"\x12\x05INT32", b"\x12\x05BYTES")[choice & 3])
        else:
            out.append(program.bytes(20))
    return b"".join(out)


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))
