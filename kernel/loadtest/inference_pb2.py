"""The messages of inference.proto, in their own pool. Written by `python3 dev.py proto`; do not edit."""

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

#: The schema's files, those that others import first.
_FILES = (
    (
        b'\n\x0finference.proto\x12\tinference"i\n\x0eInferPar'
        b'ameter\x12\x14\n\nbool_param\x18\x01 \x01(\x08H\x00\x12\x15\n\x0bint64_pa'
        b'ram\x18\x02 \x01(\x03H\x00\x12\x16\n\x0cstring_param\x18\x03 \x01(\tH\x00B\x12\n\x10p'
        b'arameter_choice"\xf8\x02\n\x11ModelInferRequest\x12\x12\n'
        b'\nmodel_name\x18\x01 \x01(\t\x12\x15\n\rmodel_version\x18\x02 \x01(\t'
        b'\x12\n\n\x02id\x18\x03 \x01(\t\x12@\n\nparameters\x18\x04 \x03(\x0b2,.infer'
        b'ence.ModelInferRequest.ParametersEntry\x12='
        b'\n\x06inputs\x18\x05 \x03(\x0b2-.inference.ModelInferReq'
        b'uest.InferInputTensor\x12\x1a\n\x12raw_input_conte'
        b'nts\x18\x07 \x03(\x0c\x1aA\n\x10InferInputTensor\x12\x0c\n\x04name\x18\x01 '
        b'\x01(\t\x12\x10\n\x08datatype\x18\x02 \x01(\t\x12\r\n\x05shape\x18\x03 \x03(\x03\x1aL\n\x0f'
        b'ParametersEntry\x12\x0b\n\x03key\x18\x01 \x01(\t\x12(\n\x05value\x18\x02 '
        b'\x01(\x0b2\x19.inference.InferParameter:\x028\x01"1\n\x18Mo'
        b'delStreamInferResponse\x12\x15\n\rerror_message\x18'
        b'\x01 \x01(\t"-\n\x0cModelRequest\x12\x0c\n\x04name\x18\x01 \x01(\t\x12\x0f\n\x07v'
        b'ersion\x18\x02 \x01(\t"\xb9\x01\n\x15ModelMetadataResponse\x12\x0c'
        b'\n\x04name\x18\x01 \x01(\t\x12\x10\n\x08versions\x18\x02 \x03(\t\x12?\n\x06inputs'
        b'\x18\x04 \x03(\x0b2/.inference.ModelMetadataResponse'
        b'.TensorMetadata\x1a?\n\x0eTensorMetadata\x12\x0c\n\x04nam'
        b'e\x18\x01 \x01(\t\x12\x10\n\x08datatype\x18\x02 \x01(\t\x12\r\n\x05shape\x18\x03 \x03(\x03'
        b'"%\n\x13ModelConfigResponse\x12\x0e\n\x06config\x18\x01 \x01(\x0cb'
        b'\x06proto3'
    ),
)

_POOL = descriptor_pool.DescriptorPool()
for _FILE in _FILES:
    _POOL.Add(descriptor_pb2.FileDescriptorProto.FromString(_FILE))
DESCRIPTOR = _POOL.FindFileByName("inference.proto")

InferParameter = message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["InferParameter"])
ModelInferRequest = message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["ModelInferRequest"])
ModelStreamInferResponse = message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["ModelStreamInferResponse"])
ModelRequest = message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["ModelRequest"])
ModelMetadataResponse = message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["ModelMetadataResponse"])
ModelConfigResponse = message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["ModelConfigResponse"])
