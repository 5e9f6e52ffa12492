"""`halimede check`: every problem of the models in repositories, with file, line and what to write instead.

Reads files and runs no code of a model, unless the models are to be loaded too. A load stops at the first problem of a
model; here the same rules are asked to the end. Blocks; any thread, except `check.load`, which runs on an event loop.

`check` is the entry. `repository` looks at one repository after the other and at ensembles as a whole, `model` at one
model, `configuration` at its configuration, `text` and `source` at the text of that, `stray_files` at files that nobody
reads, `abilities` at what the backend cannot do. `advice` adds what to write instead. `verdicts` sums up the problems
of each model, `report` prints, `migration` makes the table and the commands for a repository that comes from Triton.
"""
