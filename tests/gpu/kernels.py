"""Kernels for tests in PTX, which the driver compiles: neither torch nor a compiler is needed."""

import ctypes
import os
from pathlib import Path
from typing import Any

PTX = b"""
.version 7.0
.target sm_75
.address_size 64

.visible .entry twice(.param .u64 target, .param .u64 source, .param .u32 count)
{
    .reg .pred %past;
    .reg .f32 %value;
    .reg .b32 %index, %block, %size, %number, %limit;
    .reg .b64 %from, %into, %offset;
    mov.u32 %block, %ctaid.x;
    mov.u32 %size, %ntid.x;
    mov.u32 %number, %tid.x;
    mad.lo.u32 %index, %block, %size, %number;
    ld.param.u32 %limit, [count];
    setp.ge.u32 %past, %index, %limit;
    @%past bra DONE;
    ld.param.u64 %into, [target];
    ld.param.u64 %from, [source];
    cvta.to.global.u64 %into, %into;
    cvta.to.global.u64 %from, %from;
    mul.wide.u32 %offset, %index, 4;
    add.u64 %from, %from, %offset;
    add.u64 %into, %into, %offset;
    ld.global.f32 %value, [%from];
    add.f32 %value, %value, %value;
    st.global.f32 [%into], %value;
DONE:
    ret;
}

.visible .entry busy(.param .u64 nanoseconds)
{
    .reg .pred %early;
    .reg .b64 %now, %end, %wanted;
    ld.param.u64 %wanted, [nanoseconds];
    mov.u64 %end, %globaltimer;
    add.u64 %end, %end, %wanted;
AGAIN:
    mov.u64 %now, %globaltimer;
    setp.lt.u64 %early, %now, %end;
    @%early bra AGAIN;
    ret;
}

.visible .entry fail()
{
    trap;
}
"""
_THREADS = 256


class Kernels:
    """The kernels of `PTX`, for the GPU that is current where this is made. A kernel starts on a stream."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self._module = ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(self._module), PTX)
        self._functions = {name: self._function(name) for name in ("twice", "busy", "fail")}

    def twice(self, target: int, source: int, count: int, stream: int) -> None:
        """Each of `count` numbers of FP32, plus itself."""
        arguments = (ctypes.c_uint64(target), ctypes.c_uint64(source), ctypes.c_uint32(count))
        self._launch("twice", stream, *arguments, threads=count)

    def busy(self, seconds: float, stream: int) -> None:
        """Keeps the stream busy for this time."""
        self._launch("busy", stream, ctypes.c_uint64(int(seconds * 1e9)))

    def fail(self, stream: int) -> None:
        """Breaks the GPU for this process."""
        self._launch("fail", stream)

    def call(self, name: str, *arguments: Any) -> None:
        """A function of the driver, which must succeed."""
        code = getattr(self.library, name)(*arguments)
        assert code == 0, f"{name} returned {code}"

    def _function(self, name: str) -> ctypes.c_void_p:
        function = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(function), self._module, name.encode())
        # Else it is loaded when it is launched first, which may wait for what runs.
        self.call("cuFuncLoad", function)
        return function

    def _launch(self, name: str, stream: int, *arguments: Any, threads: int = 1) -> None:
        blocks, width = -(-threads // _THREADS), min(threads, _THREADS)
        places = (ctypes.c_void_p * max(1, len(arguments)))(*map(ctypes.addressof, arguments))
        shape = [ctypes.c_uint(each) for each in (blocks, 1, 1, width, 1, 1, 0)]
        self.call("cuLaunchKernel", self._functions[name], *shape, ctypes.c_void_p(stream), places, None)


def importing() -> dict[str, str]:
    """The environment of a process that imports `tests`."""
    folders = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
