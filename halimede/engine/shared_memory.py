"""The shared-memory regions of clients: registered by name, resolved for each request that names one (H90 to H97).

The engine owns it. Event-loop thread only, except for the memory that it hands out: any thread may read and write that.
Opening a segment does not block, because it is in memory. Knows no model and no protocol.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from threading import Lock
from typing import Any, ClassVar, Protocol
from weakref import WeakSet

from halimede import engine_port as port
from halimede.engine_port import CudaRegion, Query, RegionKind, SystemRegion
from halimede.errors import AlreadyExists, Error, Internal, Invalid, NotFound, Unavailable, Unsupported
from halimede.platform.cuda import CudaError, IpcMemory
from halimede.platform.segments import Segment, SharedBytes
from halimede.requests import InferRequest
from halimede.tensors import Destination, HostMemory, Memory, MemoryKind, RegionReference, Tensor

log = logging.getLogger(__name__)

UINT64_MAX = 2**64 - 1
MOST_REGIONS = 4096
"""Registered shared-memory regions; fewer if the process may open less than 32,768 files. Beyond: 503, UNAVAILABLE."""
_FILES = 8
"""Of this many files that the process may open, one region may be registered, which takes two."""
RESERVED_PREFIX = "triton_python_backend_shm_region_"
"""Prefix of the segments of the real server's Python models. That server may run on the same machine."""


class CudaDriver(Protocol):
    """Opens another process's device memory. Raises CudaError."""

    def open(self, handle: bytes, device_id: int) -> IpcMemory: ...


class Block(Protocol):
    """The bytes of a region. `memory` and `destination` take bounds within the region and raise Error if the bytes are
    not there any more. The last call is `close`."""

    def memory(self, start: int, stop: int) -> Memory: ...
    def destination(self, start: int, stop: int) -> Destination: ...
    def close(self) -> None: ...


class Region:
    """A registered region. `users` counts the tensors of inferences in flight that lie in it. `leaving` is true if it
    was unregistered while it had users (H94)."""

    __slots__ = ("block", "byte_size", "info", "leaving", "users")

    def __init__(self, info: SystemRegion | CudaRegion, block: Block) -> None:
        self.info = info
        self.byte_size = info.byte_size
        self.block = block
        self.users = 0
        self.leaving = False

    @property
    def kind(self) -> RegionKind:
        return RegionKind.SYSTEM if isinstance(self.info, SystemRegion) else RegionKind.CUDA


class Lease:
    """What one inference holds: one region per tensor, and the destinations of its outputs by name."""

    __slots__ = ("destinations", "regions")

    def __init__(self) -> None:
        self.regions: list[Region] = []
        self.destinations: dict[str, Destination] = {}


