"""One HTTP/2 connection of a server: reads frames, keeps streams, writes answers (comments name sections of RFC 9113).

Knows no gRPC and no inference. Event-loop thread only.

| state | attributes | event | then |
| --- | --- | --- | --- |
| serving | | HEADERS of a new stream | the stream is opened, or refused |
| serving | | `drain` (stop, or maximum age) | GOAWAY with the largest id and a ping; announced |
| serving | | GOAWAY of the client | draining |
| announced | `_goaway_sent` is the largest id | the ping is answered or times out | GOAWAY with the last id; draining |
| draining | `_goaway_sent` is the last id | HEADERS of a new stream | ignored: the client will try elsewhere |
| draining | `_goaway_sent` is the last id | no stream is left | closing |
| any | | the client breaks a rule of the connection | GOAWAY with the code, streams lost; closing |
| any | | `abort_calls` | streams reset; closing |
| closing | `_closing` | the last bytes were taken, or a timer | lost |
| any | | `connection_lost` | the streams end; lost |

Reading pauses for several reasons at a time (`_holds`):

| reason | from | until |
| --- | --- | --- |
| `_UNREAD` | the client has `MAX_UNREAD_BYTES` of answers that it does not read | it has read them |
| `_TURN` | the bytes of one read took `SLICE_SECONDS`, or bring a large header block | the turns of the others |
| `_MEMORY` | a large message arrives, and the server or the connection is full | bytes are freed, or it is refused |

The listener calls `look` once a second. It ends what a client began and does not go on with.

Window updates and RST_STREAM of a stream that is over are normal, because the client may not know yet. `_resets` has
the last streams that this side has reset: DATA and HEADERS for those are dropped, for other closed streams they are
faults (section 5.1).
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from halimede.transport.buffered_bytes import MAX_WAIT_SECONDS, BufferedShare, ConnectionBytes
from halimede.transport.http2.frames import (
    ACK,
    GOAWAY,
    MAX_WINDOW_BYTES,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    STREAM_ID_MASK,
    Code,
    ConnectionFault,
    StreamFault,
    frame,
    goaway,
    read_settings,
    rst_stream,
)
from halimede.transport.http2.headers import HeaderDecoder, are_trailers
from halimede.transport.http2.limits import COUNTED_BYTES, MAX_UNREAD_BYTES, WRITE_BUFFER_BYTES, FloodLimits, RecentIds
from halimede.transport.http2.listener import CONNECTION_WINDOW_BYTES, GREETING, MAX_CALLS, Http2Listener
from halimede.transport.http2.reader import LATE_UNITS, UNITS_PER_LOOK, DataReceiver, FrameReader
from halimede.transport.http2.stream import Http2Stream
from halimede.transport.http2.timers import ConnectionTimers
from halimede.transport.http2.writer import FrameWriter, SendingStream
from halimede.transport.lingering import close_lingering
from halimede.transport.sockets import unsent_bytes
from halimede.transport.stalls import Stall, is_over

log = logging.getLogger(__name__)

SLICE_SECONDS = 0.001
"""Time that the frames of one connection may take in a turn of the loop. The rest of a read waits for a later turn.
Most reads bring so few frames that they are not measured."""
SLICE_UNITS = 64
"""What such a rest spends of the budget of a later turn."""
_BLOCK_SHIFT = 8
"""A header block of 64 KiB, which takes 1.5 ms (3.5 ms without compiled modules), spends the budget of a turn."""
_UNREAD, _TURN, _MEMORY = 1, 2, 4
"""Reasons for not reading. See the module's table."""

_SETTINGS_ACK = frame(SETTINGS, ACK, 0)
# Payloads of eight bytes, by which the answers to our two kinds of ping are told apart.
_DRAIN_PING = b"drained?"
_KEEP_PING = b"hello?.."

H = TypeVar("H")


