"""What protoc made of the .proto files below `proto/` (tools/proto.py)."""
