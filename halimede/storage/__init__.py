"""Model repositories in cloud storage (R24). Each is copied to a local folder, which is removed with the process.

`locations` parses paths, `credentials` finds keys and accounts, `stores` talks to a storage (the only module that
knows the library), `objects` describes what is there, `mirror` keeps the copy of one repository, and `repositories`
has all of them. This package knows neither what a model contains nor the server.
"""
