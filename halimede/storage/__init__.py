"""Model repositories in cloud storage (contract R24): what lies there, and a copy of it that goes with the process.

`locations` reads paths, `credentials` finds what opens them, `objects` says what lies there, `stores` talks to the
storage (the only module that knows the library), `mirror` keeps the copy of one repository. Nothing here knows of
models' contents or of the server.
"""
