"""`halimede analyze`: finds the configuration of a model that serves best, and says why, as Triton's Model Analyzer.

Pure: `space` (what can be changed), `searches` (what to measure next), `ranking` (what is better), `noise` (how long to
measure), `changes` (configurations and their text), `names`, `tables` and `answer`. `fields`, `settings` and
`command_line` read what the user wants. `control`, `launch`, `meter` and `processes` have to do with the server.
`session` profiles one model, `command` runs everything, `reports`, `plots`, `pages` and `pdf` show it.
"""
