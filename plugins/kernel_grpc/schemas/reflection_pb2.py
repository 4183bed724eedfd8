"""The messages of reflection.proto, in their own pool. Written by `python3 dev.py proto`; do not edit."""

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

#: The schema's files, those that others import first.
_FILES = (
    (
        b'\n\x10reflection.proto\x12\x12grpc.reflection.v1"\x85'
        b'\x02\n\x17ServerReflectionRequest\x12\x0c\n\x04host\x18\x01 \x01(\t'
        b'\x12\x1a\n\x10file_by_filename\x18\x03 \x01(\tH\x00\x12 \n\x16file_con'
        b'taining_symbol\x18\x04 \x01(\tH\x00\x12I\n\x19file_containin'
        b'g_extension\x18\x05 \x01(\x0b2$.grpc.reflection.v1.E'
        b"xtensionRequestH\x00\x12'\n\x1dall_extension_numbe"
        b'rs_of_type\x18\x06 \x01(\tH\x00\x12\x17\n\rlist_services\x18\x07 \x01('
        b'\tH\x00B\x11\n\x0fmessage_request"E\n\x10ExtensionReque'
        b'st\x12\x17\n\x0fcontaining_type\x18\x01 \x01(\t\x12\x18\n\x10extension'
        b'_number\x18\x02 \x01(\x05"\xb8\x03\n\x18ServerReflectionRespon'
        b'se\x12\x12\n\nvalid_host\x18\x01 \x01(\t\x12E\n\x10original_reque'
        b'st\x18\x02 \x01(\x0b2+.grpc.reflection.v1.ServerRefl'
        b'ectionRequest\x12N\n\x18file_descriptor_respons'
        b'e\x18\x04 \x01(\x0b2*.grpc.reflection.v1.FileDescrip'
        b'torResponseH\x00\x12U\n\x1eall_extension_numbers_r'
        b'esponse\x18\x05 \x01(\x0b2+.grpc.reflection.v1.Exten'
        b'sionNumberResponseH\x00\x12I\n\x16list_services_re'
        b"sponse\x18\x06 \x01(\x0b2'.grpc.reflection.v1.ListSe"
        b'rviceResponseH\x00\x12;\n\x0eerror_response\x18\x07 \x01(\x0b2'
        b'!.grpc.reflection.v1.ErrorResponseH\x00B\x12\n\x10'
        b'message_response"7\n\x16FileDescriptorRespon'
        b'se\x12\x1d\n\x15file_descriptor_proto\x18\x01 \x03(\x0c"K\n\x17Ext'
        b'ensionNumberResponse\x12\x16\n\x0ebase_type_name\x18\x01'
        b' \x01(\t\x12\x18\n\x10extension_number\x18\x02 \x03(\x05"K\n\x13ListSe'
        b'rviceResponse\x124\n\x07service\x18\x01 \x03(\x0b2#.grpc.re'
        b'flection.v1.ServiceResponse"\x1f\n\x0fServiceRe'
        b'sponse\x12\x0c\n\x04name\x18\x01 \x01(\t":\n\rErrorResponse\x12\x12\n'
        b'\nerror_code\x18\x01 \x01(\x05\x12\x15\n\rerror_message\x18\x02 \x01(\t'
        b'2\x89\x01\n\x10ServerReflection\x12u\n\x14ServerReflectio'
        b'nInfo\x12+.grpc.reflection.v1.ServerReflect'
        b'ionRequest\x1a,.grpc.reflection.v1.ServerRe'
        b'flectionResponse(\x010\x01b\x06proto3'
    ),
)

_POOL = descriptor_pool.DescriptorPool()
for _FILE in _FILES:
    _POOL.Add(descriptor_pb2.FileDescriptorProto.FromString(_FILE))
DESCRIPTOR = _POOL.FindFileByName("reflection.proto")

ServerReflectionRequest = message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["ServerReflectionRequest"])
ExtensionRequest = message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["ExtensionRequest"])
ServerReflectionResponse = message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["ServerReflectionResponse"])
FileDescriptorResponse = message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["FileDescriptorResponse"])
ExtensionNumberResponse = message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["ExtensionNumberResponse"])
ListServiceResponse = message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["ListServiceResponse"])
ServiceResponse = message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["ServiceResponse"])
ErrorResponse = message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["ErrorResponse"])
