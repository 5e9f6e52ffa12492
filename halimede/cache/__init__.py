"""The response cache: which requests are equal (`keys`), the bytes of a response (`entries`), and the places that keep
them (`local`, `redis`).

Knows requests and tensors, and nothing of models, scheduling or statistics. `engine.response_cache` decides when to
look up and what to insert. A cache belongs to the event loop; `store_threads` do what may block.
"""
