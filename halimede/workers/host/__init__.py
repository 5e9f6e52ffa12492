"""Child processes as the server sees them: start, frames over a socket, time limits, restarts, environments.

It knows no batch and no model. What an instance in a child is, `backends.child` says: for any backend, and, with the
additions of `backends.python`, for Python models. The programs in the children are `hosted` (any backend) and
`workers.child` (Python models).
"""
