"""Decodes a picture file into pixels: what the demo's `image_decoder` does with Pillow."""

from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.plugin.triton import autoserialize

SIZE = 64


@autoserialize
@pipeline_def(batch_size=16, num_threads=2, device_id=None)
def picture_decoder():
    files = fn.external_source(name="FILE", dtype=types.UINT8, ndim=1)
    decoded = fn.decoders.image(files, device="cpu", output_type=types.RGB)
    small = fn.resize(decoded, resize_x=SIZE, resize_y=SIZE, interp_type=types.INTERP_LINEAR, antialias=True)
    return fn.crop_mirror_normalize(
        small, dtype=types.FLOAT, output_layout="CHW", mean=[0.0, 0.0, 0.0], std=[255.0, 255.0, 255.0]
    )
