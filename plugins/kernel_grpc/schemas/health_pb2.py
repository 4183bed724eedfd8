"""The messages of health.proto, in their own pool. Written by `python3 dev.py proto`; do not edit."""

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

#: The schema's files, those that others import first.
_FILES = (
    (
        b'\n\x0chealth.proto\x12\x0egrpc.health.v1"%\n\x12Health'
        b'CheckRequest\x12\x0f\n\x07service\x18\x01 \x01(\t"\xa9\x01\n\x13Health'
        b'CheckResponse\x12A\n\x06status\x18\x01 \x01(\x0e21.grpc.hea'
        b'lth.v1.HealthCheckResponse.ServingStatus'
        b'"O\n\rServingStatus\x12\x0b\n\x07UNKNOWN\x10\x00\x12\x0b\n\x07SERVIN'
        b'G\x10\x01\x12\x0f\n\x0bNOT_SERVING\x10\x02\x12\x13\n\x0fSERVICE_UNKNOWN\x10'
        b'\x032\xae\x01\n\x06Health\x12P\n\x05Check\x12".grpc.health.v1.H'
        b'ealthCheckRequest\x1a#.grpc.health.v1.Healt'
        b'hCheckResponse\x12R\n\x05Watch\x12".grpc.health.v1'
        b'.HealthCheckRequest\x1a#.grpc.health.v1.Hea'
        b'lthCheckResponse0\x01b\x06proto3'
    ),
)

_POOL = descriptor_pool.DescriptorPool()
for _FILE in _FILES:
    _POOL.Add(descriptor_pb2.FileDescriptorProto.FromString(_FILE))
DESCRIPTOR = _POOL.FindFileByName("health.proto")

HealthCheckRequest = message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["HealthCheckRequest"])
HealthCheckResponse = message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["HealthCheckResponse"])