class Http2Connection(FrameReader, Generic[H]):
    """The protocol object of one client, made for a new connection of a port."""

    out: FrameWriter

    def __init__(self, listener: Http2Listener[H]) -> None:
        super().__init__(listener.receive_buffer)
        self._listener = listener
        self._opener = listener.opener
        self._now = listener.loop.time
        self._account = ConnectionBytes(listener.buffered)
        self._small_share = BufferedShare(self._account)
        self._transport: asyncio.Transport = None  # type: ignore[assignment]  # set before anything else is called
        self._decoder = HeaderDecoder(listener.opener.compile, listener.opener.is_cacheable)
        self._streams: dict[int, Http2Stream] = {}
        self._last_id = 0
        self._resets = RecentIds()
        self._window = CONNECTION_WINDOW_BYTES
        self._unconsumed = 0
        self._next_count = COUNTED_BYTES
        self._floods = FloodLimits()
        self._holds = 0
        self._slice_end = 0.0
        self._stall = Stall()
        self._stalls: dict[int, Stall] = {}
        self._ended_by_head = 0
        self._goaway_sent: int | None = None
        self._closing = False
        self._frames = {
            SETTINGS: self._on_settings,
            RST_STREAM: self._on_rst_stream,
            PING: self._on_ping,
            PRIORITY: self._on_priority,
        }

    # From the loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # a stream transport, which the base type cannot say
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        listener = self._listener
        self.out = FrameWriter(
            self._transport, self._at_end, self._finished, self._abandoned, self._refill, self._account
        )
        listener.connections.add(self)
        self._timers = ConnectionTimers(listener.loop, listener.keepalive, self)
        # A client that does not offer h2 would not understand any frame.
        if not listener.agrees(transport):
            self._close()
            return
        self._transport.write(GREETING)
        if listener.draining:
            self.drain()

    def buffer_updated(self, nbytes: int) -> None:
        out = self.out
        out.hold()
        self._timers.heard_at = self._now()
        self._slice_end = 0.0
        self.first_units = UNITS_PER_LOOK if self._listener.turns.left else LATE_UNITS
        try:
            if not self._closing:
                self.read(nbytes)
        except ConnectionFault as fault:
            self._fail(fault)
        except Exception:
            log.exception("HTTP/2 connection closed after an internal error")
            self._fail(ConnectionFault(Code.INTERNAL_ERROR, "internal error"))
        self._flush()
        # Pings and SETTINGS are answered whether or not the client reads, so reading must stop.
        if out.backlog > MAX_UNREAD_BYTES:
            self._hold(_UNREAD)
        if self.put_off:
            self._hold(_TURN)
            # Other connections that are read in this turn get less. `_go_on` has spent its part.
            self._listener.turns.spend(SLICE_UNITS if nbytes else 0)
            self._listener.turns.wait(self._go_on)
        # Others, such as health checks, are still read.
        full = self._listener.buffered.full or self._account.full  # `seems_full` is a call
        if full and any(stream.partial_bytes() for stream in self._streams.values()):
            self._hold(_MEMORY)

    def _hold(self, reason: int) -> None:
        """Stops reading for a reason."""
        if not self._holds and not self._closing:
            self._transport.pause_reading()
        self._holds |= reason

    def _unhold(self, reason: int) -> None:
        """Reads on if there is no other reason not to."""
        if self._holds & reason:
            self._holds &= ~reason
            if not self._holds and not self._closing:
                self._transport.resume_reading()

    # Turns of the loop.

    def must_wait(self, block_bytes: int) -> bool:
        turns = self._listener.turns
        if block_bytes:
            if not turns.left:
                return True
            turns.spend(block_bytes >> _BLOCK_SHIFT)
            return False
        turns.spend(UNITS_PER_LOOK // 2)  # two frames are a call with a small message
        now = self._listener.clock()
        # The first look of a read. Most reads are over before it, so that they cost no look at the clock.
        if not self._slice_end:
            self._slice_end = now + SLICE_SECONDS if self.first_units > LATE_UNITS else now
        return now >= self._slice_end

    def _go_on(self) -> None:
        """Parses what an earlier turn has put off."""
        if self._closing:  # it has ended meanwhile
            return
        self._listener.turns.spend(SLICE_UNITS)
        self.get_buffer(0)  # puts the waiting bytes back into the receive buffer
        self.buffer_updated(0)
        if not self.put_off:
            self._unhold(_TURN)

    def _at_end(self, callback: Callable[[], None]) -> None:
        """Runs a callback at the end of the loop's turn."""
        self._listener.loop.call_soon(self._guarded, callback)

    def _flush(self) -> None:
        self._guarded(self.out.flush)

    def _guarded(self, step: Callable[[], None]) -> None:
        """Calls what sends queued frames. It reaches code of the streams, whose errors must not reach the loop."""
        try:
            step()
        except Exception:
            log.exception("HTTP/2 connection closed after an internal error while writing")
            self._transport.abort()

    def eof_received(self) -> bool:
        """The client has ended its side of the connection, which closes. It has gone, unlike one that does so after a
        request of HTTP/1: a call ends with END_STREAM, and its answers need a client that sends WINDOW_UPDATE."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self.out.closed = True
        self._timers.close()
        self.stop_reading()
        streams, self._streams = self._streams, {}
        self._lose_some(list(streams.values()))
        # These refer back to the connection, which would keep its memory until the garbage collector runs.
        self.out.release()
        self._small_share.set(0)
        self._frames.clear()
        self._timers = None  # type: ignore[assignment]  # nothing is called any more
        self._listener.left(self)

    def pause_writing(self) -> None:
        self.out.write_paused = True

    def resume_writing(self) -> None:
        self.out.write_paused = False
        self.out.backlog = 0
        self._unhold(_UNREAD)
        self._flush()

    def _lose_some(self, streams: list[Http2Stream]) -> None:
        """Ends streams of a lost connection, many of them in later turns of the loop: a thousand take milliseconds."""
        turns = self._listener.turns
        while streams and turns.left:
            turns.spend(1)
            self._lose(streams.pop())
        if streams:
            turns.wait(partial(self._lose_some, streams))

    # DATA.

    def on_data(self, stream_id: int, data: memoryview, ends: bool) -> None:
        stream, length = self._streams.get(stream_id), len(data)
        self._count_data(stream, stream_id, length)
        # Data of a stream that is over were counted, and are dropped.
        if stream is not None and self._may_receive(stream, length, ends):
            stream.received(data)
            if ends and not stream.over:
                stream.remote_ended = True
                stream.ended()

    def on_data_begin(self, stream_id: int, length: int, left: int, ends: bool) -> Http2Stream | None:
        stream = self._streams.get(stream_id)
        self._count_data(stream, stream_id, length)
        # A frame without data and without END_STREAM has no purpose, and costs its sender nine bytes.
        if not left and not ends:
            self._flood(self._floods.empty_frames.take(self._now()), "empty DATA frames")
        if stream is None or not self._may_receive(stream, left, ends):
            return None
        if left < length:
            # The padding counts in the window, and no receiver gives it back.
            stream.consume(length - left)
        return stream

    def on_data_end(self, receiver: DataReceiver, ends: bool) -> None:
        assert isinstance(receiver, Http2Stream)
        if ends:
            receiver.remote_ended = True
            receiver.ended()

    def _may_receive(self, stream: Http2Stream, length: int, ends: bool) -> bool:
        """Whether the body may continue in this way. Resets the stream if not."""
        if stream.remote_ended:
            self._reset_because(stream, Code.STREAM_CLOSED)
            return False
        if stream.end_is_early(length, ends):
            self._reset_because(stream, Code.PROTOCOL_ERROR)
            return False
        return True

    def _count_data(self, stream: Http2Stream | None, stream_id: int, length: int) -> None:
        """Counts a DATA frame against the windows. The whole payload counts, padding included, on closed streams as
        well (section 6.9)."""
        if stream is None:
            self._check_closed(stream_id, "DATA")
        # The client knows both windows, so this is no race.
        if length > self._window or (stream is not None and length > stream.receive_window):
            raise ConnectionFault(Code.FLOW_CONTROL_ERROR, "more data than the window allows")
        self._window -= length
        self._unconsumed += length
        if stream is not None:
            stream.receive_window -= length
        if self._unconsumed >= self._next_count:
            self._next_count += COUNTED_BYTES
            self._count_small()
            # One WINDOW_UPDATE for half of the window, instead of one per frame.
            if self._unconsumed >= CONNECTION_WINDOW_BYTES // 2:
                self._refill()

    def _refill(self) -> None:
        """Gives the connection window back, unless the client leaves too much unread."""
        # A client that does not read its answers cannot send more requests.
        if not self.out.congested and self._unconsumed:
            self.out.grant(0, self._unconsumed)
            self._window += self._unconsumed
            self._unconsumed = 0
            self._next_count = COUNTED_BYTES

    def _count_small(self) -> None:
        """Counts what small messages hold while they arrive or wait. Counting each frame would cost too much."""
        self._small_share.set(sum([stream.small_bytes() for stream in self._streams.values()]))

    # Header blocks.

    def on_continued(self, stream_id: int) -> None:
        self._check_headers_id(stream_id)

    def _check_headers_id(self, stream_id: int) -> None:
        """Checks that the id is one that clients use (section 5.1.1)."""
        if not stream_id & 1:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "HEADERS on a stream that no client opens")

    def on_block(self, stream_id: int, block: bytes, ends: bool) -> None:
        stream = self._streams.get(stream_id)
        # Ids of new streams rise, so this one is known: the block has trailers.
        if stream is not None or stream_id <= self._last_id:
            self._on_trailers(stream, stream_id, block, ends)
            return
        self._check_headers_id(stream_id)
        # Every block is decoded, also of a refused stream, to keep the table the same on both sides.
        head = self._decoder.decode(block)
        self._last_id = stream_id
        # Section 6.8: the client learns from GOAWAY that this stream was not handled.
        if self._goaway_sent is not None and stream_id > self._goaway_sent:
            self._resets.add(stream_id)
            return
        # The client was told this limit, but may not have received it yet. It may try again (section 8.7).
        if len(self._streams) >= MAX_CALLS:
            self._refuse(stream_id, Code.REFUSED_STREAM)
            return
        # The stream may be answered while it is opened. `_finished` must know then that the client has ended it.
        self._ended_by_head = stream_id if ends else 0
        try:
            stream = self._opener.open(self.out, stream_id, head)
        except StreamFault as fault:
            self._refuse(stream_id, fault.code)
            return
        # The call was answered by its head alone.
        if stream.over:
            self._flood(self._floods.refusals.take(self._now()), "calls that are not begun")
            return
        self._streams[stream_id] = stream
        if ends:
            if stream.end_is_early(0, True):
                self._reset_because(stream, Code.PROTOCOL_ERROR)
                return
            stream.remote_ended = True
            stream.ended()

    def _on_trailers(self, stream: Http2Stream | None, stream_id: int, block: bytes, ends: bool) -> None:
        """Handles a second header block of a stream. Nobody reads its fields, but it must be decoded to keep the table
        the same."""
        self._check_headers_id(stream_id)
        well_formed = are_trailers(self._decoder.fields(block))
        if stream is None:
            self._check_closed(stream_id, "HEADERS")
        elif stream.remote_ended:
            self._reset_because(stream, Code.STREAM_CLOSED)
        elif not ends or not well_formed or stream.end_is_early(0, True):
            self._reset_because(stream, Code.PROTOCOL_ERROR)
        else:
            stream.remote_ended = True
            stream.ended()

    # The other frames.

    def on_frame(self, kind: int, flags: int, stream_id: int, payload: memoryview) -> None:
        self._frames[kind](flags, stream_id, payload)

    def _on_settings(self, flags: int, stream_id: int, payload: memoryview) -> None:
        """Handles SETTINGS (section 6.5)."""
        if stream_id:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "SETTINGS on a stream")
        # An acknowledgement has no payload.
        if len(payload) % 6 or (flags & ACK and payload):
            raise ConnectionFault(Code.FRAME_SIZE_ERROR, "SETTINGS of a wrong size")
        self._flood(self._floods.settings.take(self._now()), "SETTINGS")
        if flags & ACK:
            return
        self._timers.greeted()
        for number, value in read_settings(bytes(payload)):
            self.out.apply_setting(number, value, self._streams.values())
        self.out.put_control(_SETTINGS_ACK)

    def on_window_update(self, stream_id: int, increment: int) -> None:
        """Handles WINDOW_UPDATE (section 6.9)."""
        out = self.out
        # The more data the client got, the more window updates it may send: an honest one sends them for data.
        if not self._floods.allow_window_update(out.data_frames + (self._last_id >> 1)):
            raise ConnectionFault(Code.ENHANCE_YOUR_CALM, "too many: WINDOW_UPDATE")
        if not stream_id:
            if not increment:
                raise ConnectionFault(Code.PROTOCOL_ERROR, "WINDOW_UPDATE by nothing")
            out.window += increment
            if out.window > MAX_WINDOW_BYTES:
                raise ConnectionFault(Code.FLOW_CONTROL_ERROR, "the connection's window is too large")
            # Queued data goes out with the flush at the end of the read.
            return
        stream = self._streams.get(stream_id)
        if stream is None:
            if stream_id > self._last_id or not stream_id & 1:
                raise ConnectionFault(Code.PROTOCOL_ERROR, "WINDOW_UPDATE on an idle stream")
            return
        if not increment:
            self._reset_because(stream, Code.PROTOCOL_ERROR)
            return
        stream.window += increment
        if stream.window > MAX_WINDOW_BYTES:
            self._reset_because(stream, Code.FLOW_CONTROL_ERROR)
        # The stream may have waited for this window.
        elif stream.queued:
            out.wake(stream)

    def _on_rst_stream(self, flags: int, stream_id: int, payload: memoryview) -> None:
        """Handles RST_STREAM (section 6.4)."""
        if len(payload) != 4:
            raise ConnectionFault(Code.FRAME_SIZE_ERROR, "RST_STREAM of a wrong size")
        if not stream_id & 1:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "RST_STREAM on a stream that no client opens")
        stream = self._streams.pop(stream_id, None)
        if stream is not None:
            self._lose(stream)
        # gRPC's C++ core may cancel a call whose head it has not sent yet (its issues 19655 and 38758). By the RFC this
        # ends the connection, and all other calls with it.
        if stream is not None or stream_id > self._last_id:
            self._flood(self._floods.cancels.take(self._now()), "cancelled calls")
            self._close_if_done()

    def _on_ping(self, flags: int, stream_id: int, payload: memoryview) -> None:
        """Handles PING (section 6.7), at most as often as gRPC's rule allows."""
        if stream_id:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "PING on a stream")
        if len(payload) != 8:
            raise ConnectionFault(Code.FRAME_SIZE_ERROR, "PING of a wrong size")
        if flags & ACK:
            # The client has heard GOAWAY: all streams that it opened before have arrived.
            if payload == _DRAIN_PING and self._goaway_sent == STREAM_ID_MASK:
                self._stop_taking()
            elif payload != _KEEP_PING:
                self._flood(self._floods.empty_frames.take(self._now()), "answers to no ping")
            return
        if not self._timers.allows_ping(len(self._streams)):
            raise ConnectionFault(Code.ENHANCE_YOUR_CALM, "too_many_pings")
        self.out.put_control(frame(PING, ACK, 0, bytes(payload)))

    def _on_priority(self, flags: int, stream_id: int, payload: memoryview) -> None:
        """Checks PRIORITY, and ignores it (section 6.3)."""
        if not stream_id:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "PRIORITY on no stream")
        self._flood(self._floods.empty_frames.take(self._now()), "PRIORITY")
        if len(payload) != 5:
            self._reset_or_refuse(stream_id, Code.FRAME_SIZE_ERROR)
        elif int.from_bytes(payload[:4]) & STREAM_ID_MASK == stream_id:
            self._reset_or_refuse(stream_id, Code.PROTOCOL_ERROR)

    def on_other(self, kind: int, length: int, stream_id: int) -> None:
        """Handles GOAWAY, and kinds that the server does not know or does not accept."""
        # Section 8.4: a client cannot push.
        if kind == PUSH_PROMISE:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "PUSH_PROMISE from a client")
        if kind != GOAWAY:
            self._flood(self._floods.empty_frames.take(self._now()), "unknown frames")
            return
        if stream_id:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "GOAWAY on a stream")
        if length < 8:
            raise ConnectionFault(Code.FRAME_SIZE_ERROR, "GOAWAY of a wrong size")
        # The client opens no more streams. Open ones are answered.
        self._goaway_sent = self._last_id if self._goaway_sent is None else min(self._goaway_sent, self._last_id)
        # At the end of the turn, because further frames of this read may still end streams.
        self._listener.loop.call_soon(self._close_if_done)

    def _flood(self, allowed: bool, what: str) -> None:
        """Raises ConnectionFault if a limit is exceeded (section 10.5)."""
        if not allowed:
            raise ConnectionFault(Code.ENHANCE_YOUR_CALM, f"too many: {what}")

    # Streams.

    def _check_closed(self, stream_id: int, what: str) -> None:
        """Checks a frame for a stream that is not open. It is fine if this side has reset the stream and the client may
        not know (section 5.1)."""
        if stream_id > self._last_id or not stream_id & 1:
            raise ConnectionFault(Code.PROTOCOL_ERROR, f"{what} on an idle stream")
        if stream_id not in self._resets:
            raise ConnectionFault(Code.STREAM_CLOSED, f"{what} on a closed stream")

    def _refuse(self, stream_id: int, code: Code) -> None:
        """Resets a stream that was not opened."""
        self._resets.add(stream_id)
        self.out.put_control(rst_stream(stream_id, code))
        self._flood(self._floods.resets.take(self._now()), "refused calls")

    def _reset_or_refuse(self, stream_id: int, code: Code) -> None:
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._reset_because(stream, code)
        elif stream_id <= self._last_id:
            self._refuse(stream_id, code)
        else:
            raise ConnectionFault(code, "on an idle stream")

    def _reset_because(self, stream: Http2Stream, code: Code) -> None:
        """Resets a stream whose rules the client broke, and tells its receiver."""
        stream.reset(code)
        stream.gone()
        self._flood(self._floods.resets.take(self._now()), "broken calls")

    def _finished(self, stream: SendingStream) -> None:
        """The answer has ended. A client that still sends gets the order to stop (section 8.1)."""
        self._streams.pop(stream.id, None)
        stream.over = True
        # Otherwise the client would send the rest of a body that is not read.
        if not stream.remote_ended and stream.id != self._ended_by_head:
            self._resets.add(stream.id)
            self.out.put_control(rst_stream(stream.id, Code.NO_ERROR))
        if self._goaway_sent is not None:
            self._close_if_done()

    def _abandoned(self, stream: SendingStream) -> None:
        """This side has reset the stream."""
        self._streams.pop(stream.id, None)
        self._resets.add(stream.id)
        stream.over = True
        self.out.forget(stream)
        if self._goaway_sent is not None:
            self._close_if_done()

    def _lose(self, stream: Http2Stream) -> None:
        """The client has ended the stream, or the connection is lost."""
        stream.over = True
        self.out.forget(stream)
        try:
            stream.gone()
        except Exception:
            log.exception("failed to cancel a gRPC call")

    # Looks.

    def look(self, now: float) -> None:
        """Ends the connection, or a call, if the client is too slow. Called once a second."""
        if self._closing:
            return
        self._count_small()
        situation, progress, limit = self._situation()
        seconds = self._stall.seconds(situation, progress, now)
        if self._holds & _MEMORY and not self._account.is_full():
            self._unhold(_MEMORY)
        elif is_over(limit, seconds):
            self._give_up(situation, limit)
        if not self._closing:
            self._guarded(lambda: self._look_at_streams(now))
            self._flush()

    def _situation(self) -> tuple[str, int, float]:
        """Returns what the server waits for, a number that changes when the client makes progress, and the limit of the
        time without progress. Idle connections are a matter of keep-alive."""
        times = self._listener.times
        if unsent := unsent_bytes(self._transport):
            return "unread answers", unsent, times.unread
        if self._holds & _MEMORY:
            return "memory", 0, MAX_WAIT_SECONDS
        if self._holds:
            return "", 0, 0
        if self.block_stream:
            return "header block", self.block_stream, times.head
        return ("frame", int(self._timers.heard_at * 1000), times.body) if self.within_frame else ("", 0, 0)

    def _give_up(self, situation: str, limit: float) -> None:
        if situation == "memory":
            for stream in list(self._streams.values()):
                if stream.partial_bytes():
                    self._guarded(partial(stream.reject, self._account.complaint))
            self._unhold(_MEMORY)
        elif situation == "unread answers":
            self.abort()
        else:
            self._fail(ConnectionFault(Code.ENHANCE_YOUR_CALM, f"the {situation} did not arrive within {limit:g} s"))

    def _look_at_streams(self, now: float) -> None:
        """Ends calls whose answers are not read, and those with half a message. A call may be silent for any time."""
        times, before, self._stalls = self._listener.times, self._stalls, {}
        for stream in list(self._streams.values()):
            partial = None if self._holds or self._window <= 0 else stream.partial_bytes()
            if stream.queued and (stream.window <= 0 or self.out.window <= 0):
                unread, progress, limit = True, stream.queued, times.unread
            elif partial is not None and stream.receive_window > 0:
                unread, progress, limit = False, partial, times.body
            else:
                continue
            stall = self._stalls[stream.id] = before.get(stream.id) or Stall()
            if not is_over(limit, stall.seconds(unread, progress, now)):
                continue
            if unread:
                stream.reset(Code.ENHANCE_YOUR_CALM)
                stream.gone()
            else:
                stream.stalled(limit)

    # Ending.

    @property
    def calls(self) -> int:
        """The number of open streams."""
        return len(self._streams)

    def ping(self) -> None:
        """Sends a ping, to find out whether the client is still there."""
        self.out.put_control(frame(PING, 0, 0, _KEEP_PING))

    def drain(self) -> None:
        """Asks the client to open no more streams. It takes two steps, so that no stream on its way is lost (section
        6.8)."""
        if self._goaway_sent is None and not self._closing:
            self._goaway_sent = STREAM_ID_MASK
            self.out.put_control(goaway(STREAM_ID_MASK, Code.NO_ERROR) + frame(PING, 0, 0, _DRAIN_PING))
            self._timers.drain_begun()

    def _stop_taking(self) -> None:
        """Ends the drain: streams after the last one are not handled."""
        self._goaway_sent = self._last_id
        self.out.put_control(goaway(self._last_id, Code.NO_ERROR))
        self._close_if_done()

    def drain_timed_out(self) -> None:
        """Goes on as if the client had answered the ping."""
        if self._goaway_sent == STREAM_ID_MASK:
            self._stop_taking()

    def _close_if_done(self) -> None:
        """Closes a draining connection whose last stream has ended."""
        if self._goaway_sent is not None and self._goaway_sent != STREAM_ID_MASK and not self._streams:
            self._close()

    def _close(self) -> None:
        """Closes after the frames that were put are written."""
        if not self._closing:
            self._closing = True
            self.stop_reading()
            self.out.flush()
            self.out.closed = True
            listener = self._listener
            close_lingering(
                self._transport, listener.receive_buffer.view, listener.loop.call_later, self.connection_lost
            )
            self._timers.closing()

    def _fail(self, fault: ConnectionFault) -> None:
        """Ends the connection because of a fault (section 5.4.1)."""
        self._listener.log_fault(fault)
        # The text goes to the client as debug data.
        self.out.put_control(goaway(self._last_id, fault.code, fault.text))
        self.stop_reading()
        streams, self._streams = self._streams, {}
        self._lose_some(list(streams.values()))
        self._close()

    def abort_calls(self) -> None:
        """Resets every open call, and closes."""
        for stream in list(self._streams.values()):
            stream.reset(Code.CANCEL)
            stream.gone()
        self._close()

    def abort(self) -> None:
        """Drops the connection without sending anything."""
        self._transport.abort()
