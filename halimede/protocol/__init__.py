"""The protobuf messages of Triton's protocol, made from the .proto files of this folder.

`model_config_pb2` and `inference_pb2` are generated: change the .proto file and run `make protocol`. Their classes live
in a descriptor pool of this package, so a process may also import any version of tritonclient.
"""
