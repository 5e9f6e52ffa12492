"""The machinery of `halimede model run`, `halimede init` and `halimede graph`: tools for authors of models.

`model run`: `neighbours` finds the models that this one needs, `inputs` makes requests, `session` runs the model,
`outputs` shows the responses. `init`: `scaffold` and
`new_config`. `graph`: `graph_sources` reads configurations, `graph_pipeline` makes steps and tensors of them,
`graph_text` and `graph_svg` show these.
"""
