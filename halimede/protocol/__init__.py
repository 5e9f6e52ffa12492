"""The protobuf messages of Triton's protocol, made from the .proto files of this folder.

`tensorflow_serving_pb2` has those that `halimede perf` sends to TensorFlow Serving.

The modules `*_pb2` are generated: change the .proto file and run `make protocol`. Their classes live in a descriptor
pool of this package, so a process may also import any version of tritonclient.
"""
