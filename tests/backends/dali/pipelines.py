"""Small pipelines, serialised, and pictures for them."""

import io
from collections.abc import Callable
from typing import Any

import numpy as np
from nvidia.dali import fn, pipeline_def, types
from PIL import Image

SIDE = 32
FLOAT = types.FLOAT


def serialized(define: Callable[[], Any], batch_size: int = 8, **options: Any) -> bytes:
    content: bytes = pipeline_def(define)(batch_size=batch_size, num_threads=1, device_id=None, **options).serialize()
    return content


def echo() -> Any:
    return fn.copy(fn.external_source(name="INPUT0", dtype=types.FLOAT, ndim=1), name="OUTPUT0")


def pictures() -> Any:
    """JPEG bytes to a tensor of a fixed size."""
    encoded = fn.external_source(name="IMAGE", dtype=types.UINT8, ndim=1)
    decoded = fn.decoders.image(encoded, device="cpu", output_type=types.RGB)
    small = fn.resize(decoded, resize_x=SIDE, resize_y=SIDE)
    return fn.crop_mirror_normalize(small, dtype=types.FLOAT, output_layout="CHW", mean=[0.0] * 3, std=[255.0] * 3)


def decoded() -> Any:
    """JPEG bytes to a picture of its own size, and its shape."""
    encoded = fn.external_source(name="IMAGE", dtype=types.UINT8, ndim=1)
    picture = fn.decoders.image(encoded, device="cpu", output_type=types.RGB)
    return picture, fn.cast(picture.shape(), dtype=types.INT32)


def texts() -> Any:
    return fn.copy(fn.external_source(name="TEXT", dtype=types.UINT8, ndim=1))


def pairs() -> Any:
    """Each sample becomes two."""
    given = fn.external_source(name="INPUT0", dtype=types.FLOAT, ndim=1)
    return fn.stack(given, given * 2)


def frames() -> Any:
    return fn.experimental.inputs.video(name="VIDEO", sequence_length=5, device="cpu", last_sequence_policy="partial")


def on_gpu() -> Any:
    return fn.copy(fn.external_source(name="INPUT0", dtype=types.FLOAT, ndim=1).gpu())


def jpeg(width: int = 60, height: int = 40, colour: tuple[int, int, int] = (250, 10, 10)) -> Any:
    """The bytes of a picture of one colour, as an array."""
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(buffer, "JPEG", quality=95)
    return np.frombuffer(buffer.getvalue(), np.uint8)


def video(count: int) -> Any:
    """The bytes of a film with so many frames, as an array."""
    import av

    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("libvpx-vp9", rate=5)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(count):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), number * 15, np.uint8), format="rgb24")
            for packet in stream.encode(frame):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return np.frombuffer(buffer.getvalue(), np.uint8)