class SharedMemory:
    """All registered regions. `allowed` is the value of `--allow-client-shm`.

    `load_driver` is called for the first CUDA region; it is None on a machine without GPUs. `open_segment` raises
    OSError. `files` is the number of files that the process may open.
    """

    def __init__(
        self,
        allowed: bool,
        load_driver: Callable[[], CudaDriver] | None,
        open_segment: Callable[[str], Segment] = Segment,
        files: int = MOST_REGIONS * _FILES,
    ) -> None:
        self._allowed = allowed
        self._most_regions = min(MOST_REGIONS, files // _FILES)
        self._load_driver = load_driver
        self._driver: CudaDriver | None = None
        self._open_segment = open_segment
        self._regions: dict[str, Region] = {}
        self.answers: Mapping[type[Query[Any]], Callable[[Any], Any]] = {
            port.RegisterSystemMemory: self._register_system,
            port.RegisterCudaMemory: self._register_cuda,
            port.UnregisterMemory: self._unregister,
            port.SystemMemoryStatus: lambda query: self._status(RegionKind.SYSTEM, query.name),
            port.CudaMemoryStatus: lambda query: self._status(RegionKind.CUDA, query.name),
        }
        """The questions of the engine port that this object answers."""

    # For requests.

    def resolve(self, request: InferRequest) -> Lease:
        """Replaces the request's region references by memory: first the inputs, then the outputs, in their order.

        Raises the first error (H97); then it holds nothing.
        """
        lease = Lease()
        inputs = request.inputs
        for name, tensor in inputs.items():
            reference = tensor.memory
            if isinstance(reference, RegionReference):
                region, start, stop = self._find(reference)
                inputs[name] = Tensor(name, tensor.datatype, tensor.shape, region.block.memory(start, stop))
                lease.regions.append(region)
        if request.destinations:
            for name, reference in request.destinations.items():
                region, start, stop = self._find(reference)
                lease.destinations[name] = region.block.destination(start, stop)
                lease.regions.append(region)
        for region in lease.regions:
            region.users += 1
        return lease

    def end(self, lease: Lease) -> None:
        """Releases what an inference held. Nothing writes its outputs any more. Its inputs may still be read: an answer
        that is a view of them may be encoded on another thread."""
        for region in lease.regions:
            region.users -= 1
            if region.leaving and not region.users:
                self._remove(region)

    def _find(self, reference: RegionReference) -> tuple[Region, int, int]:
        """The region that a reference names, and its bounds within the region. Raises Error."""
        name, start, size = reference.region, reference.offset, reference.byte_size
        region = self._regions.get(name)
        if region is None:
            raise NotFound(f"Unable to find shared memory region: '{name}'")
        if start >= region.byte_size:
            raise Invalid(f"Invalid offset for shared memory region: '{name}'")
        if size > UINT64_MAX - start:
            raise Invalid(
                f"Integer overflow detected: byte_size ({size}) + offset ({start}) exceeds maximum value "
                f"({UINT64_MAX}) for region '{name}'"
            )
        if start + size > region.byte_size:
            raise _beyond(name)
        return region, start, start + size

    # Registration.

    def _register_system(self, query: port.RegisterSystemMemory) -> None:
        self._check_allowed()
        name, key = query.name, query.key
        bare = key.lstrip("/")
        if not bare:
            raise Invalid(f"cannot register shared memory region '{name}' - invalid shm key '{key}'")
        if bare.startswith(RESERVED_PREFIX):
            raise Invalid(
                f"cannot register shared memory region '{name}' with key '{key}' as the key contains the reserved "
                f"prefix '{RESERVED_PREFIX}'"
            )
        self._check_new(name)
        try:
            segment = self._open_segment(key)
        except OSError as error:
            log.debug("shared memory key '%s' cannot be opened: %s", key, error)
            raise Internal(f"Unable to open shared memory region: '{key}'") from None
        if query.offset + query.byte_size > segment.byte_size:
            segment.close()
            raise Invalid(f"failed to register shared memory region '{name}': invalid args")
        try:
            shared = SharedBytes(segment, query.offset, query.byte_size)
        except OSError as error:
            raise Invalid(
                f"failed to register shared memory region '{name}': unable to process address space{error.strerror}"
            ) from None
        info = SystemRegion(name, key, query.offset, query.byte_size)
        self._regions[name] = Region(info, SegmentBlock(name, shared))

    def _register_cuda(self, query: port.RegisterCudaMemory) -> None:
        self._check_allowed()
        self._check_new(query.name)
        if self._load_driver is None:
            raise Invalid(f"failed to register CUDA shared memory region: '{query.name}', GPUs not supported")
        try:
            if self._driver is None:
                self._driver = self._load_driver()
            memory = self._driver.open(query.handle, query.device_id)
        except CudaError as error:
            log.error("failed to open CUDA IPC handle: %s", error)
            raise Invalid("failed to register shared memory region: invalid args") from None
        block = CudaBlock(query.name, memory)
        if not query.byte_size <= memory.byte_size:
            block.close()
            raise Invalid(f"failed to register shared memory region '{query.name}': invalid args")
        self._regions[query.name] = Region(CudaRegion(query.name, query.device_id, query.byte_size), block)

    def _check_allowed(self) -> None:
        if not self._allowed:
            raise Unsupported(port.MEMORY_DISABLED)

    def _check_new(self, name: str) -> None:
        if name in self._regions:
            raise AlreadyExists(f"shared memory region '{name}' already in manager")
        if len(self._regions) >= self._most_regions:
            raise Unavailable(
                f"cannot register shared memory region '{name}': {self._most_regions} regions are registered, which is "
                "the limit; unregister those that are not in use"
            )

    # Unregistering.

    def _unregister(self, query: port.UnregisterMemory) -> None:
        self._check_allowed()
        if query.name:
            region = self._regions.get(query.name)
            if region is not None and region.kind is query.kind:
                self._release(region)
            return
        failed = self._unregister_all(query.kind)
        if failed:
            names = "".join(f"{name} ," for name in failed)
            word = query.kind.value.lower()
            raise Internal(f"Failed to unregister the following {word} shared memory regions: {names}")

    def _unregister_all(self, kind: RegionKind) -> list[str]:
        """Unregisters all regions of a kind. Returns the names of those that failed."""
        failed = []
        for region in list(self._of(kind)):
            try:
                self._release(region)
            except Error as error:
                log.error("%s", error)
                failed.append(region.info.name)
        return failed

    def _release(self, region: Region) -> None:
        """Closes a region without users. One with users stays until its last inference is over (H94)."""
        if region.users:
            region.leaving = True
        else:
            region.block.close()
            del self._regions[region.info.name]

    def _remove(self, region: Region) -> None:
        try:
            self._release(region)
        except Error as error:
            log.error("%s", error)

    def close(self) -> None:
        """Closes all regions at the end of the server."""
        for kind in RegionKind:
            self._unregister_all(kind)

    # Status.

    def _status(self, kind: RegionKind, name: str) -> list[SystemRegion | CudaRegion]:
        if not name:
            return [region.info for region in self._of(kind)]
        region = self._regions.get(name)
        if region is None:
            raise NotFound(f"Unable to find {kind.value.lower()} shared memory region: '{name}'")
        if region.kind is not kind:
            raise NotFound(
                f"The region named '{name}' is registered as {region.kind.value} shared memory, not {kind.value} "
                "shared memory"
            )
        return [region.info]

    def _of(self, kind: RegionKind) -> Iterator[Region]:
        """The regions of one kind, by name."""
        return (region for _, region in sorted(self._regions.items()) if region.kind is kind)


def _beyond(name: str) -> Invalid:
    return Invalid(f"Invalid offset + byte size for shared memory region: '{name}'")


class SegmentBlock:
    """A part of a POSIX segment. The segment stays open until its last tensor is gone, whatever `close` does."""

    __slots__ = ("_shared", "name")

    def __init__(self, name: str, shared: SharedBytes) -> None:
        self.name = name
        self._shared = shared

    def memory(self, start: int, stop: int) -> Memory:
        try:
            self._shared.check(stop)
        except OSError:  # the client has truncated the segment
            raise _beyond(self.name) from None
        return SegmentMemory(self.name, self._shared, start, stop - start)

    def destination(self, start: int, stop: int) -> Destination:
        return SegmentDestination(self.name, self._shared, start, stop - start)

    def close(self) -> None:
        """Does nothing: the segment is closed with its last tensor."""


class SegmentMemory:
    """A part of a client's segment, for reading. `host` makes one copy and keeps it: the client may change, shrink or
    free the segment at any time. Any thread."""

    __slots__ = ("_copy", "byte_size", "name", "shared", "start")
    kind: ClassVar[MemoryKind] = MemoryKind.SHARED
    device_id: ClassVar[int] = 0

    def __init__(self, name: str, shared: SharedBytes, start: int, byte_size: int) -> None:
        self.name = name
        self.shared = shared
        self.start = start
        self.byte_size = byte_size
        self._copy: memoryview | None = None

    @property
    def owner(self) -> object:
        return self

    def host(self) -> memoryview:
        if self._copy is None:
            try:
                self._copy = self.shared.read(self.start, self.start + self.byte_size)
            except OSError:  # the client has truncated it since the request arrived
                raise _beyond(self.name) from None
        return self._copy

    def __reduce__(self) -> tuple[Any, ...]:
        return HostMemory, (bytes(self.host()),)


class SegmentDestination:
    """The place of an output in a client's segment. Any thread."""

    __slots__ = ("_name", "_shared", "_start", "byte_size")

    def __init__(self, name: str, shared: SharedBytes, start: int, byte_size: int) -> None:
        self._name = name
        self._shared = shared
        self._start = start
        self.byte_size = byte_size

    def write(self, source: Memory) -> None:
        try:
            if isinstance(source, SegmentMemory):  # an output that is an input, in one copy
                self._shared.copy_from(self._start, source.shared, source.start, source.byte_size)
            else:
                self._shared.write(self._start, source.host())
        except OSError as error:
            raise Internal(f"failed to write to shared memory region '{self._name}': {error.strerror}") from None


class CudaBlock:
    """Another process's device memory."""

    __slots__ = ("_memory", "_read", "name")

    def __init__(self, name: str, memory: IpcMemory) -> None:
        self.name = name
        self._memory = memory
        self._read: WeakSet[CudaMemory] = WeakSet()
        """The inputs that lie in it and may still be read."""

    def memory(self, start: int, stop: int) -> Memory:
        memory = CudaMemory(self._memory, self.name, start, stop)
        self._read.add(memory)
        return memory

    def destination(self, start: int, stop: int) -> Destination:
        return CudaMemory(self._memory, self.name, start, stop)

    def close(self) -> None:
        """What may still be read is copied before."""
        for memory in list(self._read):
            try:
                memory.host()
            except Error as error:  # its reader finds the same error
                log.debug("%s", error)
        try:
            self._memory.close()
        except CudaError as error:
            raise Internal(f"failed to close CUDA IPC handle: {error}") from None


class CudaMemory:
    """A part of a client's device memory, for reading or writing. `host` makes one copy and keeps it. Any thread."""

    __slots__ = ("__weakref__", "_copy", "_lock", "_memory", "_name", "_start", "byte_size", "device_id")
    kind = MemoryKind.DEVICE

    def __init__(self, memory: IpcMemory, name: str, start: int, stop: int) -> None:
        self._memory = memory
        self._name = name
        self._start = start
        self.device_id = memory.device_id
        self.byte_size = stop - start
        self._copy: memoryview | None = None
        self._lock = Lock()

    @property
    def owner(self) -> object:
        return self._memory

    def host(self) -> memoryview:
        with self._lock:  # the region may be closed once this returns, on whatever thread
            if self._copy is None:
                try:
                    copied = self._memory.read(self._start, self._start + self.byte_size)
                except CudaError as error:
                    raise Internal(f"failed to read from shared memory region '{self._name}': {error}") from None
                self._copy = memoryview(copied)
            return self._copy

    def write(self, source: Memory) -> None:
        try:
            self._memory.write(self._start, source.host())
        except CudaError as error:
            raise Internal(f"failed to write to shared memory region '{self._name}': {error}") from None

    def __reduce__(self) -> tuple[Any, ...]:
        return HostMemory, (bytes(self.host()),)
