"""The cases, one module for each part of the contract. Data only."""

from tests.conformance.case import Case
from tests.conformance.cases import (
    grpc_2_admin,
    grpc_2_control,
    grpc_2_infer,
    grpc_2_shared_memory,
    grpc_2_stream,
    http_1_1_admin,
    http_1_1_connection,
    http_1_1_json,
    http_1_1_routing,
    http_1_2_infer,
    http_1_2_numbers,
    http_1_3_validation,
    http_1_5_shared_memory,
    http_1_6_control,
    http_1_6_settings,
    http_1_6_statistics,
)

_PARTS = (
    http_1_1_routing,
    http_1_1_admin,
    http_1_1_connection,
    http_1_1_json,
    http_1_2_infer,
    http_1_2_numbers,
    http_1_3_validation,
    http_1_5_shared_memory,
    http_1_6_control,
    http_1_6_settings,
    http_1_6_statistics,
    grpc_2_admin,
    grpc_2_control,
    grpc_2_infer,
    grpc_2_shared_memory,
    grpc_2_stream,
)
ALL: tuple[Case, ...] = tuple(case for part in _PARTS for case in part.CASES)
