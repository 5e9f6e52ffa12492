"""The response cache: what requests are equal (`keys`), what is kept of a response (`entries`), and where (`local`,
`redis`).

Knows requests and tensors, and nothing of models, scheduling or statistics: when to look up and what to keep is decided
in `service.response_cache`. A cache belongs to the event loop; what may take a while it does on threads of its own.
"""
