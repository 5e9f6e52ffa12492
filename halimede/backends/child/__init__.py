"""The child home, the server's side: a backend and its instances whose work is done in processes of their own
(docs/decisions/child-home.md).

`backend` turns the methods of a backend into orders, `instance` turns batches into frames and answers into responses.
`workers.host` starts and restarts the processes. `hosted` is the program in them, for any backend but Python models:
these use `instance` too, with the program `workers.child`.
"""
