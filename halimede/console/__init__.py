"""The console: a page for browsers that shows what a server does and lets its user try the models.

A port of its own serves static files, one stream of events, and calls of the public protocol that it passes on to a
`Target`: the server of this process, or any server of Triton's protocol at a URL. Knows nothing of the engine.
"""
